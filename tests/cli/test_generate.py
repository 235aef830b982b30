"""One prompt: what goes where, exit codes, sources, comparison."""

from __future__ import annotations

import json
import re

import pytest

from draftproof.cli.sources import printable

NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'
BASE = ("generate", "-m", "table", "--max-tokens", "24", "--ignore-eos")


def document(result):
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def test_stdout_is_the_text_and_nothing_else(invoke):
    whole = document(invoke(*BASE, "hello", "--json"))
    plain = invoke(*BASE, "hello")
    assert plain.exit_code == 0
    assert plain.stdout == whole["text"] + "\n"
    assert "tokens/s" in plain.stderr


def test_quiet_leaves_stderr_empty(invoke):
    assert invoke(*BASE, "hello", "-q").stderr == ""


def test_prompt_from_stdin_drops_one_line_break(invoke):
    expected = document(invoke(*BASE, "hello\n", "--json"))
    for words in ((), ("-",)):
        result = document(invoke(*BASE, *words, "--json", stdin="hello\n\n"))
        assert result["num_prompt_tokens"] == len("hello\n")
        assert result["text"] == expected["text"]


def test_stdin_that_is_not_text_is_refused(invoke):
    result = invoke(*BASE, stdin=b"\xff\xfe")
    assert result.exit_code == 2
    assert result.stderr == "error: stdin holds byte 0 that is not UTF-8 text\n"


def test_json_holds_rounds_that_add_up(invoke):
    result = document(
        invoke(*BASE, "abc abc", "--json", "--speculative-config", NGRAM, "--logprobs", "2")
    )
    assert result["num_tokens"] == 24 == len(result["token_ids"]) == len(result["sources"])
    assert [t for r in result["rounds"] for t in r["emitted"]] == result["token_ids"]
    assert [s for r in result["rounds"] for s in r["sources"]] == result["sources"]
    stats = result["stats"]
    assert stats["num_drafts"] == sum(bool(r["drafted"]) for r in result["rounds"]) > 0
    assert stats["num_draft_tokens"] == sum(len(r["drafted"]) for r in result["rounds"])
    assert stats["num_accepted_tokens"] == sum(r["num_accepted"] for r in result["rounds"])
    first = stats["acceptance_per_position"][0]
    assert first["drafted"] == stats["num_drafts"]
    assert first["rate"] == first["accepted"] / first["drafted"]
    assert [entry["token_id"] for entry in result["logprobs"]] == result["token_ids"]
    assert all(len(entry["top"]) == 2 for entry in result["logprobs"])
    assert result["times"]["num_passes"] >= len(result["rounds"])
    assert result["exactness"] == "greedy"


def test_undefined_rates_are_null(invoke):
    stats = document(invoke(*BASE, "hello", "--json"))["stats"]
    assert stats["mean_acceptance_length"] is None
    assert stats["acceptance_rate"] is None
    assert stats["acceptance_per_position"] == []


def test_seed_repeats_and_no_seed_does_not(invoke):
    words = (*BASE, "hello", "--json", "--temperature", "1.5")
    first = document(invoke(*words, "--seed", "11"))
    assert document(invoke(*words, "--seed", "11"))["text"] == first["text"]
    assert document(invoke(*words, "--seed", "12"))["text"] != first["text"]
    fresh = document(invoke(*words))
    assert document(invoke(*words))["text"] != fresh["text"]
    assert document(invoke(*words, "--seed", fresh["seed"]))["text"] == fresh["text"]


def test_auto_chooses_lengths_and_says_by_whose_costs(invoke):
    speculation = ("--speculative-config", '{"method": "ngram"}', "-k", "auto")
    result = document(invoke(*BASE, "abc abc", "--json", *speculation))
    assert result["text"] == document(invoke(*BASE, "abc abc", "--json"))["text"]
    assert result["times"]["policy_s"] > 0.0
    assert len({len(r["drafted"]) for r in result["rounds"]}) > 1
    shown = invoke(*BASE, "abc abc", *speculation)
    assert "note: draft lengths follow built-in costs" in shown.stderr


def test_a_number_of_drafts_is_a_number_or_auto(invoke):
    result = invoke(*BASE, "abc", "--speculative-config", '{"method": "ngram"}', "-k", "many")
    assert result.exit_code == 2
    assert "--num-speculative-tokens is 'many'; expected a whole number or auto" in result.stderr


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["--temperature", "0"], "greedy"),
        (["--temperature", "1"], "exact-in-law"),
        (["--temperature", "1", "--rule", "coupled"], "seed-identical"),
    ],
)
def test_label_and_rule(invoke, words, label):
    result = document(
        invoke(*BASE, "abc abc", "--json", "--speculative-config", NGRAM, "--seed", 3, *words)
    )
    assert result["exactness"] == label
    if label != "exact-in-law":
        plain = document(invoke(*BASE, "abc abc", "--json", "--seed", 3, *words))
        assert plain["token_ids"] == result["token_ids"]


def test_every_sampling_option_reaches_the_policy(invoke):
    def ids(*words):
        return document(
            invoke(*BASE, "hello", "--json", "--temperature", "1.5", "--seed", "4", *words)
        )["token_ids"]

    assert len(set(ids("--logit-bias", '{"40": 1000}'))) == 1
    assert ids("--top-k", "1") == document(invoke(*BASE, "hello", "--json"))["token_ids"]
    plain = ids()
    for option in (
        ("--top-p", "0.3"),
        ("--min-p", "0.5"),
        ("--repetition-penalty", "5"),
        ("--presence-penalty", "9"),
        ("--frequency-penalty", "9"),
    ):
        assert ids(*option) != plain, option


def test_stops_and_limits(invoke):
    text = document(invoke(*BASE, "hello", "--json"))["text"]
    stopped = document(invoke(*BASE, "hello", "--json", "--stop", "zzz", "--stop", text[5:8]))
    assert stopped["finish_reason"] == "stop"
    assert stopped["stop_reason"] == text[5:8]
    assert stopped["text"] == text[: text.index(text[5:8])]
    biased = (*BASE[:-1], "hello", "--json", "--logit-bias", '{"96": 1000}')
    assert document(invoke(*biased))["num_tokens"] == 1
    assert document(invoke(*biased, "--min-tokens", "7"))["num_tokens"] == 8


def test_chat_goes_through_the_template(invoke):
    chat = document(invoke(*BASE, "hi", "--json", "--chat"))
    assert chat["num_prompt_tokens"] == len("user: hi\nassistant: ")
    with_system = document(invoke(*BASE, "hi", "--json", "--system", "be brief"))
    assert with_system["num_prompt_tokens"] == len("system: be brief\nuser: hi\nassistant: ")
    assert document(invoke(*BASE, "hi", "--json", "--raw"))["num_prompt_tokens"] == len("hi")


def test_sources_are_marked_without_colour(invoke):
    words = (*BASE, "abc abc", "--speculative-config", NGRAM)
    whole = document(invoke(*words, "--json"))
    shown = invoke(*words, "--show-sources")
    assert {"accepted", "bonus"} <= set(whole["sources"])
    assert "[accepted]" in shown.stderr
    parts = re.findall(r"\[(.*?)\]|\{(.*?)\}|<(.*?)>|([^][{}<>]+)", shown.stdout[:-1], re.S)
    names = ("accepted", "recovered", "bonus", "sampled")
    marked = [
        (name, char)
        for part in parts
        for name, text in zip(names, part, strict=True)
        for char in text
    ]
    assert marked == list(zip(whole["sources"], whole["text"], strict=True))
    assert invoke(*words).stdout == whole["text"] + "\n"


def test_sources_are_coloured_on_a_terminal(invoke, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    words = (*BASE, "abc abc", "--speculative-config", NGRAM)
    shown = invoke(*words, terminal=True).stdout
    assert "\x1b[32m" in shown
    text = document(invoke(*words, "--json"))["text"]
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == text + "\n"
    assert "\x1b" not in invoke(*words, "--no-show-sources", terminal=True).stdout
    assert "[accepted]" not in invoke(*BASE, "abc abc", terminal=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    without = invoke(*words, terminal=True).stdout
    assert "\x1b" not in without
    assert "[" in without


def test_compare_reports_pairs_and_equal_outputs(invoke):
    words = (*BASE, "abc abc", "--speculative-config", NGRAM, "--compare", "--repeats", "3")
    compared = document(invoke(*words, "--json"))["compare"]
    assert len(compared["plain"]) == len(compared["speculative"]) == 3
    assert compared["outputs"]["equal"] is True
    for plain, fast in zip(compared["plain"], compared["speculative"], strict=True):
        assert fast["num_passes"] < plain["num_passes"] == 24
    ratio = compared["ratio"]
    assert ratio["low"] <= ratio["median"] <= ratio["high"]
    shown = invoke(*words)
    assert shown.exit_code == 0
    assert shown.stdout == document(invoke(*BASE, "abc abc", "--json"))["text"] + "\n"
    for row in ("ratio", "acceptance per position", "time: draft", "equal"):
        assert row in shown.stderr
    assert re.search(r"\d\.\d\d \(\d+/\d+\)", shown.stderr)


@pytest.mark.parametrize("words", [(), ("--rule", "coupled", "--temperature", "1")])
def test_compare_compares_in_the_deterministic_mode(invoke, words):
    words = (*BASE, "abc abc", "--speculative-config", NGRAM, "--deterministic", *words)
    result = document(invoke(*words, "--compare", "--repeats", "1", "--json"))
    assert result["exactness"].endswith(", to the bit")
    assert result["compare"]["outputs"]["equal"] is True


def test_compare_takes_another_seed_for_each_pair_when_sampling(invoke):
    words = (*BASE, "abc abc", "--speculative-config", NGRAM, "--compare", "--temperature", "1")
    result = document(invoke(*words, "--json", "--seed", "5", "--repeats", "4"))
    assert result["seed"] == 5
    assert result["compare"]["outputs"] is None
    assert len({run["num_passes"] for run in result["compare"]["speculative"]}) > 1


@pytest.mark.parametrize(("gap", "code"), [(0.001, 0), (0.5, 1)])
def test_compare_tells_rounding_from_a_wrong_law(invoke, gap, code):
    words = ("generate", "-m", f"shaky-{gap}", "--ignore-eos", "--max-tokens", "12", "abab")
    words += ("--compare", "--repeats", "1", "--speculative-config", NGRAM)
    result = invoke(*words, "--json")
    assert result.exit_code == code
    outputs = json.loads(result.stdout)["compare"]["outputs"]
    assert outputs["equal"] is False
    assert (outputs["plain_token"], outputs["speculative_token"]) == (33, 34)
    assert outputs["gap_nats"] == pytest.approx(gap, abs=1e-5)
    shown = invoke(*words)
    assert shown.exit_code == code
    fork = f"fork at token {outputs['fork_position']}: plain '@', speculative 'A'"
    assert fork in " ".join(shown.stderr.replace("│", " ").split())
    last = shown.stderr.splitlines()[-1]
    assert last.startswith("error: greedy outputs differ: fork") == (code == 1)


def test_a_model_does_not_command_the_terminal():
    assert printable("a\x1b[2Jb\x07\r\n\tc\x9b") == "a\ufffd[2Jb\ufffd\n\tc\ufffd"


def test_a_failing_request_is_one_line(invoke):
    result = invoke(*BASE, "boom!")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "nan" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["-m", "other", "hi"], 1, "other: no such model file; expected table"),
        (["hi", "--temperature", "-1"], 2, "temperature -1.0: expected"),
        (["hi", "--temperature", "nan"], 2, "temperature nan: expected"),
        (["hi", "--top-p", "0"], 2, "top_p 0.0: expected"),
        (["hi", "--max-tokens", "0"], 2, "max_tokens is 0; expected at least 1"),
        (["hi", "--stop", ""], 2, "a stop string is empty"),
        (["hi", "--logit-bias", "{"], 2, "--logit-bias is '{'; expected JSON"),
        (["hi", "--logit-bias", '{"a": 1}'], 2, "key 'a'; expected a token id"),
        (["hi", "--logit-bias", '{"1": "x"}'], 2, "of token 1 is 'x'; expected a number"),
        (["hi", "--logprobs", "3"], 2, "--logprobs 3 needs --json or --prompts"),
        (["hi", "--json", "--logprobs", "-3"], 2, "logprobs is -3; expected 0 to 100"),
        (["hi", "-k", "3"], 2, "num_speculative_tokens is 3 and there is no drafter"),
        (["hi", "--compare"], 2, "--compare needs a drafter"),
        (["hi", "--draft-precision", "f32"], 2, "--draft-precision f32 needs --draft-model"),
        (["hi", "--speculative-config", "[]"], 2, "--speculative-config is '[]'; expected a JSON"),
        (
            ["hi", "--speculative-config", NGRAM, "-k", "9"],
            2,
            "4 and --num-speculative-tokens says",
        ),
        (["hi", "--raw", "--system", "x"], 2, "--system 'x' needs a chat"),
        (["hi", "--output", "x.jsonl"], 2, "--output x.jsonl needs --prompts"),
        (["hi", "--prompts", "x.jsonl"], 2, "PROMPT 'hi' and --prompts x.jsonl"),
        (["hi", "--json", "--show-sources"], 2, "--show-sources is for text"),
        (["h\u00e9"], 2, "character"),
        ([""], 2, "the prompt has no tokens"),
        (["hi", "--context-length", "2"], 2, "the prompt has 2 tokens; the context of table is 2"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(invoke, words, code, expected):
    model = [] if "-m" in words else ["-m", "table"]
    result = invoke("generate", *model, *words)
    assert result.exit_code == code, result.stderr
    assert result.stdout.strip() == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert expected in last


def test_options_out_of_range_are_refused_before_a_model_is_loaded(invoke):
    assert "loading" not in invoke("generate", "-m", "table", "hi", "--top-k", "-1").stderr


@pytest.mark.parametrize(
    "words", [["--no-such-option"], ["--precision", "int3"], ["--rule", "lucky"], ["--seed", "x"]]
)
def test_wrong_usage_exits_2_with_empty_stdout(invoke, words):
    result = invoke("generate", "-m", "table", "hi", *words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words[0] in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            ("--speculative-config", '{"rejection_sample_method": "block"}'),
            "rule block needs a drafter",
        ),
        (
            (
                "--speculative-config",
                '{"rejection_sample_method": "lenience", "lenience": 0.5, "allow_lossy": true}',
            ),
            "rule lenience needs a drafter",
        ),
        (
            ("--speculative-config", '{"method": "ngram"}', "--draft-precision", "f32"),
            "--draft-precision f32 needs --draft-model",
        ),
    ],
)
def test_what_nothing_would_read_is_refused(invoke, words, named):
    result = invoke("generate", "x", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in result.stderr
