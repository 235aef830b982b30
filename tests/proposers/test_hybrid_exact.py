"""A hybrid draft keeps the target's law, by enumeration of every branch of every coin.

The mixtures: every split of certain and sampled tokens, a model that stops by its
confidence, rows where only one part drafts. Planted faults stand beside: laws that are not
those drawn from, and a switch that looks at the token being judged.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_exact_law import engine_law, plain_warp, reference_law, total_variation

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.law import OneHotLaw
from draftproof.core.policy import SamplingParams
from draftproof.core.types import Draft
from draftproof.proposers import (
    DraftModelProposer,
    HybridProposer,
    NgramProposer,
    PredictionProposer,
    SuffixProposer,
)
from draftproof.testing.scripted import ScriptedProposer

pytestmark = pytest.mark.exact

PROMPT = (0, 1, 0)
TARGET = MarkovTable(3, None, seed=21)
#: Largest TV that float32 logits leave; a planted fault shows far more.
TOLERANCE = 1e-6
RULES = ("standard", "block", "coupled", "sample-match")


def model(**options):
    return DraftModelProposer(TableBackend(MarkovTable(3, 1, seed=9, spread=1.5)), **options)


def some_tokens(request):
    """None, one or two tokens, by what the text ends with: only earlier tokens decide."""
    last = request.token_ids[-1]
    return [(last + 1) % 3, last][: min(last, request.kappa)]


class Predicting(PredictionProposer):
    """Is told one prediction for all requests."""

    def propose(self, requests):
        return super().propose([replace(r, prediction=(0, 2, 2, 1, 0)) for r in requests])


MIXTURES = {
    "script": lambda: HybridProposer([ScriptedProposer(some_tokens)], model()),
    "suffix": lambda: HybridProposer([SuffixProposer(min_score=0.3)], model()),
    "prediction, n-gram": lambda: HybridProposer([Predicting(), NgramProposer(2, 3)], model()),
    "one each": lambda: HybridProposer(
        [NgramProposer(1, 1)], model(), max_model_tokens=1, enough=1
    ),
    "cut model": lambda: HybridProposer(
        [ScriptedProposer(some_tokens)], model(min_confidence=0.45)
    ),
}


def law_of(proposer, rule, *, horizon=4, kappa=3, params=None, target=TARGET):
    return engine_law(
        TableBackend(target),
        [proposer],
        params=params or SamplingParams(),
        horizon=horizon,
        kappa=kappa,
        rule=rule,
    )


def distance(law, horizon=4, target=TARGET):
    return total_variation(law, reference_law(target, PROMPT, horizon, plain_warp))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mixture", MIXTURES)
def test_every_mixture_keeps_the_joint_law(mixture, rule):
    # Rules that ignore the drafter's law branch on every draft: a shorter text will do.
    horizon = 4 if rule in ("standard", "block") else 3
    assert distance(law_of(MIXTURES[mixture](), rule, horizon=horizon), horizon) < TOLERANCE


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_longer_rounds_over_two_tokens_keep_it_too(rule):
    kinds, two = set(), MarkovTable(2, None, seed=22)

    class Watched(HybridProposer):
        def propose(self, requests):
            drafts = super().propose(requests)
            for draft in drafts:
                kinds.add(tuple(isinstance(law, OneHotLaw) for law in draft.laws or ()))
            return drafts

    def head(request):
        return [request.token_ids[-1], 1, 0][: (len(request.token_ids) + 1) % 3]

    behind = DraftModelProposer(TableBackend(MarkovTable(2, 1, seed=6)))
    law = law_of(Watched([ScriptedProposer(head)], behind), rule, horizon=5, kappa=3, target=two)
    assert distance(law, 5, two) < TOLERANCE
    assert kinds >= {(), (False, False), (True, True, False)}


# -- planted faults ----------------------------------------------------------------------


class Faulty(HybridProposer):
    """Changes each draft before it is judged."""

    def propose(self, requests):
        drafts = super().propose(requests)
        return [self.change(draft, r) for draft, r in zip(drafts, requests, strict=True)]

    def change(self, draft, request):
        raise NotImplementedError


class SwitchLooksAtTheToken(Faulty):
    """Withholds what the model drew where the draftless part would have said the same."""

    def change(self, draft, request):
        for i, source in enumerate(draft.sources):
            if source == "draft-model" and draft.token_ids[i] == 0:
                laws = None if draft.laws is None else draft.laws[:i]
                return Draft(draft.token_ids[:i], laws, draft.proposer, "", draft.sources[:i])
        return draft


class HeadScoredByTheModel(Faulty):
    """Claims that the model drew the tokens of the draftless part."""

    def change(self, draft, request):
        if draft.laws is None:
            return draft
        sampled = next(law for law in draft.laws if not isinstance(law, OneHotLaw))
        laws = tuple(sampled if isinstance(law, OneHotLaw) else law for law in draft.laws)
        return replace(draft, laws=laws)


class LawsOneTooLate(Faulty):
    """Gives each sampled token the law of the one before it."""

    def change(self, draft, request):
        if draft.laws is None:
            return draft
        laws = list(draft.laws)
        for i in range(len(laws) - 1, 0, -1):
            if not isinstance(laws[i], OneHotLaw) and not isinstance(laws[i - 1], OneHotLaw):
                laws[i] = laws[i - 1]
        return replace(draft, laws=tuple(laws))


class BetterOfTwo(Faulty):
    """Takes the draftless token in place of the model's where the model likes it more."""

    def change(self, draft, request):
        if draft.laws is None or len(draft) < 1 or draft.sources[0] != "draft-model":
            return draft
        copied, drawn = request.token_ids[0], draft.token_ids[0]
        if draft.laws[0].prob(copied) <= draft.laws[0].prob(drawn):
            return draft
        return replace(draft, token_ids=(copied, *draft.token_ids[1:]))


FAULTS = (SwitchLooksAtTheToken, HeadScoredByTheModel, LawsOneTooLate, BetterOfTwo)


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_change_the_joint_law(fault, rule):
    law = law_of(fault([ScriptedProposer(some_tokens)], model()), rule)
    assert distance(law) > 0.002
