"""Stop strings, found in text that arrives in pieces.

The rule is a function of the text alone, so it cannot depend on how the text was
cut into tokens, blocks or streamed chunks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.errors import ConfigError, InvariantError

__all__ = ["StopMatcher", "StopUpdate"]


@dataclass(frozen=True, slots=True)
class StopUpdate:
    """What one piece of text brought.

    Parameters
    ----------
    text : str
        Text that may be streamed now. It never holds any part of the match, and
        never a character that could still become part of one.
    stop : str or None
        The stop string that has completed, if one has.
    start : int or None
        Index in the whole text of the first character of that stop string: the
        length of the text that remains.
    end : int or None
        Index in the whole text after its last character. Text past it is dropped.
    """

    text: str = ""
    stop: str | None = None
    start: int | None = None
    end: int | None = None


class StopMatcher:
    """Finds the first of several stop strings to complete in a growing text.

    Parameters
    ----------
    stop_strings : sequence of str
        The stop strings; none may be empty. Repetitions are harmless.

    Raises
    ------
    ConfigError
        If a stop string is empty, or one string is given in place of a list.

    Notes
    -----
    Rule: the stop string that *completes* first wins. Of several that complete at
    the same character the longest wins, so the cut is at the earliest start. Of
    two that start together the shorter one completes first, and the cut is the
    same. A stop string counts only when all its characters have arrived, so the
    decision for a text is the same whatever the pieces were.

    Call ``push`` once per committed token and end the request at the first
    update with a ``stop``. The token that completed it is the last one of the
    request; text of that token past ``end`` is dropped.

    One automaton over all stop strings (Aho and Corasick, 1975, "Efficient string
    matching") reads each character once: amortised constant time per character,
    independent of the number and length of the stop strings. Its depth is the
    length of the longest suffix that could still become a stop string, which is
    exactly what must be held back.
    """

    __slots__ = ("_automaton", "_held", "_length", "_matched", "_node")

    def __init__(self, stop_strings: Sequence[str] = ()) -> None:
        if isinstance(stop_strings, str):
            raise ConfigError(f"stop strings are {stop_strings!r}, expected a list of strings")
        self._automaton = _Automaton(stop_strings) if stop_strings else None
        self._node = 0
        self._held = ""
        self._length = 0
        self._matched = False

    def push(self, text: str, *, may_stop: bool = True) -> StopUpdate:
        """Read the next piece of text.

        Parameters
        ----------
        text : str
            Text of the next token, possibly empty.
        may_stop : bool
            Whether a stop string may end the request with this token. One that
            completes while it may not is plain text; one that has only begun
            can still complete later.

        Returns
        -------
        StopUpdate
            Text that is safe to stream, and the match if one has completed.

        Raises
        ------
        InvariantError
            If a stop string has completed before.
        """
        if self._matched:
            raise InvariantError("text was pushed after a stop string had completed")
        if self._automaton is None:
            self._length += len(text)
            return StopUpdate(text)
        step, node = self._automaton.step, self._node
        for index, char in enumerate(text):
            node = step(node, char)
            stop = self._automaton.stop_at[node]
            if stop is not None:
                if may_stop:
                    return self._match(text, index + 1, stop)
                node = self._automaton.past(node)
        self._node = node
        self._length += len(text)
        return StopUpdate(self._release(self._held + text, self._automaton.depth[node]))

    def flush(self, tail: str = "") -> str:
        """Return the text that was held back, once no more tokens will come.

        Parameters
        ----------
        tail : str
            Text that the end itself brings, such as an unfinished character. It
            belongs to no token and completes no stop string.

        Returns
        -------
        str
            The rest of the text, ``tail`` included; empty after a match.
        """
        if self._matched:
            return ""
        rest, self._held = self._held + tail, ""
        self._node = 0
        return rest

    def _match(self, text: str, count: int, stop: str) -> StopUpdate:
        end = self._length + count
        start = end - len(stop)
        # Held text begins at this index of the whole text.
        held_from = self._length - len(self._held)
        safe = (self._held + text)[: start - held_from]
        self._matched, self._held = True, ""
        return StopUpdate(safe, stop, start, end)

    def _release(self, pending: str, keep: int) -> str:
        cut = len(pending) - keep
        self._held = pending[cut:]
        return pending[:cut]


class _Automaton:
    """Trie of the stop strings with failure links; read only once built."""

    __slots__ = ("_children", "_fail", "depth", "stop_at")

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self.depth = [0]
        #: Longest stop string that ends at each node, or None.
        self.stop_at: list[str | None] = [None]
        for stop in stop_strings:
            if not stop:
                raise ConfigError("a stop string is empty, expected at least one character")
            self._insert(stop)
        self._fail = [0] * len(self.depth)
        self._link()

    def step(self, node: int, char: str) -> int:
        """Return the node for the longest suffix that is a prefix of a stop string."""
        children = self._children
        while (child := children[node].get(char)) is None:
            if node == 0:
                return 0
            node = self._fail[node]
        return child

    def past(self, node: int) -> int:
        """Return the node of the longest suffix that can still grow to a stop string."""
        while node and not self._children[node]:
            node = self._fail[node]
        return node

    def _insert(self, stop: str) -> None:
        node = 0
        for char in stop:
            child = self._children[node].get(char)
            if child is None:
                child = len(self.depth)
                self._children[node][char] = child
                self._children.append({})
                self.depth.append(self.depth[node] + 1)
                self.stop_at.append(None)
            node = child
        self.stop_at[node] = stop

    def _link(self) -> None:
        """Set failure links and inherit shorter stops, breadth first."""
        queue = deque(self._children[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._children[node].items():
                self._fail[child] = self.step(self._fail[node], char)
                if self.stop_at[child] is None:
                    self.stop_at[child] = self.stop_at[self._fail[child]]
                queue.append(child)
