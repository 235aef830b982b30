"""A draft head behind draftless drafts: its law by enumeration, and what it goes on from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from head_kit import (
    SMALL,
    VOCAB,
    HiddenTable,
    distance_from_target,
    joint_law,
    numpy_head,
)

from draftproof.backends.table import MarkovTable
from draftproof.core.history import History
from draftproof.core.law import OneHotLaw
from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import HiddenReader, ProposalRequest
from draftproof.core.rng import CoinSource, RoundCoins
from draftproof.engine import EngineCore, GenerateRequest, SchedulerConfig
from draftproof.proposers import (
    DraftHeadProposer,
    HybridHeadProposer,
    HybridProposer,
    NgramProposer,
    SuffixProposer,
)
from draftproof.testing.scripted import ScriptedProposer


def some_tokens(request):
    """None, one or two tokens, by what the text ends with: only earlier tokens decide."""
    last = request.token_ids[-1]
    return [(last + 1) % 3, last][: min(last, request.kappa)]


def head(**options):
    return DraftHeadProposer(numpy_head(SMALL), **options)


MIXTURES = {
    "script": lambda: HybridHeadProposer([ScriptedProposer(some_tokens)], head(), enough=4),
    "suffix": lambda: HybridHeadProposer([SuffixProposer(min_score=0.3)], head(), enough=4),
    "one each": lambda: HybridHeadProposer(
        [NgramProposer(1, 1)], head(), max_model_tokens=1, enough=1
    ),
    "cut head": lambda: HybridHeadProposer(
        [ScriptedProposer(some_tokens)], head(min_confidence=0.6), enough=4
    ),
}


@pytest.mark.exact
@pytest.mark.parametrize(
    ("mixture", "rule"),
    [
        ("script", "standard"),
        ("script", "block"),
        ("script", "coupled"),
        ("script", "sample-match"),
        ("suffix", "block"),
        ("one each", "standard"),
        ("cut head", "block"),
    ],
)
def test_every_mixture_keeps_the_joint_law(mixture, rule):
    # Rules that ignore the drafter's law branch on every draft: a shorter text will do.
    horizon = 4 if rule in ("standard", "block") else 3
    law = joint_law(MIXTURES[mixture], rule, kappa=3, horizon=horizon)
    assert distance_from_target(law, horizon) < 1e-6


class HeadClaimsTheCopy(HybridHeadProposer):
    """Reports the head's law for the tokens that were copied."""

    def propose(self, requests):
        return [claimed(draft) for draft in super().propose(requests)]


def claimed(draft):
    if draft.laws is None:
        return draft
    sampled = next(law for law in draft.laws if not isinstance(law, OneHotLaw))
    laws = [sampled if isinstance(law, OneHotLaw) else law for law in draft.laws]
    # Only where the head could have drawn them, so that the engine lets them pass.
    drawn = zip(draft.token_ids, laws, strict=True)
    return replace(draft, laws=tuple(laws)) if all(q.prob(t) > 0 for t, q in drawn) else draft


class HeadLooksPast(DraftHeadProposer):
    """Draws behind the copied tokens, and reports the law before them."""

    def propose_after(self, requests, heads):
        behind = super().propose_after(requests, heads)
        before = super().propose_after(requests, [()] * len(requests))
        return [
            replace(after, laws=first.laws[: len(after)])
            if after.laws and given and first.laws and len(first) >= len(after)
            and all(q.prob(t) > 0 for t, q in zip(after.token_ids, first.laws, strict=False))
            else after
            for after, first, given in zip(behind, before, heads, strict=True)
        ]  # fmt: skip


FAULTS = {
    "claims the copy": lambda: HeadClaimsTheCopy([ScriptedProposer(some_tokens)], head(), enough=4),
    "looks past": lambda: HybridHeadProposer(
        [ScriptedProposer(some_tokens)], HeadLooksPast(numpy_head(SMALL)), enough=4
    ),
}


@pytest.mark.exact
@pytest.mark.parametrize(
    ("fault", "rule"), [("claims the copy", "block"), ("looks past", "standard")]
)
def test_planted_faults_change_the_joint_law(fault, rule):
    assert distance_from_target(joint_law(FAULTS[fault], rule, kappa=3)) > 1e-3


# -- what the head goes on from ------------------------------------------------------------


def asked(text, kappa, start=6):
    history = History(text[:2])
    for token in text[2:]:
        history.append(token)
    coins = RoundCoins(CoinSource(start), len(text))
    return ProposalRequest("r", text, kappa, SamplingParams(), history, coins)


def told(proposer, text):
    angles = np.outer(text[:-1], np.arange(1, 9))
    proposer.observe("r", 0, np.cos(angles).astype(np.float32))
    return proposer


TEXT = (4, 2, 0, 3, 3, 1)


@pytest.mark.parametrize("given", [1, 2, 3])
def test_behind_its_own_drafts_the_head_says_what_it_said_before(given):
    (whole,) = told(DraftHeadProposer(numpy_head()), TEXT).propose([asked(TEXT, 5)])
    proposer = told(DraftHeadProposer(numpy_head()), TEXT)
    (rest,) = proposer.propose_after([asked(TEXT, 5)], [whole.token_ids[:given]])
    assert len(rest) == 5 - given
    assert rest.token_ids == whole.token_ids[given:]
    for law, expected in zip(rest.laws, whole.laws[given:], strict=True):
        np.testing.assert_allclose(law.dense(), expected.dense(), atol=1e-7)


def test_other_tokens_before_it_change_what_it_says():
    laws = []
    for given in ((0, 1), (0, 2), (5, 1)):
        proposer = told(DraftHeadProposer(numpy_head()), TEXT)
        (draft,) = proposer.propose_after([asked(TEXT, 3)], [given])
        laws.append(draft.laws[0].dense())
    for i in range(3):
        for j in range(i):
            assert np.abs(laws[i] - laws[j]).max() > 1e-3


def test_rows_of_different_length_are_drafted_as_alone():
    heads = [(), (2,), (6, 0, 1, 3), (1, 1)]
    texts = [TEXT, TEXT[:4], TEXT, (*TEXT, 5)]
    alone, proposer, requests = [], DraftHeadProposer(numpy_head()), []
    for number, (text, given) in enumerate(zip(texts, heads, strict=True)):
        single = told(DraftHeadProposer(numpy_head()), text)
        alone += single.propose_after([asked(text, 4)], [given])
        features = np.cos(np.outer(text[:-1], np.arange(1, 9))).astype(np.float32)
        proposer.observe(str(number), 0, features)
        requests.append(replace(asked(text, 4), request_id=str(number)))
    together = proposer.propose_after(requests, heads)
    assert [draft.token_ids for draft in together] == [draft.token_ids for draft in alone]
    assert [len(draft) for draft in together] == [4, 3, 0, 2]


def test_the_head_stops_where_the_length_is_reached():
    proposer = told(DraftHeadProposer(numpy_head()), TEXT)
    for given in ((1, 2), (1, 2, 3)):
        assert proposer.propose_after([asked(TEXT, 2)], [given])[0].token_ids == ()


# -- in the engine ---------------------------------------------------------------------------

TABLE = MarkovTable(VOCAB, None, seed=3, spread=2.5)


def engine(proposers, **options):
    return EngineCore(
        HiddenTable(TABLE), proposers=proposers, scheduler=SchedulerConfig(max_rows=3), **options
    )


def run(core, count=4, **options):
    generator = np.random.default_rng(5)
    for index in range(count):
        core.submit(
            GenerateRequest(
                tuple(generator.integers(0, VOCAB, 9).tolist()),
                SamplingParams(temperature=0.7),
                max_tokens=40,
                seed=index,
                request_id=f"r{index}",
                **options,
            )
        )
    return core.run()


def test_every_token_has_its_source_and_acceptance_is_told_by_it():
    hybrid = HybridHeadProposer(
        [SuffixProposer(min_score=0.3)], DraftHeadProposer(numpy_head()), enough=4
    )
    results = run(engine([hybrid], kappa=5))
    seen = set()
    for result in results.values():
        drafted: dict[str, int] = {}
        kept: dict[str, int] = {}
        for record in result.records:
            sources = record.draft_sources or ()
            assert len(sources) == len(record.drafted)
            seen.add(tuple(dict.fromkeys(sources)))
            for place, source in enumerate(sources):
                drafted[source] = drafted.get(source, 0) + 1
                kept[source] = kept.get(source, 0) + (place < record.num_accepted)
        assert result.stats.num_draft_tokens_per_drafter == drafted
        told = result.stats.num_accepted_tokens_per_drafter
        assert told == {name: count for name, count in kept.items() if count or name in told}
    assert seen >= {("suffix",), ("draft-head",), ("suffix", "draft-head")}
    assert not any(note for result in results.values() for note in result.notes if "failed" in note)


def test_seed_identical_text_stays_as_it_is():
    hybrid = HybridHeadProposer(
        [SuffixProposer(min_score=0.3)], DraftHeadProposer(numpy_head()), enough=4
    )
    drafted = run(engine([hybrid], kappa=5, rule="coupled"))
    plain = run(engine([], rule="coupled"))
    assert {n: r.token_ids for n, r in drafted.items()} == {
        n: r.token_ids for n, r in plain.items()
    }
    assert sum(r.stats.num_draft_tokens for r in drafted.values()) > 100


def test_only_a_hybrid_with_a_head_reads_hidden_states():
    hybrid = HybridHeadProposer([NgramProposer()], head())
    assert isinstance(hybrid, HiddenReader)
    assert not isinstance(HybridProposer([NgramProposer()], head()), HiddenReader)
    hybrid.observe("r", 0, np.zeros((3, 8), np.float32))
    hybrid.release("r")
    assert hybrid._reader.num_requests == 0


def test_a_head_that_was_told_nothing_leaves_the_copies():
    deaf = HybridProposer([SuffixProposer(min_score=0.3)], DraftHeadProposer(numpy_head()))
    results = run(engine([deaf], kappa=5))
    sources = {s for r in results.values() for rec in r.records for s in rec.draft_sources or ()}
    assert sources == {"suffix"}
