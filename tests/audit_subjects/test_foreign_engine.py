"""Engines in environments of their own: the messages, the failures, the law, the draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from draftproof.audit import DraftTotals, Evidence, Plan, judge
from draftproof.audit.subjects import EngineProcessRecipe, Policy, draw_all, prompt_evidence
from draftproof.audit.subjects.worker_process import WorkerProcess
from draftproof.audit.subjects.workers import loop
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError

HERE = Path(sys.executable)
POLICY = Policy(SamplingParams(temperature=0.7, top_k=2), 3)

#: Draws from a law that depends on the last token; a switch makes it wrong in many ways.
ENGINE = """
import math, os, random, sys, time

class Engine:
    def __init__(self, options):
        self.wrong = options.get("wrong", "")
        print("the engine prints where it likes")
        os.system("echo its children too")
        assert sys.stdin.readline() == ""
        if self.wrong == "load":
            raise RuntimeError("no such model")

    def describe(self):
        if self.wrong == "silent":
            time.sleep(60)
        return {
            "versions": {"fake": "1.2"}, "vocab_size": 5, "eos_token_ids": [4],
            "parameters": ["temperature", "top_k"],
            "order": ["bias", "penalties", "allowed", "top_k", "temperature"],
        }

    def encode(self, text):
        return [int(c) for c in text]

    def _row(self, text):
        return [math.log(1 + (token + text[-1]) % 5) for token in range(5)]

    def rows(self, texts):
        if self.wrong == "nan":
            return [[float("nan")] * 5 for _ in texts]
        if self.wrong == "narrow":
            return [[0.0] * 4 for _ in texts]
        return [self._row(text) for text in texts]

    def draw(self, prompt_ids, policy, seeds):
        if self.wrong == "dead":
            print("out of memory", file=sys.stderr)
            os._exit(7)
        samples = []
        for seed in seeds:
            rng = random.Random(seed)
            text = list(prompt_ids)
            while len(text) - len(prompt_ids) < policy["max_tokens"] and (
                len(text) == len(prompt_ids) or text[-1] not in policy["eos_token_ids"]
            ):
                row = self._row(text)
                best = sorted(range(5), key=lambda t: -row[t])[: policy["top_k"]]
                heat = policy["temperature"] if self.wrong != "heat" else 0.2
                weights = [math.exp(row[t] / heat) for t in best]
                text.append(rng.choices(best, weights)[0])
            samples.append(text[len(prompt_ids):])
        if self.wrong == "few":
            samples.pop()
        total = {"accepted": len(seeds), "drafted": 2 * len(seeds), "rounds": len(seeds)}
        if self.wrong == "plain":
            total = {"accepted": 0, "drafted": None, "rounds": 0}
        return {"samples": samples, "rounds": None, "totals": total}
"""


@pytest.fixture(scope="module")
def engine_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines") / "fake_engine.py"
    path.write_text(ENGINE)
    return path


@pytest.fixture
def start(engine_file):
    """Start the engine; all that were started are ended."""
    started = []

    def start(wrong="", **options):
        recipe = EngineProcessRecipe(str(engine_file), {"wrong": wrong}, HERE, **options)
        started.append(recipe())
        return started[-1]

    yield start
    for subject in started:
        subject.close()


def test_it_says_what_it_is_and_its_law_is_the_product_of_filtered_rows(start):
    subject = start()
    assert subject.description.versions == {"python": sys.version.split()[0], "fake": "1.2"}
    assert subject.encode("12") == [1, 2]
    policy = subject.in_its_order(POLICY)
    assert policy.eos_token_ids == {4}
    assert policy.params.order == ("bias", "penalties", "allowed", "top_k", "temperature")
    law = subject.law([1], policy)
    # After 1 the best are 3 (weight 5) and 2 (weight 4).
    first = np.array([5.0, 4.0]) ** (1 / 0.7)
    mass = sum(p for o, p in zip(law.outcomes, law.probs, strict=True) if o[0] == 3)
    assert mass == pytest.approx(first[0] / first.sum(), rel=1e-6)
    assert {outcome[-1] for outcome in law.outcomes if len(outcome) < 3} <= {4}


@pytest.mark.statistical
def test_a_right_engine_is_exact_and_a_wrong_one_is_biased(start):
    # False alarms 0.001; 1000 draws show a bias of TV 0.12 with probability 0.99. One
    # token at a temperature of 0.2 in place of 0.7 is off by 0.17.
    verdicts = {}
    for wrong in ("", "heat", "plain"):
        subject = start(wrong)
        policy = subject.in_its_order(POLICY)
        law = subject.law([1], policy)
        (drawn,) = draw_all(lambda s=subject: s, [[1]], policy, 1000, first_seed=5)
        plan = Plan(tv=0.15, calibration_samples=4000)
        verdicts[wrong] = judge(Evidence("fake", plan, (prompt_evidence("p", law, drawn),)))
    assert verdicts[""].verdict == "exact", verdicts[""].reason
    assert verdicts["heat"].verdict == "biased"
    # Nothing is known to have been drafted: no verdict about speculation.
    assert verdicts["plain"].verdict == "not enough evidence"


def test_draws_have_seeds_of_their_own_whatever_the_number_of_workers(engine_file):
    recipe = EngineProcessRecipe(str(engine_file), {}, HERE)
    subject = recipe()
    try:
        policy = subject.in_its_order(POLICY)
        (alone,) = draw_all(lambda: subject, [[1]], policy, 300, first_seed=1)
    finally:
        subject.close()
    (shared,) = draw_all(recipe, [[1]], policy, 300, first_seed=1, processes=2)
    np.testing.assert_array_equal(alone.tokens, shared.tokens)
    assert alone.totals == shared.totals == DraftTotals(300, 600, 300)
    assert len({tuple(row) for row in alone.tokens.tolist()}) > 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "load",
            "reports RuntimeError: no such model; its last words: .*no such model; all of them: ",
        ),
        ("dead", "ended before it answered 'draw'; its last words: .*out of memory"),
        ("few", "1 samples, 2 were asked for"),
        ("nan", "a row of token 1 is not finite"),
        ("narrow", "expected 1 rows of 5"),
    ],
)
def test_failures_are_one_line_and_keep_what_the_engine_said(start, wrong, message):
    def audit():
        subject = start(wrong)
        policy = subject.in_its_order(POLICY)
        subject.law([1], policy)
        subject.draw([1], policy, 2, 0)

    with pytest.raises(BackendError, match=message) as caught:
        audit()
    assert "\n" not in str(caught.value)
    _, named, path = str(caught.value).partition("all of them: ")
    if named:
        assert "the engine prints where it likes" in Path(path).read_text()
        Path(path).unlink()


def test_an_engine_that_is_silent_is_ended(start):
    with pytest.raises(BackendError, match=r"gave no answer to 'load' in 0\.5 s") as caught:
        start("silent", timeout_s=0.5)
    Path(str(caught.value).partition("all of them: ")[2]).unlink()


def test_what_the_engine_lacks_is_refused(start, tmp_path):
    subject = start()
    with pytest.raises(ConfigError, match=r"top_p 0\.5: expected temperature, top_k only"):
        subject.in_its_order(Policy(SamplingParams(top_p=0.5), 2))
    with pytest.raises(ConfigError, match="expected an interpreter"):
        EngineProcessRecipe(str(subject_file(tmp_path)), {}, tmp_path / "none")()
    with pytest.raises(ConfigError, match="expected llama_cpp, openvino_genai"):
        EngineProcessRecipe("triton", {}, HERE)
    with pytest.raises(ConfigError, match="timeout 0"):
        EngineProcessRecipe("vllm", {}, HERE, 0)


def subject_file(folder):
    path = folder / "engine.py"
    path.write_text(ENGINE)
    return path


def test_answers_that_break_the_protocol_end_the_worker(tmp_path):
    for said, message in (
        ("nonsense", "which is no answer"),
        ('{"draftproof": 9, "id": 1, "ok": 1}', "gave answer 1 of version 9 to question 1"),
    ):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\nread line\necho '{said}'\n")
        python.chmod(0o755)
        worker = WorkerProcess(python, Path("x.py"))
        with pytest.raises(BackendError, match=message):
            worker.ask("load")
        worker.log.unlink()
        # Closing again is harmless.
        worker.close()


def test_the_loop_refuses_other_versions_and_unknown_verbs(engine_file):
    asked = '{"draftproof": 2, "id": 1, "do": "load"}\n{"draftproof": 1, "id": 2, "do": "dance"}\n'
    asked += '{"draftproof": 1, "id": 3, "do": "quit"}\n{"draftproof": 1, "id": 4, "do": "load"}\n'
    done = subprocess.run(
        [HERE, loop.__file__, engine_file], input=asked, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert "ValueError: messages of version 2, not 1" in first
    assert "KeyError: 'dance'" in second


def test_no_worker_imports_this_package():
    for path in Path(loop.__file__).parent.glob("*.py"):
        assert "import draftproof" not in path.read_text()
        assert "from draftproof" not in path.read_text()


def test_sums_of_drafts_add_up():
    known = DraftTotals(2, 5, 3)
    assert known + DraftTotals(1, 1, 1) == DraftTotals(3, 6, 4)
    assert known + DraftTotals(1) == DraftTotals(3, None, None)
    assert known.shows_speculation
    assert DraftTotals(0, 5, 3).shows_speculation
    assert not DraftTotals(0, None, 9).shows_speculation
    for wrong in ((-1,), (1.5,), (3, 2)):
        with pytest.raises(ConfigError, match="expected"):
            DraftTotals(*wrong)
