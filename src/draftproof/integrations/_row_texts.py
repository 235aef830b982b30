"""Which text stands in which row, told by the tokens alone."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowText", "RowTexts"]

#: 32-bit integers, as engines keep token ids.
_TYPE = "i"


@dataclass(slots=True, eq=False)
class RowText:
    """A text that grows at its end.

    Parameters
    ----------
    name : str
        Name of the text, never used twice.
    tokens : array of int
        Its tokens, 4 bytes each.
    """

    name: str
    tokens: array[int] = field(default_factory=lambda: array(_TYPE))

    def begins(self, row: NDArray[np.int32]) -> bool:
        """Say whether a row goes on from this text, or is it."""
        held = len(self.tokens)
        if held == 0:
            return True
        if held > len(row) or self.tokens[-1] != row[held - 1]:
            return False
        return bool(np.array_equal(np.frombuffer(self.tokens, dtype=np.int32), row[:held]))

    def grow(self, row: NDArray[np.int32]) -> None:
        """Append what the row has beyond this text."""
        self.tokens.frombytes(row[len(self.tokens) :].astype(np.int32).tobytes())


class RowTexts:
    """The texts of a batch whose rows have no names.

    Between two calls rows move, end and begin, and nobody says which. A text goes on in
    the row whose tokens begin with all of its own: the row where it stood if that is
    one, else any other. Two rows can be taken for each other only while they hold the
    same tokens, where it makes no difference to whatever depends on the tokens alone.

    What no row goes on from is forgotten at once, so that never more texts are held
    than a batch has rows.
    """

    def __init__(self) -> None:
        self._texts: dict[int, RowText] = {}
        self._num_named = 0

    def __len__(self) -> int:
        """Return how many texts are held."""
        return len(self._texts)

    def follow(self, rows: Mapping[int, NDArray[np.int32]]) -> tuple[dict[int, RowText], list[str]]:
        """Find the text of every row and bring it up to date.

        Parameters
        ----------
        rows : mapping of int to ndarray of int32
            The tokens of each row, by its number in the batch; each of shape (T,).

        Returns
        -------
        texts : dict of int to RowText
            The text of each row, now with all of its tokens.
        ended : list of str
            Names of the texts that are forgotten from now on.
        """
        unclaimed = dict(self._texts)
        claimed = {}
        for number, row in rows.items():
            if number in unclaimed and unclaimed[number].begins(row):
                claimed[number] = unclaimed.pop(number)
        for number, row in rows.items():
            if number in claimed:
                continue
            moved = [place for place, text in unclaimed.items() if text.begins(row)]
            if moved:
                place = max(moved, key=lambda place: len(unclaimed[place].tokens))
                claimed[number] = unclaimed.pop(place)
            else:
                claimed[number] = RowText(f"text {self._num_named}")
                self._num_named += 1
        for number, row in rows.items():
            claimed[number].grow(row)
        self._texts = claimed
        return dict(claimed), [text.name for text in unclaimed.values()]

    def forget(self, number: int) -> None:
        """Forget the text of a row; unknown numbers are ignored.

        Parameters
        ----------
        number : int
            Number of the row in the last call.
        """
        self._texts.pop(number, None)
