"""How byte-level models of each family split text before merging.

A GGUF file names the family in ``tokenizer.ggml.pre`` and leaves the rule to the
reader. The patterns are the ones that the models' own ``tokenizer.json`` files
carry. A wrong pattern would still decode, only worse, so unknown names are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tokenizers import Regex, normalizers, pre_tokenizers

from draftproof.errors import ModelFileError

__all__ = ["FAMILIES", "SplitFamily", "split_family"]

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LOWER_END: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER_START: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)


@dataclass(frozen=True, slots=True)
class SplitFamily:
    """Splitting rule and defaults of one family.

    Parameters
    ----------
    pattern : str or None
        Regular expression whose matches become pieces; None for the one of GPT-2.
    single_digits : bool
        Cut out every numeric character first.
    ignore_merges : bool
        A piece that is a token is taken whole, whatever the merges say.
    add_bos : bool
        Begin with the begin-of-text token when the file does not say.
    nfc : bool
        Compose characters first, as the model's own tokenizer does.
    """

    pattern: str | None = None
    single_digits: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return the splitting rule for the ``tokenizers`` library.

        Returns
        -------
        tokenizers.pre_tokenizers.PreTokenizer
            Splits, then writes bytes in the byte-level alphabet.
        """
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        own = self.pattern is None
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return the normalisation for the ``tokenizers`` library, if there is one.

        Returns
        -------
        tokenizers.normalizers.Normalizer or None
            NFC or nothing.
        """
        return normalizers.NFC() if self.nfc else None


_GPT2 = SplitFamily()
_DIGITS = SplitFamily(single_digits=True)
_TRIPLES = rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_LLAMA3 = SplitFamily(_TRIPLES, ignore_merges=True, add_bos=True)
_DBRX = SplitFamily(_TRIPLES)
_QWEN2 = SplitFamily(rf"{_CONTRACTIONS}|{_WORD}|\p{{N}}|{_REST}", nfc=True)
_QWEN35 = SplitFamily(
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    nfc=True,
)
_TEKKEN = SplitFamily(
    rf"{_LOWER_END}|{_UPPER_START}|\p{{N}}|{_REST_SLASH}", ignore_merges=True, add_bos=True
)
_GPT4O = SplitFamily(
    rf"{_LOWER_END}{_CONTRACTIONS}?|{_UPPER_START}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_REST_SLASH}"
)

#: The families by the name that GGUF files use.
FAMILIES: Final[Mapping[str, SplitFamily]] = MappingProxyType(
    {
        "gpt-2": _GPT2,
        "phi-2": _GPT2,
        "mpt": _GPT2,
        "olmo": _GPT2,
        "exaone4": _GPT2,
        "smollm": _DIGITS,
        "starcoder": _DIGITS,
        "refact": _DIGITS,
        "command-r": _DIGITS,
        "codeshell": _DIGITS,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama-bpe": _LLAMA3,
        "falcon3": _LLAMA3,
        "dbrx": _DBRX,
        "smaug-bpe": _DBRX,
        "qwen2": _QWEN2,
        "qwen35": _QWEN35,
        "tekken": _TEKKEN,
        "gpt-4o": _GPT4O,
        "llama4": _GPT4O,
    }
)


def split_family(name: str | None) -> SplitFamily:
    """Return the family of a ``tokenizer.ggml.pre`` name.

    Parameters
    ----------
    name : str or None
        Value of the key; None when the file lacks it.

    Returns
    -------
    SplitFamily
        The rule.

    Raises
    ------
    ModelFileError
        If the name is missing or unknown.
    """
    if name is None:
        raise ModelFileError(
            "the file has no tokenizer.ggml.pre, so how it splits text is unknown; "
            "hint: convert the model again with a current converter"
        )
    family = FAMILIES.get(name)
    if family is None:
        raise ModelFileError(
            f"unknown tokenizer.ggml.pre {name!r}, expected one of {', '.join(FAMILIES)}"
        )
    return family
