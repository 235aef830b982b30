"""From a GGUF file to an engine on llama.cpp, the command line, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib
from typer.testing import CliRunner

import draftproof
from draftproof.backends.llama_cpp import load_llama_cpp
from draftproof.build import load_model
from draftproof.build.runtimes import RuntimeOptions
from draftproof.cli import CliContext, app
from draftproof.errors import ConfigError, ModelFileError

#: Repeats, so that n-grams have something to find.
TEXT = "the cat and the hat and the cat and the hat and the "
METHODS = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 1, "num_speculative_tokens": 5},
    "suffix": {"method": "suffix", "suffix_min_match": 1},
    "ngram_tree": {"method": "ngram_tree", "prompt_lookup_min": 1, "num_speculative_tokens": 6},
}


@pytest.fixture(scope="module")
def engine_of(tiny_gguf):
    """Return a function that loads an engine once per model and method."""
    engines = {}

    def load(arch="llama", method=None):
        if (arch, method) not in engines:
            engines[arch, method] = draftproof.load(
                tiny_gguf(arch),
                backend="llamacpp",
                threads=1,
                speculative_config=METHODS[method] if method else None,
            )
        return engines[arch, method]

    yield load
    for engine in engines.values():
        engine.close()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "rule": "coupled"},
                                     {"temperature": 0.7, "rule": "sample-match"}])  # fmt: skip
def test_drafts_change_no_text(engine_of, method, options):
    num_drafts = 0
    for seed in range(2):
        asked = {"max_tokens": 32, "ignore_eos": True, "seed": seed, **options}
        plain = engine_of().generate(TEXT, **asked)
        drafting = engine_of(method=method).generate(TEXT, **asked)
        assert drafting.token_ids == plain.token_ids
        num_drafts += drafting.stats.num_drafts
    assert num_drafts > 0


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_change_no_text_of_a_recurrent_model(engine_of, method):
    for options in ({}, {"temperature": 0.9, "seed": 2, "rule": "coupled"}):
        asked = {"max_tokens": 24, "ignore_eos": True, **options}
        plain = engine_of("mamba").generate(TEXT, **asked)
        drafting = engine_of("mamba", method).generate(TEXT, **asked)
        assert drafting.token_ids == plain.token_ids
        assert drafting.stats.num_drafts > 0
        assert drafting.stats.num_accepted_tokens < drafting.stats.num_draft_tokens


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_rules_that_resample_run(engine_of, rule):
    engine = engine_of(method="ngram")
    asked = {"max_tokens": 30, "ignore_eos": True, "temperature": 0.8, "rule": rule, "seed": 4}
    first = engine.generate(TEXT, **asked)
    assert len(first.token_ids) == 30
    assert first.stats.num_drafts > 0
    assert engine.generate(TEXT, **asked).token_ids == first.token_ids


def test_many_requests_share_passes(engine_of):
    engine = engine_of(method="ngram_tree")
    prompts = [TEXT[start:] for start in range(6)]
    asked = {"max_tokens": 16, "ignore_eos": True, "temperature": 0.8, "rule": "coupled"}
    requests = [
        engine.request(prompt, seed=number, **asked) for number, prompt in enumerate(prompts)
    ]
    together = engine.generate_many(requests)
    for number, (prompt, result) in enumerate(zip(prompts, together, strict=True)):
        alone = engine_of().generate(prompt, seed=number, **asked)
        assert result.token_ids == alone.token_ids


def test_a_draft_model_runs_on_it_too(tiny_gguf):
    path = tiny_gguf()
    with draftproof.load(
        path,
        backend="llamacpp",
        threads=1,
        speculative_config={"model": str(path), "num_speculative_tokens": 3},
    ) as engine:
        result = engine.generate(TEXT, max_tokens=16, ignore_eos=True)
        assert engine.core.target.info.runtime == "llamacpp"
        assert result.stats.acceptance_rate == 1.0


def test_facts_come_from_the_file(tiny_gguf):
    backend, tokenizer = load_model(tiny_gguf("llama", "Q8_0"), runtime=RuntimeOptions("llamacpp"))
    info = backend.info
    assert (info.name, info.runtime, info.precision) == ("llama-Q8_0-0", "llamacpp", "Q8_0")
    assert info.vocab_size == tokenizer.vocab_size
    assert (info.context_length, info.page_size, info.trees) == (512, 32, True)
    # 2 layers, keys and values, 2 heads of 16 in float16.
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert backend.usage.total_pages * 32 == 8 * 512


def test_kinds_of_keys_and_values_are_heeded(tiny_gguf):
    sizes = {
        kind: load_llama_cpp(tiny_gguf(), cache_type_k=kind, cache_type_v=kind, flash_attn=True)
        .info.kv_bytes_per_token
        for kind in ("f32", "f16")
    }  # fmt: skip
    assert sizes == {"f32": 512, "f16": 256}


def test_room_is_what_was_asked_for(tiny_gguf):
    backend = load_llama_cpp(tiny_gguf(), kv_cache_bytes=300 * 256, context_length=200)
    assert backend.info.context_length == 200
    assert backend.usage.total_bytes == 256 * 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads is 0"),
        ({"context_length": 513}, "context_length is 513, expected 1 to 512"),
        ({"context_length": 0}, "context_length is 0"),
        ({"kv_cache_bytes": 1000}, "kv_cache_bytes is 1000, expected at least 65536"),
        ({"kv_cache_bytes": 256 * 256, "context_length": 300}, "hold keys and values of 256"),
        ({"cache_type_k": "q7"}, "cache_type_k is 'q7'; expected one of f32, f16"),
        ({"cache_type_v": "q7"}, "cache_type_v is 'q7'"),
        ({"cache_type_v": "q8_0", "flash_attn": False}, "llama.cpp cannot run llama-F32-0.gguf so"),
        ({"n_gpu_layers": -2}, "n_gpu_layers is -2"),
        ({"main_gpu": -1}, "main_gpu is -1"),
        ({"vocab_size": 9999}, "the tokenizer has 9999 tokens"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(tiny_gguf, options, message):
    with pytest.raises(ConfigError, match=message):
        load_llama_cpp(tiny_gguf(), **options)


@pytest.mark.skipif(lib.llama_supports_gpu_offload(), reason="this build has a GPU")
@pytest.mark.parametrize("options", [{"n_gpu_layers": 1}, {"main_gpu": 0}])
def test_a_gpu_is_refused_by_a_build_without_one(tiny_gguf, options):
    with pytest.raises(ConfigError, match="this build of llama-cpp-python has no GPU support"):
        load_llama_cpp(tiny_gguf(), **options)


def test_damaged_and_foreign_files_are_refused(tiny_gguf, tmp_path):
    data = tiny_gguf().read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelFileError, match="truncated"):
        load_llama_cpp(short)
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(data.replace(b"llama", b"alpac"))
    with pytest.raises(ModelFileError, match=r"llama\.cpp cannot load it: .*alpac"):
        load_llama_cpp(foreign)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "llamacpp", "precision": "int8"}, "option of the openvino backend"),
        ({"backend": "llamacpp", "dtype": "float32"}, "option of the torch backend"),
        ({"backend": "openvino", "n_gpu_layers": 1}, "n_gpu_layers 1 is an option of the llamacpp"),
        ({"main_gpu": 0}, "main_gpu 0 is an option of the llamacpp backend"),
        ({"flash_attn": False}, "flash_attn False is an option of the llamacpp backend"),
        ({"cache_type_k": "f16"}, "cache_type_k f16 is an option of the llamacpp backend"),
    ],
)
def test_options_of_other_runtimes_are_refused(tiny_gguf, options, message):
    with pytest.raises(ConfigError, match=message):
        draftproof.load(tiny_gguf(), **options)


def test_a_folder_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json"):
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match="is no GGUF file, which the llamacpp backend needs"):
        draftproof.load(tmp_path, backend="llamacpp")


@pytest.fixture
def invoke(tmp_path):
    """Run the command line in this process."""

    def run(*words):
        context = CliContext(cache_dir=tmp_path / "cache")
        return CliRunner().invoke(app, [str(word) for word in words], obj=context)

    return run


def test_the_command_generates(invoke, tiny_gguf):
    words = ["generate", TEXT, "-m", tiny_gguf(), "--backend", "llamacpp", "--json", "--ignore-eos",
             "--max-tokens", 20, "--threads", 1]  # fmt: skip
    plain = invoke(*words)
    assert plain.exit_code == 0, plain.output
    assert "on llama.cpp" in plain.stderr
    config = json.dumps(METHODS["ngram"])
    drafting = invoke(*words, "--speculative-config", config, "--cache-type-k", "f16")
    assert drafting.exit_code == 0, drafting.output
    texts = [json.loads(result.stdout)["token_ids"] for result in (plain, drafting)]
    assert texts[0] == texts[1]
    refused = invoke(*words, "--precision", "int8")
    assert refused.exit_code == 2
    assert "option of the openvino backend" in refused.stderr


def test_the_command_runs_a_file_of_prompts(invoke, tiny_gguf, tmp_path):
    prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": TEXT[i:], "seed": i}) + "\n" for i in range(5))
    )
    result = invoke(
        "generate", "--prompts", prompts, "--output", output, "-m", tiny_gguf(), "--backend",
        "llamacpp", "--max-tokens", 8, "--temperature", 0.7, "--threads", 1,
        "--speculative-config", json.dumps(METHODS["ngram"]),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(lines) == 5
    assert not any(line.get("error") for line in lines)


def test_the_law_is_that_of_the_file(tiny_gguf, llama, tokens):
    from draftproof.backends.decoder_weights import DecoderWeights
    from draftproof.backends.reference import reference_logits

    text = np.array([tokens], dtype=np.int32)
    expected = reference_logits(DecoderWeights(tiny_gguf()), text)[0]
    assert np.abs(llama.score(tokens) - expected).max() < 1e-3
