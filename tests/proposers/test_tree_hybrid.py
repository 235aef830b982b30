"""Copies that branch with a drawn tree below them: the law by enumeration, and who drafts where."""

from dataclasses import replace

import numpy as np
import pytest
from engine_kit import NEAR, RULES, TABLE, VOCAB, WARM, ids, make_core, requests, run
from head_kit import SMALL, distance_from_target, joint_law, numpy_head
from suffix_kit import request
from test_tree_draft_head import law_after, told
from test_tree_draft_head import request as head_request
from test_tree_exact import FILTERED, PLAIN, distance, emitted, plain_law, tables

from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.core.policy import SamplingParams, target_law
from draftproof.core.protocols import HiddenReader
from draftproof.core.types import FlatBatch, Row, TreeDraft
from draftproof.errors import ConfigError
from draftproof.proposers import (
    DraftHeadTreeProposer,
    DraftModelTreeProposer,
    HybridTreeHeadProposer,
    HybridTreeProposer,
    PredictionTreeProposer,
    SuffixTreeProposer,
)
from draftproof.proposers._candidates import Candidates, likeliest_paths, merged
from draftproof.testing import check_proposer
from draftproof.verify import TREE_RULES


class Scripted:
    """Copies nothing, a chain or a tree, by what the text ends with."""

    name = "scripted"

    def candidates(self, request):
        last = request.token_ids[-1]
        paths = ({(0,): 0.6, (1,): 0.5}, {}, {(1,): 0.9, (1, 0): 0.7})[last % 3]
        return likeliest_paths(paths, request.kappa)

    def release(self, request_id):
        pass


def model(table, **options):
    return DraftModelTreeProposer(TableBackend(table, PagedStore(64, 2)), **options)


class Predicting(PredictionTreeProposer):
    """Is told one prediction for all requests."""

    def candidates(self, request):
        return super().candidates(replace(request, prediction=(0, 1, 1, 0, 1)))


def mixtures(table, vocab_size):
    wide = {"widths": (min(2, vocab_size), 1)}
    return {
        "script": lambda cls=HybridTreeProposer: cls([Scripted()], model(table, **wide)),
        "suffix": lambda cls=HybridTreeProposer: cls(
            [SuffixTreeProposer(min_score=0.3)], model(table, **wide), max_model_tokens=1
        ),
        "prediction, suffix": lambda cls=HybridTreeProposer: cls(
            [Predicting(min_score=0.2), SuffixTreeProposer(min_score=0.3)], model(table), enough=2
        ),
        "below nothing": lambda cls=HybridTreeProposer: cls(
            [Scripted()], model(table, **wide), enough=1
        ),
    }


# -- the law -----------------------------------------------------------------------------


@pytest.mark.exact
@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("mixture", mixtures(None, 2))
def test_rounds_of_every_mixture_emit_the_targets_law(mixture, rule):
    ahead, behind = tables(2)
    found = emitted(ahead, mixtures(behind, 2)[mixture], rule, PLAIN, [3, 2, 1], 3)
    assert distance(found, plain_law(ahead, PLAIN, 3)) < 1e-12


@pytest.mark.exact
@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("params", [PLAIN, FILTERED])
def test_copied_and_drawn_nodes_of_one_tree_emit_the_targets_law(rule, params):
    ahead, behind = tables(3)
    kinds = set()

    class Watched(HybridTreeProposer):
        def propose(self, requests):
            trees = super().propose(requests)
            for tree in trees:
                laws = tree.child_laws or (None,) * (len(tree) + 1)
                below = zip(laws, tree.children(), strict=True)
                kinds.add(tuple(sorted((law is not None, len(to)) for law, to in below if to)))
            return trees

    found = emitted(
        ahead, lambda: Watched([Scripted()], model(behind, widths=(2,))), rule, params, [1, 4, 1], 2
    )
    assert distance(found, plain_law(ahead, params, 2)) < 1e-12
    if rule != "coupled":
        # Two drawn children below the likelier of two copies, and below a chain of two.
        assert {((False, 2), (True, 2)), ((False, 1), (False, 1), (True, 2))} <= kinds


@pytest.mark.exact
@pytest.mark.parametrize("rule", ["standard", "block", "coupled", "sample-match"])
@pytest.mark.parametrize("enough", [1, 3])
def test_a_head_below_copies_keeps_the_joint_law(rule, enough):
    def make():
        head = DraftHeadTreeProposer(numpy_head(SMALL), widths=(2, 1))
        return HybridTreeHeadProposer([Scripted()], head, enough=enough)

    horizon = 3
    law = joint_law(make, rule, kappa=3, horizon=horizon)
    assert distance_from_target(law, horizon) < 1e-6


# -- planted faults ----------------------------------------------------------------------


class Faulty(HybridTreeProposer):
    """Changes each draft before it is judged."""

    def propose(self, requests):
        return [
            self.change(tree, asked)
            for tree, asked in zip(super().propose(requests), requests, strict=True)
        ]


class CopiesClaimTheModelsLaw(Faulty):
    """Says that the model drew the copied children."""

    def change(self, tree, asked):
        if tree.child_laws is None:
            return tree
        drawn = next(law for law in tree.child_laws if law is not None)
        laws = tuple(
            drawn if below and law is None else law
            for law, below in zip(tree.child_laws, tree.children(), strict=True)
        )
        return replace(tree, child_laws=laws)


class MixesAtOneNode(Faulty):
    """Puts a copy before the model's children, which carry one law all the same."""

    def change(self, tree, asked):
        law = tree.child_law(-1)
        if law is None:
            return tree
        copy = asked.token_ids[0]
        drawn = [tree.token_ids[node] for node in tree.children()[0]]
        tokens = tuple(dict.fromkeys([copy, *drawn]))[: asked.kappa]
        return TreeDraft(tokens, (-1,) * len(tokens), (law, *[None] * len(tokens)), "x")


class WithholdsWhatACopySays(Faulty):
    """Leaves a drawn node out where it is what the text began with."""

    def change(self, tree, asked):
        if tree.child_law(-1) is None:
            return tree
        kept = [node for node in tree.children()[0] if tree.token_ids[node] != asked.token_ids[0]]
        tokens = tuple(tree.token_ids[node] for node in kept)
        laws = (tree.child_law(-1) if kept else None, *[None] * len(kept))
        return TreeDraft(tokens, (-1,) * len(kept), laws, "x")


class CopiesWhereTheModelDrewLittle(Faulty):
    """Takes the copy in place of a draw that the model thinks less of."""

    def change(self, tree, asked):
        law = tree.child_law(-1)
        copy = asked.token_ids[0]
        if law is None or law.prob(copy) <= law.prob(tree.token_ids[0]):
            return tree
        return TreeDraft((copy,), (-1,), (law, None), "x")


class ChoosesTheLeafByTheDraw(Faulty):
    """Moves drawn children below the copy that holds the first of them."""

    def change(self, tree, asked):
        drawn = [node for node in range(len(tree)) if tree.child_law(tree.parents[node])]
        if not drawn or tree.parents[drawn[0]] < 0:
            return tree
        old, first = tree.parents[drawn[0]], tree.token_ids[drawn[0]]
        roots = {tree.token_ids[node]: node for node in tree.children()[0]}
        new = roots.get(first, old)
        parents = tuple(new if parent == old else parent for parent in tree.parents)
        laws = list(tree.child_laws)
        laws[old + 1], laws[new + 1] = None, laws[old + 1]
        return replace(tree, parents=parents, child_laws=tuple(laws))


#: fault -> (widths of the model, nodes of each round, tokens looked at)
FAULTS = {
    CopiesClaimTheModelsLaw: ((2,), [1, 4, 1], 2),
    MixesAtOneNode: ((2,), [1, 3, 1], 2),
    WithholdsWhatACopySays: ((2,), [1, 2, 1], 2),
    CopiesWhereTheModelDrewLittle: ((1,), [1, 1, 1], 2),
    ChoosesTheLeafByTheDraw: ((1,), [1, 3, 1], 3),
}


@pytest.mark.exact
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_planted_faults_change_the_law(fault, rule):
    widths, kappas, horizon = FAULTS[fault]
    sizes = []
    for seed in range(1, 4):
        ahead, behind = tables(3, seed)
        make = lambda behind=behind: fault([Scripted()], model(behind, widths=widths))  # noqa: E731
        found = emitted(ahead, make, rule, PLAIN, kappas, horizon)
        sizes.append(distance(found, plain_law(ahead, PLAIN, horizon)))
    assert sum(size > 1e-3 for size in sizes) >= 2, sizes


# -- who drafts where --------------------------------------------------------------------


def hybrid(**options):
    part = model(TABLE, widths=(2, 2))
    return HybridTreeProposer([Scripted()], part, **options)


@pytest.mark.parametrize(
    ("last", "kappa", "parents", "num_copied"),
    [
        (1, 6, (-1, -1, 0, 0, 1, 1), 0),  # nothing is copied
        (0, 6, (-1, -1, 0, 0, 2, 2), 2),  # below the likelier of two copies
        (2, 6, (-1, 0, 1, 1, 2, 2), 2),  # below a chain
        (2, 2, (-1, 0), 2),  # no node is left
        (2, 1, (-1,), 1),
    ],
)
def test_the_model_goes_on_below_the_likeliest_copied_path(last, kappa, parents, num_copied):
    asked = replace(request([3, 3, last], kappa), params=PLAIN)
    (tree,) = hybrid().propose([asked])
    assert tree.parents == parents
    assert tree.sources == ("scripted",) * num_copied + ("draft-model-tree",) * (kappa - num_copied)
    backend = TableBackend(TABLE)
    for node in range(-1, len(tree)):
        law = tree.child_law(node)
        is_drawn = any(child >= num_copied for child in tree.children()[node + 1])
        assert (law is not None) == is_drawn
        if law is not None:
            path = [tree.token_ids[at] for at in tree.path(node)]
            text = [*asked.token_ids, *path]
            logits = backend.forward(FlatBatch.from_rows([Row(backend.open(), text, 0, 1)]))
            np.testing.assert_allclose(
                law.dense(), target_law(logits[0], PLAIN, asked.history, path).dense()
            )


def test_enough_and_levels_bound_what_the_model_adds():
    asked = replace(request([3, 3, 2], 9), params=PLAIN)
    assert hybrid(enough=2).propose([asked])[0].sources == ("scripted",) * 2
    (tree,) = hybrid(enough=3, max_model_tokens=1).propose([asked])
    assert tree.parents == (-1, 0, 1, 1)


def test_the_head_reads_the_copies_with_the_features_that_it_predicts():
    asked = head_request(kappa=8)

    class Copies(Scripted):
        def candidates(self, request):
            return likeliest_paths({(4,): 0.9, (4, 0): 0.8, (4, 0, 5): 0.7, (1,): 0.6}, 8)

    head = DraftHeadTreeProposer(numpy_head(), widths=(2, 1))
    proposer = HybridTreeHeadProposer([Copies()], head, enough=4)
    assert isinstance(proposer, HiddenReader)
    (tree,) = told(proposer, asked).propose([asked])
    assert tree.sources == ("scripted",) * 4 + ("draft-head-tree",) * 4
    for node in range(-1, len(tree)):
        if (law := tree.child_law(node)) is not None:
            path = [tree.token_ids[at] for at in tree.path(node)]
            assert path[:3] == [4, 0, 5]
            np.testing.assert_allclose(law.dense(), law_after(asked, path).dense(), atol=2e-6)


def test_parts_that_fail_leave_a_note_and_the_others_go_on():
    class Failing(Scripted):
        name = "failing"

        def candidates(self, request):
            raise RuntimeError("no")

    asked = replace(request([3, 3, 0], 4), params=PLAIN)
    part = model(TABLE, widths=(2,))
    (tree,) = HybridTreeProposer([Failing(), Scripted()], part).propose([asked])
    assert tree.sources == ("scripted",) * 2 + ("draft-model-tree",) * 2
    part.propose_below = lambda *args: []
    (tree,) = HybridTreeProposer([Scripted()], part).propose([asked])
    assert (tree.sources, tree.note) == (
        ("scripted",) * 2,
        "draft-model-tree failed: 0 drafts for 1 rows",
    )
    (tree,) = HybridTreeProposer([Failing()], part).propose([asked])
    assert tree.note.startswith("failing failed: RuntimeError('no'); draft-model-tree failed")
    short = model(TABLE)
    short._backend = TableBackend(TABLE, PagedStore(64, 2), context_length=2)
    (tree,) = HybridTreeProposer([Scripted()], short).propose([asked])
    assert tree.sources == ("scripted",) * 2
    assert "context" in tree.note


def test_merged_candidates_take_the_best_guess_and_its_maker():
    one = likeliest_paths({(1,): 0.5, (1, 2): 0.4, (3,): 0.3}, 9)
    two = likeliest_paths({(3,): 0.9, (1,): 0.2, (3, 4): 0.1}, 9)
    tree = merged([("one", one), ("two", two)], 4)
    assert tree.paths() == [(3,), (1,), (1, 2), (3, 4)]
    assert tree.sources == ("two", "one", "one", "two")
    assert tree.scores == (0.9, 0.5, 0.4, 0.1)
    silent = merged([("one", Candidates(note="a")), ("two", Candidates(note="b"))], 4)
    assert (len(silent), silent.note) == (0, "a; b")


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([], {}, "no draftless part"),
        ([Scripted(), Scripted()], {}, "a name of its own"),
        ([Scripted()], {"enough": 0}, "enough 0"),
        ([Scripted()], {"max_model_tokens": 0}, "max_model_tokens 0"),
    ],
)
def test_what_makes_no_hybrid_is_refused(parts, options, message):
    with pytest.raises(ConfigError, match=message):
        HybridTreeProposer(parts, model(TABLE), **options)


def test_a_request_is_forgotten_by_every_part_and_options_are_those_of_the_parts():
    proposer = HybridTreeProposer(
        [PredictionTreeProposer(), SuffixTreeProposer(tenant_tokens=50)], model(TABLE)
    )
    assert proposer.reads == {"prediction", "tenant"}
    proposer.propose([request([1, 2, 1, 2], prediction=(1, 2, 3))])
    parts = [*proposer._copying, proposer._model]
    assert [part.num_requests for part in parts] == [1, 1, 1]
    proposer.release("a")
    assert [part.num_requests for part in parts] == [0, 0, 0]


# -- the whole path ----------------------------------------------------------------------


def test_it_conforms():
    table = MarkovTable(9, None, seed=1, zeros=0.3)

    def make():
        backend = TableBackend(table, PagedStore(300, 4))
        return HybridTreeProposer(
            [SuffixTreeProposer(min_score=0.3)], DraftModelTreeProposer(backend)
        )

    report = check_proposer(make, vocab_size=9, num_draws=200, tolerance=0.0)
    report.require()
    # Each of its policies has rounds whose first node is copied.
    skipped = {result.name for result in report if result.status == "skipped"}
    assert skipped <= {"laws_hold_at_their_edges"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pages", [400, 20])
def test_it_runs_in_the_engine_through_preemption_and_rollback(rule, pages):
    def make():
        return HybridTreeProposer(
            [PredictionTreeProposer(), SuffixTreeProposer(min_score=0.3)],
            DraftModelTreeProposer(TableBackend(NEAR, PagedStore(pages, 4))),
        )

    asked = requests(5, 9, 3, 17, params=WARM, max_tokens=30)
    asked[0] = replace(asked[0], prediction=tuple(n % VOCAB for n in range(20)))
    core = make_core(store=PagedStore(pages), proposers=[make()], kappa=6, rule=rule)
    results = run(core, asked)
    sources, branched = set(), False
    for result in results.values():
        stats = result.stats
        drafted: dict[str, int] = {}
        kept: dict[str, int] = {}
        for record in result.records:
            branched |= len(set(record.parents or ())) < len(record.drafted)
            sources |= {tuple(dict.fromkeys(record.draft_sources or ()))}
            assert len(record.kept) == record.num_accepted
            shown = [record.drafted[node] for node in record.kept][: len(record.emitted)]
            assert list(record.emitted[: len(shown)]) == shown
            for node, source in enumerate(record.draft_sources or ()):
                drafted[source] = drafted.get(source, 0) + 1
                kept[source] = kept.get(source, 0) + (node in record.kept)
        assert stats.num_draft_tokens_per_drafter == drafted
        assert stats.num_accepted_tokens_per_drafter == kept
        assert stats.num_accepted_tokens == sum(kept.values())
    assert branched
    assert {("draft-model-tree",), ("suffix-tree", "draft-model-tree")} <= sources
    if pages == 20:
        assert core.num_preemptions > 0
    if rule in ("coupled", "sample-match"):
        bare = make_core(rule=rule)
        plain = [replace(each, prediction=()) for each in asked]
        assert ids(run(bare, plain)) == ids(results)


@pytest.mark.exact
def test_greedy_text_is_that_of_plain_decoding():
    greedy = SamplingParams(temperature=0.0)
    asked = requests(6, 11, params=greedy, max_tokens=40)
    core = make_core(proposers=[hybrid()], kappa=6)
    assert ids(run(core, asked)) == ids(run(make_core(), asked))
