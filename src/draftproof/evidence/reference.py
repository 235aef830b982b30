"""The law a model has by itself: every continuation of a prompt, enumerated.

A policy with a small top-k leaves a joint law that is small enough to write down.
Each branch is scored once, in ragged passes over forked sequences, and the policy
pipeline of the core turns logits into laws, in the order that the policy names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.core.history import History
from draftproof.core.law import Law, SparseLaw
from draftproof.core.params import SamplingParams
from draftproof.core.policy import target_law
from draftproof.core.protocols import ModelBackend
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import CapacityError, ConfigError, InvariantError, PromptError
from draftproof.evidence.joint_law import JointLaw, Outcome

__all__ = ["enumerate_law"]


def enumerate_law(
    backend: ModelBackend,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    horizon: int,
    *,
    eos_token_ids: Iterable[int] = (),
    max_outcomes: int = 4096,
    rows_per_pass: int = 32,
) -> JointLaw:
    """Return the joint law of the next tokens under a policy.

    Parameters
    ----------
    backend : ModelBackend
        The model. Sequences that are opened here are closed here.
    prompt_ids : sequence of int
        The prompt, not empty.
    params : SamplingParams
        The policy, its order of stages included.
    horizon : int
        Tokens of a continuation, at least 1.
    eos_token_ids : iterable of int
        Tokens after which a continuation ends; none to go on regardless.
    max_outcomes : int, default 4096
        Most continuations.
    rows_per_pass : int, default 32
        Most sequences of one pass.

    Returns
    -------
    JointLaw
        All continuations of positive probability; the probabilities are products of
        float64 conditional ones.

    Raises
    ------
    PromptError
        If the prompt is empty.
    ConfigError
        If there are more than ``max_outcomes`` continuations, or a limit is below 1.
    CapacityError
        If the backend has no room for the branches of one depth.

    Notes
    -----
    A depth of the tree is a batch: the number of passes is about ``horizon`` plus the
    number of inner nodes over ``rows_per_pass``.
    """
    if not prompt_ids:
        raise PromptError("empty prompt: expected at least one token")
    for name, value in (("horizon", horizon), ("max_outcomes", max_outcomes)):
        if value < 1:
            raise ConfigError(f"{name} {value}: expected 1 or more")
    tree = _Tree(backend, prompt_ids, params, max_outcomes, max(1, rows_per_pass))
    ends = frozenset(eos_token_ids)
    done: dict[Outcome, float] = {}
    try:
        level = [tree.root()]
        for depth in range(1, horizon + 1):
            branches: list[_Branch] = []
            for node in level:
                for token, prob in tree.next_tokens(node):
                    path = (*node.path, token)
                    if depth == horizon or token in ends:
                        done[path] = node.prob * prob
                    else:
                        branches.append(_Branch(path, node.prob * prob, node.sequence_id))
                if len(done) + len(branches) > max_outcomes:
                    raise ConfigError(_too_many(max_outcomes, depth, horizon))
            level = tree.grow(level, branches)
    finally:
        tree.close()
    total = math.fsum(done.values())
    if not abs(total - 1) < 1e-12 * max(1, len(done)):
        raise InvariantError(f"the enumerated law sums to {total!r}: expected 1")
    return JointLaw.from_mapping(done, horizon, ends)


def _too_many(limit: int, depth: int, horizon: int) -> str:
    return (
        f"more than {limit} continuations at token {depth} of {horizon}: expected a policy "
        "with a small top_k (2 to 4), or a shorter horizon"
    )


@dataclass(frozen=True, slots=True)
class _Branch:
    """A continuation whose last token is not scored yet, and its parent's sequence."""

    path: Outcome
    prob: float
    parent_id: int


@dataclass(frozen=True, slots=True)
class _Node:
    path: Outcome
    prob: float
    sequence_id: int
    law: Law


class _Tree:
    """Grows the tree of continuations depth by depth; owns its sequences."""

    def __init__(
        self,
        backend: ModelBackend,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        max_outcomes: int,
        rows_per_pass: int,
    ) -> None:
        self._backend = backend
        self._prompt = list(prompt_ids)
        self._params = params
        self._history = History(self._prompt)
        self._max_outcomes = max_outcomes
        self._rows_per_pass = rows_per_pass
        self._open: set[int] = set()

    def root(self) -> _Node:
        sequence_id = self._backend.open(self._prompt)
        self._open.add(sequence_id)
        held = self._backend.length(sequence_id)
        self._reserve(sequence_id, len(self._prompt) - held)
        logits = self._backend.forward(
            FlatBatch.from_rows([Row(sequence_id, self._prompt[held:], held, 1)])
        )
        return _Node((), 1.0, sequence_id, self._law(logits[0], ()))

    def next_tokens(self, node: _Node) -> list[tuple[int, float]]:
        """Return the possible next tokens with their probabilities."""
        law = node.law
        if isinstance(law, SparseLaw):
            ids, probs = law.ids, law.probs_at(law.ids)
        else:
            dense = law.dense()
            ids = np.flatnonzero(dense)
            probs = dense[ids]
        possible = probs > 0
        if int(possible.sum()) > self._max_outcomes:
            raise ConfigError(
                _too_many(self._max_outcomes, len(node.path) + 1, 0).replace(" of 0", "")
            )
        return list(zip(ids[possible].tolist(), probs[possible].tolist(), strict=True))

    def grow(self, parents: list[_Node], branches: list[_Branch]) -> list[_Node]:
        """Score the branches; the sequences of their parents are closed."""
        nodes: list[_Node] = []
        base = len(self._prompt)
        for begin in range(0, len(branches), self._rows_per_pass):
            chunk = branches[begin : begin + self._rows_per_pass]
            rows = []
            for branch in chunk:
                sequence_id = self._backend.fork(branch.parent_id)
                self._open.add(sequence_id)
                self._reserve(sequence_id, 1)
                rows.append(Row(sequence_id, branch.path[-1:], base + len(branch.path) - 1, 1))
            logits = self._backend.forward(FlatBatch.from_rows(rows))
            for branch, row, scores in zip(chunk, rows, logits, strict=True):
                law = self._law(scores, branch.path)
                nodes.append(_Node(branch.path, branch.prob, row.sequence_id, law))
        for parent in parents:
            self._close(parent.sequence_id)
        return nodes

    def close(self) -> None:
        """Free every sequence that is still open."""
        for sequence_id in tuple(self._open):
            self._close(sequence_id)

    def _law(self, logits: NDArray[np.float32], path: Outcome) -> Law:
        # A dense law may hold a view that the next pass overwrites.
        return target_law(np.array(logits), self._params, self._history, path)

    def _reserve(self, sequence_id: int, count: int) -> None:
        if not self._backend.reserve(sequence_id, count):
            msg = f"no room for {count} more tokens beside {len(self._open)} open branches"
            raise CapacityError(msg)

    def _close(self, sequence_id: int) -> None:
        self._open.discard(sequence_id)
        self._backend.close(sequence_id)
