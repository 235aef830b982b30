"""How many nodes trees have: by costs, by the batch and by what was kept before."""

import numpy as np
import pytest
from test_exact_law import plain_warp, reference_law, total_variation

from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.core.policy import SamplingParams
from draftproof.core.types import StepRecord
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import ParallelDraft, RoundCost, TableDraft
from draftproof.planner.tree_sizes import TreeSizePolicy
from draftproof.proposers import SuffixTreeProposer
from draftproof.proposers.tree_shapes import depth_of, shape_of
from draftproof.testing.branching import BranchingCoins, exact_law

#: A pass of so many seconds empty; a token more costs a twentieth of it.
COST = RoundCost(AffineCost(1.0, 0.05), ParallelDraft())


def policy(cost=COST, most=16, acceptance=0.6, **options):
    return TreeSizePolicy(cost, "t", most, acceptance, **options)


def rows(count, most=16):
    return [RowState(f"r{number}", 100, most, ("t",)) for number in range(count)]


def size(held, batch=1):
    return held.choose(rows(batch))[0].kappa


def record(kept, tokens=(5, 6, 7), parents=(-1, -1, 0), name="r0", extra=(9,)):
    return StepRecord(name, 0, tokens, len(kept), (*kept, *extra), (), "t", parents)


def test_a_node_must_pay_for_the_tokens_that_it_adds_to_the_pass():
    # By hand: worths of 0.6 are .6, .36, .24, .216, ...; each adds .05 to 1.05.
    sums, worths = [], [0.6, 0.36, 0.24, 0.216, 0.144, 0.144, 0.1296, 0.0960, 0.0864]
    for count in range(len(worths) + 1):
        sums.append((1 + sum(worths[:count])) / (1.05 + 0.05 * count))
    assert size(policy(most=9)) == sums.index(max(sums))


def test_trees_thin_out_to_chains_and_to_nothing_as_the_batch_grows():
    sizes = [size(policy(), batch) for batch in (1, 2, 4, 8, 64, 512)]
    assert sizes == sorted(sizes, reverse=True)
    depths = [depth_of(shape_of(count, 0.6)) for count in sizes]
    assert depths[0] < sizes[0]  # branches
    assert 0 < sizes[3] == depths[3]  # a chain
    assert size(policy(RoundCost(AffineCost(0.0, 1.0), ParallelDraft()))) == 0
    assert size(policy(RoundCost(AffineCost(1.0, 0.0), ParallelDraft()))) == 16


@pytest.mark.parametrize("batch", [1, 4])
def test_what_is_never_kept_is_drafted_less_and_tried_again_later(batch):
    held, sizes = policy(), []
    for _ in range(800):
        count = size(held, batch)
        sizes.append(count)
        for number in range(batch):
            parents = tuple(range(-1, count - 1))
            held.observe(record((), tuple(range(count)), parents, f"r{number}"))
    assert sizes[0] > 0
    assert 0 < sum(sizes[100:]) / 700 < sizes[0] / 4
    # Belief goes back to what was told, and a try follows.
    assert max(sizes[400:]) > min(sizes[400:]) == 0


def test_chances_are_those_of_the_depth_and_rank_that_were_judged():
    held = policy()
    for _ in range(30):
        held.choose(rows(1))
        held.observe(record((6,)))  # the second child of the root; it has no child
    assert held.chance(0, 0) < 0.2
    assert held.chance(0, 1) > 0.8
    assert held.chance(1, 0) < 0.2  # priced, and none came below the second child
    held.reset()
    held.choose(rows(1))
    held.observe(record((5,), extra=()))  # a stop cut the rest off
    assert held.chance(1, 0) == 0.6
    held.reset()
    assert held.chance(0, 0) == 0.6


@pytest.mark.parametrize(
    "strange",
    [record((5,), name="unknown"), StepRecord("r0", 0, (5,), 1, (5, 9), (), "t")],
    ids=["not asked", "a chain of a grammar"],
)
def test_rounds_of_others_teach_nothing(strange):
    held = policy()
    held.choose(rows(1))
    held.observe(strange)
    assert held.chance(0, 0) == 0.6


def test_what_is_priced_and_does_not_come_counts_as_not_kept():
    # A drafter that has one way to go on: more nodes would not be siblings.
    held = policy()
    for _ in range(30):
        held.choose(rows(1))
        held.observe(record((), (5,), (-1,)))
    assert held.chance(0, 1) < 0.2
    assert held.chance(3, 0) == 0.6


def test_limits_of_rows_are_kept_and_rows_without_the_drafter_decode():
    asked = [RowState("a", 1, 2, ("t",)), RowState("b", 1, 0, ("t",)), RowState("c", 1, 9, ("u",))]
    free = policy(RoundCost(AffineCost(1.0, 0.0), ParallelDraft()))
    assert free.choose(asked) == [RowChoice(2, "t"), RowChoice(0), RowChoice(0)]
    assert free.choose([]) == []
    with pytest.raises(ConfigError, match="acceptance"):
        policy(acceptance=1.0)


def test_a_change_of_shape_must_pay_for_itself():
    learnt = [((5,), 20), ((), 3)]

    def sizes(change_s):
        held = policy(RoundCost(AffineCost(1.0, 0.05), ParallelDraft(), change_s=change_s))
        found = []
        for kept, count in learnt:
            for _ in range(count):
                found.append(size(held))
                held.observe(record(kept, (5, 6), (-1, -1)))
        return found

    assert len(set(sizes(0.0))) > 1
    assert len(set(sizes(1e3))) == 1


def test_a_model_pays_for_each_branch_and_a_lookup_does_not():
    draft = ParallelDraft(per_slot_s=0.03)
    cost = RoundCost(AffineCost(1.0, 0.01), draft)
    assert size(policy(cost, has_model=True)) < size(policy(cost))


@pytest.mark.exact
def test_measured_trees_are_priced_by_their_nodes():
    # Of 1 and 5 nodes, for 1 and 4 rows; between and behind them by straight lines.
    table = TableDraft((1, 4), (1, 5), np.asarray([[0.1, 0.5], [0.4, 1.6]]))
    cost = RoundCost(AffineCost(1.0, 0.0), table)
    by_nodes = policy(cost, most=6, has_model=True, is_by_nodes=True)
    for drafting, first, step in ((1, 0.1, 0.1), (4, 0.4, 0.3), (2, 0.2, (0.1 + 0.2 / 3))):
        expected = [0.0, *(first + step * node for node in range(6))]
        np.testing.assert_allclose(by_nodes._drafting(drafting, 100.0), expected)
    # The nodes of one level are one pass of a chain's drafter, and not free as a tree's.
    dear = RoundCost(AffineCost(1.0, 0.0), TableDraft((1,), (1, 5), np.asarray([[0.0, 9.0]])))
    assert size(policy(dear, most=6, is_by_nodes=True)) == 1
    assert size(policy(dear, most=6, acceptance=0.1)) > 1


@pytest.mark.parametrize("rule", [None, "coupled"])
def test_trees_whose_size_is_chosen_keep_the_law(rule):
    table, prompt = MarkovTable(2, None, seed=5), (0, 1, 0, 0, 1, 0)
    sizes = set()

    class Watched(TreeSizePolicy):
        def choose(self, rows):
            found = super().choose(rows)
            sizes.update(choice.kappa for choice in found)
            return found

    def program(brancher):
        drafter = SuffixTreeProposer(min_score=1e-9)
        chooser = Watched(RoundCost(AffineCost(1.0, 0.3), ParallelDraft()), drafter.name, 4, 0.6)
        core = EngineCore(
            TableBackend(table, PagedStore(64, 2)),
            proposers=[drafter],
            kappa=4,
            rule=rule,
            kappa_policy=chooser,
            coin_source=lambda seed, stream: BranchingCoins(brancher),
        )
        request = GenerateRequest(prompt, SamplingParams(), max_tokens=3, seed=1)
        name = core.submit(request)
        result = core.run()[name]
        if result.error is not None:
            raise result.error
        assert not result.notes
        return tuple(result.token_ids)

    expected = reference_law(table, prompt, 3, plain_warp)
    assert total_variation(exact_law(program), expected) < 1e-6
    assert max(sizes) > 0
