"""State audits: caches that keep what was rejected, drafters that fall behind, decay."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from wrong_keepers import KeepsTooFew, KeepsTooMany

from draftproof.audit.kinds import check, kind_of
from draftproof.audit.mode_report import facts_of_state
from draftproof.audit.state import DrafterCheck, Rollback, StateEvidence, judge_state
from draftproof.audit.state_run import (
    check_drafter,
    check_rollbacks,
    first_draft_rounds,
    state_evidence,
)
from draftproof.audit.subjects import EngineSubject, Policy
from draftproof.backends.table import FunctionTable, TableBackend, seeded_probs
from draftproof.core.law import DenseLaw
from draftproof.core.params import SamplingParams
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.evidence import enumerate_law
from draftproof.evidence.trend import decay_test, level_test
from draftproof.proposers import DraftModelProposer, SuffixProposer
from draftproof.testing import assert_exact
from draftproof.testing.faults import CACHE_FAULTS

PROMPT = (0, 1, 2, 1, 3)


def table(seed):
    return FunctionTable(5, lambda held: seeded_probs(5, tuple(held[-6:]), seed=seed))


def test_the_table_model_leaves_no_trace_of_what_was_rejected():
    found = check_rollbacks(TableBackend(table(1)), PROMPT)
    verdict = judge_state(StateEvidence("table", tuple(found)))
    assert not verdict.findings
    assert verdict.largest_gap == 0
    assert verdict.spread > 0
    assert sum(each.drafts - each.kept for each in found) > 20


@pytest.mark.parametrize(
    "name",
    ["rejected token stays in the cache", "rollback drops one too many", "state never rewound"],
)
def test_a_memory_that_keeps_or_loses_tokens_is_found(name):
    (fault,) = (fault for fault in CACHE_FAULTS if fault.name == name)
    target = fault.plant(fault.scene.parts(CoinSource)).target
    verdict = judge_state(StateEvidence("table", tuple(check_rollbacks(target, (0, 1, 0)))))
    assert verdict.exit_code == 1
    assert "keeps what was rejected" in verdict.reason


class Stale:
    """Looks at the text as it was when it was asked last, and one token more."""

    name = "stale"

    def __init__(self):
        self.held = {}

    def propose(self, requests):
        drafts = []
        for request in requests:
            held = self.held.get(request.request_id)
            text = tuple(request.token_ids)
            self.held[request.request_id] = text if held is None else (*held, text[-1])
            law = DenseLaw(seeded_probs(5, self.held[request.request_id][-6:], seed=2))
            drafts.append(Draft((law.draw(0.5),), (law,), self.name))
        return drafts

    def release(self, request_id):
        self.held.pop(request_id, None)


def test_a_drafter_that_misses_silent_rounds_is_found():
    text = np.random.default_rng(0).integers(0, 5, 24).tolist()
    right = check_drafter(DraftModelProposer(TableBackend(table(2))), PROMPT, text, 5)
    assert [each.silent for each in right] == [1, 4, 16]
    assert all(each.distance == 0 for each in right)
    wrong = check_drafter(Stale(), PROMPT, text, 5)
    assert max(each.distance for each in wrong) > 0.1
    rollbacks = tuple(check_rollbacks(TableBackend(table(1)), PROMPT, rounds=8))
    assert not judge_state(StateEvidence("x", rollbacks, tuple(right))).findings
    verdict = judge_state(StateEvidence("x", rollbacks, tuple(wrong)))
    assert verdict.exit_code == 1
    assert "silent rounds" in verdict.reason


@pytest.mark.statistical
def test_decay_is_found_and_constant_acceptance_is_not():
    # Freedman's bound holds for every law: a false alarm has probability 0.001 at most, and
    # over 200 runs none is seen but with probability 0.18 at most; the seed is fixed. The
    # stated smallest decay is seen with probability 0.99; 20 runs miss 3 with 1e-3.
    rng = np.random.default_rng(4)

    def runs(loss):
        rounds = []
        for _ in range(10):
            expected = rng.uniform(0.3, 0.9, 40)
            true = np.clip(expected - loss * np.linspace(0, 1, 40), 0, 1)
            rounds.append(list(zip(expected.tolist(), rng.random(40) < true, strict=True)))
        return decay_test(rounds)

    exact = [runs(0.0) for _ in range(200)]
    assert sum(each.p_value <= 1e-3 for each in exact) == 0
    smallest = exact[0].smallest_decay
    assert 0.1 < smallest < 0.5
    assert sum(runs(smallest * 1.1).p_value <= 1e-3 for _ in range(20)) >= 18
    assert decay_test([[(0.5, True)]]).smallest_decay == np.inf
    # A loss that grows is told apart from one of the same share in every round.
    assert sum(runs(0.4).grows for _ in range(20)) >= 18
    flat = [[(0.6, bool(kept)) for kept in rng.random(40) < 0.4] for _ in range(10)]
    assert not decay_test(flat).grows


@pytest.mark.statistical
def test_a_loss_that_grows_is_a_decay_and_no_mere_slowness(right):
    # 400 rounds that lose up to 0.6 of a kept draft; seen with more than 0.99, fixed seed.
    rng = np.random.default_rng(6)
    ramp = np.linspace(0, 1, 200)
    rounds = tuple(
        tuple((0.7, bool(kept)) for kept in rng.random(200) < 0.7 - 0.6 * ramp) for _ in range(2)
    )
    verdict = judge_state(replace(right, rounds=rounds, names=("p", "q")))
    assert verdict.exit_code == 1
    assert verdict.reason.startswith("acceptance decays")
    assert verdict.findings[1].startswith("slower than the rule")


def run(executor=None, tokens=420, draft=True, prompts=(("p", PROMPT),), **options):
    drafters = [DraftModelProposer(TableBackend(table(2)))] if draft else []
    core = EngineCore(
        TableBackend(table(1)), proposers=drafters, kappa=2 * len(drafters), executor=executor
    )
    return state_evidence(core, "table", prompts, num_tokens=tokens, first_seed=3, **options)


@pytest.fixture(scope="module")
def right():
    """Return the evidence of a right engine."""
    return run()


@pytest.mark.statistical
def test_the_engine_passes_and_its_certificate_recomputes(right, tmp_path):
    # False alarms of the three tests in it: 0.001; the seed is fixed. A loss of half a kept
    # draft per round at the end would have been seen with probability 0.99.
    verdict = judge_state(right)
    assert verdict.exit_code == 0, verdict.reason
    assert not verdict.findings
    assert verdict.decay.num_rounds > 100
    assert verdict.decay.smallest_decay <= right.decay == 0.5
    assert verdict.level.kept == pytest.approx(verdict.level.promised, abs=0.12)
    stored = tmp_path / "c.json"
    written = kind_of(right).stored(right, verdict)
    stored.write_text(json.dumps(written))
    again = check(stored)
    assert not again.differences
    assert {"acceptance", "promise", "false alarms"} <= {label for label, _ in again.facts}
    # Noise that is no number would make everything rounding.
    for value in ("nan", "inf"):
        written["evidence"]["rollbacks"][3]["noise"] = value
        stored.write_text(json.dumps(written))
        with pytest.raises(ConfigError, match="noise"):
            check(stored)


@pytest.mark.statistical
def test_too_much_acceptance_is_a_fault_and_too_little_is_slow(right):
    # Half of the first drafts that the rule rejects, or keeps: 0.2 per round or more, where
    # the stated smallest departure is seen with probability 0.99; the seeds are fixed.
    fast = judge_state(run(KeepsTooMany()))
    assert fast.exit_code == 1
    assert fast.reason.startswith("accepts more than the law allows")
    assert fast.level.kept - fast.level.promised > 0.1
    slow = judge_state(run(KeepsTooFew()))
    assert slow.exit_code == 0, slow.reason
    assert slow.reason.startswith("exact but slow")
    assert slow.findings[0].startswith("exact but slow")
    assert facts_of_state(right, slow)[0] == ("verdict", slow.reason)
    assert judge_state(right).level.p_slow > 1e-3


def shared_run(executor=None):
    """A suffix drafter that shares outputs, on two requests after one prompt."""
    drafter = SuffixProposer(tenant_tokens=4000)
    core = EngineCore(TableBackend(table(1)), proposers=[drafter], kappa=2, executor=executor)
    prompts = (("p", PROMPT), ("again", PROMPT))
    return drafter, state_evidence(core, "table", prompts, num_tokens=420, first_seed=3)


@pytest.mark.statistical
def test_shared_outputs_are_shared_and_drafts_held_against_what_was_really_drafted():
    # False alarms of the three tests: 0.001, on a fixed seed. Half of the rejected first drafts
    # kept is a surplus of 0.3 per round, seen with more than 0.99.
    drafter, evidence = shared_run()
    assert drafter.num_bytes > 0  # the tenant's store outlives the requests
    assert all(len(rounds) > 100 for rounds in evidence.rounds)
    verdict = judge_state(evidence)
    assert verdict.exit_code == 0, verdict.reason
    assert not verdict.findings
    assert "share their outputs" in evidence.notes["promise"]
    _, wrong = shared_run(KeepsTooMany())
    assert judge_state(wrong).reason.startswith("accepts more than the law allows")


def test_the_promise_of_a_shared_draft_is_the_target_s_probability_of_that_draft():
    # A drafter that is asked again when the request is over has learned its output, or does not
    # know whose it is: either way its promise is that of another draft.
    drafter = SuffixProposer(tenant_tokens=4000)
    core = EngineCore(TableBackend(table(1)), proposers=[drafter], kappa=2)
    for seed in (1, 2):
        request = GenerateRequest(
            PROMPT, max_tokens=200, ignore_eos=True, seed=seed, tenant="t", trace=True
        )
        name = core.submit(request)
        result = core.run()[name]
    rounds = first_draft_rounds(core, result, SamplingParams())
    text = [*PROMPT, *result.token_ids]
    drafted = [each for each in result.records if each.drafted]
    assert len(rounds) == len(drafted) > 50
    for (kept, _), record in zip(rounds, drafted, strict=True):
        row = seeded_probs(5, tuple(text[: record.position][-6:]), seed=1)
        assert kept == pytest.approx(row[record.drafted[0]], abs=1e-6)


@pytest.mark.statistical
def test_draws_of_an_engine_that_shares_keep_the_law():
    # False-alarm rate 0.001; a bias of TV 0.15 could not hide, or `assert_exact` says so.
    law = enumerate_law(TableBackend(table(1)), PROMPT, SamplingParams(top_k=2), 3)

    def draw(executor=None):
        drafter = SuffixProposer(tenant_tokens=4000)
        core = EngineCore(TableBackend(table(1)), proposers=[drafter], kappa=3, executor=executor)
        drawn = EngineSubject(core).draw(PROMPT, Policy(SamplingParams(top_k=2), 3), 1200, 5)
        assert drafter.num_bytes > 0
        assert sum(kind.accepted * times for kind, times in drawn.rounds.items()) > 300
        return drawn.tokens

    assert_exact(draw(), law, detects=0.15)
    with pytest.raises(AssertionError, match="bias"):
        assert_exact(draw(KeepsTooMany()), law, detects=0.15)


def test_an_engine_without_a_drafter_has_its_caches_examined_and_no_verdict():
    verdict = judge_state(run(draft=False, tokens=30))
    assert verdict.exit_code == 3
    assert "no drafter was examined" in verdict.reason
    assert "acceptance was not examined" in verdict.reason
    assert "what was examined: after 15 rollbacks no logit is off" in verdict.reason
    assert verdict.decay is None


def test_too_few_rounds_to_see_the_decay_that_was_asked_for_are_no_evidence(right):
    verdict = judge_state(run(tokens=40))
    assert verdict.exit_code == 3
    assert "no loss of kept drafts at the end of a request would have been seen" in verdict.reason
    smallest = judge_state(right).decay.smallest_decay
    assert judge_state(replace(right, decay=smallest * 0.99)).exit_code == 3
    assert judge_state(replace(right, decay=smallest * 1.01)).exit_code == 0


def test_every_prompt_and_drafter_must_have_shown_drafts(right):
    silent = replace(right, rounds=(*right.rounds, ()), names=("p", "q"))
    verdict = judge_state(silent)
    assert verdict.exit_code == 3
    assert "no first draft was seen after 'q'" in verdict.reason
    verdict = judge_state(replace(right, drafters=(), unasked=("mute",)))
    assert verdict.exit_code == 3
    assert "drafter mute had nothing to draft" in verdict.reason
    assert judge_state(replace(right, drafters=())).exit_code == 3


class Mute:
    name = "mute"

    def propose(self, requests):
        return [Draft((), None, self.name) for _ in requests]

    def release(self, request_id):
        del request_id


def test_two_silences_are_no_comparison():
    text = np.random.default_rng(0).integers(0, 5, 24).tolist()
    assert check_drafter(Mute(), PROMPT, text, 5) == []


def rollback(gap, noise, spread=1.0):
    return Rollback(9, 4, 2, gap, noise, 11, 11, spread)


@pytest.mark.parametrize(
    ("gap", "noise", "spread", "code"),
    [
        (1e-4, 5e-5, 2.5, 0),  # what SmolLM2-135M shows
        (0.3, 0.2, 2.5, 0),  # 3 * 0.2 is just below a quarter of the spread
        (0.3, 0.21, 2.5, 3),
        (5.0, 4.0, 2.5, 3),
        (1e-4, 5e-5, np.nan, 3),  # nobody says what the noise is small against
        (0.0, 0.0, np.nan, 0),  # no noise: the smallest trace shows
        (1.0, 0.2, 2.5, 1),
    ],
)
def test_noise_must_be_small_against_the_spread_of_the_logits(right, gap, noise, spread, code):
    evidence = replace(right, rollbacks=(rollback(gap, noise, spread),))
    verdict = judge_state(evidence)
    assert verdict.exit_code == code, verdict.reason
    assert ("a trace could hide in it" in verdict.reason) == (code == 3)


@pytest.mark.parametrize("gap", [np.nan, np.inf])
def test_logits_that_are_no_numbers_after_a_rollback_are_a_trace(right, gap):
    verdict = judge_state(replace(right, rollbacks=(rollback(0.0, 0.0), rollback(gap, 0.0))))
    assert verdict.exit_code == 1
    assert verdict.largest_gap == np.inf
    unlike = DrafterCheck("x", 1, np.nan)
    assert judge_state(replace(right, drafters=(unlike, *right.drafters))).exit_code == 1


class NoNumbers(TableBackend):
    """Gives NaN for one token."""

    def forward(self, batch):
        logits = super().forward(batch).copy()
        logits[:, 4] = np.nan
        return logits


def test_a_model_without_numbers_ends_the_audit():
    with pytest.raises(ConfigError, match="no numbers"):
        check_rollbacks(NoNumbers(table(1)), PROMPT)


@pytest.mark.statistical
def test_the_level_of_acceptance_has_the_error_rates_that_it_states():
    # Freedman's bound holds for every law: 0.001 a side at most; over 200 runs none is seen
    # but with probability 0.33 at most, on a fixed seed. The stated smallest departure is
    # seen with probability 0.99; 20 runs miss 3 with 1e-3.
    rng = np.random.default_rng(5)

    def test_of(surplus, tolerance=0.0):
        expected = rng.uniform(0.3, 0.7, 200)
        kept = rng.random(200) < expected + surplus
        rounds = [list(zip(expected.tolist(), kept, strict=True))]
        return level_test(rounds, tolerance=tolerance)

    null = [test_of(0.0) for _ in range(200)]
    assert sum(min(each.p_slow, each.p_fast) <= 1e-3 for each in null) == 0
    smallest = null[0].smallest
    assert 0.1 < smallest < 0.3
    assert sum(test_of(smallest).p_fast <= 1e-3 for _ in range(20)) >= 18
    assert sum(test_of(-smallest).p_slow <= 1e-3 for _ in range(20)) >= 18
    # What the promise may be off by is no departure.
    assert test_of(0.0, 0.05).smallest > smallest + 0.1
    assert sum(test_of(0.05, 0.05).p_fast <= 1e-3 for _ in range(50)) == 0


def test_bad_evidence_is_refused():
    with pytest.raises(ConfigError, match="no rollback"):
        StateEvidence("x", ())
    one = (rollback(0.0, 0.0),)
    for changed in (
        {"margin": np.nan}, {"drafter_tolerance": np.nan}, {"most_rounding": 1.0},
        {"decay": np.nan}, {"names": ("p",)}, {"rounds": (((0.5, 1),),)},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            StateEvidence("x", one, **changed)
    for figures in ((0.0, np.nan), (0.0, np.inf), (-1.0, 0.0), (0.0, 0.0, np.inf)):
        with pytest.raises(ConfigError, match="at 9: expected"):
            rollback(*figures)
    with pytest.raises(ConfigError, match="kept drafts at most all"):
        Rollback(9, 2, 3, 0.0, 0.0, 11, 11)
    with pytest.raises(ConfigError, match="expected a TV"):
        DrafterCheck("x", 1, 1.5)
    with pytest.raises(ConfigError, match="tolerance"):
        level_test([[(0.5, True)]], tolerance=np.nan)
    with pytest.raises(ConfigError, match="probabilities"):
        decay_test([[(1.5, True)]])
