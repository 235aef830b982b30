"""Pages of four engines under one set of names, what happened between two, and warnings."""

from __future__ import annotations

import math

import pytest

from draftproof.errors import ConfigError
from draftproof.metrics import Monitor, between, read_snapshot

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:generation_tokens_total{engine="0",model_name="m"} 900.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 70.0
vllm:spec_decode_num_drafts_total{engine="0"} 150.0
vllm:spec_decode_num_drafts_total{engine="1"} 50.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 600.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 250.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 140.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 70.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 40.0
process_start_time_seconds 1.7e+09
"""

LLAMA_CPP = """\
llamacpp:requests_processing 2
llamacpp:requests_deferred 4
llamacpp:tokens_predicted_total 394
llamacpp:prompt_tokens_total 16185
llamacpp:spec_decode_num_drafts_total 100
llamacpp:spec_decode_num_draft_tokens_total 384
llamacpp:spec_decode_num_accepted_tokens_total 260
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 95
"""

SGLANG = """\
sglang:num_running_reqs{tp_rank="0"} 3
sglang:num_queue_reqs{tp_rank="0"} 2
sglang:token_usage{tp_rank="0"} 0.85
sglang:gen_throughput{tp_rank="0"} 120.5
sglang:spec_verify_calls_total{tp_rank="0"} 40
sglang:spec_accept_length{tp_rank="0"} 2.5
sglang:spec_accept_rate{tp_rank="0"} 0.5
"""


def ours(drafts, drafted, accepted, *, generated=0, running=1, reached=()):
    lines = [
        f"draftproof:spec_decode_num_drafts_total {drafts}",
        f"draftproof:spec_decode_num_draft_tokens_total {drafted}",
        f"draftproof:spec_decode_num_accepted_tokens_total {accepted}",
        f"draftproof:generation_tokens_total {generated}",
        f"draftproof:num_requests_running {running}",
    ]
    for place, count in enumerate(reached):
        name = "draftproof:spec_decode_num_drafted_tokens_per_pos_total"
        lines.append(f'{name}{{position="{place}"}} {count}')
    return "\n".join(lines) + "\n"


def test_vllm():
    found = read_snapshot(VLLM, 5.0)
    assert found.engine == "vLLM"
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (200, 600, 250)
    assert found.num_accepted_tokens_per_pos == (140, 70, 40)
    assert (found.num_running, found.num_waiting, found.kv_usage) == (5, 1, 0.5)
    assert (found.num_generated, found.num_prompt) == (900, 70)
    assert found.started_s == 1.7e9
    assert found.speculates


def test_llama_cpp():
    found = read_snapshot(LLAMA_CPP, 0.0)
    assert (found.engine, found.num_running, found.num_waiting) == ("llama.cpp", 2, 4)
    assert (found.num_generated, found.num_drafts, found.kv_usage) == (394, 100, None)


def test_sglang_has_gauges_only():
    found = between(read_snapshot(SGLANG, 0.0), read_snapshot(SGLANG, 2.0))
    assert (found.engine, found.stats) == ("SGLang", None)
    assert (found.acceptance_length, found.acceptance_rate) == (2.5, 0.5)
    assert (found.tokens_per_s, found.gauges.kv_usage) == (120.5, 0.85)
    assert found.rate_per_pos == []


def test_a_page_of_nobody_is_refused():
    with pytest.raises(ConfigError, match="no metrics of a known engine"):
        read_snapshot("node_load1 0.5\n", 0.0)


def test_rates_of_a_window_are_those_of_the_growth():
    before = read_snapshot(ours(10, 30, 12, generated=100, reached=(10, 10, 10)), 0.0)
    after = read_snapshot(ours(20, 50, 27, generated=140, reached=(20, 15, 15)), 4.0)
    found = between(before, after)
    assert not found.has_restarted
    assert found.acceptance_rate == 15 / 20
    assert found.acceptance_length == 1 + 15 / 10
    assert found.tokens_per_s == 10.0
    assert found.stats.num_drafted_per_pos == [10, 5, 5]
    assert not found.counts_short_as_rejected


def test_positions_without_denominators_are_labelled():
    empty = read_snapshot("vllm:spec_decode_num_drafts_total 0\n", 0.0)
    found = between(empty, read_snapshot(VLLM, 1.0))
    assert found.rate_per_pos == [0.7, 0.35, 0.2]
    assert not found.counts_short_as_rejected
    short = VLLM.replace('draft_tokens_total{engine="0"} 600', 'draft_tokens_total{engine="0"} 500')
    assert between(empty, read_snapshot(short, 1.0)).counts_short_as_rejected


def test_a_window_without_drafts_has_no_rate():
    page = ours(10, 30, 12)
    found = between(read_snapshot(page, 0.0), read_snapshot(page, 1.0))
    assert math.isnan(found.acceptance_rate)
    assert math.isnan(found.acceptance_length)
    assert found.tokens_per_s == 0.0


@pytest.mark.parametrize(
    "late",
    [ours(3, 9, 4, generated=5), VLLM.replace("1.7e+09", "1.7001e+09")],
    ids=["counters fell", "another start"],
)
def test_a_restart_is_no_negative_growth(late):
    early = VLLM if "vllm" in late else ours(10, 30, 12, generated=100)
    found = between(read_snapshot(early, 0.0), read_snapshot(late, 1.0))
    held = read_snapshot(late, 1.0)
    assert found.has_restarted
    assert found.stats.num_drafts == held.num_drafts
    assert found.num_generated == held.num_generated
    assert math.isnan(found.tokens_per_s)


def watched(rates, *, running=1, crossing=None, drafts=100):
    """Fold readings whose windows accept these shares of four drafts each."""
    monitor = Monitor(crossing)
    monitor.add(read_snapshot(ours(0, 0, 0), 0.0))
    sights, accepted = [], 0
    for number, rate in enumerate(rates, start=1):
        accepted += round(4 * drafts * rate)
        page = ours(number * drafts, number * drafts * 4, accepted, running=running)
        sights.append(monitor.add(read_snapshot(page, float(number))))
    return sights


def test_a_fall_of_acceptance_is_told_and_a_wobble_is_not():
    steady = watched([0.6, 0.62, 0.58] * 6)
    assert not any(sight.warnings for sight in steady)
    fallen = watched([0.6] * 10 + [0.3] * 5)
    assert "acceptance fell from 0.60 to 0.30" in fallen[-1].warnings[0]
    assert not fallen[9].warnings
    few = watched([0.6] * 10 + [0.4] * 5, drafts=2)
    assert not few[-1].warnings, "ten drafts show no fall of a third"


def test_a_batch_past_the_crossing_is_told():
    assert (
        "8 requests run; from 8 on" in watched([0.6] * 3, running=8, crossing=8.0)[-1].warnings[0]
    )
    assert not watched([0.6] * 3, running=7, crossing=8.0)[-1].warnings


def test_history_is_bounded_and_restarts_are_counted():
    monitor = Monitor(length=4)
    monitor.add(read_snapshot(ours(10, 40, 20), 0.0))
    for second in range(1, 9):
        sight = monitor.add(read_snapshot(ours(10 - second, 40 - second, 20 - second), second))
    assert len(sight.acceptance_rates) == 4
    assert sight.num_restarts == 8
    assert "the engine was restarted" in sight.warnings[0]
