"""The workers of llama.cpp and vLLM, run on packages of their names that draw from tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftproof.audit import DraftTotals, Evidence, Plan, judge
from draftproof.audit.subjects import EngineProcessRecipe, Policy, RoundKind, prompt_evidence
from draftproof.cli import CliContext, app
from draftproof.core.params import SamplingParams

HERE = Path(sys.executable)
PROMPT = (1, 2, 1, 2, 1)

#: A law over five tokens that depends on the last one, filtered by temperature and top-k.
TABLE = """
import math, random

V = 5

def row(text):
    return [math.log(1 + (3 * token + 2 * text[-1]) % 7) for token in range(V)]

def draw(text, temperature, top_k, rng):
    held = row(text)
    best = sorted(range(V), key=lambda t: -held[t])[: top_k or V]
    return rng.choices(best, [math.exp(held[t] / temperature) for t in best])[0]
"""

LLAMA = """
import random
import numpy as np
from llama_cpp.table import V, draw, row

__version__ = "0.0.fake"

class Llama:
    def __init__(self, path, *, n_ctx, n_batch, draft_model, logits_all, n_threads,
                 n_threads_batch, verbose):
        assert logits_all and not verbose and n_ctx == n_batch
        self._drafter, self._seed, self.scores = draft_model, 0, np.zeros((n_ctx, V))

    def token_eos(self):
        return -1

    def n_vocab(self):
        return V

    def tokenize(self, text):
        return list(text)

    def set_seed(self, seed):
        assert 0 <= seed < 2**32 - 1
        self._seed = seed

    def reset(self):
        pass

    def eval(self, tokens):
        self.scores[len(tokens) - 1] = row(tokens)

    def generate(self, tokens, *, temp, top_k, top_p, min_p, presence_penalty,
                 frequency_penalty, repeat_penalty):
        assert (top_p, min_p, repeat_penalty) == (1.0, 0.0, 1.0)
        rng, text, drafts = random.Random(self._seed), list(tokens), []
        while True:
            token = draw(text, temp, top_k, rng)
            text.append(token)
            yield token
            if drafts and drafts.pop(0) == token:
                continue
            drafts = []
            if self._drafter is not None:
                drafts = self._drafter(np.array(text)).tolist()
"""

LOOKUP = """
import numpy as np

class LlamaPromptLookupDecoding:
    def __init__(self, max_ngram_size, num_pred_tokens):
        self._num = num_pred_tokens

    def __call__(self, input_ids):
        text = input_ids.tolist()
        for place in range(len(text) - 1):
            if text[place] == text[-1]:
                return np.array(text[place + 1 : place + 1 + self._num])
        return np.array([], dtype=int)
"""

VLLM = """
import random
from types import SimpleNamespace as Some
from vllm.table import V, draw, row

class SamplingParams(Some):
    pass

class LLM:
    def __init__(self, model, *, speculative_config=None, **options):
        assert options["dtype"] == "float32" and options["max_model_len"] == 64
        self.llm_engine = Some(model_config=Some(get_vocab_size=lambda: V))
        self._drafts = 2 if speculative_config else 0
        self._counts = [0, 0, 0]

    def generate(self, prompts, params, use_tqdm):
        if not isinstance(params, list):
            assert params.logprobs == -1 and params.max_tokens == 1
            return [self._one([0], dict(enumerate(row(p["prompt_token_ids"])))) for p in prompts]
        found = []
        for prompt, asked in zip(prompts, params):
            rng, text = random.Random(asked.seed), list(prompt["prompt_token_ids"])
            assert asked.ignore_eos and asked.stop_token_ids == []
            for _ in range(asked.max_tokens):
                text.append(draw(text, asked.temperature, max(asked.top_k, 0), rng))
                self._counts = [n + k for n, k in zip(self._counts, (1, self._drafts, 1))]
            found.append(self._one(text[len(prompt["prompt_token_ids"]):], None))
        return found

    def _one(self, ids, logits):
        held = logits and [{t: Some(logprob=x) for t, x in logits.items()}]
        return Some(outputs=[Some(token_ids=ids, logprobs=held)])

    def get_metrics(self):
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        return [
            Some(name="vllm:spec_decode_" + name, value=value)
            for name, value in zip(names, self._counts)
        ]
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    for package, files in (
        ("llama_cpp", {"__init__": LLAMA, "table": TABLE, "llama_speculative": LOOKUP}),
        ("vllm", {"__init__": VLLM, "table": TABLE}),
    ):
        (folder / package).mkdir()
        for name, text in files.items():
            (folder / package / f"{name}.py").write_text(text)
    return folder


def drawn_from(packages, engine, options, policy, num):
    recipe = EngineProcessRecipe(engine, options, HERE, 60.0, {"PYTHONPATH": str(packages)})
    subject = recipe()
    try:
        policy = subject.in_its_order(policy)
        law = subject.law(PROMPT, policy)
        return law, subject.draw(PROMPT, policy, num, 7), policy.params.order
    finally:
        subject.close()


def verdict_of(law, drawn):
    # False alarms 0.001; 400 draws show a bias of TV 0.17 with probability 0.99.
    plan = Plan(tv=0.2, calibration_samples=4000)
    return judge(Evidence("fake", plan, (prompt_evidence("p", law, drawn),)))


POLICY = Policy(SamplingParams(temperature=0.8, top_k=2), 4)


@pytest.mark.statistical
def test_rounds_of_llama_cpp_follow_from_what_its_drafter_was_asked(packages):
    options = {"model": "x.gguf", "prompt_lookup": 2}
    law, drawn, order = drawn_from(packages, "llama_cpp", options, POLICY, 400)
    assert order.index("temperature") > order.index("min_p")
    verdict = verdict_of(law, drawn)
    assert verdict.verdict == "exact", verdict.reason
    assert sum(kind.emitted * times for kind, times in drawn.rounds.items()) == 1600
    assert drawn.rounds[RoundKind(0, 0, 1, False)] >= 400  # the token after each prompt
    assert any(kind.accepted for kind in drawn.rounds)
    for kind in drawn.rounds:
        assert kind.emitted == kind.accepted + (not kind.cut)
    drafting = sum(times for kind, times in drawn.rounds.items() if kind.drafted)
    assert sum(drawn.samples.values()) == drafting == drawn.totals.rounds
    assert drawn.totals.draws <= 400
    assert {len(each.prefix) for each in drawn.samples} == {1, 2, 3}


def test_llama_cpp_without_a_drafter_plays_plain_rounds(packages):
    _, drawn, _ = drawn_from(packages, "llama_cpp", {"model": "x.gguf"}, POLICY, 3)
    assert drawn.rounds == {RoundKind(0, 0, 1, False): 12}


@pytest.mark.statistical
def test_counters_of_vllm_are_read_around_the_draws(packages):
    options = {
        "model": "folder",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
        "engine": {"max_model_len": 64},
    }
    law, drawn, order = drawn_from(packages, "vllm", options, POLICY, 400)
    assert order.index("min_p") < order.index("top_k") < order.index("top_p")
    assert drawn.totals == DraftTotals(1600, 3200, 1600)
    assert not drawn.reports_rounds
    verdict = verdict_of(law, drawn)
    assert verdict.verdict == "exact", verdict.reason


@pytest.mark.statistical
def test_the_verb_runs_the_engine_under_the_interpreter_that_has_it(packages, tmp_path):
    # False alarms 0.001; the seed is none of those.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {HERE} "$@"\n')
    python.chmod(0o755)
    words = (
        "llama-cpp", "x.gguf", "--python", python, "--prompt-lookup", 2, "--draws", 300,
        "--prompt-ids", "1 2 1 2 1", "--top-k", 2, "--horizon", 3, "--tv", 0.25,
        "--calibration-samples", 4000, "--seed", 3, "-q",
    )  # fmt: skip
    found = CliRunner().invoke(app, ["audit", *map(str, words)], obj=CliContext())
    assert found.exit_code == 0, found.output
    assert "verdict: exact" in found.stdout
    assert "llama-cpp-python 0.0.fake" in found.stdout
    assert "filter order: top_k\n" in found.stdout
