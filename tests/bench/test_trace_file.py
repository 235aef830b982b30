"""Trace files: what was written comes back, whatever cut the file short."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from engine_kit import GREEDY, WARM, Pieces, make_core, requests, run

from draftproof.bench import read_trace
from draftproof.bench.run_record import Environment
from draftproof.bench.trace_record import TRACE_FORMAT, TraceHeader
from draftproof.bench.trace_writer import TraceWriter
from draftproof.errors import ConfigError, DraftproofError
from draftproof.planner.readers import read_acceptance
from draftproof.proposers import NgramProposer

PLACE = Environment(
    "a processor", 2, None, "Linux x86_64", "3.11", {"numpy": "2.0"}, None, "draft", "now"
)
HEADER = TraceHeader(TRACE_FORMAT, PLACE, {"name": "table", "vocab_size": 7}, {"max_rows": 32})
LETTERS = Pieces([bytes([letter]) for letter in b"abcdef"])


def write(path, *, params=WARM, holds_text=False, count=3):
    """Trace a run; return the engine's own results."""
    core = make_core(proposers=[NgramProposer(1, 2)], kappa=3, tokenizer=LETTERS)
    with TraceWriter(path, holds_text=holds_text) as writer:
        writer.begin(HEADER, LETTERS)
        core.listeners.add(writer)
        results = run(core, requests(*(5, 3, 4)[:count], params=params, max_tokens=14))
        core.listeners.remove(writer)
    return results


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def test_what_was_written_comes_back(path):
    results = write(path)
    trace = read_trace(path)
    (held,) = trace.runs
    assert not trace.is_torn
    assert held.header == HEADER
    rounds = dict(trace.by_request())
    assert rounds.keys() == results.keys()
    for name, result in results.items():
        # Seconds are rounded; everything else is to the bit.
        for written, truth in zip(rounds[name], result.traces, strict=True):
            seconds = {
                key: getattr(written, key) for key in ("draft_s", "target_s", "verify_s", "other_s")
            }
            assert replace(truth, **seconds) == written
            assert written.total_s == pytest.approx(truth.total_s, abs=1e-6)
    for each in held.requests:
        result = results[each.request]
        assert each.stats["num_rounds"] == len(rounds[each.request])
        assert (each.seed, each.num_tokens) == (result.seed, len(result.tokens))
        assert each.policy == {"temperature": 0.9}
        assert (each.prompt, each.text) == (None, None)
        assert 0 <= each.begun_s <= each.at_s
    assert [each.at_s for each in held.rounds] == sorted(each.at_s for each in held.rounds)


def test_text_is_written_only_if_asked(path, tmp_path):
    results = write(path)
    prompts = [LETTERS.decode(result.prompt_ids) for result in results.values()]
    assert all(f'"{prompt}"' not in path.read_text() for prompt in prompts)
    open_path = tmp_path / "open.jsonl"
    write(open_path, holds_text=True)
    (held,) = read_trace(open_path).runs
    assert held.header.holds_text
    assert sorted(each.prompt for each in held.requests) == sorted(prompts)
    assert {each.text for each in held.requests} == {result.text for result in results.values()}


def test_a_file_cut_at_any_byte_is_read_up_to_its_last_whole_line(path, tmp_path):
    write(path, count=1)
    data = path.read_bytes()
    whole = read_trace(path).runs[0]
    first = data.index(b"\n") + 1
    cut = tmp_path / "cut.jsonl"
    for end in [*range(first, len(data), 37), len(data) - 1]:
        cut.write_bytes(data[:end])
        trace = read_trace(cut)
        assert trace.is_torn == (data[end - 1 : end] != b"\n")
        rounds = trace.runs[0].rounds
        assert rounds == whole.rounds[: len(rounds)]
        num_lines = data[first:end].count(b"\n")
        assert len(rounds) + len(trace.runs[0].requests) == num_lines


def test_another_run_continues_a_file_and_drops_what_broke_off(path):
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"kind": "round", "req')
    write(path, params=GREEDY)
    first, second = read_trace(path).runs
    assert path.read_bytes().startswith(whole)
    assert len(first.requests) == len(second.requests) == 3
    # Both runs have requests a, b and c: they stay six requests.
    assert len(list(read_trace(path).by_request())) == 6


def swapped(lines, number, old, new):
    assert old in lines[number]
    return [line.replace(old, new) if at == number else line for at, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: lines[1:], "a trace begins with a run"),
        (lambda lines: swapped(lines, 0, b'"format":1', b'"format":2'), "format 2; expected 1"),
        (lambda lines: [lines[0], lines[1][:40] + b"\n", *lines[2:]], "line 2: not JSON"),
        (lambda lines: swapped(lines, 1, b'"kappa":', b'"kapa":'), "kappa: Field"),
        (lambda lines: swapped(lines, 1, b'"p":[]', b'"p":[0.5]'), "drafts with"),
        (lambda lines: [lines[0], b"3\n"], "expected an object, not int"),
        (lambda lines: [lines[0], b'{"kind":"round"}\n'], "without 'request'"),
        (lambda lines: [], "no run in it"),
    ],
)
def test_damage_is_named(path, change, says):
    write(path, count=1)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(ConfigError, match=says):
        read_trace(path)


def test_lines_of_later_versions_are_passed_over(path):
    write(path, count=1)
    whole = read_trace(path)
    lines = path.read_text().splitlines()
    held = json.loads(lines[1]) | {"mood": "good"}
    path.write_text(
        "\n".join([lines[0], '{"kind": "weather"}', json.dumps(held), *lines[2:]]) + "\n"
    )
    assert read_trace(path) == whole


def test_an_unknown_probability_is_null(path):
    write(path, count=1)
    lines = path.read_text().splitlines()
    held = json.loads(lines[1]) | {"token_p": None}
    path.write_text("\n".join([lines[0], json.dumps(held)]) + "\n")
    assert math.isnan(read_trace(path).runs[0].rounds[0].trace.token_p)


def test_other_files_are_left_alone(path):
    path.write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match="holds something else"):
        TraceWriter(path)
    assert path.read_text() == '{"id": 1}\n'
    with pytest.raises(DraftproofError, match="cannot write --trace"):
        TraceWriter(path.parent / "nowhere" / "trace.jsonl")


def test_two_runs_do_not_write_one_file_at_once(path):
    with TraceWriter(path) as writer:
        writer.begin(HEADER)
        with pytest.raises(DraftproofError, match="being written by another process"):
            TraceWriter(path)
    TraceWriter(path).close()


def test_a_full_disk_ends_the_trace_and_not_the_requests():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    core = make_core(proposers=[NgramProposer(1, 2)], kappa=3)
    writer = TraceWriter("/dev/full")
    writer.begin(HEADER)
    core.listeners.add(writer)
    results = run(core, requests(5, max_tokens=9))
    assert len(results["a"].tokens) == 9
    with pytest.raises(DraftproofError, match="is incomplete: No space left"):
        writer.close()


def test_lines_reach_the_disk_when_a_request_ends(path):
    core = make_core()
    with TraceWriter(path) as writer:
        writer.begin(HEADER)
        core.listeners.add(writer)
        run(core, requests(5, max_tokens=9))
        copy = shutil.copy(path, path.with_name("copy.jsonl"))
        assert len(read_trace(copy).runs[0].requests) == 1


def test_the_planner_reads_it(path):
    results = write(path)
    path.write_bytes(path.read_bytes() + b'{"kind":"rou')
    data = read_acceptance(str(path))
    drafts = [trace for result in results.values() for trace in result.traces if trace.draft_ids]
    assert data.counts.drafted[0] == len(drafts)
    for place, accepted in enumerate(data.counts.accepted):
        assert accepted == sum(len(trace.path) > place for trace in drafts)
    assert len(data.per_request) == len(
        {name for name, r in results.items() if any(t.draft_ids for t in r.traces)}
    )
