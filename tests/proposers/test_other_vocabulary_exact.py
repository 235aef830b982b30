"""Drafters of another vocabulary keep the joint law, by enumeration of every branch of every coin.

The whole path runs: text into the drafter's ids, its model, its law over the shared tokens,
the rules, the commit, and the text that is read again in the next round. Planted faults
stand beside: a law that is not renormalised, ids of the drafter taken for the target's, a
law in the wrong order, a bonus in the drafter's ids.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_exact_law import engine_law, total_variation
from vocabulary_kit import bridge, reference, shared

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.law import DenseLaw, Law
from draftproof.core.policy import SamplingParams
from draftproof.proposers import (
    DraftModelProposer,
    DraftModelTreeProposer,
    HybridProposer,
    NgramProposer,
    RetokenisedProposer,
    SharedVocabulary,
)
from draftproof.verify import NumpyExecutor

pytestmark = pytest.mark.exact

PROMPT = (0, 1, 0)
#: Zeros keep the number of branches small.
TABLE = MarkovTable(3, None, seed=21, zeros=0.2)
#: Depends on its whole context, so that a wrong one changes what is drafted.
WRITER = MarkovTable(5, None, seed=17, spread=1.5, zeros=0.4)
#: Every draw of it is a branch, also of what is no token of the target.
NARROW_WRITER = MarkovTable(5, None, seed=17, spread=1.5, zeros=0.7)
TOLERANCE = 1e-12
RULES = ("standard", "block", "coupled", "sample-match")


def intersection(vocabulary=None, kind=DraftModelProposer, **options):
    vocabulary = vocabulary or SharedVocabulary(shared(), bridge())
    return kind(TableBackend(WRITER), vocabulary=vocabulary, **options)


def retokenised(writer=WRITER, **options):
    return RetokenisedProposer(TableBackend(writer), bridge(), **options)


DRAFTERS = {
    "intersection": intersection,
    "hot intersection": lambda: intersection(temperature=2.0),
    "cut intersection": lambda: intersection(min_confidence=0.6),
    "tree": lambda: intersection(kind=DraftModelTreeProposer),
    "hybrid": lambda: HybridProposer([NgramProposer(1, 1)], intersection()),
    "retokenised": retokenised,
    "sampled and retokenised": lambda: retokenised(NARROW_WRITER, temperature=None),
    "hybrid of retokenised": lambda: HybridProposer([NgramProposer(1, 1)], retokenised()),
}
#: Those that draw nothing.
CERTAIN = ("retokenised", "hybrid of retokenised")


def law_of(proposer, rule, horizon, kappa=2, **options):
    return engine_law(
        TableBackend(TABLE),
        [proposer],
        params=SamplingParams(),
        horizon=horizon,
        kappa=kappa,
        rule=rule,
        **options,
    )


def distance(law, horizon):
    return total_variation(law, reference(TABLE, PROMPT, horizon))


class Watching:
    """Hands requests to a drafter and keeps what it drafted."""

    def __init__(self, proposer):
        self.proposer, self.name, self.release = proposer, proposer.name, proposer.release
        self.drafts = []

    def propose(self, requests):
        drafts = self.proposer.propose(requests)
        self.drafts += drafts
        return drafts


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_way_into_another_vocabulary_keeps_the_joint_law(drafter, rule):
    watching = Watching(DRAFTERS[drafter]())
    # Rules that ignore the drafter's law branch on every draft: a shorter text will do.
    horizon = 4 if rule == "standard" or drafter in CERTAIN else 3
    if rule == "block" and "sampled" not in drafter:
        horizon = 4
    assert distance(law_of(watching, rule, horizon), horizon) < TOLERANCE
    drafted = {token for draft in watching.drafts for token in draft.token_ids}
    assert drafted >= ({0, 1} if horizon == 4 else {0})  # shared tokens, in ids of the target
    assert max(map(len, watching.drafts)) == horizon - 2
    assert not any("failed" in draft.note for draft in watching.drafts)


def test_what_is_no_token_of_the_drafter_is_still_written():
    """The token ``ab`` is never drafted, and has its right share of the output."""
    law, expected = law_of(intersection(), "block", 2), reference(TABLE, PROMPT, 2)
    written = {text: prob for text, prob in law.items() if 2 in text}
    assert sum(written.values()) > 0.2
    for text, prob in written.items():
        assert prob == pytest.approx(expected[text], abs=1e-12)


# -- planted faults ----------------------------------------------------------------------


class Unnormalised(Law):
    """A law restricted to the shared tokens, as if the rest of its mass were still there."""

    def __init__(self, law, share):
        self._vocab_size, self.law, self.share = law.vocab_size, law, share

    def prob(self, token):
        return self.share * self.law.prob(token)

    def probs_at(self, token_ids):
        return self.share * self.law.probs_at(token_ids)

    def draw(self, u):
        return self.law.draw(u)

    def race(self, noise):
        return self.law.race(noise)

    def dense(self):
        return self.share * self.law.dense()

    def _excess(self, other, scale):
        raise NotImplementedError


class NotRenormalised(DraftModelProposer):
    def propose_after(self, requests, heads):
        drafts = super().propose_after(requests, heads)
        return [
            draft
            if draft.laws is None
            else replace(draft, laws=tuple(Unnormalised(law, 0.6) for law in draft.laws))
            for draft in drafts
        ]


class IdsOfTheDrafter(DraftModelProposer):
    """Offers what was drawn under the drafter's id of it."""

    def propose_after(self, requests, heads):
        drafts = super().propose_after(requests, heads)
        return [
            replace(draft, token_ids=tuple(1 - token for token in draft.token_ids))
            for draft in drafts
        ]


class LawsInTheDraftersOrder(DraftModelProposer):
    """Claims for each token the probability of its neighbour."""

    def propose_after(self, requests, heads):
        drafts = super().propose_after(requests, heads)
        return [
            draft
            if draft.laws is None
            else replace(draft, laws=tuple(DenseLaw(law.dense()[[1, 0, 2]]) for law in draft.laws))
            for draft in drafts
        ]


class BonusInTheDraftersIds(NumpyExecutor):
    """Names what follows a whole draft by the drafter's id of it."""

    def judge(self, rows, logits):
        verdicts = super().judge(rows, logits)
        return [
            replace(verdict, token_id=(1, 0, 2)[verdict.token_id])
            if verdict.source == "bonus"
            else verdict
            for verdict in verdicts
        ]


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("fault", [NotRenormalised, IdsOfTheDrafter, LawsInTheDraftersOrder])
def test_planted_faults_of_the_law_change_the_joint_law(fault, rule):
    assert distance(law_of(intersection(kind=fault), rule, 3), 3) > 0.01


@pytest.mark.parametrize("rule", RULES)
def test_a_bonus_in_other_ids_changes_the_joint_law(rule):
    law = law_of(intersection(), rule, 3, executor=BonusInTheDraftersIds())
    assert distance(law, 3) > 0.01
