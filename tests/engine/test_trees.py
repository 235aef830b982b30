"""Drafts that branch travel through the engine and keep the law, the seed and the cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_kit import GREEDY, TABLE, VOCAB, WARM, ids, make_core, plain, requests, run
from test_exact_law import PROMPT, TOLERANCE, engine_law, plain_warp, reference_law, total_variation

from draftproof.backends.table import MarkovTable, PositionTable, TableBackend
from draftproof.core.law import DenseLaw
from draftproof.core.params import SamplingParams
from draftproof.core.siblings import TreeBuilder
from draftproof.core.types import TreeDraft
from draftproof.engine import EngineCore
from draftproof.proposers import NgramProposer
from draftproof.testing.faults import PiecewiseExecutor
from draftproof.testing.faults.trees import recursive_rule
from draftproof.verify import AllowLossy, Lenience

RULES = ("standard", "block", "coupled", "sample-match", None)


class FixedTree:
    """Always drafts the same branching candidates, as many nodes as fit."""

    name = "fixed-tree"

    def __init__(self, paths):
        self.paths = paths

    def propose(self, asked):
        return [self._tree(request.kappa) for request in asked]

    def _tree(self, kappa):
        tree = TreeDraft.from_paths(self.paths, self.name)
        return replace(tree, token_ids=tree.token_ids[:kappa], parents=tree.parents[:kappa])

    def release(self, request_id):
        pass


class SampledTree:
    """Draws two children of the root and one of each of them from a table."""

    name = "sampled-tree"

    def __init__(self, table):
        self.table = table

    def propose(self, asked):
        return [self._tree(request) for request in asked]

    def _law(self, tokens):
        return DenseLaw(self.table.probs(np.array(tokens), np.arange(len(tokens))))

    def _tree(self, request):
        builder = TreeBuilder(self.name)
        held = list(request.token_ids)
        width = 2 if request.kappa > 1 else 1
        below = builder.sample(-1, self._law(held), width, request.coins)
        for node in below:
            if len(builder) < request.kappa:
                law = self._law([*held, builder.token(node)])
                builder.sample(node, law, 1, request.coins)
        return builder.build()

    def release(self, request_id):
        pass


TREES = {
    "fixed": lambda: FixedTree([(0, 1), (0, 2), (1, 1)]),
    "sampled": lambda: SampledTree(MarkovTable(3, 1, seed=9, spread=2.0)),
    "sampled-zeros": lambda: SampledTree(MarkovTable(3, 1, seed=4, zeros=0.4)),
}


def law_with_trees(target, make, rule, horizon=4):
    return engine_law(
        TableBackend(target), [make()], params=SamplingParams(), horizon=horizon, kappa=4, rule=rule
    )


@pytest.mark.exact
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    "target", [MarkovTable(3, None, seed=2, zeros=0.35), PositionTable(3, seed=3)]
)
def test_every_rule_keeps_the_joint_law_on_trees(target, tree, rule):
    # Rules that ignore the drafter's law branch on every draft: a shorter text will do.
    horizon = 3 if rule in ("coupled", "sample-match") and "sampled" in tree else 4
    law = law_with_trees(target, TREES[tree], rule, horizon)
    assert total_variation(law, reference_law(target, PROMPT, horizon, plain_warp)) < TOLERANCE


@pytest.mark.exact
def test_a_planted_fault_changes_the_law_of_trees_as_it_is_measured_here():
    """One is enough for this file; tests/faults holds the catalogue."""
    target = MarkovTable(3, None, seed=14)
    law = engine_law(
        TableBackend(target),
        [TREES["sampled"]()],
        params=SamplingParams(),
        horizon=4,
        kappa=4,
        rule="standard",
        executor=PiecewiseExecutor(tree=recursive_rule(drop="before")),
    )
    assert total_variation(law, reference_law(target, PROMPT, 4, plain_warp)) > 0.005


CANDIDATES = [(0, 1, 2), (0, 3), (4, 4), (5,), (6, 0, 1)]


@pytest.mark.parametrize("kappa", [1, 2, 5, 10])
@pytest.mark.parametrize("params", [GREEDY, WARM])
@pytest.mark.parametrize("rule", ["coupled", "sample-match"])
def test_trees_leave_the_text_of_a_seed_alone(rule, params, kappa):
    batch = requests(3, 11, 40, 1, params=params, rule=rule, max_tokens=40)
    core = make_core(proposers=[FixedTree(CANDIDATES)], kappa=kappa)
    results = run(core, batch)
    assert ids(results) == ids(plain(batch))
    assert core.target.num_open == 0
    assert sum(result.stats.num_accepted_tokens for result in results.values()) > 0


def test_rows_of_trees_chains_and_prompts_share_a_pass():
    drafters = [FixedTree(CANDIDATES), NgramProposer(1, 3)]
    batch = requests(3, 30, 7, 12, max_tokens=25, params=WARM, rule="sample-match")
    batch[1] = replace(batch[1], proposer="ngram")
    batch[2] = replace(batch[2], kappa=0)
    core = make_core(proposers=drafters, kappa=6)
    assert ids(run(core, batch)) == ids(plain(batch))


def test_counters_of_a_tree_count_nodes_and_depth():
    (result,) = run(
        make_core(proposers=[FixedTree([(0, 1), (2,)])], kappa=3),
        requests(3, params=WARM, max_tokens=60, rule="sample-match"),
    ).values()
    drafted = [record for record in result.records if record.drafted]
    full = [record for record in drafted if len(record.drafted) == 3]
    assert full
    assert all(record.parents == (-1, 0, -1) for record in full)
    assert all(record.depth == 2 for record in full)
    stats = result.stats
    assert stats.num_draft_tokens == sum(len(record.drafted) for record in drafted)
    assert stats.num_drafted_per_pos[0] == len(drafted)
    assert stats.num_accepted_tokens == sum(stats.num_accepted_tokens_per_pos)
    assert len(stats.num_drafted_per_pos) == 2


@pytest.mark.parametrize("top", [0, 3])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_log_probabilities_on_trees_are_those_of_plain_decoding(mode, top):
    params = SamplingParams(temperature=0.7, frequency_penalty=0.5, top_p=0.95)
    batch = requests(
        3, 9, params=params, max_tokens=30, logprobs=top, logprobs_mode=mode, rule="sample-match"
    )
    results = run(make_core(proposers=[FixedTree(CANDIDATES)], kappa=10), batch)
    for name, expected in plain(batch).items():
        for token, other in zip(results[name].tokens, expected.tokens, strict=True):
            assert token.token_id == other.token_id
            assert token.logprob == pytest.approx(other.logprob, abs=1e-6)
            assert [i for i, _ in token.top_logprobs] == [i for i, _ in other.top_logprobs]


def test_a_runtime_without_trees_switches_the_drafter_off_and_says_so():
    class ChainsOnly(TableBackend):
        @property
        def info(self):
            return replace(super().info, trees=False)

    core = EngineCore(ChainsOnly(TABLE), proposers=[FixedTree(CANDIDATES)], kappa=4)
    (result,) = run(core, requests(3, max_tokens=9)).values()
    assert ids({"a": result}) == ids(plain(requests(3, max_tokens=9)))
    assert any("drafts that branch, which the runtime table cannot" in n for n in result.notes)


def test_a_lossy_rule_on_a_tree_is_not_run():
    core = make_core(proposers=[FixedTree(CANDIDATES)], kappa=4, allow_lossy=True)
    asked = requests(3, params=WARM, max_tokens=9, rule=AllowLossy(Lenience(0.5)))
    (result,) = run(core, asked).values()
    assert any("which the rule lenience cannot judge" in note for note in result.notes)
    assert result.stats.num_drafts == 0


def test_a_tree_beyond_its_budget_is_refused():
    class TooWide(FixedTree):
        def _tree(self, kappa):
            return TreeDraft.from_paths([(token,) for token in range(VOCAB)], self.name)

    core = make_core(proposers=[TooWide([])], kappa=3)
    (result,) = run(core, requests(3, max_tokens=9)).values()
    assert any("a tree of 7 nodes, expected at most" in note for note in result.notes)
