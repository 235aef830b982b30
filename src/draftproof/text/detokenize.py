"""Text of a growing token sequence, without half characters."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from draftproof.core.protocols import Tokenizer

__all__ = ["TextStream"]


class TextStream:
    """Turns tokens into text one by one, holding back unfinished characters.

    Parameters
    ----------
    tokenizer : Tokenizer
        Gives the bytes of each token.

    Notes
    -----
    The pieces that ``push`` and ``flush`` return, joined, equal
    ``tokenizer.decode`` of the same ids, for any ids. U+FFFD comes out only where
    the final text has it: an unfinished character waits for its next byte, and
    becomes U+FFFD when a byte arrives that cannot continue it, or at ``flush``.
    Each token costs time linear in its bytes.
    """

    __slots__ = ("_decoder", "_token_bytes")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Add one token and return the text that has become complete.

        Parameters
        ----------
        token_id : int
            The token.

        Returns
        -------
        str
            New text, possibly empty.
        """
        return self._decoder.decode(self._token_bytes(token_id))

    def extend(self, token_ids: Iterable[int]) -> str:
        """Add several tokens and return the text that has become complete.

        Parameters
        ----------
        token_ids : iterable of int
            The tokens, in order.

        Returns
        -------
        str
            New text, possibly empty.
        """
        return self._decoder.decode(b"".join(map(self._token_bytes, token_ids)))

    def flush(self) -> str:
        """End the text and return what was held back, as U+FFFD.

        Returns
        -------
        str
            Empty unless the last character is unfinished. The stream is then as
            new.
        """
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
