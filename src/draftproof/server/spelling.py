"""Tokens as text and bytes, and log probabilities in OpenAI's two shapes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from draftproof.core.protocols import Tokenizer
from draftproof.engine import TokenEvent

__all__ = ["Speller", "chat_logprobs", "completion_logprobs"]

#: What stands for minus infinity, which JSON cannot write; OpenAI's own number.
LEAST = -9999.0


class Speller:
    """Spells the tokens of one completion, in order.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer.

    Notes
    -----
    ``offset`` of a token is the number of characters that were whole before it, which
    is its place in the text. With a stop string the last tokens may lie past the cut.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def text(self, token_id: int) -> str:
        """Return the text of a token; of half a character, its bytes in words."""
        held = self._tokenizer.token_bytes(token_id)
        if not held:
            return f"token_id:{token_id}"  # a control token: nothing of it is printed
        try:
            return held.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in held)

    def raw(self, token_id: int) -> list[int]:
        """Return the bytes of a token."""
        return list(self._tokenizer.token_bytes(token_id))

    def offset(self, token_id: int) -> int:
        """Return where a token begins, and step over it."""
        at = self._offset
        self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return at


def completion_logprobs(tokens: Sequence[TokenEvent], speller: Speller) -> dict[str, Any]:
    """Return log probabilities as ``/v1/completions`` has them.

    Parameters
    ----------
    tokens : sequence of TokenEvent
        Tokens in order, each reported on.
    speller : Speller
        That of the completion.

    Returns
    -------
    dict
        Four lists of the length of ``tokens``.
    """
    return {
        "tokens": [speller.text(token.token_id) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {speller.text(best): _finite(value) for best, value in token.top_logprobs or ()}
            for token in tokens
        ],
        "text_offset": [speller.offset(token.token_id) for token in tokens],
    }


def chat_logprobs(tokens: Sequence[TokenEvent], speller: Speller) -> dict[str, Any]:
    """Return log probabilities as ``/v1/chat/completions`` has them.

    Parameters
    ----------
    tokens : sequence of TokenEvent
        Tokens in order, each reported on.
    speller : Speller
        That of the completion.

    Returns
    -------
    dict
        One entry per token.
    """
    content = [
        _entry(token.token_id, token.logprob, speller)
        | {"top_logprobs": [_entry(*best, speller) for best in token.top_logprobs or ()]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(token_id: int, logprob: float | None, speller: Speller) -> dict[str, Any]:
    return {
        "token": speller.text(token_id),
        "logprob": _finite(logprob),
        "bytes": speller.raw(token_id),
    }


def _finite(logprob: float | None) -> float:
    return LEAST if logprob is None else max(LEAST, logprob)
