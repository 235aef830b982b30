"""The numbered sequences of the library: for texts, and spare ones for branches of them."""

from __future__ import annotations

__all__ = ["SlotPool"]


class SlotPool:
    """Numbers that are free.

    Parameters
    ----------
    num_slots : int
        Sequences of the library.
    num_spare : int
        How many of them texts may not take.
    """

    def __init__(self, num_slots: int, num_spare: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._texts_left = num_slots - num_spare
        self._of_texts: set[int] = set()

    def take_for_text(self) -> int | None:
        """Return a number for a text, None when texts have all that they may."""
        if not self._free or len(self._of_texts) >= self._texts_left:
            return None
        slot = self._free.pop()
        self._of_texts.add(slot)
        return slot

    def take_spare(self) -> int | None:
        """Return a number for a branch or an earlier state, None when there is none."""
        return self._free.pop() if self._free else None

    def exchange(self, old: int, new: int) -> None:
        """Let a spare number be the text's from now on, and give the old one back."""
        self._of_texts.add(new)
        self.give_back(old)

    def give_back(self, slot: int) -> None:
        """Free a number."""
        self._of_texts.discard(slot)
        self._free.append(slot)
