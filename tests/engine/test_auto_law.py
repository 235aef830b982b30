"""The joint law of the text where a policy chooses draft lengths, by enumeration.

Choices that follow finished rounds keep the target's law, under every rule. Two planted
faults bend it: a policy that looks at the draft it decides about, and one that sees the
coins of a request through another request of the same seed.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.engine import lengths as lengths_module
from draftproof.engine.drafting import draft_rows
from draftproof.planner.controller import ControllerConfig, GoodputController
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import CopyCost, ParallelDraft, RoundCost
from draftproof.planner.tracker import TrackerConfig
from draftproof.proposers import DraftModelProposer, HybridProposer, SuffixProposer
from draftproof.testing.branching import BranchingCoins, exact_law

pytestmark = pytest.mark.exact

PROMPT = (0, 1, 0)
TARGET = MarkovTable(2, None, seed=5, zeros=0.2)
#: Largest TV that float32 logits leave; a planted fault shows far more.
TOLERANCE = 1e-6


def drafter():
    return DraftModelProposer(TableBackend(MarkovTable(2, 1, seed=6)))


class Hybrid(HybridProposer):
    """Copies where a single token recurs, else the model drafts; tells so, and keeps the signs."""

    def __init__(self, core=None):
        super().__init__([SuffixProposer(min_score=0.4)], drafter(), enough=1)
        self.core = core
        self.signs = set()

    def foretell(self, request_id, token_ids):
        sign = super().foretell(request_id, token_ids)
        self.signs.add(sign)
        return sign


class TellsOfTheDraft(Hybrid):
    """The planted fault: draws the draft to tell how well it is backed."""

    def foretell(self, request_id, token_ids):
        core = self.core()
        session = next(s for s in core._scheduler.running if s.request_id == request_id)
        session.choice = FollowsAcceptance.cut(row_of(session), 2)
        plan = core._scheduler._row(session)
        draft_rows([plan], core.proposers, core.target.info, core._patience)
        session.choice = RowChoice(0)
        return 3 if plan.draft.token_ids[:1] == (0,) else 0


def row_of(session):
    return RowState(session.request_id, 0, max(session.most_for_round(), 0), session.choosable)


def reference(horizon):
    """Product of the target's conditionals."""
    law = {}
    for outcome in itertools.product(range(2), repeat=horizon):
        prob = 1.0
        for i, token in enumerate(outcome):
            context = np.array([*PROMPT, *outcome[:i]])
            prob *= TARGET.probs(context, np.arange(len(context)))[token]
        if prob > 0.0:
            law[outcome] = prob
    return law


def distance(law, horizon):
    expected = reference(horizon)
    keys = law.keys() | expected.keys()
    return 0.5 * sum(abs(law.get(key, 0.0) - expected.get(key, 0.0)) for key in keys)


class FollowsAcceptance:
    """Two drafts after a round that kept one, else one and none in turn."""

    def __init__(self, core=None):
        self.core = core
        self.next = {}

    def choose(self, rows):
        return [self.cut(row, self.next.get(row.request_id, 1)) for row in rows]

    @staticmethod
    def cut(row, kappa):
        kappa = min(kappa, row.max_kappa)
        return RowChoice(kappa, row.proposers[0]) if kappa else RowChoice(0)

    def observe(self, record):
        kept_none = 0 if record.drafted else 1
        self.next[record.request_id] = 2 if record.num_accepted else kept_none

    def release(self, request_id):
        self.next.pop(request_id, None)

    def reset(self):
        self.next.clear()


def shipped(core=None):
    """The controller, with costs and a memory for which one round of evidence decides."""
    config = ControllerConfig(
        max_kappa=2,
        min_gain=0.0,
        decide_every=1,
        probe_after=1,
        stake_share=1.0,  # texts of few tokens: a hundredth of one is no draft
        tracker=TrackerConfig(prior_rate=0.7, prior_strength=0.5, shrinkage_rounds=0.5),
    )
    return GoodputController(RoundCost(AffineCost(1.0, 0.5), ParallelDraft(0.05)), config=config)


def copying(core=None):
    """The same, for a drafter that tells where it copies, which costs less there."""
    limits = shipped().config
    cost = RoundCost(AffineCost(1.0, 0.5), ParallelDraft(0.2), change_s=0.1)
    copies = {"hybrid": CopyCost(ParallelDraft(0.01), 2)}
    return GoodputController(cost, config=limits, copies=copies)


class FollowsSigns(FollowsAcceptance):
    """As many drafts as signs allow: none where nothing would come."""

    def choose(self, rows):
        return [self.cut(row, 2 if not row.signs or row.signs[0] else 0) for row in rows]


class Peeks(FollowsAcceptance):
    """The planted fault: draws the draft first, and drops it where it begins with 1."""

    def choose(self, rows):
        core = self.core()
        running = {session.request_id: session for session in core._scheduler.running}
        choices = []
        for row in rows:
            session = running[row.request_id]
            session.choice = self.cut(row, 2)
            plan = core._scheduler._row(session)
            draft_rows([plan], core.proposers, core.target.info, core._patience)
            keeps = plan.draft.token_ids[:1] == (0,)
            choices.append(session.choice if keeps else RowChoice(0))
        return choices


class Overhears(FollowsAcceptance):
    """Plain decoding for the first request; the other drafts where that one wrote 0."""

    def __init__(self, core=None):
        super().__init__(core)
        self.written = {}

    def choose(self, rows):
        choices = []
        for row in rows:
            drafts = row.request_id == "studied" and not self.written.get(row.kv_tokens + 1, 1)
            choices.append(self.cut(row, 2 if drafts else 0))
        return choices

    def observe(self, record):
        if record.request_id == "ahead":
            self.written[record.position] = record.emitted[0]


def law_of(policy, rule, *, horizon, ahead=0, make=lambda core: drafter()):
    """Enumerate one request; another one of the same seed may be some steps ahead."""
    lengths = set()

    def program(brancher):
        coins, held = {}, []

        def shared(seed, stream):
            return coins.setdefault((seed, stream), BranchingCoins(brancher))

        core = EngineCore(
            TableBackend(TARGET),
            proposers=[make(lambda: held[0])],
            kappa=2,
            kappa_policy=policy(lambda: held[0]),
            rule=rule,
            coin_source=shared,
        )
        held.append(core)
        options = {"params": SamplingParams(), "seed": 7}
        if ahead:
            longer = horizon + ahead
            core.submit(GenerateRequest(PROMPT, max_tokens=longer, request_id="ahead", **options))
            for _ in range(ahead):
                core.step()
        core.submit(GenerateRequest(PROMPT, max_tokens=horizon, request_id="studied", **options))
        result = core.run()["studied"]
        assert result.error is None
        assert not [note for note in result.notes if "policy" in note]
        lengths.add(tuple(len(record.drafted) for record in result.records))
        return tuple(result.token_ids)

    return exact_law(program), lengths


@pytest.mark.parametrize("policy", [FollowsAcceptance, shipped])
@pytest.mark.parametrize("rule", ["standard", "block", "coupled", "sample-match"])
def test_lengths_that_follow_acceptance_keep_the_joint_law(rule, policy):
    law, lengths = law_of(policy, rule, horizon=5)
    assert distance(law, 5) < TOLERANCE
    assert len({length[2:3] for length in lengths}) > 1, "no length followed what was accepted"


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_policy_that_looks_at_the_draft_is_seen(rule):
    law, _lengths = law_of(Peeks, rule, horizon=4)
    assert distance(law, 4) > 0.01


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_request_of_the_same_seed_tells_nothing_about_the_coins(rule, monkeypatch):
    law, lengths = law_of(Overhears, rule, horizon=3, ahead=2)
    assert distance(law, 3) < TOLERANCE
    assert len(lengths) > 1, "nothing was overheard"
    monkeypatch.setattr(lengths_module, "seed_beside", lambda seed, tokens: seed)
    law, _lengths = law_of(Overhears, rule, horizon=3, ahead=2)
    assert distance(law, 3) > 0.01


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("policy", [FollowsSigns, copying])
def test_signs_of_a_hybrid_keep_the_joint_law(rule, policy):
    told = set()

    def make(core):
        made = Hybrid(core)
        made.signs = told
        return made

    law, lengths = law_of(policy, rule, horizon=4, make=make)
    assert distance(law, 4) < TOLERANCE
    assert -1 in told
    assert max(told) > 0, "nothing was ever copied"
    assert any(any(length) for length in lengths)


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_sign_that_looks_at_the_draft_is_seen(rule):
    law, _lengths = law_of(FollowsSigns, rule, horizon=4, make=TellsOfTheDraft)
    assert distance(law, 4) > 0.01
