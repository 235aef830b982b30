"""The proposer kit passes what is right and fails every planted fault."""

from dataclasses import replace

import numpy as np
import pytest

from draftproof.backends.table import (
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    RecurrentStore,
    TableBackend,
    WindowStore,
)
from draftproof.core.law import DenseLaw
from draftproof.core.policy import SamplingParams
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft
from draftproof.proposers import (
    DraftModelProposer,
    DraftModelTreeProposer,
    NgramProposer,
    NgramTreeProposer,
    NoProposer,
    SuffixTreeProposer,
)
from draftproof.proposers._lookups import SuffixLookups
from draftproof.testing import PROPOSER_CHECKS, check_proposer

VOCAB = 9
TABLE = MixedTable(MarkovTable(VOCAB, None, seed=1, zeros=0.3), PositionTable(VOCAB, seed=2), 0.5)


def model(cls=DraftModelProposer, store=None, **options):
    limit = options.pop("context_length", 1024)
    backend = TableBackend(TABLE, store or PagedStore(300, 4), context_length=limit)
    return cls(backend, **options)


LAWFUL = {
    "ngram": NgramProposer,
    "ngram 1..3": lambda: NgramProposer(1, 3),
    "model": model,
    "short context": lambda: model(context_length=24, max_tokens_per_pass=5),
    "hotter": lambda: model(temperature=1.5),
    "greedy drafts": lambda: model(temperature=0.0),
    "confident": lambda: model(min_confidence=0.25),
    "recurrent": lambda: model(store=RecurrentStore()),
    "window": lambda: model(store=WindowStore(4)),
    "ngram tree": NgramTreeProposer,
    "suffix tree": SuffixTreeProposer,
    "tree": lambda: model(DraftModelTreeProposer),
    "tree of widths": lambda: model(DraftModelTreeProposer, widths=(2, 2, 1)),
    "tree, greedy drafts": lambda: model(DraftModelTreeProposer, temperature=0.0),
    "tree, recurrent": lambda: model(DraftModelTreeProposer, store=RecurrentStore()),
}


@pytest.mark.parametrize("name", LAWFUL)
def test_drafters_of_the_package_conform(name):
    report = check_proposer(LAWFUL[name], vocab_size=VOCAB, num_draws=200, tolerance=0.0)
    report.require()
    skipped = {result.name for result in report if result.status == "skipped"}
    if name == "short context":  # the prompts of 30 tokens are past it
        assert skipped == {"drafts_without_laws_are_deterministic"}
    elif name.startswith(("ngram", "suffix")) or name.endswith("greedy drafts"):
        assert skipped == {"laws_are_those_drawn_from", "laws_hold_at_their_edges"}
    else:
        assert skipped == set()


def test_a_drafter_that_never_drafts_is_not_called_proven():
    report = check_proposer(NoProposer, vocab_size=VOCAB)
    assert {result.status for result in report} == {"skipped"}


@pytest.mark.statistical
def test_recorded_laws_replay_without_one_mismatch():
    # DI-5 (a). One mismatch is proof, so the false-alarm rate is 0. A recorded law at total
    # variation d from the one drawn from disagrees on a share of at least d / 2 of the coins:
    # d = 0.005 is missed with probability below exp(-12). Smaller ones fail at the edges.
    flat = TableBackend(MarkovTable(VOCAB, 1, seed=3), PagedStore(2000, 16))
    check_proposer(
        lambda: DraftModelProposer(flat),
        vocab_size=VOCAB,
        num_draws=5000,
        names=["laws_are_those_drawn_from"],
        policies=[SamplingParams()],
    ).require()


# -- planted faults ----------------------------------------------------------------


class _Altered(DraftModelProposer):
    def _finished(self, row):
        return self.altered(super()._finished(row), row.request)

    def altered(self, draft, request):
        return draft


class ReportsBf16(_Altered):
    """Draws at one precision and reports another (DI-5)."""

    def altered(self, draft, request):
        if draft.laws is None:
            return draft
        weights = [law.dense().astype(np.float32).view(np.uint32) for law in draft.laws]
        laws = tuple(DenseLaw((w & np.uint32(0xFFFF0000)).view(np.float32)) for w in weights)
        return replace(draft, laws=laws)


class ReportsNearlyTheLaw(_Altered):
    """Reports a law at total variation of about 1e-7 from the one drawn from."""

    def altered(self, draft, request):
        if draft.laws is None:
            return draft
        tilt = 1 + 3e-7 * (np.arange(VOCAB) % 2)
        return replace(draft, laws=tuple(DenseLaw(law.dense() * tilt) for law in draft.laws))


class ReportsUnfiltered(DraftModelProposer):
    """Filters before the draw and reports the law without filters (DI-1)."""

    def _draw(self, row, logits):
        super()._draw(row, logits)
        if row.laws:
            row.laws[-1] = DenseLaw(np.exp(logits))


class ArgmaxReportedAsSampled(_Altered):
    """Proposes the likeliest token and reports the softmax (DI-2)."""

    def altered(self, draft, request):
        if draft.laws is None:
            return draft
        best = tuple(int(law.dense().argmax()) for law in draft.laws)
        return replace(draft, token_ids=best)


class SampledReportedAsCertain(_Altered):
    """Samples and reports no laws."""

    def altered(self, draft, request):
        return replace(draft, laws=None)


class OwnRandomness(_Altered):
    """Draws with its own generator."""

    def altered(self, draft, request):
        if draft.laws is None:
            return draft
        rng = np.random.default_rng(len(request.token_ids))
        tokens = tuple(law.draw(float(rng.random())) for law in draft.laws)
        return replace(draft, token_ids=tokens)


class LawsShiftedByOne(_Altered):
    def altered(self, draft, request):
        if draft.laws is None:
            return draft
        return replace(draft, laws=(*draft.laws[1:], draft.laws[0]))


class IgnoresTheCoupledRule(_Altered):
    """Draws by inverse CDF where the race over shared noise is asked."""

    def altered(self, draft, request):
        if draft.laws is None:
            return draft
        tokens = tuple(law.draw(request.coins.draft(i)) for i, law in enumerate(draft.laws))
        return replace(draft, token_ids=tokens)


class OneTooMany(_Altered):
    def altered(self, draft, request):
        return Draft((*draft.token_ids, 0), None)


class ProposesPadding(_Altered):
    def altered(self, draft, request):
        return Draft((VOCAB,) * len(draft), None)


class AnotherVocabulary(_Altered):
    def altered(self, draft, request):
        laws = tuple(DenseLaw(np.append(law.dense(), 0.0)) for law in draft.laws or ())
        return replace(draft, laws=laws) if laws else draft


class ChangesTheRequest(_Altered):
    def altered(self, draft, request):
        request.token_ids.append(0)
        return draft


class RowsSwapped(DraftModelProposer):
    def propose(self, requests):
        return super().propose(requests)[::-1]


class ForgetsARow(DraftModelProposer):
    def propose(self, requests):
        return super().propose(requests)[1:]


class KeepsItsTables(SuffixLookups):
    """The table survives on the slot, and the watermark skips the new prompt (NG-1)."""

    def release(self, request_id):
        pass

    def ingest(self, request_id, tokens):
        lookup = self._lookups.get(request_id)
        if lookup is None:
            return super().ingest(request_id, tokens)
        lookup.index.extend(tokens[len(lookup.index) :])
        return lookup.index


class HasOneTable(SuffixLookups):
    """One index for all requests."""

    def ingest(self, request_id, tokens):
        lookup = self._lookups.get("all")
        if lookup is None:
            return super().ingest("all", tokens)
        lookup.index.extend(tokens)
        return lookup.index


class NeverReleases(NgramProposer):
    def __init__(self, min_n, max_n):
        super().__init__()
        self._lookups = KeepsItsTables(min_n, max_n)


class SharesItsTable(NgramProposer):
    def __init__(self, min_n, max_n):
        super().__init__()
        self._lookups = HasOneTable(min_n, max_n)


class LosesTheLastDraft(DraftModelProposer):
    """After full acceptance the last draft is never fed (KV-1 a)."""

    def _start(self, request, names):
        row = super()._start(request, names)
        if not isinstance(row, Draft) and len(row.pending) == 2:
            del row.pending[0]
        return row


class PositionsOffByOne(DraftModelProposer):
    """Draft steps after the first are fed one position late (KV-4)."""

    def __init__(self, backend, **options):
        forward = backend.forward

        def late(batch):
            for row in range(len(batch.sequence_ids)):
                begin, end = batch.row_begins[row : row + 2]
                if end - begin == 1:
                    batch.positions[begin] += 1
            return forward(batch)

        backend.forward = late
        backend._check = lambda batch: None
        super().__init__(backend, **options)


class RollsEveryRowBack(DraftModelProposer):
    """All rows are rolled back as far as the first one (KV-3)."""

    def _start(self, request, names):
        row = super()._start(request, names)
        if names.index(request.request_id) > 0 and not isinstance(row, Draft):
            row.pending[0] = row.pending[-1]
        return row


FAULTS = {
    ReportsBf16: "laws_hold_at_their_edges",
    ReportsNearlyTheLaw: "laws_hold_at_their_edges",
    ReportsUnfiltered: "laws_are_those_drawn_from",
    ArgmaxReportedAsSampled: "laws_are_those_drawn_from",
    SampledReportedAsCertain: "drafts_without_laws_are_deterministic",
    OwnRandomness: "laws_are_those_drawn_from",
    LawsShiftedByOne: "laws_are_those_drawn_from",
    IgnoresTheCoupledRule: "laws_are_those_drawn_from",
    OneTooMany: "drafts_fit_their_rows",
    ProposesPadding: "drafts_fit_their_rows",
    AnotherVocabulary: "drafts_fit_their_rows",
    ChangesTheRequest: "drafts_fit_their_rows",
    RowsSwapped: "batch_equals_solo",
    ForgetsARow: "drafts_fit_their_rows",
    LosesTheLastDraft: "rounds_leave_no_trace",
    PositionsOffByOne: "rounds_leave_no_trace",
    RollsEveryRowBack: "batch_equals_solo",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_caught_by_the_check_that_is_meant_to(fault):
    report = check_proposer(
        lambda: model(fault), vocab_size=VOCAB, num_draws=500, names=[FAULTS[fault]]
    )
    assert [result.name for result in report.failures] == [FAULTS[fault]]


@pytest.mark.parametrize("fault", [NeverReleases, SharesItsTable])
def test_leftovers_of_another_request_are_caught(fault):
    report = check_proposer(lambda: fault(1, 4), vocab_size=VOCAB)
    names = {result.name for result in report.failures}
    assert "released_requests_leave_nothing" in names


def test_all_checks_are_aimed_at_by_a_fault():
    aimed = {*FAULTS.values(), "released_requests_leave_nothing"}
    assert aimed == set(PROPOSER_CHECKS)
    assert CoinSource(1).round(0).draft(0) != CoinSource(2).round(0).draft(0)
