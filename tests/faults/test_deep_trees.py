"""The right engine on trees that have both siblings and depth, by enumeration.

A round may draft no more nodes than tokens are left, less one. A short text alone would
cut every tree to its first nodes; these requests may grow past the text that is studied.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.core.types import TreeDraft
from draftproof.testing.faults import SCENES, enumerate_engine, reference_law

pytestmark = pytest.mark.exact

TOLERANCE = 1e-6
RULES = ("standard", "block", "coupled", "sample-match", None)


class FixedTree:
    """Always drafts the same tree: two siblings, the first with two children, the other one."""

    name = "fixed-tree"

    def __init__(self):
        self.seen = []

    def propose(self, asked):
        tree = TreeDraft.from_paths([(0, 1), (1, 2), (0, 2)], self.name)
        drafts = [
            replace(tree, token_ids=tree.token_ids[: r.kappa], parents=tree.parents[: r.kappa])
            for r in asked
        ]
        self.seen += drafts
        return drafts

    def release(self, request_id):
        pass


@pytest.mark.parametrize("rule", RULES)
def test_sampled_trees_keep_the_law(rule):
    scene = replace(SCENES["tree"], rule=rule)
    assert enumerate_engine(scene).total_variation(reference_law(scene)) < TOLERANCE


@pytest.mark.parametrize("rule", RULES)
def test_deterministic_trees_keep_the_law(rule):
    made = []

    def make():
        made.append(FixedTree())
        return made[-1]

    scene = replace(SCENES["tree"], rule=rule, drafter=make, kappa=5, room=3)
    assert enumerate_engine(scene).total_variation(reference_law(scene)) < TOLERANCE
    drafted = [tree for drafter in made for tree in drafter.seen]
    assert any(tree.parents == (-1, 0, -1, 2) for tree in drafted)
