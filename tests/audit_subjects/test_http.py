"""Servers as black boxes, and speculation on against off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from draftproof.audit import Plan
from draftproof.audit.matrix_subjects import ServerMatrix
from draftproof.audit.subjects import OnOffEvidence, Policy, TextCounts, judge_on_off
from draftproof.audit.subjects.http_completions import (
    FILTER_ORDERS,
    HttpCompletions,
    Spelling,
    text_law,
)
from draftproof.audit.subjects.workers import loop
from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError
from draftproof.evidence import JointLaw, enumerate_law

POLICY = Policy(SamplingParams(temperature=0.5, top_k=2), 2)
PLAN = Plan(tv=0.2, calibration_samples=6000)


def server(answer, seen=None):
    def handle(request):
        if request.method == "GET":
            return httpx.Response(404)
        body = json.loads(request.content)
        if seen is not None:
            seen.append((str(request.url), body))
        return answer(body)

    return httpx.MockTransport(handle)


def completion(text):
    return httpx.Response(200, json={"choices": [{"text": text}]})


def test_requests_say_what_the_policy_says_and_have_seeds_of_their_own():
    seen = []
    transport = server(lambda body: completion(str(body["seed"])), seen)
    spelling = Spelling("m", {"speculate": True, "top_k": 40, "min_p": 0.0})
    subject = HttpCompletions("http://x:1/", spelling, connections=1, transport=transport)
    assert subject.answers("hello", POLICY, 3, 2**31 - 1).texts == [str(2**31 - 1), "0", "1"]
    url, body = seen[0]
    assert url == "http://x:1/v1/completions"
    assert body == {
        "model": "m",
        "prompt": "hello",
        "max_tokens": 2,
        "temperature": 0.5,
        "top_k": 2,
        "min_p": 0.0,
        "stream": False,
        "speculate": True,
        "seed": 2**31 - 1,
    }


def test_a_server_that_refuses_or_babbles_is_an_error():
    for answer, message in (
        (lambda _: httpx.Response(400, text="no top_k here"), "status 400: no top_k here"),
        (lambda _: httpx.Response(200, json={"choices": []}), "expected a completion"),
    ):
        subject = HttpCompletions("http://x", Spelling("m"), transport=server(answer))
        with pytest.raises(BackendError, match=message):
            subject.answers("p", POLICY, 1, 0)


def test_what_requests_cannot_say_is_refused():
    subject = HttpCompletions("http://x", Spelling("m"), transport=server(None))
    with pytest.raises(ConfigError, match=r"min_tokens=1.*logit_bias only"):
        subject.answers("p", Policy(SamplingParams(min_tokens=1), 2), 1, 0)
    with pytest.raises(ConfigError, match="expected http"):
        HttpCompletions("localhost:8000", Spelling("m"))


def test_requests_to_one_place_are_told_from_others():
    def asks(url, **extra):
        return HttpCompletions(url, Spelling("m", extra))

    on = asks("http://LocalHost:80/v1", spec="on")
    same = ("http://localhost", "http://localhost/", "http://127.0.0.1/v1/", "http://[::1]:80")
    assert all(on.asks_the_same(asks(url, spec="on"), POLICY) for url in same)
    assert on.asks_the_same(asks("http://localhost", spec="on", temperature=0.5), POLICY)
    for other in ("http://localhost:81", "https://localhost", "http://other", "http://localhost/b"):
        assert not on.asks_the_same(asks(other, spec="on"), POLICY)
    assert not on.asks_the_same(asks("http://localhost", spec="off"), POLICY)


def test_lists_of_tokens_are_sent_where_they_are_set():
    seen = []
    transport = server(lambda body: completion("x"), seen)
    subject = HttpCompletions("http://x", Spelling("m"), transport=transport)
    subject.answers("p", Policy(SamplingParams(banned_token_ids=(1, 4)), 2), 1, 0)
    subject.answers("p", POLICY, 1, 1)
    assert [body.get("banned_token_ids") for _url, body in seen] == [[1, 4], None]
    assert all("allowed_token_ids" not in body for _url, body in seen)


def test_a_matrix_has_the_laws_of_the_servers_own_order():
    # After 1 the logits are log [8, 4, 2, 1]: at a temperature of 4 behind top-p 0.75 two
    # tokens are left, before it all four are nearly even and three are left.
    target = TableBackend(FunctionTable(4, lambda _held: [8 / 15, 4 / 15, 2 / 15, 1 / 15], span=1))
    policy = Policy(SamplingParams(temperature=4.0, top_p=0.75), 1)
    laws = {}
    for name, order in FILTER_ORDERS.items():
        subject = ServerMatrix(
            HttpCompletions("http://x", Spelling("m")), target, repr, "p", [1], order
        )
        laws[name] = subject.law(policy)
    assert [len(laws[name]) for name in ("default", "llama.cpp", "vllm")] == [3, 2, 3]


def test_vllms_order_is_that_of_its_worker():
    # min_p of 0.6 leaves the first two of four tokens; of these top-p takes the first.
    target = TableBackend(FunctionTable(4, lambda _held: [0.35, 0.3, 0.2, 0.15], span=1))
    policy = SamplingParams(min_p=0.6, top_p=0.5)
    seen = {
        name: len(enumerate_law(target, [1], replace(policy, order=FILTER_ORDERS[name]), 1))
        for name in ("default", "vllm")
    }
    assert seen == {"default": 2, "vllm": 1}
    worker = Path(loop.__file__).parent / "vllm_engine.py"
    spelled = ", ".join(f'"{stage}"' for stage in FILTER_ORDERS["vllm"])
    assert spelled in " ".join(worker.read_text().split())


def test_continuations_that_read_alike_are_one_outcome():
    law = JointLaw.from_mapping({(0, 1): 0.25, (2, 9): 0.5, (3, 3): 0.25}, 2, [9])
    words = {0: "a", 1: "b", 2: "ab", 3: "c"}
    seen = text_law(law, lambda ids: "".join(words[i] for i in ids))
    assert seen.texts == ("ab", "cc")
    np.testing.assert_allclose(seen.law.probs, [0.75, 0.25])
    assert seen.outcomes(["cc", "x", "ab", "x", "y"]) == [(1,), (2,), (0,), (2,), (3,)]


def sample(probs, num, seed):
    rng = np.random.default_rng(seed)
    return [f"text {i}" for i in rng.choice(len(probs), num, p=probs)]


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("seed_of", "named"),
    [
        (lambda seed: seed // 2, "equal the one 1 before"),
        (lambda seed: seed % 7, "repeat with period 7"),
        (lambda seed: seed % 300, "300 to 1499 are 0 to 1199 again"),
    ],
    ids=["neighbours", "period", "long period"],
)
def test_servers_that_use_a_seed_again_are_named_in_the_order_of_requests(seed_of, named):
    # Eight requests are in flight; false alarms 0.001.
    def text(body):
        return completion(str(np.random.default_rng(seed_of(body["seed"])).integers(0, 27)))

    asked = HttpCompletions("http://x", Spelling("m"), transport=server(text))
    clean = server(lambda body: completion(str(np.random.default_rng(body["seed"]).integers(27))))
    other = HttpCompletions("http://x", Spelling("m"), transport=clean)
    samples = [each.answers("p", POLICY, 1500, 7 * 300).texts for each in (asked, other)]
    off = other.answers("p", POLICY, 1500, 9000).texts
    found = judge_on_off(OnOffEvidence("s", PLAN, (TextCounts.of("p", samples[0], off),)))
    assert found.verdict == "not enough evidence"
    assert named in found.reason
    fair = judge_on_off(OnOffEvidence("s", PLAN, (TextCounts.of("p", samples[1], off),)))
    assert min(test.p_value for test in fair.dependence) > PLAN.alpha


FLAT = np.full(8, 1 / 8)
#: TV 0.25 from the flat law.
BENT = np.array([3] * 4 + [1] * 4) / 16


@pytest.mark.statistical
def test_on_and_off_are_told_apart():
    # False alarms 0.001; 2000 draws each show a difference of TV 0.11 at probability 0.99.
    same = OnOffEvidence(
        "s", PLAN, (TextCounts.of("p", sample(FLAT, 2000, 1), sample(FLAT, 2000, 2)),)
    )
    verdict = judge_on_off(same)
    assert verdict.verdict == "exact", verdict.reason
    assert 0.05 < verdict.smallest < 0.2
    bent = OnOffEvidence(
        "s", PLAN, (TextCounts.of("p", sample(BENT, 2000, 1), sample(FLAT, 2000, 2)),)
    )
    assert judge_on_off(bent).verdict == "biased"
    few = OnOffEvidence(
        "s", PLAN, (TextCounts.of("p", sample(FLAT, 100, 1), sample(FLAT, 100, 2)),)
    )
    assert judge_on_off(few).exit_code == 3


@pytest.mark.statistical
def test_the_stated_sensitivity_holds():
    # 40 comparisons at the stated size: at 0.99 each, fewer than 35 alarms has chance 3e-6.
    null = OnOffEvidence(
        "s", PLAN, (TextCounts.of("p", sample(FLAT, 500, 1), sample(FLAT, 500, 2)),)
    )
    tv = judge_on_off(null).smallest
    bent = np.where(np.arange(8) < 4, 1 + 2 * tv, 1 - 2 * tv) / 8
    from draftproof.evidence import two_sample_counts

    rng = np.random.default_rng(3)
    alarms = sum(
        two_sample_counts(
            rng.multinomial(500, bent), rng.multinomial(500, FLAT), num_samples=6000
        ).p_value
        <= 1e-3
        for _ in range(40)
    )
    assert alarms >= 35


def test_a_comparison_comes_back_from_json():
    held = OnOffEvidence("s", PLAN, (TextCounts.of("p", ["a", "b"], ["a"]),), {"k": "v"})
    again = OnOffEvidence.from_json(json.loads(json.dumps(held.to_json())))
    assert again == held
    with pytest.raises(ConfigError, match="stored evidence"):
        OnOffEvidence.from_json({"prompts": []})
    with pytest.raises(ConfigError, match="no prompt"):
        OnOffEvidence("s", PLAN, ())
