"""The promises of ``ModelBackend`` about rows that branch, one check each.

A row under test holds one pending token and the nodes of a tree below it. Every node's
logits must be those of a fresh prefill of the text that leads to it, and after a rollback
to one path the sequence must be that text and nothing else. A chain cannot show a wrong
position or mask, so every check has siblings with children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.core.protocols import ModelBackend
from draftproof.errors import DraftproofError
from draftproof.testing.backend_checks import Check
from draftproof.testing.bench import BackendBench, Feed, Logits
from draftproof.testing.report import ConformanceError, Skipped

__all__ = ["TREE_CHECKS"]

#: Shapes below the pending token as parents, 0 for the pending token itself: two leaves;
#: a grandchild below the second child; two families; a fan; two chains side by side.
_SHAPES: tuple[tuple[int, ...], ...] = (
    (0, 0),
    (0, 0, 2),
    (0, 0, 1, 1, 2, 2),
    (0, 0, 0, 0, 0),
    (0, 0, 1, 2, 3, 4, 5, 6),
)


@dataclass(frozen=True, slots=True)
class _Tree:
    """A row that branches: its tokens and the index of each one's parent."""

    token_ids: list[int]
    parents: list[int]

    def path(self, index: int) -> list[int]:
        """Return the indices from the first token down to one."""
        indices: list[int] = []
        while index >= 0:
            indices.append(index)
            index = self.parents[index]
        return indices[::-1]

    def text(self, index: int) -> list[int]:
        """Return the tokens from the first down to one."""
        return [self.token_ids[at] for at in self.path(index)]

    def feed(self, sequence_id: int) -> Feed:
        """Return the row of a pass, every logit wanted."""
        return Feed(sequence_id, self.token_ids, None, self.parents)


def _tree(bench: BackendBench, pending: int, shape: Sequence[int]) -> _Tree:
    """Return a tree of a shape, with distinct tokens among siblings where there are enough."""
    tokens = [pending]
    taken: dict[int, list[int]] = {}
    for parent in shape:
        before = taken.setdefault(parent, [])
        token = bench.tokens(1)[0]
        while token in before and len(before) < bench.vocab_size:
            token = (token + 1) % bench.vocab_size
        before.append(token)
        tokens.append(token)
    return _Tree(tokens, [-1, *shape])


def _random_tree(bench: BackendBench, pending: int, num_nodes: int) -> _Tree:
    """Return a tree whose nodes hang anywhere, so that most have siblings or cousins."""
    shape = [int(bench.rng.integers(0, node + 1)) for node in range(num_nodes)]
    return _tree(bench, pending, shape)


def _expect_nodes(
    bench: BackendBench, found: Logits, text: Sequence[int], tree: _Tree, what: str
) -> None:
    """Compare the logits of all tokens of a tree with fresh prefills."""
    for index, logits in enumerate(found):
        expected = bench.prefill([*text, *tree.text(index)])
        shape = f"{what}, token {index} of the tree {tree.parents}"
        bench.expect_equal(logits[None], expected, shape)


def nodes_equal_their_paths(bench: BackendBench) -> None:
    """Score trees of chosen and of random shape, each in a fresh sequence."""
    backend = _with_trees(bench)
    trees = [_tree(bench, bench.tokens(1)[0], shape) for shape in _SHAPES]
    trees += [_random_tree(bench, bench.tokens(1)[0], nodes) for nodes in range(1, 9)]
    for number, tree in enumerate(trees):
        text = bench.tokens(1 + 3 * number % 11)
        sequence = backend.open()
        bench.feed(backend, Feed(sequence, text, 0))
        found = bench.feed(backend, tree.feed(sequence))[0]
        _expect_nodes(bench, found, text, tree, f"after {len(text)} tokens")
        backend.close(sequence)
    sequence = backend.open()
    found = bench.feed(backend, trees[2].feed(sequence))[0]
    _expect_nodes(bench, found, [], trees[2], "from an empty sequence")


def trees_share_a_pass(bench: BackendBench) -> None:
    """Mix trees, chains, plain rows and a prompt in one pass, in changing order."""
    backend = _with_trees(bench)
    texts = [bench.tokens(count) for count in (3, 7, 12, 5)]
    sequences = [backend.open() for _ in texts]
    rows = zip(sequences, texts, strict=True)
    bench.feed(backend, *(Feed(sequence, text[:-1], 0) for sequence, text in rows))
    for turn in range(4):
        order = [(turn + row) % 4 for row in range(4)]
        # Two trees, a chain that says so and one that does not; then a prompt.
        trees = [_random_tree(bench, texts[row][-1], 3 + turn) for row in range(3)]
        chain = list(range(-1, 2 + turn))
        # The first row of a pass is a tree in some rounds and a chain in others.
        straight = (turn + 1) % 3
        trees[straight] = _Tree(trees[straight].token_ids[: len(chain)], chain)
        plain = [texts[3][-1], *bench.tokens(turn)]
        feeds = [trees[row].feed(sequences[row]) for row in range(3)]
        feeds.append(Feed(sequences[3], plain))
        guest, prompt = backend.open(), bench.tokens(2 + 9 * turn)
        found = bench.feed(backend, *(feeds[row] for row in order), Feed(guest, prompt, 1))
        bench.expect_equal(found[4], bench.prefill(prompt), f"prompt beside trees, round {turn}")
        for row, logits in zip(order, found[:4], strict=True):
            tree = trees[row] if row < 3 else _Tree(plain, list(range(-1, turn)))
            _expect_nodes(bench, logits, texts[row][:-1], tree, f"row {row} of round {turn}")
            _keep(bench, backend, sequences[row], texts[row], tree)
        backend.close(guest)


def kept_paths_equal_fresh(bench: BackendBench) -> None:
    """Keep every path of a tree in turn, then go on at once, by a chain and by a tree."""
    text = bench.tokens(6)
    tree = _tree(bench, text[-1], (0, 0, 1, 1, 2, 2, 3, 6))
    for node in range(len(tree.parents)):
        backend = _with_trees(bench)
        sequence, before = backend.open(), text[:-1]
        bench.feed(backend, Feed(sequence, before, 0))
        bench.feed(backend, tree.feed(sequence))
        path = tree.path(node)
        backend.truncate(sequence, len(text), keep=[len(before) + at for at in path[1:]])
        held = before + tree.text(node)
        what = f"after the path {path} of the tree {tree.parents}"
        bench.expect_length(backend, sequence, len(held))
        tail = bench.tokens(3)
        found = bench.feed(backend, Feed(sequence, tail, 1))[0]
        bench.expect_equal(found, bench.prefill(held + tail), what)
        backend.truncate(sequence, len(held))
        again = _tree(bench, tail[0], _SHAPES[1 + node % 3])
        found = bench.feed(backend, again.feed(sequence))[0]
        _expect_nodes(bench, found, held, again, what)


def rounds_of_trees_equal_fresh(bench: BackendBench) -> None:
    """Decode by trees for many rounds that keep none, some or all of a path."""
    backend = _with_trees(bench)
    sequence, text = backend.open(), bench.tokens(4)
    bench.feed(backend, Feed(sequence, text[:-1], 0))
    for turn in range(10):
        tree = _random_tree(bench, text[-1], 2 + turn % 7)
        if turn % 4 == 3:  # a round with a chain
            tree = _Tree(tree.token_ids, list(range(-1, len(tree.token_ids) - 1)))
        found = bench.feed(backend, tree.feed(sequence))[0]
        _expect_nodes(bench, found, text[:-1], tree, f"round {turn}")
        _keep(bench, backend, sequence, text, tree, drop=turn % 3 == 2)
        backend.commit(sequence)


def kept_paths_are_shared_rightly(bench: BackendBench) -> None:
    """Fork and publish after a path was kept; rejected nodes are found nowhere."""
    backend = _with_trees(bench)
    page = backend.info.page_size or 4
    text = bench.tokens(2 * page - 2)
    tree = _tree(bench, text[-1], (0, 0, 2, 1, 3, 4, 6))
    sequence, before = backend.open(), text[:-1]
    bench.feed(backend, Feed(sequence, before, 0))
    bystander = backend.fork(sequence)
    bench.feed(backend, tree.feed(sequence))
    kept, rejected = before + tree.text(7), before + tree.text(5)
    backend.truncate(sequence, len(text), keep=[len(before) + at for at in tree.path(7)[1:]])
    backend.commit(sequence)
    child = backend.fork(sequence)
    tails = [bench.tokens(page) for _ in range(2)]
    found = bench.feed(backend, Feed(sequence, tails[0], 1), Feed(child, tails[1], 1))
    for logits, tail, who in zip(found, tails, ("a parent", "its fork"), strict=True):
        bench.expect_equal(logits, bench.prefill(kept + tail), f"{who} after a kept path")
    backend.close(child)
    tail = bench.tokens(2)
    logits = bench.feed(backend, Feed(bystander, tail, 1))[0]
    bench.expect_equal(logits, bench.prefill(before + tail), "a fork from before the tree")
    backend.close(bystander)
    backend.commit(sequence)
    # The last one is what books would hold that forgot to drop what the cache dropped.
    for known in (kept + tails[0], rejected + tails[0], before + tree.token_ids):
        again = backend.open([*known, *tail])
        rest = [*known, *tail][backend.length(again) :]
        logits = bench.feed(backend, Feed(again, rest, 1))[0]
        bench.expect_equal(logits, bench.prefill([*known, *tail]), "a text opened after a tree")
        backend.close(again)


def trees_are_refused(bench: BackendBench) -> None:
    """Pass a tree to a model that says it has none: it refuses, and nothing moves."""
    backend = bench.make_backend()
    if backend.info.trees:
        raise Skipped("the model scores trees")
    text = bench.tokens(6)
    sequence = backend.open()
    bench.feed(backend, Feed(sequence, text[:3]))
    try:
        bench.feed(backend, _tree(bench, text[3], _SHAPES[2]).feed(sequence))
    except ConformanceError:
        raise
    except DraftproofError:
        bench.expect_length(backend, sequence, 3)
    else:
        raise ConformanceError("a model without trees accepted one")
    logits = bench.feed(backend, Feed(sequence, text[3:], 1))[0]
    bench.expect_equal(logits, bench.prefill(text), "after a refused tree")


def _with_trees(bench: BackendBench) -> ModelBackend:
    backend = bench.make_backend()
    if not backend.info.trees:
        raise Skipped("the model scores no trees")
    return backend


def _keep(
    bench: BackendBench,
    backend: ModelBackend,
    sequence_id: int,
    text: list[int],
    tree: _Tree,
    *,
    drop: bool = False,
) -> None:
    """Commit a random path of a tree, or none of it, and one token that follows it."""
    node = 0 if drop else int(bench.rng.integers(0, len(tree.token_ids)))
    before = len(text) - 1
    backend.truncate(sequence_id, len(text), keep=[before + index for index in tree.path(node)[1:]])
    text += [*tree.text(node)[1:], *bench.tokens(1)]
    bench.expect_length(backend, sequence_id, len(text) - 1)


#: Checks of rows that branch.
TREE_CHECKS: tuple[Check, ...] = (
    nodes_equal_their_paths,
    trees_share_a_pass,
    kept_paths_equal_fresh,
    rounds_of_trees_equal_fresh,
    kept_paths_are_shared_rightly,
    trees_are_refused,
)
