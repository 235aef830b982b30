"""How many nodes the trees of a pass have: as many as pay at this batch.

Each node is worth the chance that it is kept, by what was kept before of nodes at its
depth and its rank among its siblings. Nodes are added in the order in which drafters grow
their trees, the first of them a chain; each number is priced with the cost model, and the
one with the most expected tokens per second is drafted, none where none pays. The larger
the batch, the dearer a node, so that trees thin out to chains and to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.core.types import StepRecord
from draftproof.planner.rounds import RoundCost
from draftproof.proposers.tree_shapes import growth_of

__all__ = ["TreeSizePolicy"]

#: Weight of the acceptance that was told, in nodes that were judged.
_PRIOR = 2.0
#: What a judgement still weighs after another one of its kind; and after any round, by which
#: belief goes back to what was told, so that what is not drafted is tried again.
_FADE, _IDLE_FADE = 0.985, 0.995
#: Rounds for which a number of nodes holds: another one costs a change of shape.
_HOLD = 8
#: The same where drafts are tried again.
_TRY = 2
#: Least gain over plain decoding that is drafted for.
_MIN_GAIN = 0.02


class TreeSizePolicy:
    """Chooses the nodes of trees; implements `draftproof.core.kappa_policy.KappaPolicy`.

    Parameters
    ----------
    cost : RoundCost
        Costs of passes, of the drafter and of overheads.
    proposer : str
        Who drafts the trees.
    max_nodes : int
        Most nodes of a tree.
    acceptance : float
        Chance that the first child of a node is kept, in (0, 1): what is believed before
        anything was judged, and what the drafter shapes its trees for.
    widths : sequence of int, optional
        Most children of a node by depth, as the drafter has them.
    has_model : bool, default False
        Whether each node that branches costs the drafter a row of a pass of its own.
    is_by_nodes : bool, default False
        Whether the drafter's cost is that of measured trees by their number of nodes, in
        place of that of chains by their length.

    Raises
    ------
    ConfigError
        If ``acceptance`` or a width is out of range.

    Notes
    -----
    All rows that may draft get the same number of nodes, or as many as their limits allow.
    What was kept is counted over all of them. A choice depends on costs and on finished
    rounds alone, so the output law stays the target's.
    """

    def __init__(
        self,
        cost: RoundCost,
        proposer: str,
        max_nodes: int,
        acceptance: float,
        widths: Sequence[int] | None = None,
        *,
        has_model: bool = False,
        is_by_nodes: bool = False,
    ) -> None:
        self._cost = cost
        self._proposer = proposer
        self._acceptance = acceptance
        self._has_model = has_model
        self._is_by_nodes = is_by_nodes
        #: Of each node in order of growth: its parent, its depth from 0, its rank.
        self._nodes: list[tuple[int, int, int]] = []
        for parent, rank in growth_of(max_nodes, acceptance, widths):
            depth = 0 if parent < 0 else self._nodes[parent][1] + 1
            self._nodes.append((parent, depth, rank))
        self._judged: dict[tuple[int, int], float] = {}
        self._kept: dict[tuple[int, int], float] = {}
        self._number = {
            (parent, rank): node for node, (parent, _depth, rank) in enumerate(self._nodes)
        }
        #: How many nodes each row of the last choice was asked for.
        self._asked: dict[str, int] = {}
        self._held = (0, 0)
        self._size = self._rounds_left = 0

    def choose(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Choose the nodes of one pass; see `KappaPolicy.choose`.

        Parameters
        ----------
        rows : sequence of RowState
            The decoding rows.

        Returns
        -------
        list of RowChoice
            One per row.
        """
        able = [row for row in rows if row.max_kappa and self._proposer in row.proposers]
        self._asked.clear()
        if not able:
            return [RowChoice(0)] * len(rows)
        held = (len(rows), len(able))
        if held != self._held or not self._rounds_left:
            is_new = held != self._held
            context = sum(row.kv_tokens for row in rows) / len(rows)
            size = self._best(len(rows), len(able), context, None if is_new else self._size)
            is_try = size > 0 and not self._size and not is_new
            self._rounds_left = _TRY if is_try else _HOLD
            self._held, self._size = held, size
        self._rounds_left -= 1
        for counts in (self._judged, self._kept):
            for place in counts:
                counts[place] *= _IDLE_FADE
        if not self._size:
            return [RowChoice(0)] * len(rows)
        self._asked = {row.request_id: min(self._size, row.max_kappa) for row in able}
        return [
            RowChoice(self._asked[row.request_id], self._proposer)
            if row.request_id in self._asked
            else RowChoice(0)
            for row in rows
        ]

    def observe(self, record: StepRecord) -> None:
        """Learn which nodes of a finished round were kept; see `KappaPolicy.observe`.

        Parameters
        ----------
        record : StepRecord
            The round. One that was not chosen here teaches nothing.
        """
        asked = self._asked.pop(record.request_id, 0)
        if not asked or record.parents is None:
            return
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(record.parents):
            below.setdefault(parent, []).append(node)
        # The kept path, in the drafted tree and in the one that was priced. Past what a stop
        # cut off nothing is known.
        at, priced = -1, -1
        for depth in range(min(record.num_accepted, len(record.emitted) - 1) + 1):
            children = below.get(at, [])
            token = record.emitted[depth] if depth < record.num_accepted else None
            for rank, node in enumerate(children):
                self._judge(depth, rank, is_kept=record.drafted[node] == token)
                if record.drafted[node] == token:
                    at, priced = node, self._number.get((priced, rank), len(self._nodes))
                    break
            else:  # what was priced and did not come was not kept either
                rank = len(children)
                while self._number.get((priced, rank), asked) < asked:
                    self._judge(depth, rank, is_kept=False)
                    rank += 1

    def _judge(self, depth: int, rank: int, *, is_kept: bool) -> None:
        place = (depth, rank)
        self._judged[place] = _FADE * self._judged.get(place, 0.0) + 1.0
        self._kept[place] = _FADE * self._kept.get(place, 0.0) + is_kept

    def release(self, request_id: str) -> None:
        """Forget a request; what it taught about trees stays until the call ends."""
        self._asked.pop(request_id, None)

    def reset(self) -> None:
        """Forget everything, as between two calls."""
        self._judged.clear()
        self._kept.clear()
        self._asked.clear()
        self._held = (0, 0)
        self._size = self._rounds_left = 0

    def chance(self, depth: int, rank: int) -> float:
        """Return the believed chance that a node is kept.

        Parameters
        ----------
        depth, rank : int
            Nodes above it without the root's text, and siblings before it.

        Returns
        -------
        float
            Where its parent is kept and no sibling before it.
        """
        judged = self._judged.get((depth, rank), 0.0)
        kept = self._kept.get((depth, rank), 0.0)
        return (kept + _PRIOR * self._acceptance) / (judged + _PRIOR)

    def _worths(self) -> NDArray[np.float64]:
        """Return the chance that each node is kept, in order of growth."""
        worths: list[float] = []
        left: dict[int, float] = {-1: 1.0}
        for node, (parent, depth, rank) in enumerate(self._nodes):
            # A parent's chance that none of its children before this one was kept.
            mine = left[parent] * self.chance(depth, rank)
            left[parent] -= mine
            left[node] = mine
            worths.append(mine)
        return np.asarray(worths)

    def _best(self, batch: int, drafting: int, context: float, now: int | None) -> int:
        """Return the number of nodes with the most expected tokens per second."""
        count = len(self._nodes)
        tokens = batch + drafting * np.concatenate([[0.0], np.cumsum(self._worths())])
        passed = batch + drafting * np.arange(count + 1, dtype=np.float64)
        seconds = self._cost.pass_seconds(batch, passed, context)
        seconds = seconds + self._drafting(drafting, context)
        if now is not None:
            is_other = np.arange(count + 1) != now
            seconds = seconds + np.where(is_other, self._cost.change_s / _HOLD, 0.0)
        pace = tokens / seconds
        best = int(pace.argmax())
        return best if pace[best] > (1.0 + _MIN_GAIN) * pace[0] else 0

    def _drafting(self, drafting: int, context: float) -> NDArray[np.float64]:
        """Return the seconds of drafting 0, 1, ... nodes for so many rows."""
        if self._is_by_nodes:
            rows = np.asarray([float(drafting)])
            nodes = range(1, len(self._nodes) + 1)
            steps = [self._cost.draft.depth_seconds(node, rows, context)[0] for node in nodes]
            return np.cumsum([0.0, *steps])
        seconds = [0.0]
        feeding: list[set[int]] = []
        added: list[float] = []
        for parent, depth, _rank in self._nodes:
            if depth == len(feeding):
                feeding.append(set())
                added.append(0.0)
            if parent not in feeding[depth] and (self._has_model or not feeding[depth]):
                feeding[depth].add(parent)
                rows = np.asarray([float(drafting * len(feeding[depth]))])
                added[depth] = float(self._cost.draft.depth_seconds(depth + 1, rows, context)[0])
            seconds.append(sum(added))
        return np.asarray(seconds)
