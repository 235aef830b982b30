"""Greedy audits: near-ties that rounding makes, and defects that it does not."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from draftproof.audit.greedy import GreedyEvidence, GreedyText, judge_greedy
from draftproof.audit.greedy_run import check_greedy_text, greedy_evidence
from draftproof.audit.kinds import check, kind_of
from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.core.types import TreeVerdict
from draftproof.engine import EngineCore
from draftproof.errors import ConfigError
from draftproof.proposers import NgramProposer, SuffixProposer
from draftproof.verify import NumpyExecutor

PROMPTS = [("p", (0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0)), ("q", (3, 4, 0, 3, 4))]


def cycle(second, gap):
    """The next token in a circle of five, with a runner-up a gap of logits behind it."""

    def law(held):
        logits = np.full(5, -6.0)
        logits[(held[-1] + 1) % 5] = 0.0
        logits[(held[-1] + second) % 5] = -gap(held[-1])
        probs = np.exp(logits)
        return probs / probs.sum()

    return FunctionTable(5, law, span=1)


class Rounding(TableBackend):
    """Moves logits by up to 1e-3, as a function of place, token and width of the row."""

    def forward(self, batch):
        logits = super().forward(batch).copy()
        for begin, end in zip(batch.row_begins[:-1], batch.row_begins[1:], strict=True):
            wanted = (batch.logits_rows >= begin) & (batch.logits_rows < end)
            width = int(end - begin)
            for row in np.flatnonzero(wanted):
                place = int(batch.positions[batch.logits_rows[row]])
                noise = np.random.default_rng([place, width]).uniform(-5e-4, 5e-4, 5)
                logits[row] += noise.astype(np.float32)
        return logits


class RowBefore(NumpyExecutor):
    """Takes the last token from the logits one row before."""

    def judge(self, rows, logits):
        found = []
        for row, verdict in zip(rows, super().judge(rows, logits), strict=True):
            if len(verdict.path) > 1:
                at = row.first_row + len(verdict.path) - 1
                verdict = TreeVerdict(verdict.path, int(logits[at].argmax()), verdict.source)
            found.append(verdict)
        return found


class HighestOfTie(NumpyExecutor):
    """Breaks ties towards the highest id in the token after the drafts."""

    def judge(self, rows, logits):
        found = []
        for row, verdict in zip(rows, super().judge(rows, logits), strict=True):
            scores = logits[row.first_row + len(verdict.path)]
            if row.draft.token_ids:
                token = len(scores) - 1 - int(scores[::-1].argmax())
                verdict = TreeVerdict(verdict.path, token, verdict.source)
            found.append(verdict)
        return found


def run(target, executor=None, kappas=(1, 3)):
    core = EngineCore(target, proposers=[NgramProposer(1, 3)], kappa=3, executor=executor)
    return greedy_evidence(core, "table", PROMPTS, num_tokens=24, kappas=kappas)


def test_the_engine_is_token_identical_on_tables():
    verdict = judge_greedy(run(TableBackend(cycle(2, lambda _: 1.0))))
    assert verdict.exit_code == 0
    assert not verdict.forks
    assert verdict.tolerance == 0
    assert "token-identical" in verdict.findings[0]


def test_a_row_off_by_one_is_a_defect(tmp_path):
    evidence = run(TableBackend(cycle(2, lambda _: 1.0)), RowBefore())
    verdict = judge_greedy(evidence)
    assert verdict.exit_code == 1
    assert verdict.num_defects > 0
    assert verdict.forks
    assert not any(fork.is_near_tie for fork in verdict.forks)
    stored = tmp_path / "c.json"
    stored.write_text(json.dumps(kind_of(evidence).stored(evidence, verdict)))
    again = check(stored)
    assert not again.differences
    assert any(label == "defect" for label, _ in again.facts)


def test_a_tie_broken_the_wrong_way_is_a_defect():
    # After token 2 two logits are equal; the lower id is right.
    table = cycle(2, lambda token: 0.0 if token == 2 else 1.0)
    assert judge_greedy(run(TableBackend(table))).exit_code == 0
    verdict = judge_greedy(run(TableBackend(table), HighestOfTie()))
    assert verdict.exit_code == 1
    assert "exact tie" in verdict.reason


def test_rounding_at_a_near_tie_is_no_defect_and_does_not_hide_one():
    table = cycle(2, lambda token: 1e-4 if token == 2 else 1.0)
    evidence = run(Rounding(table))
    verdict = judge_greedy(evidence)
    assert verdict.exit_code == 0, verdict.reason
    assert verdict.num_near_ties > 0
    assert verdict.forks
    assert all(fork.is_near_tie for fork in verdict.forks)
    assert 0 < verdict.noise < 2.1e-3
    assert 0 < verdict.blind < 0.5
    assert "kappa" in verdict.findings[0]
    # The same rounding with an engine that takes the wrong row.
    assert judge_greedy(run(Rounding(table), RowBefore())).exit_code == 1


def test_where_everything_is_a_near_tie_nothing_can_be_said():
    verdict = judge_greedy(run(Rounding(cycle(2, lambda _: 1e-4))))
    assert verdict.exit_code == 3
    assert "hide" in verdict.reason


def test_plain_decoding_is_no_evidence_about_speculation():
    target = TableBackend(cycle(2, lambda _: 1.0))
    text = check_greedy_text(target, "p", (0,), [1, 2, 3, 4], 2)
    verdict = judge_greedy(GreedyEvidence("a decoder", (text,)))
    assert verdict.exit_code == 3
    assert "nothing was drafted" in verdict.reason


def test_any_decoders_text_may_be_held_against_a_model():
    target = TableBackend(cycle(2, lambda _: 1.0))
    right = check_greedy_text(target, "p", (0,), [1, 2, 3, 4], 2, drafted=3)
    wrong = check_greedy_text(target, "p", (0,), [1, 3, 4, 0], 2, drafted=3)
    assert judge_greedy(GreedyEvidence("a decoder", (right,))).exit_code == 0
    verdict = judge_greedy(GreedyEvidence("a decoder", (right, wrong)))
    assert verdict.exit_code == 1
    assert verdict.defects == (("p", 2, 1, pytest.approx(1.0, abs=1e-6)),)


def good(**changed):
    """A text of two tokens, the best ones."""
    fields = {
        "prompt": "p", "kappa": 2, "tokens": (1, 2), "gaps": (0.0, 0.0), "lower": (False, False),
        "leads": (1.0, 1.0), "noise": (0.0, 0.0), "drafted": 3,
    }  # fmt: skip
    return GreedyText(**fields | changed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gaps", np.nan), ("gaps", -1.0), ("leads", np.nan), ("leads", -0.5),
        ("noise", np.nan), ("noise", np.inf), ("noise", -1e-3),
    ],
)  # fmt: skip
def test_figures_that_are_no_numbers_never_pass(name, value, tmp_path):
    assert judge_greedy(GreedyEvidence("x", (good(),))).exit_code == 0
    with pytest.raises(ConfigError, match=f"{name} of token 1 after 'p'"):
        good(**{name: (0.0, value)})
    # The same in a certificate that is read back.
    evidence = GreedyEvidence("x", (good(),))
    stored = kind_of(evidence).stored(evidence, judge_greedy(evidence))
    stored["evidence"]["texts"][0][name][1] = str(value)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match=f"{name} of token 1 after 'p'"):
        check(path)


def test_a_token_that_the_model_cannot_give_is_a_defect():
    verdict = judge_greedy(GreedyEvidence("x", (good(gaps=(0.0, np.inf)),)))
    assert verdict.exit_code == 1
    assert verdict.num_defects == 1


class NoNumbers(TableBackend):
    """Puts a value that is no logit at one place of every row of logits, past place 2."""

    value = np.nan

    def forward(self, batch):
        logits = super().forward(batch).copy()
        logits[batch.positions[batch.logits_rows] > 2, 4] = self.value
        return logits


class Overflowing(NoNumbers):
    value = np.inf


@pytest.mark.parametrize("model", [NoNumbers, Overflowing])
def test_logits_that_are_no_numbers_end_the_audit(model):
    target = model(cycle(2, lambda _: 1.0))
    with pytest.raises(ConfigError, match="no numbers"):
        check_greedy_text(target, "p", (0,), [1, 2, 3, 4], 2, drafted=3)


def test_every_prompt_must_have_shown_drafts():
    silent = replace(good(), prompt="q", drafted=0)
    plain = replace(silent, kappa=0)
    assert judge_greedy(GreedyEvidence("x", (good(), replace(plain, prompt="p")))).exit_code == 0
    verdict = judge_greedy(GreedyEvidence("x", (good(), plain, silent)))
    assert verdict.exit_code == 3
    assert verdict.reason == "nothing was drafted after 'q'"
    assert judge_greedy(GreedyEvidence("x", (good(), plain))).exit_code == 3


def test_texts_that_would_be_copied_from_each_other_are_refused():
    drafter = SuffixProposer(tenant_tokens=100)
    core = EngineCore(TableBackend(cycle(2, lambda _: 1.0)), proposers=[drafter], kappa=1)
    with pytest.raises(ConfigError, match="suffix_tenant_tokens to be 0"):
        greedy_evidence(core, "x", [("p", (0,))], num_tokens=4)


def test_bad_evidence_is_refused():
    for margin in (np.nan, np.inf, 0.5):
        with pytest.raises(ConfigError, match="margin"):
            GreedyEvidence("x", (good(),), margin=margin)
    for changed in ({"kappa": True}, {"drafted": -1}, {"tokens": (1, 2.5)}):
        with pytest.raises(ConfigError, match="whole numbers"):
            good(**changed)
    with pytest.raises(ConfigError, match="true or false"):
        good(lower=(0, 1))
    with pytest.raises(ConfigError, match="figure for each"):
        GreedyText("p", 0, (1, 2), (0.0,), (False,), (1.0,), (0.0,))
    with pytest.raises(ConfigError, match="no text"):
        GreedyEvidence("x", ())
