"""Trees from predictions: which places branch, what is counted, and the law."""

from dataclasses import replace

import pytest
from engine_kit import GREEDY, VOCAB, make_core, plain, run
from hypothesis import given
from hypothesis import strategies as st
from suffix_kit import request
from test_exact_law import TOLERANCE, engine_law, plain_warp, reference_law, total_variation
from test_tree_exact import FILTERED, PLAIN, distance, emitted, plain_law, tables

from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.core.law import DenseLaw
from draftproof.core.policy import SamplingParams
from draftproof.core.types import StepRecord, TreeDraft
from draftproof.engine import GenerateRequest
from draftproof.errors import ConfigError
from draftproof.proposers import (
    PredictionProposer,
    PredictionTreeProposer,
    PredictionUsage,
    prediction_usage,
)
from draftproof.testing import check_proposer
from draftproof.verify import TREE_RULES

EAGER = 1e-9
#: No token twice: every place is told by one token.
TEXT = tuple(range(100, 160))
ASKED = [900, 901]


def drafted(output, prediction=TEXT, kappa=8, **options):
    proposer = PredictionTreeProposer(**options)
    return proposer.propose([request([*ASKED, *output], kappa, prompt=2, prediction=prediction)])[0]


def paths(tree):
    """The token paths to the leaves, in order of the leaves."""
    leaves = [node for node in range(len(tree)) if node not in tree.parents]
    return [tuple(tree.token_ids[at] for at in tree.path(leaf)) for leaf in leaves]


# -- which nodes -------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([1, 1, 1, 0]), max_size=40),
    st.integers(1, 20),
    st.sampled_from([0.05, 0.1, 0.4]),
)
def test_where_the_text_follows_the_tree_is_the_chain(hits, kappa, least):
    output = [token if hit else 7000 + token for hit, token in zip(hits, TEXT, strict=False)]
    chain = PredictionProposer(min_score=least)
    asked = request([*ASKED, *output], kappa, prompt=2, prediction=TEXT)
    expected = chain.propose([asked])[0]
    if chain.foretell("a", asked.token_ids) == 3:
        tree = drafted(output, kappa=kappa, min_score=least)
        assert (tree.token_ids, tree.parents) == (
            expected.token_ids,
            tuple(range(-1, len(expected) - 1)),
        )


def test_at_a_divergence_it_branches_to_a_replacement_and_an_insertion():
    tree = drafted([*TEXT[:9], 500])
    roots = [tree.token_ids[node] for node in tree.children()[0]]
    assert roots == [TEXT[10], TEXT[9]]
    tree = drafted([*TEXT[:9], 500, 501], min_score=EAGER)
    assert paths(tree) == [TEXT[11:13], TEXT[9:11]]


def test_the_right_branch_is_found_in_every_case():
    # What came: a replacement, an insertion, a part left out, a part moved to the front.
    for output, place in (
        ([*TEXT[:9], 500], 10),
        ([*TEXT[:9], 500], 9),
        ([*TEXT[:9], 500, 501], 9),
        ([*TEXT[:9], TEXT[29]], 30),
        (TEXT[40:44], 44),
    ):
        tree = drafted(output)
        assert TEXT[place] in [tree.token_ids[node] for node in tree.children()[0]]


def test_places_that_agree_as_long_are_branches_the_nearest_first_until_one_is_contradicted():
    # Ten paragraphs that differ in their last tokens; the output jumps into one of them.
    prediction = [t for n in range(10) for t in (1, 2, 3, 4, 50 + n, 60 + n)]
    output = [8, 9, 1, 2, 3]
    tree = drafted(output, prediction, 12, min_score=0.02)
    assert tree.token_ids[0] == 4  # which all of them say
    below = [tree.token_ids[node] for node in tree.children()[1]]
    assert below[:2] == [50, 51]
    # One more token that all agree in, and one that tells which it is.
    tree = drafted([*output, 4], prediction, 12, min_score=0.02)
    assert [tree.token_ids[node] for node in tree.children()[0]][:2] == [50, 51]
    settled = drafted([*output, 4, 51], prediction, 12, min_score=0.02)
    assert settled.token_ids[:4] == (61, 1, 2, 3)


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.integers(1, 9),
)
def test_trees_are_cut_to_the_likeliest_and_asking_often_changes_nothing(output, said, kappa):
    proposer, whole = PredictionTreeProposer(min_score=0.05), None
    for size in range(len(output) + 1):
        asked = request([*ASKED, *output[:size]], kappa, prompt=2, prediction=said)
        whole = proposer.candidates(asked)
        fresh = PredictionTreeProposer(min_score=0.05).candidates(asked)
        assert whole == fresh
        assert list(whole.scores) == sorted(whole.scores, reverse=True)
        assert all(0 < score <= 1 + 1e-12 for score in whole.scores)
        assert bool(whole.note) != bool(len(whole))
        tree = whole.draft("x")  # refuses what is no tree
        assert tree.child_laws is None
        more = PredictionTreeProposer(min_score=0.05).candidates(replace(asked, kappa=kappa + 1))
        assert whole.paths() == more.paths()[:kappa]


@pytest.mark.parametrize(
    ("output", "prediction", "note"),
    [
        (TEXT, TEXT, "used up"),
        ((1, 2), (), "no prediction"),
        (range(300, 330), TEXT, "has left the prediction"),
    ],
)
def test_where_nothing_is_drafted_a_note_says_why(output, prediction, note):
    tree = drafted(output, prediction)
    assert len(tree) == 0
    assert note in tree.note


def test_settings_are_checked_and_a_request_is_forgotten():
    for options, message in (({"min_context": 0}, "min_context"), ({"min_score": 1.0}, "min_sc")):
        with pytest.raises(ConfigError, match=message):
            PredictionTreeProposer(**options)
    proposer = PredictionTreeProposer()
    proposer.propose([request(ASKED, prediction=TEXT)])
    assert (proposer.num_requests, proposer.reads) == (1, {"prediction"})
    proposer.release("a")
    assert proposer.num_requests == 0


# -- what is counted ---------------------------------------------------------------------


def test_usage_counts_the_kept_path_and_not_the_first_nodes():
    record = StepRecord(
        "r", 5, (1, 2, 3, 4), 2, (3, 4, 9), ("accepted", "accepted", "recovered"),
        "prediction-tree", (-1, 0, -1, 2), None, (2, 3),
    )  # fmt: skip
    assert prediction_usage([record]) == PredictionUsage(2, 2)
    mixed = replace(record, draft_sources=("prediction-tree", "s", "prediction-tree", "s"))
    assert prediction_usage([mixed]) == PredictionUsage(1, 1)
    cut = replace(mixed, emitted=(3,), sources=("accepted",))
    assert prediction_usage([cut]) == PredictionUsage(1, 1)


# -- the whole path ----------------------------------------------------------------------


class Told(PredictionTreeProposer):
    """Gives every request the same prediction: kits know none."""

    prediction = tuple(t * t % 7 for t in range(80))

    def candidates(self, request):
        return super().candidates(replace(request, prediction=self.prediction))


def test_it_conforms():
    report = check_proposer(Told, vocab_size=9, num_draws=200, tolerance=0.0)
    report.require()
    skipped = {result.name for result in report if result.status == "skipped"}
    assert skipped == {"laws_are_those_drawn_from", "laws_hold_at_their_edges"}


def requests(params, predictions):
    return [
        GenerateRequest(
            (n, 2, 1, n), params, max_tokens=30, seed=n, request_id=f"r{n}", prediction=said
        )
        for n, said in enumerate(predictions)
    ]


@pytest.mark.parametrize("pages", [400, 14])
def test_edited_predictions_save_passes_and_leave_greedy_text_as_it_is(pages):
    """With few pages requests are preempted and resumed, and trees are rolled back."""
    bare = plain([replace(r, prediction=()) for r in requests(GREEDY, [()] * 4)])
    said = []
    for result in bare.values():
        text = list(result.token_ids)
        text[8:9] = [(text[8] + 1) % VOCAB]  # one was replaced, three were put in, one left out
        text[15:15] = [(text[15] + 1) % VOCAB] * 3
        del text[24]
        said.append(tuple(text))
    core = make_core(store=PagedStore(pages), proposers=[PredictionTreeProposer()], kappa=6)
    results = run(core, requests(GREEDY, said))
    assert {n: r.token_ids for n, r in results.items()} == {n: r.token_ids for n, r in bare.items()}
    records = [record for result in results.values() for record in result.records]
    assert any(len(set(r.parents)) < len(r.parents) for r in records if r.parents)  # branched
    assert sum(r.num_accepted for r in records) > 0.5 * 4 * 30
    assert all(len(record.kept) == record.num_accepted for record in records)
    if pages == 14:
        assert core.num_preemptions > 0


def test_a_seed_identical_text_stays_whatever_is_predicted():
    warm = SamplingParams(temperature=0.8)
    bare = run(make_core(rule="coupled"), requests(warm, [()] * 3))
    said = [(*r.token_ids[:10], 1, *r.token_ids[9:]) for r in bare.values()]
    core = make_core(proposers=[PredictionTreeProposer()], rule="coupled", kappa=6)
    found = run(core, requests(warm, said))
    assert {n: r.token_ids for n, r in found.items()} == {n: r.token_ids for n, r in bare.items()}
    assert sum(r.stats.num_accepted_tokens for r in found.values()) > 30


# -- the law -----------------------------------------------------------------------------


class TellsThePrompt(Told):
    """Branches at once in the three texts that the enumeration decodes."""

    prediction = (0, 1, 1, 0, 2, 1, 0, 0, 2, 2, 1)


class ClaimsALaw(TellsThePrompt):
    """Says of predicted candidates that they were drawn from a law."""

    def _propose_one(self, request):
        tree = super()._propose_one(request)
        laws = tuple(DenseLaw([0.25, 0.25, 0.5]) if below else None for below in tree.children())
        return TreeDraft(tree.token_ids, tree.parents, laws, tree.proposer, tree.note)


class ReadsTheCoin(TellsThePrompt):
    """Drops the candidate that the coin of the round will keep."""

    def _propose_one(self, request):
        tree = super()._propose_one(request)
        roots = tree.children()[0]
        if len(roots) < 2 or not request.coins.accept(0) < 0.5:
            return tree
        return TreeDraft((tree.token_ids[roots[1]],), (-1,), None, tree.proposer)


@pytest.mark.exact
@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("params", [PLAIN, FILTERED])
def test_rounds_of_predicted_trees_emit_the_targets_law(rule, params):
    ahead, _ = tables(3)
    branched = set()

    class Watched(TellsThePrompt):
        def _propose_one(self, request):
            tree = super()._propose_one(request)
            branched.add(len(set(tree.parents)) < len(tree))
            return tree

    found = emitted(ahead, lambda: Watched(min_score=EAGER), rule, params, [1, 4, 1], 3)
    assert distance(found, plain_law(ahead, params, 3)) < 1e-12
    assert branched == {True, False}


@pytest.mark.exact
@pytest.mark.parametrize(
    ("fault", "rule"),
    [(ClaimsALaw, "recursive"), (ClaimsALaw, "traversal"), (ReadsTheCoin, "recursive")],
)
def test_a_predicted_tree_that_claims_a_law_or_reads_a_coin_is_seen(fault, rule):
    ahead, _ = tables(3)
    found = emitted(ahead, lambda: fault(min_score=EAGER), rule, PLAIN, [3, 3, 1], 3)
    assert distance(found, plain_law(ahead, PLAIN, 3)) > 1e-3


@pytest.mark.exact
@pytest.mark.parametrize("rule", ["standard", "block", "coupled", "sample-match", None])
def test_the_engine_keeps_the_joint_law_on_predicted_trees(rule):
    target = MarkovTable(3, None, seed=21, zeros=0.3)
    found = engine_law(
        TableBackend(target), [TellsThePrompt(min_score=0.02)], params=SamplingParams(), horizon=4,
        kappa=4, rule=rule,
    )  # fmt: skip
    assert total_variation(found, reference_law(target, (0, 1, 0), 4, plain_warp)) < TOLERANCE
