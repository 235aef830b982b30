"""Tree drafters, the pass that scores their trees and the tree rules: exact in law together.

Every branch of every coin is run through the shipped drafter, the table model's pass over
the tree, the shipped rule and the rollback to the kept path. What is emitted must follow
the target's own law, whatever the drafter.
"""

from itertools import product

import pytest
from tree_faults import (
    DropsDoubtfulNodes,
    GoesOnBelowItsSibling,
    RecordsTheParentsLaw,
    SortsSiblings,
)

from draftproof.backends.table import (
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    TableBackend,
)
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import FlatBatch, Row
from draftproof.proposers import DraftModelTreeProposer, NgramTreeProposer
from draftproof.testing.branching import BranchingCoins, exact_law
from draftproof.verify import TREE_RULES, verify_tree

pytestmark = pytest.mark.exact

PROMPT = [0, 1, 0, 0, 1]


def tables(vocab_size, seed=1):
    """Return the target's and the drafter's laws: of the prefix and of all positions."""
    ahead = MixedTable(
        MarkovTable(vocab_size, None, seed=seed), PositionTable(vocab_size, seed=seed + 1), 0.5
    )
    behind = MixedTable(
        MarkovTable(vocab_size, None, seed=seed + 2), PositionTable(vocab_size, seed=seed), 0.5
    )
    return ahead, behind


class Decoder:
    """Decodes one request by trees, on coins that branch."""

    def __init__(self, table, make_proposer, rule, params, kappas, *, tree_fault=None, keep=None):
        self.target = TableBackend(table, PagedStore(32, 2, keep_fault=keep), tree_fault=tree_fault)
        self.proposer, self.rule = make_proposer(), rule
        self.params, self.kappas = params, kappas

    def decode(self, brancher, horizon):
        coins, tokens, history = BranchingCoins(brancher), list(PROMPT), History(PROMPT)
        sequence = self.target.open()
        self.target.forward(FlatBatch.from_rows([Row(sequence, tokens[:-1], 0, 0)]))
        for kappa in self.kappas:
            if len(tokens) - len(PROMPT) >= horizon:
                break
            verdict, kept = self.round(sequence, tokens, history, coins, kappa)
            for token in (*kept, verdict.token_id):
                tokens.append(token)
                history.append(token)
        assert len(tokens) - len(PROMPT) >= horizon
        return tuple(tokens[len(PROMPT) :][:horizon])

    def round(self, sequence, tokens, history, coins, kappa):
        coins = coins.round(len(tokens))
        request = ProposalRequest(
            "a", tokens, kappa, self.params, history, coins, self.rule == "coupled"
        )
        tree = self.proposer.propose([request])[0]
        assert len(tree) <= kappa
        # Reasons to draft nothing; a failure or a lack of room is none of them.
        assert not tree.note or tree.note.startswith(("no earlier ", "no continuation scores "))
        begin = len(tokens) - 1
        row = Row(
            sequence, [tokens[-1], *tree.token_ids], begin, len(tree) + 1,
            [-1, *(parent + 1 for parent in tree.parents)],
        )  # fmt: skip
        logits = self.target.forward(FlatBatch.from_rows([row]))

        def law_at(node):
            text = [tree.token_ids[at] for at in tree.path(node)]
            return target_law(logits[node + 1], self.params, history, text)

        verdict = verify_tree(self.rule, tree, law_at, coins)
        self.target.truncate(sequence, begin + 1, [begin + 1 + node for node in verdict.path])
        self.target.commit(sequence)
        return verdict, [tree.token_ids[node] for node in verdict.path]


def emitted(table, make_proposer, rule, params, kappas, horizon, **faults):
    """Return the exact law of the first tokens after the prompt."""
    return exact_law(
        lambda brancher: Decoder(table, make_proposer, rule, params, kappas, **faults).decode(
            brancher, horizon
        )
    )


def plain_law(table, params, horizon):
    """Return the target's own law of its next tokens."""
    law = {}
    for word in product(range(table.vocab_size), repeat=horizon):
        prob, history, backend = 1.0, History(PROMPT), TableBackend(table)
        text = [*PROMPT, *word]
        logits = backend.forward(FlatBatch.from_rows([Row(backend.open(), text, 0, horizon + 1)]))
        for at, token in enumerate(word):
            prob *= target_law(logits[at], params, history, word[:at]).prob(token)
        law[word] = prob
    return law


def distance(left, right):
    return sum(abs(left.get(w, 0) - right.get(w, 0)) for w in {*left, *right}) / 2


def model_drafter(table, cls=DraftModelTreeProposer, **options):
    return lambda: cls(TableBackend(table, PagedStore(64, 2)), **options)


PLAIN = SamplingParams()
FILTERED = SamplingParams(temperature=0.8, top_k=2, frequency_penalty=0.7)


@pytest.mark.parametrize("rule", TREE_RULES)
def test_one_round_of_a_drawn_tree_emits_the_targets_law(rule):
    ahead, behind = tables(3)
    for widths, kappa, params in (((2, 1), 3, PLAIN), ((3,), 3, FILTERED)):
        make = model_drafter(behind, widths=widths)
        found = emitted(ahead, make, rule, params, [kappa], 1)
        assert distance(found, plain_law(ahead, params, 1)) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("widths", [(2, 1), None])
def test_rounds_of_drawn_trees_emit_the_targets_law(rule, widths):
    ahead, behind = tables(2)
    found = emitted(ahead, model_drafter(behind, widths=widths), rule, PLAIN, [3, 2, 1], 3)
    assert distance(found, plain_law(ahead, PLAIN, 3)) < 1e-12


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_two_tokens_of_a_filtered_tree_follow_the_targets_law(rule):
    ahead, behind = tables(3)
    found = emitted(ahead, model_drafter(behind, widths=(2, 1)), rule, FILTERED, [4, 1], 2)
    assert distance(found, plain_law(ahead, FILTERED, 2)) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES)
def test_deterministic_candidates_emit_the_targets_law(rule):
    ahead, behind = tables(3)
    for make, params in (
        (NgramTreeProposer, PLAIN),
        (lambda: NgramTreeProposer(1, 3, max_paths=3, acceptance=0.5), FILTERED),
        (model_drafter(behind, temperature=0.0, widths=(2, 2)), PLAIN),
    ):
        found = emitted(ahead, make, rule, params, [5, 2, 1], 3)
        assert distance(found, plain_law(ahead, params, 3)) < 1e-12


@pytest.mark.parametrize("rule", TREE_RULES)
def test_greedy_requests_emit_the_greedy_text(rule):
    ahead, behind = tables(5)
    greedy = SamplingParams(temperature=0.0)
    expected = max(plain_law(ahead, greedy, 3).items(), key=lambda item: item[1])[0]
    found = emitted(ahead, model_drafter(behind), rule, greedy, [6, 5, 4], 3)
    assert found == {expected: 1}


# -- planted faults -----------------------------------------------------------------


#: fault -> (widths, nodes of each round, tokens looked at)
SPOILED = {
    SortsSiblings: ((2,), [2], 1),
    DropsDoubtfulNodes: ((2,), [2], 1),
    RecordsTheParentsLaw: ((1, 1), [2, 1], 2),
}


@pytest.mark.parametrize("fault", SPOILED)
@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_a_drafter_that_spoils_its_law_is_seen(fault, rule):
    widths, kappas, horizon = SPOILED[fault]
    sizes = []
    for seed in range(1, 6):
        ahead, behind = tables(3, seed)
        make = model_drafter(behind, fault, widths=widths)
        found = emitted(ahead, make, rule, PLAIN, kappas, horizon)
        sizes.append(distance(found, plain_law(ahead, PLAIN, horizon)))
    assert sum(size > 1e-3 for size in sizes) >= 2, sizes


@pytest.mark.parametrize("fault", ["index-positions", "sees-siblings"])
@pytest.mark.parametrize("rule", TREE_RULES)
def test_a_pass_that_scores_the_tree_wrongly_is_seen(fault, rule):
    ahead, behind = tables(2)
    make = model_drafter(behind, widths=(2,))
    found = emitted(ahead, make, rule, PLAIN, [2, 1], 2, tree_fault=fault)
    assert distance(found, plain_law(ahead, PLAIN, 2)) > 1e-3


@pytest.mark.parametrize("rule", TREE_RULES)
def test_a_rollback_that_keeps_the_wrong_slots_is_seen(rule):
    ahead, behind = tables(2)
    make = model_drafter(behind, widths=(2,))
    found = emitted(ahead, make, rule, PLAIN, [2, 1, 1], 3, keep="stays-in-place")
    assert distance(found, plain_law(ahead, PLAIN, 3)) > 1e-3


def test_a_drafter_that_mixes_its_branches_up_stays_exact():
    # It draws from the law that it records: worse drafts, the same output. What sees it is
    # the comparison of each node's law with a fresh drafter's, beside the drafter.
    ahead, behind = tables(2)
    make = model_drafter(behind, GoesOnBelowItsSibling, widths=(2, 1))
    found = emitted(ahead, make, "recursive", PLAIN, [4, 1], 2)
    assert distance(found, plain_law(ahead, PLAIN, 2)) < 1e-12
