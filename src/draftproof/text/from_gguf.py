"""Build a tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import tokenizers
from tokenizers import models

from draftproof.errors import ModelFileError
from draftproof.models.gguf_metadata import GgufFile
from draftproof.text.byte_level import bytes_of_piece
from draftproof.text.chat import ChatTemplate
from draftproof.text.pretokenizers import split_family
from draftproof.text.spm import SPACE, SentencePieceEncoder
from draftproof.text.tokenizer import LibraryEncoder, PlainEncoder, Tokenizer
from draftproof.text.vocabulary import Token, Vocabulary

__all__ = ["tokenizer_from_gguf"]

# Token types of the format.
_NORMAL: Final = 1
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_UNUSED: Final = 5
_BYTE: Final = 6

_MODELS: Final = ("gpt2", "llama")
_EOS_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
_SPECIAL_KEYS: Final = ("bos_token_id", *_EOS_KEYS, "padding_token_id", "unknown_token_id")


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Parameters
    ----------
    file : GgufFile
        Header of the file.

    Returns
    -------
    Tokenizer
        The tokenizer. Generations end at the file's end-of-text, end-of-turn and
        end-of-message tokens.

    Raises
    ------
    ModelFileError
        If the tokenizer is of a kind that is not supported, which is named, or its
        parts contradict each other.

    Notes
    -----
    User-defined tokens of the file are ordinary text and are found in user text.
    Control tokens are not; neither is any token that the file names as special,
    such as its end-of-text token, whatever type it gives it.
    """
    model = file.require("tokenizer.ggml.model", str)
    if model not in _MODELS:
        raise ModelFileError(
            f"{file.path}: tokenizer model {model!r} is not supported, "
            f"expected one of {', '.join(_MODELS)}"
        )
    texts = file.require("tokenizer.ggml.tokens", tuple)
    types = _types(file, texts)
    if model == "gpt2":
        pre = file.get("tokenizer.ggml.pre", str)
        try:
            family = split_family(pre)
        except ModelFileError as error:
            raise ModelFileError(f"{file.path}: {error}") from None
        vocabulary = Vocabulary(_byte_level_token(i, t, k) for i, (t, k) in _items(texts, types))
        encoder: PlainEncoder = _byte_level_encoder(file, texts, types)
        add_bos = family.add_bos
    else:
        vocabulary = Vocabulary(_spm_token(file, i, t, k) for i, (t, k) in _items(texts, types))
        encoder = _spm_encoder(file, texts, types)
        add_bos = True
    return _assemble(file, vocabulary, encoder, add_bos)


def _items(texts: Sequence[str], types: Sequence[int]) -> enumerate[tuple[str, int]]:
    return enumerate(zip(texts, types, strict=True))


def _assemble(
    file: GgufFile, vocabulary: Vocabulary, encoder: PlainEncoder, add_bos: bool
) -> Tokenizer:
    bos = _special(file, "bos_token_id", len(vocabulary))
    eos = _special(file, "eos_token_id", len(vocabulary))
    ends = [_special(file, key, len(vocabulary)) for key in _EOS_KEYS]
    template = None
    if file.chat_template is not None:
        tokens = tuple(vocabulary.tokens)
        names = {
            "bos_token": "" if bos is None else tokens[bos].text,
            "eos_token": "" if eos is None else tokens[eos].text,
        }
        try:
            template = ChatTemplate(file.chat_template, names)
        except ModelFileError as error:
            raise ModelFileError(f"{file.path}: {error}") from error
    wants_bos = file.get("tokenizer.ggml.add_bos_token", bool, add_bos)
    wants_eos = file.get("tokenizer.ggml.add_eos_token", bool, False)
    return Tokenizer(
        vocabulary,
        encoder,
        eos_token_ids=[index for index in ends if index is not None],
        prefix_ids=[bos] if wants_bos and bos is not None else [],
        suffix_ids=[eos] if wants_eos and eos is not None else [],
        chat_template=template,
    )


def _types(file: GgufFile, texts: Sequence[str]) -> list[int]:
    """Return the type of each token, with the named special ones made control."""
    stored = file.get("tokenizer.ggml.token_type", np.ndarray)
    types: list[int] = [_NORMAL] * len(texts) if stored is None else stored.tolist()
    if len(types) != len(texts):
        raise ModelFileError(
            f"{file.path}: {len(texts)} tokens but {len(types)} token types, expected as many"
        )
    for key in _SPECIAL_KEYS:
        index = _special(file, key, len(texts))
        if index is not None and types[index] in (_NORMAL, _USER_DEFINED):
            types[index] = _CONTROL
    return types


def _special(file: GgufFile, key: str, count: int) -> int | None:
    index = file.get(f"tokenizer.ggml.{key}", int)
    # Converters write 2**32 - 1 for "none".
    return index if index is not None and 0 <= index < count else None


def _common_token(index: int, text: str, kind: int) -> Token | None:
    if kind in (_CONTROL, _UNKNOWN):
        return Token(text, "control")
    if kind == _UNUSED and (not text or text == f"[PAD{index}]"):
        return Token(text, "padding")
    if kind == _USER_DEFINED:
        return Token(text, "text", text.encode())
    return None


def _byte_level_token(index: int, text: str, kind: int) -> Token:
    token = _common_token(index, text, kind)
    if token is not None:
        return token
    data = bytes_of_piece(text)
    # Added tokens without a type of their own are written plainly.
    return Token(text, "text", text.encode() if data is None else data)


def _byte_level_encoder(
    file: GgufFile, texts: Sequence[str], types: Sequence[int]
) -> LibraryEncoder:
    family = split_family(file.get("tokenizer.ggml.pre", str))
    plain = (_NORMAL, _USER_DEFINED, _BYTE)
    # Control tokens stay out, so that no text can become one.
    vocab = {text: i for i, (text, kind) in _items(texts, types) if kind in plain}
    # The byte-level alphabet writes a space as another character, so one space splits a merge.
    pairs = (merge.split(" ") for merge in file.require("tokenizer.ggml.merges", tuple))
    try:
        merges = [(left, right) for left, right in pairs]
        # The library panics on some of these, which is no Exception.
        lost = next((left + right for left, right in merges if left + right not in vocab), None)
        if lost is not None:
            raise ValueError(f"one of them makes {lost!r}, which is no token of text")
        bpe = models.BPE(vocab=vocab, merges=merges, ignore_merges=family.ignore_merges)
    except Exception as error:
        raise ModelFileError(f"{file.path}: the merges are inconsistent: {error}") from error
    tokenizer = tokenizers.Tokenizer(bpe)
    tokenizer.pre_tokenizer = family.pre_tokenizer()
    normalizer = family.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    added = [text for text, kind in zip(texts, types, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in added])
    return LibraryEncoder(tokenizer)


def _spm_token(file: GgufFile, index: int, text: str, kind: int) -> Token:
    token = _common_token(index, text, kind)
    if token is not None:
        return Token(text, "text", text.replace(SPACE, " ").encode()) if token.data else token
    if kind == _BYTE:
        return Token(text, "byte", bytes([_byte_value(file, text)]))
    return Token(text, "text", text.replace(SPACE, " ").encode())


def _byte_value(file: GgufFile, text: str) -> int:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            pass
    raise ModelFileError(f"{file.path}: byte token {text!r}, expected the form <0x0A>")


def _spm_encoder(
    file: GgufFile, texts: Sequence[str], types: Sequence[int]
) -> SentencePieceEncoder:
    scores = file.require("tokenizer.ggml.scores", np.ndarray).tolist()
    if len(scores) != len(texts):
        raise ModelFileError(
            f"{file.path}: {len(texts)} tokens but {len(scores)} scores, expected as many"
        )
    items = list(_items(texts, types))
    return SentencePieceEncoder(
        {text: i for i, (text, kind) in items if kind == _NORMAL},
        scores,
        byte_ids={_byte_value(file, text): i for i, (text, kind) in items if kind == _BYTE},
        literals={text: i for i, (text, kind) in items if kind == _USER_DEFINED and text},
        unknown_id=_special(file, "unknown_token_id", len(texts)),
        space_prefix=bool(file.get("tokenizer.ggml.add_space_prefix", bool, True)),
    )
