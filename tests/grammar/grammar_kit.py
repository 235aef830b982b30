"""Small tokenizers, and what a regular expression allows by its definition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from draftproof.core.constraint import Constraint, ConstraintFactory, GrammarSpec
from draftproof.grammar import make_constraints

#: Stands in a list of pieces for a token without bytes.
CONTROL = b""


class Pieces:
    """A tokenizer that is a list of byte strings; encodes by the longest match."""

    def __init__(self, pieces: Sequence[bytes], ends: Sequence[int] = (0,)) -> None:
        self.pieces = list(pieces)
        self.eos_token_ids = frozenset(ends)

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.written(token_ids).decode("utf-8", "replace")

    def written(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.pieces[i] for i in token_ids if i not in self.eos_token_ids)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        data, ids = text.encode(), []
        while data:
            fitting = [i for i, p in enumerate(self.pieces) if p and data.startswith(p)]
            ids.append(max(fitting, key=lambda i: len(self.pieces[i])))
            data = data[len(self.pieces[ids[-1]]) :]
        return ids

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        raise NotImplementedError


def byte_pieces(*longer: bytes) -> Pieces:
    """All bytes, then longer pieces; id 0 ends, id 1 is a control token."""
    return Pieces([b"<end>", CONTROL, *(bytes([b]) for b in range(256)), *longer])


def factory(tokenizer: Pieces, padding: int = 0) -> ConstraintFactory:
    return make_constraints(tokenizer, tokenizer.vocab_size + padding)


def after(make: ConstraintFactory, spec: GrammarSpec, tokens: Sequence[int]) -> Constraint:
    """Return a constraint that has taken in the tokens and was asked nothing else."""
    constraint = make(spec)
    for token in tokens:
        constraint.advance(token)
    return constraint


def ids(mask: Any) -> list[int] | None:
    return None if mask is None else np.flatnonzero(mask).tolist()


@dataclass
class Definition:
    """All texts of a regular expression up to a length, and what may continue one."""

    pattern: str
    alphabet: str
    longest: int

    def __post_init__(self) -> None:
        regex = re.compile(self.pattern)
        texts = (
            "".join(chars)
            for length in range(self.longest + 1)
            for chars in product(self.alphabet, repeat=length)
        )
        self.words = {text.encode() for text in texts if regex.fullmatch(text)}
        self.prefixes = {word[:n] for word in self.words for n in range(len(word) + 1)}

    def allowed(self, tokenizer: Pieces, path: Sequence[int], size: int) -> list[int] | None:
        """What `Constraint.allowed` must say about a path from the start."""
        ends = sorted(tokenizer.eos_token_ids)
        text = [token for token in path if token not in ends]
        if any(not 0 <= t < tokenizer.vocab_size or not tokenizer.pieces[t] for t in text):
            return None
        written = tokenizer.written(text)
        if len(text) < len(path):  # an end, and then ends only
            whole = written in self.words and all(token in ends for token in path[len(text) :])
            return ends if whole else None
        if written not in self.prefixes:
            return None
        return [
            token
            for token in range(min(size, tokenizer.vocab_size))
            if (token in ends and written in self.words)
            or (
                token not in ends
                and tokenizer.pieces[token]
                and written + tokenizer.pieces[token] in self.prefixes
            )
        ]
