"""Trees of drafts from a draft head, one pass for each depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import ProposalRequest
from draftproof.core.siblings import TreeBuilder
from draftproof.core.types import TreeDraft
from draftproof.errors import DraftproofError
from draftproof.proposers._chosen_siblings import finishers, likeliest
from draftproof.proposers._head_reading import UNKNOWN, HeadReader, HeadRunner, Reading
from draftproof.proposers.tree_shapes import Shape, check_shape, depth_of, shape_of

__all__ = ["DraftHeadTreeProposer"]

Floats = NDArray[np.float32]


@dataclass(slots=True)
class _Branch:
    """A node that will get children, and what its path has been read to."""

    row: _Growing
    shape: Shape
    #: Predicted feature before the node's token, and keys and values of the path above it.
    feature: Floats
    keys: Floats
    values: Floats
    node: int = -1
    text: tuple[int, ...] = ()


@dataclass(slots=True)
class _Growing(Reading):
    """One row while its tree grows; ``place`` is its number among the rows that draft."""

    place: int
    shape: Shape
    #: Nodes of another drafter that the head reads before it goes on below them.
    path: tuple[int, ...]
    builder: TreeBuilder
    note: str = ""
    #: The nodes of the current depth that will get children.
    branches: list[_Branch] = field(default_factory=list)


class DraftHeadTreeProposer(HeadReader):
    """Drafts trees from a head that goes on from the target's own hidden states.

    The children of a node are drawn without replacement from the head's law after it, as
    `draftproof.proposers.DraftModelTreeProposer` draws those of a model: under the
    request's policy, with that law recorded, and with the shape of the tree fixed before
    anything is drawn. Greedy requests get the likeliest tokens, coupled ones the first
    finishers of the race. Each branch is a row of the head's pass with keys and values of
    its own path; what requests remember is what `draftproof.proposers.DraftHeadProposer`
    remembers, true features only, so that nothing has to be taken back.

    Parameters
    ----------
    runner : HeadRunner
        Computes the head.
    widths : sequence of int, optional
        Most children of a node by depth, the committed text first.
    acceptance : float, default 0.6
        Chance that the first child of a node is kept, in (0, 1); it shapes the tree.
    temperature : float, optional
        Temperature of drafts in requests that sample; the request's own when not given.
        0 drafts the likeliest tokens.
    name : str, default "draft-head-tree"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    References
    ----------
    Li et al., EAGLE, 2401.15077, section 4.1.
    """

    def __init__(
        self,
        runner: HeadRunner,
        *,
        widths: Sequence[int] | None = None,
        acceptance: float = 0.6,
        temperature: float | None = None,
        name: str = "draft-head-tree",
    ) -> None:
        check_shape(acceptance, widths)
        super().__init__(runner, temperature, name)
        self._widths = None if widths is None else tuple(widths)
        self._acceptance = acceptance

    def propose(self, requests: Sequence[ProposalRequest]) -> list[TreeDraft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of TreeDraft
            One per row, in order, of at most ``kappa`` nodes.
        """
        return self.propose_below(requests, [TreeDraft()] * len(requests), [-1] * len(requests))

    def propose_below(
        self,
        requests: Sequence[ProposalRequest],
        trees: Sequence[TreeDraft],
        leaves: Sequence[int],
        levels: int | None = None,
    ) -> list[TreeDraft]:
        """Go on below a node of trees that another drafter has drafted, in the same round.

        What was drafted is read as the head reads its own drafts: with the features that
        it predicts, since the target has computed none there.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft; ``kappa`` counts what is drafted already.
        trees : sequence of TreeDraft
            What is drafted already, for each row.
        leaves : sequence of int
            The node of each that the head goes on below; it has no children. -1 for an
            empty tree. Each node down to it costs a pass.
        levels : int, optional
            Most levels that the head adds.

        Returns
        -------
        list of TreeDraft
            One per row, in order: the given nodes first, and drawn ones behind them.
        """
        found: list[_Growing | None] = []
        rows: list[_Growing] = []
        for request, tree, leaf in zip(requests, trees, leaves, strict=True):
            room = request.kappa - len(tree)
            shape = shape_of(room, self._acceptance, self._widths, levels)
            read = self._reading(request) if shape else None
            if read is None:
                found.append(None)
                continue
            rows.append(
                _Growing(
                    read.request, read.params, read.state, read.inputs, len(rows), shape,
                    tree.path(leaf), TreeBuilder(self._name, tree),
                )
            )  # fmt: skip
            found.append(rows[-1])
        if rows:
            try:
                self._grow(rows)
            except DraftproofError as error:
                # The levels drawn before stay: the shape had fixed them.
                for row in rows:
                    row.note = row.note or f"drafter stopped: {error}"
        return [
            replace(tree, proposer=self._name, note=UNKNOWN if len(tree) < request.kappa else "")
            if row is None
            else _finished(row)
            for row, tree, request in zip(found, trees, requests, strict=True)
        ]

    def _grow(self, rows: Sequence[_Growing]) -> None:
        """Read what is new, then draw level by level; one pass reads all branches of a level."""
        features, logits = self._catch_up(rows)
        head = self._runner.shape
        nothing = np.zeros((head.num_kv_heads, 0, head.head_dim), dtype=np.float32)
        for row, feature, scores in zip(rows, features, logits, strict=True):
            self._draw(_Branch(row, row.shape, feature, nothing, nothing), feature, scores)
        if not any(row.branches for row in rows):
            return
        deepest = max(len(row.path) + depth_of(row.shape) for row in rows)
        keys, values, lengths = self._cached(rows, deepest)
        level = 0
        while branches := [branch for row in rows for branch in row.branches]:
            for row in rows:
                row.branches = []
            places = [branch.row.place for branch in branches]
            ends = lengths[places]
            paths = keys[places], values[places]
            for index, (branch, end) in enumerate(zip(branches, ends.tolist(), strict=True)):
                paths[0][index, :, end : end + level] = branch.keys
                paths[1][index, :, end : end + level] = branch.values
            last = [
                (branch.text[-1], len(branch.row.request.token_ids) + level) for branch in branches
            ]
            before = np.stack([branch.feature for branch in branches])
            features, logits, key, value = self._read_one(last, before, *paths, ends + level)
            for index, branch in enumerate(branches):
                branch.keys = np.concatenate([branch.keys, key[index]], axis=1)
                branch.values = np.concatenate([branch.values, value[index]], axis=1)
                self._draw(branch, features[index], logits[index])
            level += 1

    def _draw(self, branch: _Branch, feature: Floats, logits: Floats) -> None:
        """Draw the children of a node, and go on below those that shall have some."""
        row, read = branch.row, len(branch.text)
        if read < len(row.path):
            node = row.path[read]
            text = (*branch.text, row.builder.token(node))
            row.branches.append(
                _Branch(row, branch.shape, feature, branch.keys, branch.values, node, text)
            )
            return
        try:
            nodes = self._children(branch, logits)
        except DraftproofError as error:
            row.note = row.note or f"drafter stopped: {error}"
            return
        for node, below in zip(nodes, branch.shape, strict=False):
            if below:
                text = (*branch.text, row.builder.token(node))
                row.branches.append(
                    _Branch(row, below, feature, branch.keys, branch.values, node, text)
                )

    def _children(self, branch: _Branch, logits: Floats) -> tuple[int, ...]:
        """Add the children of a node to the tree and return their numbers."""
        row, count = branch.row, len(branch.shape)
        law = self._law(row, logits, branch.text)
        if row.params.is_greedy:
            warm = self._law(row, logits, branch.text, replace(row.params, temperature=1.0))
            return row.builder.fix(branch.node, likeliest(law.draw(0.0), warm, count))
        coins = row.request.coins
        if row.request.coupled:
            noise = coins.noise(len(branch.text), law.vocab_size)
            tokens = finishers(law, lambda rest: rest.race(noise), count)
            return row.builder.fix(branch.node, tokens)
        return row.builder.sample(branch.node, law, count, coins)


def _finished(row: _Growing) -> TreeDraft:
    tree = row.builder.build()
    laws = tree.child_laws
    if laws is not None and all(law is None or law.is_one_hot for law in laws):
        laws = None
    return replace(tree, child_laws=laws, note=row.note)
