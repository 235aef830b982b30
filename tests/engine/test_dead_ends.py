"""Places after a draft where nothing may follow: they fail nobody who does not go there."""

from __future__ import annotations

import itertools

import pytest
from engine_kit import ListConstraint, Pieces, ids, make_core, run, sentences
from test_exact_law import BRANCHED_SEED, PROMPT, total_variation
from test_trees import SampledTree

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.constraint import GrammarSpec
from draftproof.core.params import SamplingParams
from draftproof.core.rng import CoinSource
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.proposers import DraftModelProposer, DraftModelTreeProposer, NgramProposer
from draftproof.testing.branching import BranchingCoins, exact_law
from draftproof.testing.scripted import FixedProposer

RULES = ("standard", "block", "coupled", "sample-match")
END = 3
TEXT = Pieces([b"a", b"b", b"c"])
TABLE = MarkovTable(4, None, seed=1)
DRAFTERS = {
    "ngram": lambda: NgramProposer(1, 3),
    "model": lambda: DraftModelProposer(TableBackend(TABLE)),
    "tree": lambda: DraftModelTreeProposer(TableBackend(TABLE)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(
    "policy",
    [{"min_tokens": 5}, {"banned_token_ids": (END,)}, {"allowed_token_ids": (0, 1, 2)}],
    ids=lambda policy: next(iter(policy)),
)
def test_a_finished_grammar_ends_though_the_policy_leaves_no_end(policy, drafter, rule):
    grammar = pytest.importorskip("draftproof.grammar")
    request = GenerateRequest(
        (0, 1, 2, 0, 1, 2),
        SamplingParams(**policy),
        max_tokens=8,
        rule=rule,
        seed=1,
        grammar=GrammarSpec("regex", "abc"),
    )
    make = grammar.make_constraints(TEXT, 4)
    found = {
        kappa: run(
            make_core(
                TABLE,
                tokenizer=TEXT,
                constraints=make,
                proposers=[DRAFTERS[drafter]()],
                kappa=kappa,
            ),
            [request],
        )
        for kappa in (0, 3)
    }
    assert ids(found[3]) == ids(found[0]) == {"request-0": [0, 1, 2]}
    assert found[3]["request-0"].finish_reason == "stop"


class DeadEnd(ListConstraint):
    """All texts, and no way on where the second token is 1."""

    def allowed(self, extra=()):
        if (*self.output, *extra)[1:2] == (1,):
            raise ConfigError("the grammar cannot go on")
        return super().allowed(extra)


def law_with_a_dead_end(proposer, rule, length):
    texts = list(itertools.product(range(2), repeat=length))

    def program(brancher):
        def coins(seed, stream):
            return BranchingCoins(brancher) if seed == BRANCHED_SEED else CoinSource(seed, stream)

        core = EngineCore(
            TableBackend(MarkovTable(2, None, seed=2)),
            proposers=[] if proposer is None else [proposer],
            kappa=0 if proposer is None else 4,
            rule=rule,
            coin_source=coins,
            constraints=lambda _: DeadEnd(texts, 2),
        )
        core.submit(
            GenerateRequest(
                PROMPT, SamplingParams(), length, seed=BRANCHED_SEED, grammar=sentences()
            )
        )
        (result,) = core.run().values()
        return (*result.token_ids, "failed") if result.error else tuple(result.token_ids)

    return exact_law(program)


@pytest.mark.exact
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "proposer",
    [FixedProposer((1, 0, 1)), SampledTree(MarkovTable(2, 1, seed=9))],
    ids=["chain", "tree"],
)
def test_a_dead_end_is_met_as_often_as_by_plain_decoding(proposer, rule):
    plain = law_with_a_dead_end(None, None, 5)
    assert 0.05 < sum(prob for text, prob in plain.items() if text[-1] == "failed") < 0.95
    assert total_variation(law_with_a_dead_end(proposer, rule, 5), plain) < 1e-9
