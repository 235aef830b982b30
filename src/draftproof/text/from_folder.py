"""Build a tokenizer from a folder with ``tokenizer.json`` and its companions."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import tokenizers

from draftproof.errors import ModelFileError
from draftproof.text.byte_level import bytes_of_piece
from draftproof.text.chat import ChatTemplate
from draftproof.text.spm import SPACE
from draftproof.text.tokenizer import LibraryEncoder, Tokenizer
from draftproof.text.vocabulary import Token, Vocabulary

__all__ = ["tokenizer_from_folder"]

_Alphabet = Literal["byte-level", "sentencepiece"]
_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token")


def tokenizer_from_folder(folder: str | Path) -> Tokenizer:
    """Build the tokenizer of a folder in the layout of Hugging Face models.

    Parameters
    ----------
    folder : str or Path
        Holds ``tokenizer.json`` and, as far as they exist,
        ``tokenizer_config.json``, ``special_tokens_map.json``,
        ``generation_config.json``, ``config.json`` and ``chat_template.jinja``.

    Returns
    -------
    Tokenizer
        The tokenizer. Generations end at every end token that any of the files
        names.

    Raises
    ------
    ModelFileError
        If a file is missing or damaged, or the tokenizer is of a kind that is not
        supported, which is named.

    Notes
    -----
    Added tokens that are marked special are control tokens. Other added tokens are
    ordinary text and are found in user text.
    """
    root = Path(folder)
    spec = _read_json(root / "tokenizer.json")
    if spec is None:
        raise ModelFileError(f"{root}: no tokenizer.json in this folder")
    config = _read_json(root / "tokenizer_config.json") or {}
    special_map = _read_json(root / "special_tokens_map.json") or {}
    kind = (spec.get("model") or {}).get("type")
    if kind != "BPE":
        raise ModelFileError(f"{root}: tokenizer.json is of kind {kind!r}, expected 'BPE'")
    library = _load(root, spec)
    added = {entry["id"]: entry for entry in spec.get("added_tokens", [])}
    vocabulary = Vocabulary(_tokens(library, added, _alphabet(root, spec)))
    names = {
        key: text
        for key in _NAMED
        if (text := _token_text(config.get(key)) or _token_text(special_map.get(key)))
    }
    bos = vocabulary.control_ids.get(names.get("bos_token", ""))
    prefix, suffix = _around(library, config, bos)
    return Tokenizer(
        vocabulary,
        LibraryEncoder(library),
        eos_token_ids=_end_ids(root, names, library, len(vocabulary)),
        prefix_ids=prefix,
        suffix_ids=suffix,
        chat_template=_template(root, config, names),
        inner_encoder=_inner(root, spec),
        strip={
            entry["content"]: (bool(entry.get("lstrip")), bool(entry.get("rstrip")))
            for entry in added.values()
        },
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds a {type(value).__name__}, expected an object")
    return value


def _load(root: Path, spec: Mapping[str, Any]) -> tokenizers.Tokenizer:
    try:
        library = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except Exception as error:
        raise ModelFileError(f"{root / 'tokenizer.json'}: not understood: {error}") from error
    # Limits for training batches have no place here: a prompt is never cut in silence.
    library.no_truncation()
    library.no_padding()
    library.encode_special_tokens = True
    return library


def _alphabet(root: Path, spec: Mapping[str, Any]) -> _Alphabet:
    """Tell from the decoder how pieces spell bytes."""
    decoder = spec.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds:
        return "byte-level"
    if {"ByteFallback", "Metaspace"} & set(kinds):
        return "sentencepiece"
    shown = " + ".join(map(str, kinds))
    raise ModelFileError(
        f"{root}: tokenizer.json has decoder {shown}, expected ByteLevel, ByteFallback or Metaspace"
    )


def _tokens(
    library: tokenizers.Tokenizer, added: Mapping[int, Mapping[str, Any]], alphabet: _Alphabet
) -> Iterator[Token]:
    by_id = {index: text for text, index in library.get_vocab(with_added_tokens=True).items()}
    for index in range(max(by_id, default=-1) + 1):
        text = by_id.get(index)
        if text is None:
            yield Token("", "padding")
        elif index in added:
            special = bool(added[index].get("special"))
            yield Token(text, "control") if special else Token(text, "text", text.encode())
        elif alphabet == "byte-level":
            data = bytes_of_piece(text)
            yield Token(text, "text", text.encode() if data is None else data)
        elif len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            yield Token(text, "byte", bytes.fromhex(text[3:5]))
        else:
            yield Token(text, "text", text.replace(SPACE, " ").encode())


def _around(
    library: tokenizers.Tokenizer, config: Mapping[str, Any], bos: int | None
) -> tuple[list[int], list[int]]:
    """Return what the post-processor puts before and after a text."""
    inside: list[int] = library.encode("a", add_special_tokens=False).ids
    whole: list[int] = library.encode("a", add_special_tokens=True).ids
    start = next(
        i for i in range(len(whole) + 1) if whole[i : i + len(inside)] == inside or i == len(whole)
    )
    prefix, suffix = whole[:start], whole[start + len(inside) :]
    # Some files keep the post-processor of another setting; the flag has the last word.
    wanted = config.get("add_bos_token")
    if wanted is True and bos is not None and bos not in prefix:
        prefix = [bos, *prefix]
    elif wanted is False:
        prefix = [index for index in prefix if index != bos]
    return prefix, suffix


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _end_ids(
    root: Path, names: Mapping[str, str], library: tokenizers.Tokenizer, count: int
) -> frozenset[int]:
    found = {library.token_to_id(names["eos_token"])} if "eos_token" in names else set()
    for name in ("generation_config.json", "config.json"):
        value = (_read_json(root / name) or {}).get("eos_token_id")
        found.update(value if isinstance(value, list) else [value])
    return frozenset(i for i in found if isinstance(i, int) and 0 <= i < count)


def _template(
    root: Path, config: Mapping[str, Any], names: Mapping[str, str]
) -> ChatTemplate | None:
    """Return the default chat template from the places where files keep it."""
    source: Any = None
    own_file = root / "chat_template.jinja"
    if own_file.is_file():
        source = own_file.read_text(encoding="utf-8")
    else:
        source = (_read_json(root / "chat_template.json") or config).get("chat_template")
    if isinstance(source, Sequence) and not isinstance(source, str):
        by_name = {entry["name"]: entry["template"] for entry in source}
        source = by_name.get("default")
    if not isinstance(source, str):
        return None
    try:
        return ChatTemplate(source, names)
    except ModelFileError as error:
        raise ModelFileError(f"{root}: {error}") from error


def _inner(root: Path, spec: Mapping[str, Any]) -> LibraryEncoder | None:
    """Return an encoder for text after a control token, where that differs.

    A `Metaspace` step with the scheme ``first`` puts a space before the whole text
    only. A piece of text that is encoded alone must not look like the first one.
    """
    changed = copy.deepcopy(dict(spec))
    step = changed.get("pre_tokenizer") or {}
    found = False
    for part in step.get("pretokenizers", [step]):
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
            found = True
    return LibraryEncoder(_load(root, changed)) if found else None
