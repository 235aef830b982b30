"""What servers tell of their drafts, and the verdicts that need it."""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from draftproof.audit import DraftTotals, Plan
from draftproof.audit.matrix import judge_matrix
from draftproof.audit.matrix_evidence import Cell, MatrixEvidence
from draftproof.audit.mode_report import facts_of_matrix
from draftproof.audit.subjects import OnOffEvidence, Policy, TextCounts, judge_on_off
from draftproof.audit.subjects.http_completions import HttpCompletions, Spelling
from draftproof.audit.subjects.told_drafts import (
    ToldDrafts,
    told_by,
    totals_between,
    totals_of,
)
from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.cli import CliContext, app
from draftproof.core.params import SamplingParams
from draftproof.engine import Engine, EngineCore
from draftproof.evidence import JointLaw
from draftproof.metrics import read_snapshot

POLICY = Policy(SamplingParams(top_k=2), 2)
PAGE = """
{prefix}:spec_decode_num_drafts_total {rounds}
{prefix}:spec_decode_num_draft_tokens_total {drafted}
{prefix}:spec_decode_num_accepted_tokens_total {accepted}
"""


def page(accepted, drafted, rounds, prefix="vllm"):
    return PAGE.format(prefix=prefix, accepted=accepted, drafted=drafted, rounds=rounds)


def ours(drafted, accepted):
    told = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted}
    return {"metrics": {"speculative_decoding": told}}


def predicted(kept, lost):
    details = {"accepted_prediction_tokens": kept, "rejected_prediction_tokens": lost}
    return {"usage": {"completion_tokens_details": details}}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ours(6, 2), ToldDrafts(2, 6)),
        (ours(0, 0) | predicted(2, 3), ToldDrafts(0, 0)),
        ({"timings": {"draft_n": 5, "draft_n_accepted": 4}}, ToldDrafts(4, 5)),
        (predicted(2, 3), ToldDrafts(2, 5)),
        # Silence, and zeros that every server sends, are no word on speculation.
        ({"timings": {"predicted_n": 3}}, None),
        (predicted(0, 0), None),
        ({"metrics": {"speculative_decoding": None}}, None),
        ({"metrics": None, "timings": [1], "usage": {"completion_tokens_details": None}}, None),
        ({"timings": {"draft_n": "5"}}, None),
    ],
)
def test_answers_tell_of_their_drafts_in_three_ways(answer, told):
    assert told_by(answer) == told


def test_an_answer_that_is_silent_beside_others_drafted_nothing():
    held = [ToldDrafts(1, 3), None, ToldDrafts(0, 0), ToldDrafts(0, 2)]
    assert totals_of(held) == DraftTotals(1, 5, None, 2)
    assert totals_of([None, None]) is None


def test_counters_say_what_they_grew_by():
    def grown(before, after, num=10):
        pages = [text if text is None else read_snapshot(text, 0.0) for text in (before, after)]
        return totals_between(*pages, num, 2)

    # 7 rounds are of 4 texts of two tokens at least.
    assert grown(page(1, 10, 5), page(4, 24, 12)) == DraftTotals(3, 14, 7, 4)
    assert grown(page(1, 10, 5), page(4, 24, 12), 3) == DraftTotals(3, 14, 7, 3)
    assert grown(page(4, 24, 12), page(4, 24, 12)) == DraftTotals(0, 0, 0, 0)
    assert grown(page(4, 24, 12), page(0, 1, 1)) is None
    assert grown(page(1, 10, 5), None) is None
    assert grown("vllm:num_requests_running 0", "vllm:num_requests_running 1") is None


def completion(text, **more):
    return httpx.Response(200, json={"choices": [{"text": text}], **more})


def subject(answer, pages):
    """A server that answers, and shows one page after another."""
    left = list(pages)

    def handle(request):
        if request.method == "GET":
            assert request.url.path == "/metrics"
            return left.pop(0)
        return answer(json.loads(request.content)["seed"])

    return HttpCompletions("http://x/v1", Spelling("m"), transport=httpx.MockTransport(handle))


def test_answers_come_before_the_page_and_a_page_before_silence():
    pages = [httpx.Response(200, text=page(0, 3 * n, n, "draftproof")) for n in (5, 9)]
    by_page = subject(lambda seed: completion(str(seed)), pages).answers("p", POLICY, 6, 0)
    assert by_page == (list("012345"), DraftTotals(0, 12, 4, 2))

    def timed(seed):
        timings = {"draft_n": 2, "draft_n_accepted": 1} if seed < 4 else {}
        return completion(str(seed), timings=timings)

    by_answer = subject(timed, pages).answers("p", POLICY, 6, 0)
    assert by_answer.drafts == DraftTotals(4, 8, None, 4)
    for nothing in (httpx.Response(404), httpx.Response(200, text="<html>")):
        silent = subject(lambda seed: completion(str(seed)), [nothing])
        assert silent.answers("p", POLICY, 3, 0).drafts is None


# --- verdicts ---------------------------------------------------------------------------


def on_off(drafts_on, drafts_off=None, expects=True):
    # Independent draws; they are called dependent with probability 0.001.
    on, off = (random.Random(seed).choices("ab", k=400) for seed in (1, 2))
    counts = TextCounts.of("p", on, off, drafts_on, drafts_off)
    plan = Plan(tv=0.3, calibration_samples=6000)
    return OnOffEvidence("s", plan, (counts,), expects_speculation=expects)


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (on_off(None), "does not tell whether it drafted after 'p'"),
        (on_off(DraftTotals(0, 0, 0, 0)), "certain in 0 of the draws after 'p'"),
        (on_off(DraftTotals(9, 99, 39, 39)), "certain in 0.0975 of the draws after 'p'"),
        (on_off(DraftTotals(9, 99, 40, 40)), ""),
        (on_off(None, expects=False), ""),
        (
            on_off(DraftTotals(9, 99, 40, 40), DraftTotals(9, 99, 40, 40)),
            "with speculation off as well",
        ),
        (on_off(None, DraftTotals(9, 99, 40, 40), expects=False), "with speculation off as well"),
    ],
)
def test_on_and_off_are_exact_only_where_on_is_on_and_off_is_off(evidence, reason):
    found = judge_on_off(evidence)
    assert found.verdict == ("not enough evidence" if reason else "exact")
    assert reason in found.reason
    stored = json.loads(json.dumps(evidence.to_json()))
    assert OnOffEvidence.from_json(stored) == evidence


def test_a_cell_needs_drafts_in_a_tenth_of_its_draws_where_they_are_expected():
    law = JointLaw.from_mapping({(0,): 0.5, (1,): 0.5}, 1)
    rest = JointLaw.from_mapping({(0,): 0.9, (1,): 0.1}, 1)
    draws = (((0,), 2000), ((1,), 2000))
    cells = tuple(
        Cell(("top_k",), "top_k 2", law, (rest,), draws, drafts=drafts)
        for drafts in (
            None,
            DraftTotals(0, 0, 0, 0),
            DraftTotals(9, 399, 399, 399),
            DraftTotals(9, 400, 400, 400),
            DraftTotals(0, 9),
        )
    )
    plan = Plan(tv=0.2, calibration_samples=20_000)
    found = judge_matrix(MatrixEvidence("s", plan, cells, expects_speculation=True))
    assert [cell.detail for cell in found.cells[:3]] == [
        "drafts are not told of",
        "nothing was drafted",
        "drafts are certain in 0.0998 of the draws, 0.1 is expected",
    ]
    assert [cell.status for cell in found.cells] == ["not enough evidence"] * 3 + ["exact"] * 2
    # As certificates hold them from before draws with drafts were counted.
    told = [
        cell.detail.endswith("in how many draws it drafted is not told") for cell in found.cells
    ]
    assert told == [False] * 4 + [True]
    assert found.reason == "not settled: top_k, top_k, top_k"
    facts = dict(facts_of_matrix(MatrixEvidence("s", plan, cells, expects_speculation=True), found))
    assert facts["verdict"] == "not enough evidence: not settled: top_k, top_k, top_k"


class _Letters:
    """The tokenizer of five letters."""

    eos_token_ids = frozenset()

    def encode(self, text):
        return ["abcde".index(letter) for letter in text]

    def decode(self, ids):
        return "".join("abcde"[i] for i in ids)


def load(model, *, speculative_config, **options):
    """A model of five letters; with top-k 2 each is followed by itself or the next."""
    del model, speculative_config, options
    table = FunctionTable(5, lambda held: np.roll([0.4, 0.3, 0.2, 0.1, 0.0], held[-1]), span=1)
    return Engine(EngineCore(TableBackend(table), tokenizer=_Letters()))


class _Server(BaseHTTPRequestHandler):
    """Writes two letters of that model, or others, and tells what it is asked to tell."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        bar = 4 / 7 if body["law"] == "right" else 0.99
        held, text = "abcde".index(body["prompt"][-1]), ""
        for coin in np.random.default_rng(body["seed"]).random(2):
            held = (held + (coin >= bar)) % 5
            text += "abcde"[held]
        answer = json.dumps({"choices": [{"text": text}], **body["tells"]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.statistical
def test_a_server_is_exact_only_where_its_drafts_show_or_are_vouched_for(url):
    # False alarms 0.001 each, on fixed seeds; 100 draws of four texts show TV 0.45.
    told = {"timings": {"draft_n": 3, "draft_n_accepted": 1}}
    for law, tells, options, code, said in (
        ("right", {}, (), 3, "does not tell whether it drafted after 'a'"),
        ("right", {}, ("--drafts", "assumed"), 0, "it speculated was stated, not shown"),
        ("right", {}, ("--drafts", "none"), 0, "nothing is said about speculation"),
        ("right", told, (), 0, "would have been seen with probability 0.99"),
        ("wrong", {}, (), 1, "biased"),
    ):
        body = json.dumps({"law": law, "tells": tells})
        words = (
            "audit", "http", url, "--model", "m", "--reference", "r", "--prompt", "a",
            "--top-k", "2", "--horizon", "2", "--draws", "100", "--tv", "0.45",
            "--calibration-samples", "4000", "--seed", "3", "-q", "--body", body, *options,
        )  # fmt: skip
        context = CliContext(load=load, force_terminal=False)
        found = CliRunner().invoke(app, [*words], obj=context)
        assert found.exit_code == code, (law, tells, options, found.output)
        assert said in found.output.splitlines()[0]
        if tells:
            assert "speculation: 100 of 300 drafts accepted" in found.output
