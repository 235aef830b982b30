"""Engines with one defect each, and the checks that must see it.

The auditor's catalogue (`draftproof.audit.faults`) holds laws of wrong rules. Here the
defect is planted in the engine itself: the whole path runs, from the drafter to the
commit, with one part exchanged. ``ENGINE_FAULTS`` is the catalogue, `check_fault` runs
the check that must see a fault, ``CHECKS`` are what the right engine passes.
"""

from draftproof.testing.faults.caches import CACHE_FAULTS
from draftproof.testing.faults.checks import (
    CHECKS,
    Enumeration,
    Finding,
    check_fault,
    enumerate_engine,
    run_scene,
)
from draftproof.testing.faults.coins import COIN_FAULTS
from draftproof.testing.faults.combinations import COMBINATIONS
from draftproof.testing.faults.commits import COMMIT_FAULTS
from draftproof.testing.faults.drafters import DRAFTER_FAULTS
from draftproof.testing.faults.draws import draw_texts
from draftproof.testing.faults.fault import EngineFault, nothing_wrong
from draftproof.testing.faults.grammars import GRAMMAR_FAULTS
from draftproof.testing.faults.parts import EngineParts, PiecewiseExecutor
from draftproof.testing.faults.policies import POLICY_FAULTS
from draftproof.testing.faults.rules import RULE_FAULTS
from draftproof.testing.faults.scene import Scene, reference_law
from draftproof.testing.faults.scenes import SCENES
from draftproof.testing.faults.trees import TREE_FAULTS

__all__ = [
    "CHECKS",
    "COMBINATIONS",
    "ENGINE_FAULTS",
    "SCENES",
    "EngineFault",
    "EngineParts",
    "Enumeration",
    "Finding",
    "PiecewiseExecutor",
    "Scene",
    "check_fault",
    "draw_texts",
    "enumerate_engine",
    "nothing_wrong",
    "reference_law",
    "run_scene",
]

#: The catalogue.
ENGINE_FAULTS: tuple[EngineFault, ...] = (
    *RULE_FAULTS,
    *DRAFTER_FAULTS,
    *POLICY_FAULTS,
    *COIN_FAULTS,
    *CACHE_FAULTS,
    *COMMIT_FAULTS,
    *TREE_FAULTS,
    *GRAMMAR_FAULTS,
)
