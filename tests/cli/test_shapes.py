"""Grammars, several completions, predictions and rules that change the law, from the terminal."""

from __future__ import annotations

import json

import pytest

NGRAM = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}')
LENIENT = {
    "method": "ngram",
    "rejection_sample_method": "lenience",
    "lenience": 0.5,
    "allow_lossy": True,
}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def text_of(outcome):
    assert outcome.exit_code == 0, outcome.stderr
    return outcome.stdout


@pytest.mark.parametrize("drafting", [(), NGRAM])
def test_the_output_matches_what_was_asked(invoke, tmp_path, drafting):
    asked = ("generate", "hello", "--temperature", 1, "--seed", 3, "--max-tokens", 60, *drafting)
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    for words in (["--json-schema", json.dumps(SCHEMA)], ["--json-schema", schema]):
        assert set(json.loads(text_of(invoke(*asked, *words)))) == {"ok"}
    assert text_of(invoke(*asked, "--regex", "(ab|c)d{2}")).strip() in ("abdd", "cdd")
    words = ("--choice", "yes", "--choice", "no")
    assert text_of(invoke(*asked, *words)).strip() in ("yes", "no")
    lark = tmp_path / "g.lark"
    lark.write_text('start: "x" "y"+ "z"')
    assert text_of(invoke(*asked, "--grammar", lark)).strip().startswith("xy")


def test_a_line_may_ask_for_a_shape(invoke, tmp_path):
    prompts = tmp_path / "in.jsonl"
    response_format = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    lines = [
        {"prompt": "a", "response_format": response_format},
        {"prompt": "a", "structured_outputs": {"choice": ["yes", "no"]}},
        {"prompt": "a", "response_format": {"type": "json_object"}, "structured_outputs": {}},
        {"prompt": "a", "response_format": {"type": "xml"}},
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = invoke(
        "generate", "--prompts", prompts, "--temperature", 1, "--seed", 1, "--max-tokens", 60
    )
    assert outcome.exit_code == 1
    results = {row["id"]: row for row in map(json.loads, outcome.stdout.splitlines())}
    assert set(json.loads(results[1]["text"])) == {"ok"}
    assert results[2]["text"] in ("yes", "no")
    assert "expected one of them" in json.dumps(results[3])
    assert "response_format.type 'xml'" in json.dumps(results[4])


def test_several_completions(invoke):
    words = ("generate", "hello", "--temperature", 1, "--seed", 7, "--max-tokens", 9)
    document = json.loads(text_of(invoke(*words, "--n", 3, "--json")))
    texts = [completion["text"] for completion in document["completions"]]
    assert len(set(texts)) > 1
    assert text_of(invoke(*words)) == texts[0] + "\n"
    outcome = invoke(*words, "-n", 3)
    assert text_of(outcome) == "".join(text + "\n" for text in texts)
    assert "completion 3 of 3" in outcome.stderr


@pytest.mark.parametrize("method", ["prediction", "prediction-tree"])
def test_a_prediction_is_the_draft(invoke, tmp_path, method):
    words = ("generate", "hello", "--max-tokens", 20, "--ignore-eos")
    expected = text_of(invoke(*words))
    file = tmp_path / "prediction.txt"
    file.write_text(expected.rstrip("\n"))
    config = json.dumps({"method": method})
    outcome = invoke(*words, "--json", "--prediction", file, "--speculative-config", config)
    document = json.loads(text_of(outcome))
    assert document["text"] + "\n" == expected
    assert document["stats"]["acceptance_rate"] == 1.0


def test_a_lossy_run_is_labelled_in_text_and_json(invoke):
    words = ("generate", "hello", "--temperature", 1, "--speculative-config", json.dumps(LENIENT))
    label = "lossy(lenience=0.5, per-token TV <= 0.5)"
    assert label in invoke(*words).stderr
    assert json.loads(text_of(invoke(*words, "--json")))["exactness"] == label


def test_log_probabilities_under_the_policy(invoke):
    words = ("generate", "hello", "--top-k", 1, "--temperature", 1, "--json", "--logprobs", 0)
    processed = json.loads(text_of(invoke(*words, "--logprobs-mode", "processed")))
    assert [token["logprob"] for token in processed["logprobs"]] == [0.0] * len(
        processed["logprobs"]
    )
    raw = json.loads(text_of(invoke(*words)))
    assert any(token["logprob"] < 0 for token in raw["logprobs"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json-object", "--regex", "a"], "--json-object and --regex are given"),
        (["--json-schema", "missing.json"], "--json-schema missing.json: No such file"),
        (["--json-schema", "{"], "json_schema grammar is not JSON"),
        (["--regex", "("], "regex grammar"),
        (["--prediction", "p.txt"], "--prediction p.txt needs a method that reads it"),
        (["--rule", "block"], "rule block needs a drafter"),
        (["--repeats", "4"], "--repeats is 4; expected --compare"),
        (["--n", "0"], "--n is 0; expected at least 1"),
        (["--n", "2", "--show-sources"], "--n 2 is for one prompt"),
        (["--logprobs-mode", "raw"], "--logprobs-mode raw needs --logprobs"),
        (["--min-tokens", "200"], "min_tokens is 200; expected at most max_tokens, 128"),
    ],
)
def test_what_cannot_be_honoured_is_one_line(invoke, words, message):
    outcome = invoke("generate", "hello", "--quiet", *words)
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
