"""Many prompts: ids, overrides, failures, and interruption at any byte."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest

from draftproof.cli.batch_input import LINE_OPTIONS
from draftproof.engine import Engine

OPTIONS = ("--temperature", "1.2", "--seed", "9", "--max-tokens", "16", "--ignore-eos")
NGRAM = ("--speculative-config", '{"method": "ngram"}')


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read(path):
    raw = path.read_bytes()
    assert raw.endswith(b"\n") or not raw
    documents = [json.loads(line) for line in raw.splitlines()]
    by_id = {document["id"]: document for document in documents}
    assert len(by_id) == len(documents), "an id was repeated"
    return by_id


@pytest.fixture
def generate(invoke, files):
    def run(*words, **options):
        source, output = files
        base = ("generate", "-m", "table", "--prompts", source, "--output", output)
        return invoke(*base, *OPTIONS, *words, **options)

    return run


def test_every_line_once_and_as_it_would_be_alone(generate, invoke, files):
    write(files[0], [{"prompt": f"line {i} line {i}"} for i in range(12)])
    result = generate(*NGRAM, "--max-rows", "4")
    assert result.exit_code == 0
    assert result.stdout == ""
    by_id = read(files[1])
    assert set(by_id) == set(range(1, 13))
    assert len({line["seed"] for line in by_id.values()}) == 12
    for key in (1, 7, 12):
        words = [*OPTIONS, *NGRAM, "--seed", by_id[key]["seed"], "--json"]
        alone = invoke("generate", "-m", "table", f"line {key - 1} line {key - 1}", *words)
        assert json.loads(alone.stdout)["token_ids"] == by_id[key]["token_ids"]


def test_the_seed_of_a_line_depends_on_its_id_alone(generate, files):
    lines = [{"id": name, "prompt": "hello"} for name in "abcdef"]
    write(files[0], lines)
    generate()
    before = {key: line["text"] for key, line in read(files[1]).items()}
    assert len(set(before.values())) == 6
    files[1].unlink()
    write(files[0], reversed(lines))
    generate("--max-rows", "1")
    assert {key: line["text"] for key, line in read(files[1]).items()} == before


def test_overrides_reach_single_lines(generate, files):
    write(
        files[0],
        [
            {"prompt": "hello"},
            {"id": "greedy", "prompt": "hello", "temperature": 0, "max_tokens": 3},
            {"id": "seeded", "prompt": "hello", "seed": 77},
            {"id": "biased", "prompt": "hello", "logit_bias": {"40": 1000}},
            {"id": "only", "prompt": "hello", "allowed_token_ids": [50]},
            {"id": "stop", "prompt": "hello", "logit_bias": {"40": 1000}, "stop": "GG"},
            {"id": "plain", "prompt": "ab ab ab", "num_speculative_tokens": 0},
            {"id": "chat", "messages": [{"role": "user", "content": "hi"}], "logprobs": 1},
        ],
    )
    assert generate(*NGRAM).exit_code == 0
    by_id = read(files[1])
    assert by_id["greedy"]["exactness"] == "greedy"
    assert by_id["greedy"]["num_tokens"] == 3
    assert by_id["seeded"]["seed"] == 77
    assert set(by_id["biased"]["token_ids"]) == {40}
    assert set(by_id["only"]["token_ids"]) == {50}
    assert by_id["stop"]["stop_reason"] == "GG"
    assert by_id["plain"]["stats"]["num_drafts"] == 0
    assert by_id["chat"]["num_prompt_tokens"] == len("user: hi\nassistant: ")
    assert len(by_id["chat"]["logprobs"]) == by_id["chat"]["num_tokens"]
    assert by_id[1]["num_tokens"] == 16


def test_bad_lines_carry_their_error_and_stop_nobody(generate, files):
    good = {"id": "good", "prompt": "hello"}
    bad = {
        "nan": ({"prompt": "boom!"}, "nan"),
        "key": (
            {"prompt": "hi", "temperatur": 1},
            "'temperatur'; nearest known key: 'temperature'",
        ),
        "kind": ({"prompt": "hi", "max_tokens": "9"}, "max_tokens is '9'; expected an integer"),
        "bool": ({"prompt": "hi", "top_k": True}, "top_k is True; expected an integer"),
        "range": ({"prompt": "hi", "top_p": 2}, "top_p 2"),
        "none": ({}, "expected either 'prompt' or 'messages'"),
        "both": ({"prompt": "hi", "messages": []}, "expected either 'prompt' or 'messages'"),
        "turns": ({"messages": [{"role": "user"}]}, "the strings 'role' and 'content'"),
        "list": ({"prompt": [1, 2]}, "prompt is [1, 2]; expected a string"),
        "char": ({"prompt": "\u00e9"}, "is unknown"),
        "long": ({"prompt": "x" * 2000}, "the prompt has 2000 tokens"),
        "empty": ({"prompt": ""}, "the prompt has no tokens"),
        "drafter": ({"prompt": "hi", "proposer": "x", "num_speculative_tokens": 2}, "'x'"),
    }
    write(files[0], [{"id": key, **line} for key, (line, _) in bad.items()] + [good])
    with files[0].open("a") as file:
        file.write("{torn\n\n[1]\n")
    result = generate()
    assert result.exit_code == 1
    assert f"{len(bad) + 2} of {len(bad) + 3} lines failed" in result.stderr.splitlines()[-1]
    by_id = read(files[1])
    assert by_id["good"]["num_tokens"] == 16
    for key, (_, expected) in bad.items():
        assert expected in by_id[key]["error"], key
        assert "\n" not in by_id[key]["error"]
    assert "not JSON" in by_id[len(bad) + 2]["error"]
    assert "expected a JSON object" in by_id[len(bad) + 4]["error"]
    again = generate()
    assert again.exit_code == 1
    assert read(files[1]) == by_id


def test_line_options_are_those_of_a_request():
    parameters = set(Engine.request.__kwdefaults__)
    spelled = {"response_format", "structured_outputs"}  # stand for ``grammar``
    elsewhere = {"stop_criterion", "request_id", "grammar", "trace"}  # --trace is for all lines
    assert set(LINE_OPTIONS) - spelled == parameters - elsewhere


def test_a_file_cut_at_any_byte_is_completed(generate, files):
    write(files[0], [{"id": f"n{i}", "prompt": "hello hello"} for i in range(5)])
    generate(*NGRAM)
    whole = files[1].read_bytes()
    expected = read(files[1])
    first = whole.index(b"\n") + 1
    cuts = {0, 1, 5, 7, first - 1, first, first + 1, first + 9, len(whole) - 1, len(whole)}
    for cut in sorted(cuts):
        files[1].write_bytes(whole[:cut])
        result = generate(*NGRAM)
        assert result.exit_code == 0, (cut, result.stderr)
        assert read(files[1]) == expected, cut
        kept = whole[: whole[:cut].rfind(b"\n") + 1]
        assert files[1].read_bytes().startswith(kept), "a finished line was written again"
    assert "loading" not in generate(*NGRAM).stderr, "nothing was left to do"


def test_new_lines_may_be_added_to_the_input(generate, files):
    write(files[0], [{"prompt": "one"}])
    generate()
    write(files[0], [{"prompt": "one"}, {"prompt": "two"}])
    result = generate()
    assert result.exit_code == 0
    assert "1 of 2 lines are in" in result.stderr
    assert set(read(files[1])) == {1, 2}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: [{"prompt": "changed"}, *lines[1:]], "id 1 for another prompt"),
        (lambda lines: lines[:1], "id 2, which the input lacks"),
    ],
)
def test_results_of_another_input_are_not_mixed(generate, files, change, expected):
    lines = [{"prompt": "one"}, {"prompt": "two"}]
    write(files[0], lines)
    generate()
    before = files[1].read_bytes()
    write(files[0], change(lines))
    result = generate()
    assert result.exit_code == 2
    assert expected in result.stderr
    assert files[1].read_bytes() == before


def test_results_of_other_options_are_not_mixed(generate, files):
    write(files[0], [{"prompt": "one"}])
    generate()
    for words in (("--temperature", "0.5"), ("--chat",), NGRAM, ("--precision", "f32")):
        assert generate(*words).exit_code == 2, words
    assert generate("--max-rows", "7", "-q").exit_code == 0


def test_what_failed_is_tried_again_and_what_is_at_fault_is_not(
    generate, files, monkeypatch
) -> None:
    write(files[0], [{"prompt": "one"}, {"prompt": "two"}, {"prompt": "three", "top_p": 2}, {}])
    shipped = Engine.request

    def short_of_memory(self, prompt, **options):
        if prompt == "two":
            raise MemoryError("no pages left")
        return shipped(self, prompt, **options)

    monkeypatch.setattr(Engine, "request", short_of_memory)
    assert generate().exit_code == 1
    before = read(files[1])
    assert before[2]["error"] == "no pages left"
    files[1].chmod(0o640)
    monkeypatch.undo()
    again = generate()
    assert again.exit_code == 1  # two lines are at fault still
    assert "2 lines of" in again.stderr, again.stderr
    assert "are tried again" in again.stderr
    after = read(files[1])  # every id once
    assert after[2]["num_tokens"] == 16
    assert (after[1], after[4]) == (before[1], before[4])
    assert "top_p 2" in after[3]["error"]
    assert files[1].stat().st_mode & 0o777 == 0o640
    assert [path.name for path in files[1].parent.iterdir() if path.suffix == ".part"] == []


def test_a_disk_that_refuses_the_new_file_leaves_the_old_one(generate, files, monkeypatch):
    write(files[0], [{"prompt": "boom!"}, {"prompt": "fine"}])
    assert generate().exit_code == 1
    before = files[1].read_bytes()

    def full(*_places):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("draftproof.cli.batch_output.Path.replace", full)
    result = generate()
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    assert files[1].read_bytes() == before


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"logprobs_mode": "processed"}, "line 1: logprobs_mode 'processed' needs logprobs"),
        ({"prediction": "hi"}, "prediction has no effect with the drafter 'ngram'"),
        (
            {"prediction": "hi", "proposer": "prediction", "num_speculative_tokens": 0},
            "prediction has no effect with num_speculative_tokens 0",
        ),
    ],
)
def test_what_nobody_would_read_is_an_error(generate, files, line, expected):
    write(files[0], [{"prompt": "hi", **line}])
    assert generate(*NGRAM).exit_code == 1
    assert expected in read(files[1])[1]["error"]


def test_a_key_that_stands_twice_is_an_error(generate, invoke, files):
    files[0].write_text('{"prompt": "a", "top_p": 0.5, "top_p": 1.0}\n')
    assert generate().exit_code == 1
    assert "the key 'top_p' stands 2 times; expected once" in read(files[1])[1]["error"]
    doubled = '{"method": "ngram", "method": "suffix"}'
    result = invoke("generate", "-m", "table", "a", "--speculative-config", doubled)
    assert result.exit_code == 2
    assert "the key 'method' stands 2 times" in result.stderr


@pytest.mark.parametrize(
    "content", ["my notes, not yours", "my notes\n", '{"prompt": "one"}\n', '{"id": 1}\n', "[1]\n"]
)
def test_a_file_that_is_not_ours_is_left_alone(generate, files, content):
    write(files[0], [{"prompt": "one"}])
    files[1].write_text(content)
    result = generate()
    assert result.exit_code == 2
    assert "line 1 is not a result of this command" in result.stderr
    assert files[1].read_text() == content


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([{"id": 2, "prompt": "a"}, {"prompt": "b"}], "line 2 has id 2, as line 1"),
        ([{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}], "line 2 has id 'x'"),
        ([{"id": None, "prompt": "a"}], "line 1 has id None; expected a string or an integer"),
        ([{"id": 1.0, "prompt": "a"}], "line 1 has id 1.0"),
    ],
)
def test_ids_that_cannot_name_a_line_are_refused(generate, files, lines, expected):
    write(files[0], lines)
    result = generate()
    assert result.exit_code == 2
    assert expected in result.stderr
    assert not files[1].exists()


def test_missing_input_and_input_as_output(generate, invoke, files):
    result = generate()
    assert result.exit_code == 2
    assert "No such file" in result.stderr
    write(files[0], [{"prompt": "a"}])
    result = invoke("generate", "-m", "table", "--prompts", files[0], "--output", files[0])
    assert result.exit_code == 2
    assert "is the input" in result.stderr


def test_lines_may_come_from_stdin_and_go_to_stdout(invoke):
    lines = json.dumps({"prompt": "a"}) + "\n" + json.dumps({"prompt": "b", "id": "\ud800"})
    result = invoke("generate", "-m", "table", "--prompts", "-", *OPTIONS, stdin=lines)
    assert result.exit_code == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert {document["id"] for document in found} == {1, "\ud800"}


def words_of(files, *more):
    return ("generate", "-m", "table", "--prompts", files[0], "--output", files[1], *OPTIONS, *more)


def wait_for_lines(path, count, process):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    pytest.fail("the run never got that far")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("way", ["kill", "interrupt"])
def test_a_run_that_is_ended_in_the_middle_goes_on(start, generate, files, way):
    write(files[0], [{"id": i, "prompt": f"line {i}"} for i in range(20)])
    generate()
    expected = read(files[1])
    files[1].unlink()
    process = start(*words_of(files, "--max-rows", "2"), pass_s=0.01)
    wait_for_lines(files[1], 3, process)
    process.send_signal(signal.SIGKILL if way == "kill" else signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert stdout == ""
    if way == "interrupt":
        assert process.returncode == 130
        assert stderr.splitlines()[-1] == "interrupted"
        assert "Traceback" not in stderr
    done = files[1].read_bytes().count(b"\n")
    assert 3 <= done < 20
    assert generate().exit_code == 0
    assert read(files[1]) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="no advisory locks")
def test_two_runs_do_not_share_an_output(start, generate, files):
    write(files[0], [{"prompt": f"line {i}"} for i in range(20)])
    process = start(*words_of(files, "--max-rows", "1"), pass_s=0.02)
    wait_for_lines(files[1], 1, process)
    result = generate()
    assert result.exit_code == 1
    assert "is being written by another process" in result.stderr
