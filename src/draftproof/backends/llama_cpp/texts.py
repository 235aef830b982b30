"""Which sequence of the library holds which text, and which cells that takes.

A text may be ahead of its sequence: tokens between ``cached`` and the length are computed
again by the next pass, before its own. That is how a text goes back where the library
cannot: a recurrent state is exchanged for one that was kept from before, or begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from draftproof.backends.llama_cpp.cells import CellBooks
from draftproof.backends.llama_cpp.native import LlamaContext
from draftproof.backends.llama_cpp.paths import Path, longest_common
from draftproof.backends.llama_cpp.slots import SlotPool
from draftproof.cache import Branches, CacheUsage, check_path
from draftproof.errors import CapacityError, InvariantError

__all__ = ["PAGE", "Text", "Texts"]

#: Tokens of the unit in which beginnings are shared: prompts are cut at its multiples.
PAGE: Final = 32
#: Most closed texts whose cells are kept: every pass walks over the cells of all texts.
_MAX_IDLE: Final = 8


@dataclass(slots=True, eq=False)
class Text:
    """A sequence as its owner sees it, and what the library holds of it.

    Parameters
    ----------
    token_ids : list of int
        The tokens; while the last row branches, those of all its nodes.
    cells : list of int
        A cell for each, by the numbers of `CellBooks`.
    slot : int, optional
        The library's sequence; None while none was to be had.
    cached : int
        How many tokens that sequence holds.
    num_final : int
        How many tokens may be shared.
    num_reserved : int
        Cells promised for tokens to come.
    branches : Branches, optional
        Shape of the last row while it branches.
    paths : list of Path
        The sequences of its leaves; the first one's is ``slot``.
    kept : tuple of int, optional
        A sequence with an earlier state, and how many tokens that state has seen.
    """

    token_ids: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    slot: int | None = None
    cached: int = 0
    num_final: int = 0
    num_reserved: int = 0
    branches: Branches | None = None
    paths: list[Path] = field(default_factory=list)
    kept: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.token_ids)

    def refuse_branches(self) -> None:
        """Raise while the tokens are not one text."""
        if self.branches is not None:
            raise InvariantError(
                f"the row at {self.branches.begin} branched, expected a truncate to one path first"
            )


class Texts:
    """All open texts, and some that were closed.

    Parameters
    ----------
    context : LlamaContext
        The library's memory.
    books : CellBooks
        Its cells.
    slots : SlotPool
        Its sequences.
    prefix_caching : bool
        Whether texts may begin with the cells of others.
    """

    def __init__(
        self, context: LlamaContext, books: CellBooks, slots: SlotPool, prefix_caching: bool
    ) -> None:
        self._context = context
        self.books = books
        self.slots = slots
        self._sharing = prefix_caching
        self._open: dict[int, Text] = {}
        #: Closed texts; the one that was of use last stands at the end.
        self._idle: list[Text] = []
        self._next_id = 0

    def __getitem__(self, sequence_id: int) -> Text:
        """Return an open text."""
        text = self._open.get(sequence_id)
        if text is None:
            raise InvariantError(f"sequence {sequence_id} is not open")
        return text

    def open(self, token_ids: Sequence[int]) -> int:
        """Start a text, with the pages that another one begins with."""
        text = Text()
        if self._sharing and len(token_ids) > PAGE:
            self._restore(text, list(token_ids))
        return self._register(text)

    def fork(self, sequence_id: int) -> int:
        """Start a text that has all cells of another."""
        source = self[sequence_id]
        source.refuse_branches()
        slot = None
        if source.slot is not None:
            slot = self._take_slot()
            if slot is None:
                raise CapacityError(
                    f"a fork needs one of {self.slots.num_slots} sequences: all taken"
                )
            self._context.share(source.slot, slot, source.cached)
        child = Text(
            list(source.token_ids), list(source.cells), slot, source.cached, source.num_final
        )
        self.books.share(child.cells)
        return self._register(child)

    def reserve(self, text: Text, num_tokens: int) -> bool:
        """Promise cells for the next tokens, and a sequence; False changes nothing."""
        if num_tokens < 0:
            raise InvariantError(f"reserve of {num_tokens} tokens, expected at least 0")
        text.refuse_branches()
        more = max(0, num_tokens - text.num_reserved)
        short = more - self.books.num_available
        if short > 0 and short > self.books.num_alone(idle.cells for idle in self._idle):
            return False
        if text.slot is None:
            text.slot = self._take_slot()
        if text.slot is None:
            return False
        while self.books.num_available < more:
            self._release(self._idle.pop(0))
        self.books.num_promised += more
        text.num_reserved += more
        return True

    def append(self, text: Text, token_ids: Sequence[int], branches: Branches | None) -> None:
        """Move the length over tokens for which there is room."""
        promised = min(text.num_reserved, len(token_ids))
        self.books.num_promised -= promised
        text.num_reserved -= promised
        text.cells += self.books.take(len(token_ids))
        text.token_ids += token_ids
        text.branches = branches

    def truncate(self, text: Text, length: int, keep: Sequence[int]) -> None:
        """Drop the tokens from a length on, but for one path of a row that branched."""
        check_path(text.branches, length, len(text), keep)
        row: list[int] = []
        if text.branches is None:
            length += len(keep)
            self._rewind(text, length)
        else:
            begin = text.branches.begin
            row = [*range(begin, length), *keep]
            length = min(length, begin)
            self._choose_path(text, length, [place - begin for place in row])
        if text.slot is not None and not self._reaches_back(text, text.cached):
            self._context.drop(text.slot, 0)
            text.cached = 0
        dropped = set(range(length, len(text))).difference(row)
        self.books.drop([text.cells[place] for place in sorted(dropped)])
        for values in (text.token_ids, text.cells):
            values[length:] = [values[place] for place in row]
        text.num_final = min(text.num_final, length)
        self._end_reservation(text)

    def undo(self, text: Text, length: int) -> None:
        """Take back a pass that failed. What the library holds then is not known."""
        self._drop_branches(text)
        if text.slot is not None:
            self._context.drop(text.slot, 0)
        text.cached = 0
        self.books.drop(text.cells[length:])
        del text.cells[length:], text.token_ids[length:]
        self._end_reservation(text)

    def commit(self, text: Text) -> None:
        """Let all tokens be shared from now on."""
        text.refuse_branches()
        text.num_final = len(text)

    def keep_state(self, text: Text) -> None:
        """Keep the state that a text has now, to go back to it; if there is no room, not."""
        self._forget_kept(text)
        slot = self.slots.take_spare()
        if slot is not None and text.slot is not None:
            self._context.share(text.slot, slot, text.cached)
            text.kept = (slot, text.cached)

    def close(self, sequence_id: int) -> None:
        """End a text; its final pages stay for a while where they may be of use."""
        text = self[sequence_id]
        del self._open[sequence_id]
        self._drop_branches(text)
        self._end_reservation(text)
        length = min(text.num_final, text.cached) // PAGE * PAGE if self._sharing else 0
        self._shorten(text, length)
        others = [*self._open.values(), *self._idle]
        if not length or any(_begins(other, text.token_ids) for other in others):
            self._release(text)
            return
        text.num_final = length
        for idle in [idle for idle in self._idle if _begins(text, idle.token_ids)]:
            self._idle.remove(idle)
            self._release(idle)
        self._idle.append(text)
        if len(self._idle) > _MAX_IDLE:
            self._release(self._idle.pop(0))

    def usage(self, bytes_per_token: int) -> CacheUsage:
        """Return where the cells are now, in pages."""
        books = self.books
        idle = books.num_alone(text.cells for text in self._idle)
        held = books.num_cells - books.num_available - idle
        total = books.num_cells // PAGE
        held_pages, idle_pages = -(-held // PAGE), idle // PAGE
        return CacheUsage(
            total_pages=total,
            free_pages=max(0, total - held_pages - idle_pages),
            held_pages=held_pages,
            evictable_pages=min(idle_pages, total - held_pages),
            num_sequences=len(self._open),
            total_bytes=books.num_cells * bytes_per_token,
            held_bytes=held * bytes_per_token,
        )

    def num_held(self) -> int:
        """Return how many cells open texts have or were promised."""
        idle = self.books.num_alone(text.cells for text in self._idle)
        return self.books.num_cells - self.books.num_available - idle

    def _register(self, text: Text) -> int:
        self._next_id += 1
        self._open[self._next_id] = text
        return self._next_id

    def _restore(self, text: Text, token_ids: list[int]) -> None:
        """Give an empty text the most pages that some text has of its tokens."""
        best, length = None, 0
        for source in (*self._open.values(), *self._idle):
            most = min(len(token_ids) - 1, source.num_final, source.cached) // PAGE * PAGE
            common = 0
            while common < most and (
                source.token_ids[common : common + PAGE] == token_ids[common : common + PAGE]
            ):
                common += PAGE
            if common > length and self._reaches_back(source, common):
                best, length = source, common
        if best is None or best.slot is None:
            return
        if best in self._idle:
            self._idle.remove(best)
            self._idle.append(best)  # of use: it goes last
        text.slot = self._take_slot()
        if text.slot is None or best.slot is None:
            return  # no sequence is left, or only that of the text itself was
        self._context.share(best.slot, text.slot, length)
        text.token_ids, text.cells = token_ids[:length], best.cells[:length]
        self.books.share(text.cells)
        text.cached = text.num_final = length

    def _reaches_back(self, text: Text, length: int) -> bool:
        """Say whether a sequence has all cells that tokens from a length on may see.

        Cells that fell out of a model's window may have been used again.
        """
        window = self._context.model.window
        if not window or text.slot is None or not length:
            return True
        return self._context.first_position(text.slot) <= max(0, length - window + 1)

    def _rewind(self, text: Text, length: int) -> None:
        """Take a chain back to a length, however the library lets it."""
        if text.cached > length:
            assert text.slot is not None  # narrows the type: something is cached
            if not self._context.model.recurrent and self._context.drop(text.slot, length):
                text.cached = length
            elif text.kept is not None and text.kept[1] <= length:
                self._context.drop(text.slot, 0)
                self.slots.exchange(text.slot, text.kept[0])
                (text.slot, text.cached), text.kept = text.kept, None
            else:
                self._context.drop(text.slot, 0)
                text.cached = 0
        self._forget_kept(text)

    def _choose_path(self, text: Text, length: int, row: Sequence[int]) -> None:
        """Keep the sequence that holds most of a path, as far as it does."""
        assert text.slot is not None  # narrows the type: a row was scored
        path, common = longest_common(text.paths, row)
        for other in text.paths:
            if other is not path and other.slot != text.slot:
                self._context.drop(other.slot, 0)
                self.slots.give_back(other.slot)
        if path.slot != text.slot:
            self._context.drop(text.slot, 0)
            self.slots.exchange(text.slot, path.slot)
            text.slot = path.slot
        text.cached = length + common
        self._context.drop(text.slot, text.cached)
        text.branches, text.paths = None, []

    def _drop_branches(self, text: Text) -> None:
        """Forget the last row, where it branches, and any earlier state."""
        if text.branches is not None:
            begin = text.branches.begin
            if text.paths:
                self._choose_path(text, begin, [])
            self.books.drop(text.cells[begin:])
            del text.cells[begin:], text.token_ids[begin:]
            text.branches = None
        self._forget_kept(text)

    def _forget_kept(self, text: Text) -> None:
        if text.kept is not None:
            self._context.drop(text.kept[0], 0)
            self.slots.give_back(text.kept[0])
            text.kept = None

    def _end_reservation(self, text: Text) -> None:
        self.books.num_promised -= text.num_reserved
        text.num_reserved = 0

    def _shorten(self, text: Text, length: int) -> None:
        """Cut a closed text, whose owner needs it no more."""
        if text.slot is not None:
            self._context.drop(text.slot, length)
        self.books.drop(text.cells[length:])
        del text.cells[length:], text.token_ids[length:]
        text.cached = min(text.cached, length)

    def _release(self, text: Text) -> None:
        """Give back all that a closed text has."""
        self._shorten(text, 0)
        if text.slot is not None:
            self.slots.give_back(text.slot)
            text.slot = None

    def _take_slot(self) -> int | None:
        """Return a sequence for a text, a closed one's if need be."""
        slot = self.slots.take_for_text()
        while slot is None and self._idle:
            self._release(self._idle.pop(0))
            slot = self.slots.take_for_text()
        return slot


def _begins(text: Text, token_ids: Sequence[int]) -> bool:
    """Say whether final cached tokens of a text begin with these."""
    count = len(token_ids)
    return min(text.num_final, text.cached) >= count and text.token_ids[:count] == token_ids
