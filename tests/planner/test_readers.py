"""Each format that acceptance is read from, and what is refused."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from draftproof.errors import ConfigError
from draftproof.planner.estimate import survival_of
from draftproof.planner.readers import parse_acceptance, read_acceptance

VLLM_METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 150.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 50.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 250.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 140.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 40.0
"""

VLLM_LOG = """\
INFO 07-05 09:03:03 [loggers.py:271] Engine 000: Avg prompt throughput: 1.5 tokens/s, Running: 1
INFO 07-05 09:03:03 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.08, \
Accepted throughput: 0.07 tokens/s, Drafted throughput: 0.19 tokens/s, Accepted: 27 tokens, \
Drafted: 75 tokens, Per-position acceptance rate: 0.640, 0.320, 0.120, \
Avg Draft acceptance rate: 36.0%
INFO 07-05 09:03:13 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.00, \
Accepted throughput: 3.70 tokens/s, Drafted throughput: 3.70 tokens/s, Accepted: 75 tokens, \
Drafted: 225 tokens, Per-position acceptance rate: 0.600, 0.300, 0.100, \
Avg Draft acceptance rate: 33.3%
"""

SGLANG_METRICS = """\
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{tp_rank="0"} 2.8
sglang:spec_accept_rate{tp_rank="0"} 0.6
sglang:spec_verify_calls_total{tp_rank="0"} 8060
"""

SGLANG_LOG = """\
[2026-03-04 15:13:22] Decode batch, #running-req: 3, #token: 84, token usage: 0.00, \
accept len: 3.00, accept rate: 0.50, cuda graph: True, gen throughput (token/s): 3.62, #queue-req: 1
[2026-03-04 15:13:23] Decode batch, #running-req: 1, #token: 90, token usage: 0.00, \
accept len: 2.00, accept rate: 0.25, cuda graph: True, gen throughput (token/s): 9.0, #queue-req: 0
"""

LLAMA_LOG = """\
draft acceptance rate = 0.37500 (    3 accepted /     8 generated)
statistics draft-mtp: #calls(b,g,a) = 1 2 2, #gen drafts = 2, #acc drafts = 1, #gen tokens = 4, \
#acc tokens = 1, dur(b,g,a) = 0.006, 21.272, 0.010 ms
statistics draft-mtp: #calls(b,g,a) = 1 4 4, #gen drafts = 4, #acc drafts = 2, #gen tokens = 8, \
#acc tokens = 3, dur(b,g,a) = 0.006, 21.272, 0.010 ms
"""


def trace(*rounds):
    return "\n".join(json.dumps(each) for each in rounds)


def test_our_step_records():
    text = trace(
        {"request_id": "a", "drafted": [5, 6, 7], "num_accepted": 2, "emitted": [5, 6, 9]},
        {"request_id": "a", "drafted": [], "num_accepted": 0, "emitted": [1]},
        {"request_id": "b", "drafted": [5, 6, 7], "num_accepted": 0, "emitted": [2]},
    )
    data = parse_acceptance(text, "trace")
    assert data.counts is not None
    assert data.counts.accepted == (1, 1, 0)
    assert data.counts.reached == (2, 1, 1)
    assert set(data.per_request) == {"a", "b"}
    assert "drafted nothing" in data.notes[0]


def test_our_documents():
    rounds = [{"drafted": [1, 2], "num_accepted": 1}, {"drafted": [3, 4], "num_accepted": 2}]
    data = parse_acceptance(json.dumps({"text": "x", "rounds": rounds}), "run.json")
    assert data.counts is not None
    assert data.counts.accepted == (2, 1)


def test_plain_rounds_alone_say_nothing():
    with pytest.raises(ConfigError, match="no drafts"):
        parse_acceptance(trace({"drafted": [], "num_accepted": 0}), "trace")


def test_metrics_of_vllm_and_of_ours():
    for name in ("vllm", "draftproof"):
        data = parse_acceptance(VLLM_METRICS.replace("vllm:", f"{name}:"), "page")
        assert data.counts is not None
        assert data.counts.drafted == (200, 200, 200)
        assert survival_of(data).curve.rates == pytest.approx((0.7, 0.35, 0.2))


def test_log_of_vllm_pools_intervals_by_their_drafts():
    data = parse_acceptance(VLLM_LOG, "log")
    assert data.counts is not None
    assert data.counts.drafted == (100, 100, 100)
    # (25 x .64 + 75 x .60) / 100, not the mean of the two rates.
    assert survival_of(data).curve.rates[0] == pytest.approx(0.61)


def test_metrics_of_sglang_have_no_positions():
    data = parse_acceptance(SGLANG_METRICS, "page")
    assert data.counts is None
    assert data.pooled is not None
    assert data.pooled.accepted_per_draft == pytest.approx(1.8)
    assert (data.pooled.kappa, data.pooled.num_drafts) == (3, 8060)


def test_log_of_sglang_weighs_by_rows():
    data = parse_acceptance(SGLANG_LOG, "log")
    assert data.pooled is not None
    assert data.pooled.accepted_per_draft == pytest.approx((3 * 2.0 + 1 * 1.0) / 4)
    assert data.pooled.kappa == 4
    assert survival_of(data).confidence == 0.0


def test_log_of_llama_cpp_takes_the_last_totals():
    data = parse_acceptance(LLAMA_LOG, "log")
    assert data.pooled is not None
    assert (data.pooled.accepted_per_draft, data.pooled.kappa) == (0.75, 2)
    with pytest.raises(ConfigError, match="gen drafts"):
        parse_acceptance(LLAMA_LOG.splitlines()[0], "log")


def test_records_of_aiperf():
    with_totals = {
        "metadata": {"request_id": "x"},
        "metrics": {
            "draft_token_count": {"value": 60, "unit": "tokens"},
            "accepted_draft_token_count": {"value": 30, "unit": "tokens"},
            "decode_iteration_count": {"value": 20, "unit": "count"},
        },
    }
    data = parse_acceptance(trace(with_totals, with_totals), "profile_export.jsonl")
    assert data.pooled is not None
    assert (data.pooled.accepted_per_draft, data.pooled.kappa) == (1.5, 3)
    histogram = {"acceptance_histogram": [8, 0, 6, 6], "num_spec_tokens": 3}
    data = parse_acceptance(trace(histogram), "records")
    assert data.counts is not None
    assert data.counts.accepted == (12, 12, 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "no acceptance found"),
        ('{"a": 1}', "JSON without rounds"),
        ("# TYPE up gauge\nup 1\n", "without counters"),
        ("vllm:spec_decode_num_drafts_total 0\n", "drafted nothing"),
        ('{"num_accepted": 3, "drafted": [1]}', "accepted 3 of 1"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_acceptance(text, "source")


def test_an_address(tmp_path):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            found = self.path == "/metrics"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(VLLM_METRICS.encode() if found else b"")

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert read_acceptance(address).counts == parse_acceptance(VLLM_METRICS, "").counts
        with pytest.raises(ConfigError, match="404"):
            read_acceptance(f"{address}/elsewhere")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_acceptance(str(tmp_path / "missing.jsonl"))
