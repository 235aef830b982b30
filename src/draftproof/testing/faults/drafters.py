"""Faults of drafters: what was drawn is not what is reported, or not what was promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from draftproof.core.law import DenseLaw, Law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import Draft
from draftproof.testing.faults.bent import heated, top_k, top_p
from draftproof.testing.faults.drafter import TableDrafter
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import EngineParts
from draftproof.testing.faults.scenes import SCENES

__all__ = ["DRAFTER_FAULTS"]

_BAR = 0.3


def _drafter(**options: Any) -> Callable[[EngineParts], EngineParts]:
    def plant(parts: EngineParts) -> EngineParts:
        assert isinstance(parts.proposer, TableDrafter)
        return replace(parts, proposer=TableDrafter(parts.proposer.table, **options))

    return plant


def _same(law: Law) -> Law:
    return law


def _argmax(law: Law, coins: Any, i: int) -> int:
    del coins, i
    return int(law.dense().argmax())


def _until_unlikely(laws: Sequence[Law], tokens: Sequence[int]) -> int:
    kept = 0
    while kept < len(tokens) and laws[kept].prob(tokens[kept]) >= _BAR:
        kept += 1
    return kept


def _rounded(law: Law) -> Law:
    """Return a law whose logits have the eight bits of bfloat16."""
    with np.errstate(divide="ignore"):
        bits = np.log(law.dense()).astype(np.float32).view(np.uint32)
    cut = ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
    return DenseLaw(np.exp(cut.astype(np.float64)))


def _swapped(law: Law) -> Law:
    probs = law.dense()
    probs[[0, 2]] = probs[[2, 0]]
    return DenseLaw(probs)


class _NeighboursLaw(TableDrafter):
    """Reports for each draft the law of the draft after it."""

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        drafts = super().propose(requests)
        return [replace(d, laws=(*d.laws[1:], d.laws[0])) if d.laws else d for d in drafts]


def _neighbours_law(parts: EngineParts) -> EngineParts:
    assert isinstance(parts.proposer, TableDrafter)
    return replace(parts, proposer=_NeighboursLaw(parts.proposer.table))


class _StaleDrafter(TableDrafter):
    """After its first round, drafts from what it held then: its cache is never fed again."""

    def __init__(self, parts: EngineParts) -> None:
        assert isinstance(parts.proposer, TableDrafter)
        super().__init__(parts.proposer.table)
        self._held: dict[str, list[int]] = {}

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        stale = [
            replace(r, token_ids=self._held.setdefault(r.request_id, list(r.token_ids)))
            for r in requests
        ]
        return super().propose(stale)


_TOKEN, _SELF = SCENES["token rule"], SCENES["self-drafting"]

#: Faults of drafters.
DRAFTER_FAULTS: tuple[EngineFault, ...] = (
    EngineFault(
        "q at another temperature", "drafter", _TOKEN, _drafter(drawn=heated(0.5), reported=_same),
        "drawn at temperature 0.5, reported at 1", case="DI-1",
    ),
    EngineFault(
        "q without its top-k", "drafter", _TOKEN, _drafter(drawn=top_k(2), reported=_same),
        "drawn from the two best tokens, reported whole", case="DI-1",
    ),
    EngineFault(
        "q without its top-p", "drafter", _TOKEN, _drafter(drawn=top_p(0.8), reported=_same),
        "drawn from the nucleus, reported whole", case="DI-1",
    ),
    EngineFault(
        "argmax scored as sampled", "drafter", _TOKEN, _drafter(pick=_argmax),
        "the best token is taken, its softmax probability reported", case="DI-2",
    ),
    EngineFault(
        "unlikely drafts dropped after the draw", "drafter", _TOKEN,
        _drafter(length=_until_unlikely),
        "a drawn token is withheld because its probability is below 0.3",
    ),
    EngineFault(
        "q of the draft after", "drafter", _TOKEN, _neighbours_law,
        "off by one: each draft is reported with its neighbour's law", case="RB-2",
    ),
    EngineFault(
        "drawn in bfloat16, reported in float32", "drafter", _TOKEN,
        _drafter(drawn=_rounded, reported=_same),
        "two code paths compute the same q at different precision", "redraw", "DI-5",
    ),
    EngineFault(
        "two ids swapped", "drafter", _TOKEN, _drafter(drawn=_swapped),
        "right law: the drafter's vocabulary has two ids the other way round", "length", "CR-2",
    ),
    EngineFault(
        "draft positions off by one", "drafter", _SELF, _drafter(shift=1),
        "right law: the drafter's positions run one ahead", "length", "KV-4",
    ),
    EngineFault(
        "drafter's cache never fed again", "drafter", _SELF,
        lambda parts: replace(parts, proposer=_StaleDrafter(parts)),
        "right law: what was committed after the first round never reaches the drafter",
        "length", "KV-1",
    ),
)  # fmt: skip
