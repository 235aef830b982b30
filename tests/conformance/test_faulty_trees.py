"""The backend kit fails every planted fault of rows that branch."""

from collections import defaultdict

import pytest

from draftproof.backends.table import (
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    RecurrentStore,
    TableBackend,
    WindowStore,
)
from draftproof.errors import InvariantError
from draftproof.testing import check_backend
from draftproof.testing.tree_checks import TREE_CHECKS

TABLE = MixedTable(MarkovTable(7, None, seed=1), PositionTable(7, seed=2), 0.5)
NODES, SHARED_PASS, KEPT, ROUNDS, SHARED, REFUSED = (check.__name__ for check in TREE_CHECKS)


def model(store=None, cls=TableBackend, **kwargs):
    return cls(TABLE, store or PagedStore(64, 4), context_length=200, **kwargs)


def pages(**kwargs):
    return PagedStore(64, 4, **kwargs)


def failures(make, seed=0):
    report = check_backend(make, tolerance=0.0, seed=seed, names=[c.__name__ for c in TREE_CHECKS])
    return {result.name for result in report.failures}


class SeesTheWholeTree(TableBackend):
    """Scores a tree as the chain of its tokens, at positions that are depths."""

    def _tree(self, batch, begin, end):
        tree = super()._tree(batch, begin, end)
        return tree._replace(sees=tuple(tuple(range(n + 1)) for n in range(end - begin)))


class SeesItsParentOnly(TableBackend):
    """Loses the ancestors above the parent."""

    def _tree(self, batch, begin, end):
        tree = super()._tree(batch, begin, end)
        return tree._replace(sees=tuple(seen[-2:] for seen in tree.sees))


class ShapeOfTheFirstTree(TableBackend):
    """Every tree of a pass gets the mask of the first."""

    def _tree(self, batch, begin, end):
        tree = super()._tree(batch, begin, end)
        if begin == 0:
            self.first = tree
        elif len(self.first.parents) >= len(tree.parents):
            return tree._replace(sees=self.first.sees[: len(tree.parents)])
        return tree


class KeepsTheLongestPath(TableBackend):
    """Never drops the nodes below the last one kept."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rows = {}

    def _append(self, batch):
        starts = {s: self.length(s) for s in batch.sequence_ids}
        logits = super()._append(batch)
        for record in self.passes[-len(batch.sequence_ids) :]:
            self.rows[record.sequence_id] = (starts[record.sequence_id], record.parents)
        return logits

    def truncate(self, sequence_id, length, keep=()):
        begin, parents = self.rows.get(sequence_id, (0, None))
        children = defaultdict(list)
        for index, parent in enumerate(parents or ()):
            children[begin + parent].append(begin + index)
        keep = list(keep)
        while keep and children[keep[-1]]:
            keep.append(children[keep[-1]][0])
        super().truncate(sequence_id, length, keep)


class ForgetsTheKeep(TableBackend):
    """Rolls back to the pending token, whatever was kept."""

    def truncate(self, sequence_id, length, keep=()):
        super().truncate(sequence_id, length)


class BooksTheRowAsItCame(PagedStore):
    """Moves the memory but not the tokens in the books, which name published pages."""

    def truncate(self, sequence_id, length, keep=()):
        before = self.cache.tokens(sequence_id)
        super().truncate(sequence_id, length, keep)
        state = self.cache._sequences[sequence_id]
        state.tokens[: state.length] = before[: state.length]


class MovesPositionsNot(PagedStore):
    """Moves tokens and leaves the positions of the slots: keys without their rotation."""

    def truncate(self, sequence_id, length, keep=()):
        before = self._positions.copy()
        super().truncate(sequence_id, length, keep)
        self._positions[:] = before


class TakesTrees(RecurrentStore):
    """A recurrent state that reads a tree as a chain."""

    def append(self, sequence_id, token_ids, positions, wanted, span, tree=None):
        return super().append(sequence_id, token_ids, positions, wanted, span)


class Lenient(TableBackend):
    """Says that it has no trees, and appends them before it refuses."""

    def _check(self, batch):
        if batch.parents is not None and not self.info.trees:
            for row, sequence_id in enumerate(batch.sequence_ids):
                piece = slice(batch.row_begins[row], batch.row_begins[row + 1])
                self.store.append(
                    sequence_id, batch.token_ids[piece], batch.positions[piece], [], None
                )
            raise InvariantError("no trees")
        super()._check(batch)


class Claims(TakesTrees):
    trees = True


SCORING = {NODES, SHARED_PASS, KEPT, ROUNDS}
KEEPING = {SHARED_PASS, KEPT, ROUNDS, SHARED}


FAULTS = {
    "positions by index": (lambda: model(tree_fault="index-positions"), SCORING),
    "sees siblings": (lambda: model(tree_fault="sees-siblings"), SCORING),
    "sees the whole tree": (lambda: model(cls=SeesTheWholeTree), SCORING),
    "sees its parent only": (lambda: model(cls=SeesItsParentOnly), SCORING),
    "mask of the first tree": (lambda: model(cls=ShapeOfTheFirstTree), {SHARED_PASS}),
    "keeps the first slots": (lambda: model(pages(keep_fault="stays-in-place")), KEEPING),
    "keeps in reverse": (lambda: model(pages(keep_fault="reversed")), {KEPT, SHARED}),
    "window keeps the first slots": (
        lambda: model(WindowStore(5, keep_fault="stays-in-place")),
        KEEPING,
    ),
    "window keeps in reverse": (
        lambda: model(WindowStore(5, keep_fault="reversed")),
        {KEPT, SHARED},
    ),
    "moves no positions": (lambda: model(MovesPositionsNot(64, 4)), {KEPT, SHARED}),
    "keeps the longest path": (lambda: model(cls=KeepsTheLongestPath), {KEPT}),
    "forgets what to keep": (lambda: model(cls=ForgetsTheKeep), KEEPING),
    "books the row as it came": (lambda: model(BooksTheRowAsItCame(64, 4)), {SHARED}),
    "reads a tree as a chain": (lambda: model(Claims(3)), SCORING),
    "appends before it refuses": (lambda: model(RecurrentStore(3), Lenient), {REFUSED}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_by_the_checks_that_are_meant_to(fault):
    make, seen = FAULTS[fault]
    # Whatever the seed: no fault is left to chance.
    for seed in (0, 1):
        assert seen <= failures(make, seed)


def test_what_is_right_passes_with_other_seeds():
    for seed in range(1, 4):
        assert failures(model, seed) == set()
        assert failures(lambda: model(WindowStore(4)), seed) == set()
