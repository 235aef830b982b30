"""``draftproof audit``: exit codes, certificates, pages, refusals."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from typer.testing import CliRunner

from draftproof.audit.subjects import LawFile, TableRecipe, write_laws
from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.cli import CliContext, app
from draftproof.engine import Engine, EngineCore
from draftproof.errors import ConfigError
from draftproof.proposers import NgramProposer

LAW = TableRecipe().law(2)
SIZE = ("--tv", "0.2", "--calibration-samples", "4000", "--seed", "3", "-q")


def load(model, *, speculative_config, **options):
    """An engine over a table of five tokens, with n-gram drafts where asked for."""
    del model, options
    table = FunctionTable(5, lambda held: np.roll([0.4, 0.3, 0.2, 0.1, 0.0], held[-1]), span=1)
    drafters = [NgramProposer(1, 3)] if speculative_config else []
    return Engine(EngineCore(TableBackend(table), proposers=drafters, kappa=3 * len(drafters)))


def run(*words, load=load):
    context = CliContext(load=load, force_terminal=False)
    result = CliRunner().invoke(app, ["audit", *map(str, words)], obj=context)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.statistical
def test_the_engine_over_a_model_is_called_exact_and_its_certificate_recomputes(tmp_path):
    # An exact engine is called biased with probability 0.001; this seed is none of those.
    stored, page = tmp_path / "c.json", tmp_path / "c.html"
    found = run(
        "engine", "--speculative-config", '{"method": "ngram"}', "--prompt-ids", "0 1 0 1 0",
        "--top-k", 2, "--horizon", 4, *SIZE, "--output", stored, "--html", page,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "verdict: exact" in found.output
    assert "would have been seen with probability 0.99" in found.output
    assert "drafts accepted" in found.output
    again = run("show", stored)
    assert again.exit_code == 0
    assert again.stdout == found.stdout
    html = page.read_text()
    assert "prefers-color-scheme: dark" in html
    assert "http://" not in html
    inside = html.partition('id="certificate">')[2].partition("</script>")[0]
    assert json.loads(inside) == json.loads(stored.read_text())

    honest = stored.read_text()
    forged = json.loads(honest)
    forged["verdict"]["p_value"] = 0.5
    stored.write_text(json.dumps(forged))
    assert run("show", stored).exit_code == 1
    forged = json.loads(honest)
    counts = forged["evidence"]["prompts"][0]["counts"]
    counts[0], counts[1] = counts[1] + 300, counts[0]
    stored.write_text(json.dumps(forged))
    refused = run("show", stored)
    assert refused.exit_code == 2
    assert "draws in order" in refused.output


@pytest.mark.statistical
def test_speculation_that_never_happened_is_no_evidence():
    # False alarms 0.001; at TV 0.45 some 60 draws of four outcomes are enough.
    words = ("--prompt-ids", "0 1 0 1", "--top-k", 2, "--horizon", 2, "--tv", 0.45, *SIZE[2:])
    refused = run("engine", *words)
    assert refused.exit_code == 2
    assert "no drafter, so nothing would be drafted" in refused.output
    plain = run("engine", *words, "--drafts", "none")
    assert plain.exit_code == 0, plain.output
    assert "; nothing is said about speculation" in plain.output.splitlines()[0]
    # A drafter that finds nothing: the prompt has no token twice, and texts of two few.
    silent = run("engine", "--speculative-config", '{"method": "ngram"}', *words, "--draws", 30)
    assert silent.exit_code == 3, silent.output


@pytest.mark.statistical
def test_a_planted_fault_exits_with_1_and_is_named():
    found = run(
        "engine", "--table", "--processes", 1, "--draws", 1500, *SIZE,
        "--plant", "target drawn again on reject",
    )  # fmt: skip
    assert found.exit_code == 1
    assert "diagnosis: 'target drawn again on reject'" in found.stdout
    assert "where: 'table' after" in found.stdout


def test_a_planted_fault_brings_its_rule(tmp_path):
    stored = tmp_path / "c.json"
    words = ("--processes", 1, "--draws", 30, *SIZE, "--output", stored)
    run("engine", "--table", "--plant", "block shares one coin", *words)
    evidence = json.loads(stored.read_text())["evidence"]
    assert evidence["rule"] == "block"
    assert "rule block" in evidence["subject"]


#: A function, a server; each is refused before anybody looks for it.
PYTHON = ("python", "json:dumps", "--reference", "laws.json")
HTTP = ("http", "http://x", "--model", "m", "--reference", "none", "--off-body", "{}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("engine", "--plant", "x"), "--table"),
        (("engine",), "--drafts none to audit plain decoding"),
        (("engine", "--table", "--num-speculative-tokens", "0"), "no drafter"),
        (("engine", "--table", "--drafts", "assumed"), "our engine tells its drafts"),
        (("engine", "--greedy", "--drafts", "none"), "--drafts: of no use with --greedy"),
        (("engine", "--table", "--top-k", "2"), "brings its model"),
        (("engine", "--table", "--processes", "0"), "processes 0"),
        (("engine", "--temperature", "0"), "expected above 0"),
        (("engine", "--drafts", "none", "--prompt-ids", "a b"), "expected whole numbers"),
        (("engine", "--tv", "2"), "tv 2"),
        (("python", "json:dumps", "--reference", "no.json"), "no.json"),
        (("http", "http://x", "--model", "m", "--reference", "none"), "--off-url"),
        (("http", "x", "--model", "m", "--reference", "none"), "expected http"),
        ((*HTTP, "--off-url", "http://X:80/v1/"), "the same requests to the same server"),
        ((*HTTP, "--off-url", "http://y", "--drafts", "none"), "--drafts none: of no use"),
        ((*HTTP, "--off-body", "{}"), "the same requests to the same server"),
        ((*HTTP, "--off-body", '{"temperature": 1.0}'), "the same requests to the same server"),
        (("llama-cpp", "x.gguf", "--prompt-lookup", "0"), "--prompt-lookup 0"),
        (("openvino", "d", "--prompt-lookup", "2", "--draft-model", "e"), "expected one of them"),
        (("openvino", "d", "--num-assistant-tokens", "0"), "--num-assistant-tokens 0"),
        (("openvino", "d", "--properties", "x"), "--properties"),
        (("vllm", "d", "--speculative-config", "x"), "--speculative-config"),
        (("vllm", "d", "--python", "/none/python"), "expected an interpreter"),
        (("transformers", "d", "--own-tokenizers"), "without an assistant"),
        (("vllm", "d", "--drafts", "assumed"), "--drafts assumed without a drafter"),
        (
            ("transformers", "d", "--early-exit", "1", "--prompt-lookup", "2"),
            "expected one of them",
        ),
        (("transformers", "d", "--timeout", "5"), "--timeout: expected --python"),
        (("transformers", "d", "--timeout", "-5", "--python", "p"), "timeout -5"),
        (("openvino", "d", "--max-ngram-size", "3"), "--max-ngram-size: expected --prompt-lookup"),
        (
            ("openvino", "d", "--num-assistant-tokens", "3"),
            "--num-assistant-tokens: expected --draft-model",
        ),
        (("llama-cpp", "m", "--max-ngram-size", "3"), "--max-ngram-size: expected --prompt-lookup"),
        (("engine", "--table", "--max-rows", "8"), "--max-rows: --table brings"),
        (("engine", "--table", "--threads", "1"), "--threads: --table brings"),
        (("engine", "--table", "--rule", "block", "--plant", "lenience 0.9"), "'standard'"),
        (("engine", "--greedy", "--num-speculative-tokens", "3"), "of no use with --greedy"),
        ((*PYTHON, "--horizon", "2"), "--horizon: of no use with laws.json"),
        ((*PYTHON, "--precision", "int8"), "--precision: of no use"),
        ((*PYTHON, "--temperature", "0.5", "--top-k", "2"), "--temperature, --top-k: of no use"),
        ((*PYTHON, "--min-p", "0.1"), "--min-p: of no use"),
        ((*HTTP, "--precision", "int8"), "--precision: of no use with --reference none"),
        ((*HTTP, "--filter-order", "llama.cpp"), "--filter-order: of no use with --reference none"),
        ((*HTTP, "--body", '{"top_k": 40}'), "--body top_k 40: the policy says 3"),
        ((*HTTP, "--matrix", "--body", '{"top_p": 0.9}'), "--body top_p 0.9: the policy says 1"),
        ((*HTTP, "--no-seed", "--seed", "3"), "--seed: of no use with --no-seed"),
        (("vllm", "d", "--processes", "0"), "--processes 0"),
        (("--quick",), "--self-test"),
        (("show", "missing.json"), "missing.json"),
    ],
)
def test_wrong_usage_is_one_line(words, message):
    found = run(*words)
    assert found.exit_code == 2
    lines = found.stderr.strip().splitlines()
    assert message in lines[-1]
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert not found.stdout


DECODER = """
import numpy as np

def right(prompt_ids, policy, n):
    assert policy.keys() == {{"max_tokens", "eos_token_ids", "seed"}}
    assert policy["max_tokens"] == 2
    rows = np.array({outcomes})
    rng = np.random.default_rng(policy["seed"])
    return {{"samples": rows[rng.choice(len(rows), n, p={probs})], "rounds": [(2, 1, 2)] * n}}

def wrong(prompt_ids, policy, n):
    return right(prompt_ids, policy, n)["samples"] // 2

def listed(prompt_ids, policy, n):
    return right(prompt_ids, policy, n)["samples"]

def rare(prompt_ids, policy, n):
    rounds = [(1, 0, 1)] + [(0, 0, 1)] * (n - 1)
    return {{"samples": right(prompt_ids, policy, n)["samples"], "rounds": rounds}}

def silent(prompt_ids, policy, n):
    return {{"samples": right(prompt_ids, policy, n)["samples"], "rounds": [(0, 0, 1)] * n}}
"""


@pytest.mark.statistical
def test_functions_are_audited_against_a_file_of_laws(tmp_path, monkeypatch):
    # Three audits with a false-alarm rate of 0.001 each, on fixed seeds.
    laws = tmp_path / "laws.json"
    write_laws(laws, [LawFile("p", (0,), LAW)])
    outcomes = [list(outcome) for outcome in LAW.outcomes]
    source = DECODER.format(outcomes=outcomes, probs=LAW.probs.tolist())
    (tmp_path / "audited_decoder.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--reference", laws, "--draws", 1500, *SIZE)
    assert run("python", "audited_decoder:right", *words).exit_code == 0
    wrong = run("python", "audited_decoder:wrong", *words)
    assert wrong.exit_code == 1
    assert "does not report its rounds" in wrong.stdout
    assert run("python", "audited_decoder:silent", *words).exit_code == 3
    refused = run("python", "audited_decoder:right", *words, "--prompt-ids", "1")
    assert refused.exit_code == 2

    # The same law, from decoders that tell too little of their drafts.
    for function, options, code, said in (
        ("listed", (), 3, "does not tell whether it drafted after 'p'"),
        ("listed", ("--drafts", "assumed"), 0, "; that it speculated was stated, not shown"),
        ("listed", ("--plain",), 0, "; nothing is said about speculation"),
        ("rare", (), 3, "drafts are certain in 0.000333 of the draws"),
        ("rare", ("--sequential",), 3, "of the draws after 'p', 0.1 is expected"),
        ("rare", ("--drafts", "none", "--plain"), 0, "; nothing is said about speculation"),
        ("rare", ("--drafts", "shown", "--plain"), 2, "--drafts shown and --plain"),
    ):
        found = run("python", f"audited_decoder:{function}", *words, *options)
        assert found.exit_code == code, (function, options, found.output)
        assert said in found.output.splitlines()[0]


@pytest.mark.parametrize(
    "words",
    [
        ("python", "json:dumps", "--prompt-ids", "1"),
        ("http", "http://x", "--model", "m", "--prompt-ids", "1"),
        ("http", "http://x", "--model", "m", "--prompt-ids", "1", "--matrix"),
    ],
)
def test_a_reference_has_the_precision_of_its_file_unless_another_is_asked_for(words):
    asked = []

    def note(model, **options):
        asked.append((model, options["precision"]))
        raise ConfigError("seen enough")

    for more in ((), ("--precision", "int8")):
        assert run(*words, "--reference", "ref", *more, "-q", load=note).exit_code == 2
    assert asked == [("ref", "f32"), ("ref", "int8")]


class _Server(BaseHTTPRequestHandler):
    """Draws one of two texts; with speculation it prefers the first."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        bar = 0.9 if body["spec"] == "wrong" else 0.5
        text = "a" if np.random.default_rng(body["seed"]).random() < bar else "b"
        answer = json.dumps({"choices": [{"text": text}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.mark.statistical
def test_a_server_is_compared_with_itself_without_speculation(tmp_path):
    stored = tmp_path / "c.json"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        codes = {}
        for spec in ("right", "wrong"):
            words = ("--body", json.dumps({"spec": spec}), "--off-body", '{"spec": "off"}')
            codes[spec] = run(
                "http", url, "--model", "m", "--reference", "none", "--prompt", "p",
                "--drafts", "assumed", "--draws", 150, "--output", stored, *words,
                "--tv", "0.35", *SIZE[2:],
            ).exit_code  # fmt: skip
        server.shutdown()
    assert codes == {"right": 0, "wrong": 1}
    shown = run("show", stored)
    assert shown.exit_code == 1
    assert "on and off differ" in shown.stdout
