"""The printable alphabet in which byte-level vocabularies write raw bytes.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": printable
bytes of Latin-1 stand for themselves, the others are moved past U+0100 in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["BYTE_OF_CHAR", "bytes_of_piece"]


def _alphabet() -> dict[str, int]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    moved = {chr(256 + index): byte for index, byte in enumerate(hidden)}
    return {**{chr(byte): byte for byte in sorted(printable)}, **moved}


#: The byte that each of the 256 characters stands for.
BYTE_OF_CHAR: Final[Mapping[str, int]] = MappingProxyType(_alphabet())


def bytes_of_piece(piece: str) -> bytes | None:
    """Return the bytes that a piece of a byte-level vocabulary stands for.

    Parameters
    ----------
    piece : str
        The piece as its file writes it.

    Returns
    -------
    bytes or None
        The bytes; None if the piece has a character outside the alphabet.
    """
    try:
        return bytes(map(BYTE_OF_CHAR.__getitem__, piece))
    except KeyError:
        return None
