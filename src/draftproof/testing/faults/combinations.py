"""Faults of rules, drafters, coins and caches again, under policies."""

from __future__ import annotations

from dataclasses import replace

from draftproof.testing.faults.caches import CACHE_FAULTS
from draftproof.testing.faults.coins import COIN_FAULTS
from draftproof.testing.faults.drafters import DRAFTER_FAULTS
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.rules import RULE_FAULTS
from draftproof.testing.faults.scenes import SCENES

__all__ = ["COMBINATIONS"]

_POLICIES = ("temperature", "top-k", "top-p", "frequency")
_NAMES = (
    "target drawn again on reject",
    "first draft unchecked",
    "row of the position before",
    "q at another temperature",
    "one coin drafts and accepts",
    "rejected token stays in the cache",
)
_BY_NAME = {
    fault.name: fault for fault in (*RULE_FAULTS, *DRAFTER_FAULTS, *COIN_FAULTS, *CACHE_FAULTS)
}

#: Each of six faults under each of four policies; and one that greedy decoding must see.
COMBINATIONS: tuple[EngineFault, ...] = (
    *(
        replace(_BY_NAME[name], name=f"{name}, under {policy}", scene=SCENES[policy])
        for name in _NAMES
        for policy in _POLICIES
    ),
    replace(
        _BY_NAME["first draft unchecked"],
        name="first draft unchecked, greedy",
        scene=SCENES["greedy"],
        check="text",
    ),
)
