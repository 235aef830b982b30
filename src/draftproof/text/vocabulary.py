"""The strings of a vocabulary, and whether two models share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from draftproof.core.protocols import Tokenizer
from draftproof.errors import IncompatibleModelsError, ModelFileError

__all__ = ["HasVocabulary", "Token", "TokenKind", "Vocabulary", "check_same_vocabulary"]

#: ``text`` adds its bytes to the output. ``control`` adds nothing and is never made
#: from user text. ``byte`` is one raw byte of a fallback. ``padding`` fills up the
#: logits row and has no string.
TokenKind = Literal["text", "control", "byte", "padding"]


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of a vocabulary.

    Parameters
    ----------
    text : str
        The token as its file writes it, in the alphabet of the file.
    kind : {"text", "control", "byte", "padding"}
        What the token does.
    data : bytes
        Bytes that the token adds to the output; empty for control and padding.
    """

    text: str
    kind: TokenKind
    data: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """All tokens of a model, by id.

    Parameters
    ----------
    tokens : iterable of Token
        The tokens in the order of their ids. Trailing padding is dropped.

    Attributes
    ----------
    data : tuple of bytes, length V
        Bytes that each token adds to the output.
    keys : tuple of (bytes or None), length V
        What makes a token the same in two files of different alphabets: the bytes
        of text, the spelling of control and byte tokens, None for padding.
    control_ids : mapping of str to int
        The control tokens by spelling.
    """

    tokens: Iterable[Token]
    data: tuple[bytes, ...] = field(init=False)
    keys: tuple[bytes | None, ...] = field(init=False)
    control_ids: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Derive the tables that decoding and comparing read."""
        tokens = list(self.tokens)
        while tokens and tokens[-1].kind == "padding":
            tokens.pop()
        if not tokens:
            raise ModelFileError("the vocabulary has no tokens")
        control = {t.text: i for i, t in enumerate(tokens) if t.kind == "control"}
        object.__setattr__(self, "tokens", tuple(tokens))
        object.__setattr__(self, "data", tuple(t.data for t in tokens))
        object.__setattr__(self, "keys", tuple(map(_key, tokens)))
        object.__setattr__(self, "control_ids", control)

    def __len__(self) -> int:
        """Return the number of ids, up to the last one with a string."""
        return len(self.data)


def _key(token: Token) -> bytes | None:
    if token.kind == "padding":
        return None
    return token.data if token.kind == "text" else token.text.encode()


@runtime_checkable
class HasVocabulary(Protocol):
    """A tokenizer that also knows the spelling of its control tokens."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens by id."""
        ...


def check_same_vocabulary(
    target: Tokenizer, draft: Tokenizer, target_size: int, draft_size: int
) -> int:
    """Refuse a drafter whose tokens mean something else than the target's.

    Parameters
    ----------
    target, draft : Tokenizer
        The two tokenizers. Those with a ``vocabulary`` are compared by spelling,
        control tokens included; others by the bytes that each token adds.
    target_size, draft_size : int
        Lengths of the two logits rows, padding included.

    Returns
    -------
    int
        Number of ids that have a string in both models. Ids from here on are
        padding: they may not be proposed, and their probability is 0.

    Raises
    ------
    IncompatibleModelsError
        If an id means different things, if one model has tokens that the other
        lacks, or if a logits row is shorter than its vocabulary. The message
        names the first differing id and both strings.

    Notes
    -----
    Sizes may differ by padding alone: ids without a string past the last real
    token, in either model. Comparing 150k tokens takes some milliseconds.
    """
    target_keys, draft_keys = _comparable(target, draft)
    sides = (("target", target_keys, target_size), ("draft", draft_keys, draft_size))
    for role, keys, size in sides:
        if len(keys) > size:
            raise IncompatibleModelsError(
                f"the {role} has {len(keys)} tokens but scores only {size} ids"
            )
    if target_keys == draft_keys:
        return len(target_keys)
    shared = min(len(target_keys), len(draft_keys))
    for index in range(shared):
        if target_keys[index] != draft_keys[index]:
            raise IncompatibleModelsError(
                f"the vocabularies differ at id {index}: "
                f"target {_shown(target_keys[index])}, draft {_shown(draft_keys[index])}"
            )
    longer, keys = ("target", target_keys) if len(target_keys) > shared else ("draft", draft_keys)
    shorter = "draft" if longer == "target" else "target"
    raise IncompatibleModelsError(
        f"the {longer} has {len(keys)} tokens, the {shorter} {shared}: "
        f"id {shared} is {_shown(keys[shared])} in the {longer} and nothing in the {shorter}"
    )


def _comparable(
    target: Tokenizer, draft: Tokenizer
) -> tuple[Sequence[bytes | None], Sequence[bytes | None]]:
    if isinstance(target, HasVocabulary) and isinstance(draft, HasVocabulary):
        return target.vocabulary.keys, draft.vocabulary.keys
    # Only one side spells its control tokens out: compare what both can say.
    return _data(target), _data(draft)


def _data(tokenizer: Tokenizer) -> Sequence[bytes | None]:
    return tuple(tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size))


def _shown(key: bytes | None) -> str:
    if key is None:
        return "padding"
    try:
        return repr(key.decode())
    except UnicodeDecodeError:
        return repr(key)
