"""A server of planted times: per token, not per portion; from the schedule, not the sending."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.bench.endpoint_runner import Connection, EndpointRunner
from draftproof.bench.figures import figure
from draftproof.bench.measured import Gaps, Measurement
from draftproof.bench.memory_check import memory_warnings
from draftproof.bench.run_record import Arm, Condition
from draftproof.bench.running import Bench, run_bench
from draftproof.bench.streams import Ask, Load, gaps_of
from draftproof.bench.wire import TokenCounter
from draftproof.errors import BackendError, ConfigError

SERVED = Arm("served", None)
ONE = Condition("chat", 0.0, 1)


@pytest.fixture(scope="module")
def fake():
    return runpy.run_path(str(Path(__file__).with_name("fake_server.py")))


@pytest.fixture
def connect(fake):
    """A runner for a fake server, and the server."""

    def make(*, model=None, is_chat=True, ignore_eos=False, **options):
        server = fake["FakeServer"](**options)
        connection = Connection(transport=server, loop_factory=fake["virtual_loop"])
        dialect = connection.dialect("http://fake", model, is_chat=is_chat, ignore_eos=ignore_eos)
        return EndpointRunner(connection, "http://fake", dialect), server

    return make


def asks(count, first=0):
    return tuple(Ask(n, (("user", f"prompt {n}"),), n) for n in range(first, first + count))


def measured(outcome, condition):
    made = Measurement(
        0, "served", 0, 0, 0.0, outcome.wall_s,
        tuple(stream.record() for stream in outcome.streams),
        Gaps(0), None, "", outcome.token_counts,
    )  # fmt: skip
    return lambda what: figure(what, made, condition)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("counting", ["usage", "ids", "timings", "last"])
@pytest.mark.parametrize("is_chat", [True, False])
def test_time_per_token_does_not_depend_on_tokens_per_portion(connect, chunk, counting, is_chat):
    """Ten milliseconds per token, 100 tokens per second, and they agree."""
    owner = "llamacpp" if counting == "timings" else "vllm"
    runner, _ = connect(
        chunk=chunk, gap_s=0.010 * chunk, counting=counting, owner=owner, is_chat=is_chat, tokens=96
    )
    outcome = runner.run(ONE, SERVED, Load(asks(2), concurrency=1), 96)
    get = measured(outcome, ONE)
    assert get("tpot_s") == pytest.approx(0.010, rel=1e-6)
    assert get("tokens_per_s") == pytest.approx(100.0, rel=1e-6)
    assert get("ttft_s") == pytest.approx(0.2)
    assert outcome.token_counts == {
        "usage": "usage", "ids": "ids", "timings": "usage", "last": "text share"
    }[counting]  # fmt: skip
    gaps = gaps_of(outcome.streams)
    assert gaps.p50_s == gaps.max_s == pytest.approx(0.010 * chunk)
    assert gaps.count == 2 * (-(-96 // chunk) - 1)
    assert [stream.record().num_tokens for stream in outcome.streams] == [96, 96]


def test_a_first_portion_of_one_token_is_no_whole_portion(connect):
    """One token at the prompt's end, then eight at a time: the first gap brings eight."""
    runner, _ = connect(chunk=8, first_chunk=1, gap_s=0.080, tokens=65)
    outcome = runner.run(ONE, SERVED, Load(asks(1), concurrency=1), 65)
    assert measured(outcome, ONE)("tpot_s") == pytest.approx(0.010)


def test_events_of_one_round_that_come_one_by_one_are_one_portion():
    counter = TokenCounter()
    for at_s, told in [(1.0, 1), (1.00001, 2), (1.00002, 3), (1.04, 4), (1.04001, 5)]:
        event = {"choices": [{"text": "x"}], "usage": {"completion_tokens": told}}
        counter.hear(at_s, event)
    assert counter.portions() == ([(1.0, 3), (1.04, 2)], "usage")


def test_the_closed_loop_stays_full_until_the_last_counted_request(connect):
    """Fillers take the places of requests that ended, and are left alone afterwards."""
    lengths = {"prompt 0": 0.010, "prompt 1": 0.050}
    runner, server = connect(
        chunk=1,
        tokens=20,
        gap_of=lambda body: lengths.get(body["messages"][0]["content"], 0.010),
    )
    load = Load(asks(2), asks(6, first=100), concurrency=2)
    outcome = runner.run(Condition("chat", 0.0, 2), SERVED, load, 20)
    assert [stream.ask.prompt for stream in outcome.streams] == [0, 1]
    assert server.most_in_flight == 2
    assert len(server.bodies) == 4
    assert (server.aborted, server.in_flight) == (1, 0)
    assert outcome.wall_s == pytest.approx(0.2 + 19 * 0.050)


def test_latencies_under_arrivals_count_from_the_schedule(connect):
    """A server with one place and a burst of arrivals: waiting is the server's latency."""
    runner, server = connect(capacity=1, tokens=10, chunk=1, gap_s=0.1, first_s=0.1)
    service_s = 0.1 + 9 * 0.1
    arrivals = (0.0, 0.1, 0.2, 5.0, 5.05)
    condition = Condition("chat", 0.0, None, 1.0)
    outcome = runner.run(condition, SERVED, Load(asks(5), (), None, arrivals), 10)
    starts, free_at = [], 0.0
    for at in arrivals:
        starts.append(max(at, free_at))
        free_at = starts[-1] + service_s
    records = [stream.record() for stream in outcome.streams]
    assert [each.scheduled_s for each in records] == list(arrivals)
    for record, start, at in zip(records, starts, arrivals, strict=True):
        assert record.sent_s == pytest.approx(at)
        assert record.first_s == pytest.approx(start + 0.1)
    get = measured(outcome, condition)
    assert get("ttft_s") == pytest.approx(
        sorted(s + 0.1 - a for s, a in zip(starts, arrivals, strict=True))[2]
    )
    assert server.most_in_flight == 3


def test_a_slow_server_is_not_waited_for_under_arrivals(connect):
    """Two hundred requests are out at once; none waits for a connection."""
    runner, server = connect(first_s=50.0, tokens=2, chunk=1)
    arrivals = tuple(0.01 * n for n in range(200))
    load = Load(asks(200), (), None, arrivals)
    outcome = runner.run(Condition("chat", 0.0, None, 100.0), SERVED, load, 2)
    assert server.most_in_flight == 200
    assert max(s.sent_s - s.scheduled_s for s in outcome.streams) == pytest.approx(0.0, abs=1e-6)


def page(drafts, drafted, accepted):
    return (
        f"vllm:spec_decode_num_drafts_total {drafts}\n"
        f"vllm:spec_decode_num_draft_tokens_total {drafted}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {accepted}\n"
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {accepted}\n'
    )


def test_acceptance_is_the_growth_of_the_page(connect):
    pages = iter([page(5, 15, 6), page(5, 15, 6), page(15, 45, 27)])
    runner, _ = connect(page=lambda: next(pages))
    found = runner.run(ONE, SERVED, Load(asks(1), concurrency=1), 64).acceptance
    assert (found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens) == (10, 30, 21)
    assert found.num_accepted_tokens_per_pos == (21,)


def test_what_is_asked_of_each_engine(connect):
    for owner, key, value in (
        ("vllm", "stream_options", {"include_usage": True, "continuous_usage_stats": True}),
        ("llamacpp", "timings_per_token", True),
        ("draftproof", "return_token_ids", True),
        ("somebody", "stream_options", {"include_usage": True}),
    ):
        runner, server = connect(owner=owner, counting="last")
        runner.run(replace(ONE, temperature=0.7), SERVED, Load(asks(1), concurrency=1), 8)
        body = server.bodies[0]
        assert body[key] == value
        assert (body["temperature"], body["max_tokens"], body["model"]) == (0.7, 8, "m")
        assert ("continuous_usage_stats" in body["stream_options"]) == (owner == "vllm")


def test_drafts_per_request_are_asked_of_our_server_only(connect):
    runner, server = connect(owner="draftproof", counting="ids")
    runner.run(ONE, Arm("kappa 3", 3), Load(asks(1), concurrency=1), 8)
    assert server.bodies[0]["speculative_config"] == {"num_speculative_tokens": 3}
    other, _ = connect(owner="vllm")
    with pytest.raises(ConfigError, match="vllm cannot choose drafts per request"):
        other.run(ONE, Arm("kappa 3", 3), Load(asks(1), concurrency=1), 8)


def test_failed_requests_are_left_out_and_told(connect):
    runner, _ = connect(fails={0}, chunk=4)
    outcome = runner.run(ONE, SERVED, Load(asks(3), concurrency=1), 64)
    assert [bool(stream.error) for stream in outcome.streams] == [True, False, False]
    assert measured(outcome, ONE)("tpot_s") == pytest.approx(0.010)
    runner, _ = connect(fails={0, 1})
    with pytest.raises(BackendError, match=r"every request failed: status 500.*planted"):
        runner.run(ONE, SERVED, Load(asks(2), concurrency=1), 64)


def test_a_server_without_usage_is_refused(connect):
    runner, server = connect(counting="none")
    server.tokens = 0
    with pytest.raises(BackendError, match="no token came"):
        runner.run(ONE, SERVED, Load(asks(1), concurrency=1), 64)


def test_ignoring_the_end_is_refused_where_nobody_may_listen(connect):
    with pytest.raises(ConfigError, match="of no known kind"):
        connect(owner="somebody", ignore_eos=True)


def test_a_second_server_is_the_plain_arm(tools, fake):
    """The plain server takes 30 ms per token, the speculative one 10: three times as fast."""

    class Two(fake["FakeServer"]):
        async def handle_async_request(self, request):
            self.gap_s = 0.030 * 4 if request.url.host == "plain" else 0.010 * 4
            return await super().handle_async_request(request)

    connection = Connection(transport=Two(), loop_factory=fake["virtual_loop"])
    dialect = connection.dialect("http://fast", None, is_chat=True)
    runner = EndpointRunner(connection, "http://fast", dialect, "http://plain", dialect)
    settings = tools.settings([Condition("chat", 0.0, 2)])
    settings = replace(settings, arms=(Arm("plain", None, is_plain=True), SERVED))
    bench = Bench(
        tools.SUBJECT, settings, tools.environment(), tools.NumberedPrompts(), shares_cache=False
    )
    record = run_bench(bench, runner, clock=tools.ManualClock())
    cell = next(cell for cell in record.cells if cell.arm == "served")
    assert cell.speedup.value == pytest.approx(3.0, rel=1e-6)
    assert record.verdicts[0].decision == "speculate"


@pytest.mark.parametrize(("speedup", "is_told"), [(1.0, False), (1.1, False), (3.0, True)])
def test_a_server_that_remembers_outputs_is_told(tools, connect, speedup, is_told):
    seen = set()

    def gap_of(body):
        text = repr(body["messages"])
        gap_s = 0.04 / speedup if text in seen else 0.04
        seen.add(text)
        return gap_s

    runner, _ = connect(gap_of=gap_of)
    found = memory_warnings(runner, SERVED, tools.NumberedPrompts().prompt)
    assert bool(found) == is_told
    assert not is_told or "3.00 times as fast" in found[0]
