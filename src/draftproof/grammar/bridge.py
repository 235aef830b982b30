"""The vocabulary of a model in the form that llguidance reads, made once per model."""

from __future__ import annotations

import llguidance
import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import Tokenizer
from draftproof.errors import ConfigError

__all__ = ["VocabularyBridge"]

#: llguidance reads a leading 0xFF as the mark of a control token. No UTF-8 text holds
#: that byte, so a token that starts with it can never be part of a match.
_NEVER_IN_UTF8 = b"\xff"


class VocabularyBridge:
    """The tokens of a model as bytes, for the parser.

    Control tokens, end tokens and padding have no bytes here, so no grammar is
    satisfied by the spelling of a control token. Where two ids have the same bytes,
    as the byte tokens of SentencePiece do, both are allowed together.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer of the model.
    vocab_size : int
        Length V of a logits row. Tokens past it cannot be emitted and are left out.

    Attributes
    ----------
    vocab_size : int
        V.
    parser_tokens : llguidance.LLTokenizer
        The trie of the tokens.
    ends : ndarray of bool, shape (V,)
        The end tokens; read only.

    Raises
    ------
    ConfigError
        If no end token lies inside the row.
    """

    __slots__ = ("_end_ids", "_num_tokens", "_tokenizer", "_writable", "ends", "parser_tokens",
                 "vocab_size")  # fmt: skip

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._num_tokens = min(tokenizer.vocab_size, vocab_size)
        self._end_ids = frozenset(t for t in tokenizer.eos_token_ids if t < self._num_tokens)
        if not self._end_ids:
            raise ConfigError(
                f"the model has no end token among its {self._num_tokens} tokens: "
                "a grammar could not end"
            )
        data = [self._bytes_of(token) for token in range(self._num_tokens)]
        self.parser_tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_TokenTable(data, min(self._end_ids))),
            eos_token=sorted(self._end_ids),
        )
        self.ends = np.zeros(vocab_size, dtype=np.bool_)
        self.ends[list(self._end_ids)] = True
        self.ends.flags.writeable = False
        self._writable = np.fromiter(map(bool, data), np.bool_, self._num_tokens)
        self._writable |= self.ends[: self._num_tokens]

    def _bytes_of(self, token: int) -> bytes:
        data = b"" if token in self._end_ids else self._tokenizer.token_bytes(token)
        return b"" if data.startswith(_NEVER_IN_UTF8) else data

    def is_end(self, token: int) -> bool:
        """Return whether a token ends the output."""
        return token in self._end_ids

    def unpack(self, bits: bytes) -> NDArray[np.bool_]:
        """Return llguidance's packed mask as one entry per logit.

        Parameters
        ----------
        bits : bytes
            One bit per token, the lowest first.

        Returns
        -------
        ndarray of bool, shape (V,)
            Padding and control tokens are False. Read only.
        """
        mask = np.zeros(self.vocab_size, dtype=np.bool_)
        packed = np.frombuffer(bits, dtype=np.uint8)
        unpacked = np.unpackbits(packed, count=self._num_tokens, bitorder="little")
        np.logical_and(unpacked, self._writable, out=mask[: self._num_tokens])
        mask.flags.writeable = False
        return mask

    def tokens_of(self, data: bytes) -> tuple[int, ...]:
        """Return the tokens that the model's own tokenizer gives to a piece of text.

        Parameters
        ----------
        data : bytes
            What the tokens shall add to the output.

        Returns
        -------
        tuple of int
            Empty where there are none, where the bytes are no whole characters, or
            the tokenizer cannot write them in the middle of a text.
        """
        if not data:
            return ()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return ()
        # Tokenizers that begin a text with a space do not do so after a line break.
        for lead in ("", "\n"):
            tokens = self._tokenizer.encode(lead + text, add_special=False)
            pieces = [self._tokenizer.token_bytes(token) for token in tokens]
            for start in range(len(lead), len(tokens)):
                if b"".join(pieces[start:]) == data:
                    return tuple(tokens[start:])
        return ()


class _TokenTable:
    """What ``llguidance.TokenizerWrapper`` asks of a tokenizer."""

    def __init__(self, tokens: list[bytes], end: int) -> None:
        self.tokens = tokens
        self.eos_token_id = end
        self.bos_token_id = None
        self.special_token_ids: list[int] = []

    def __call__(self, _text: bytes) -> list[int]:
        # Only asked for canonical tokens, which masks do without (see `compiling`);
        # it may not raise, for an exception here is a panic over there.
        return []
