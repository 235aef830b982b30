"""From a Hugging Face folder to an engine, and what is refused on the way."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'draftproof[torch]'")

import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers

import draftproof
from draftproof.build import load_model
from draftproof.build.runtimes import RuntimeOptions
from draftproof.errors import ConfigError, ModelFileError

TEXT = "one two three one two three one two"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with random weights and one token per byte."""
    path = tmp_path_factory.mktemp("hf")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate([*letters, "<end>"])}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<end>"])
    library.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    transformers.set_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=len(vocab), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        eos_token_id=vocab["<end>"], initializer_range=0.4,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_folder_decodes_with_and_without_drafts(folder, backend):
    options = {"max_tokens": 24, "ignore_eos": True}
    plain = draftproof.load(folder, backend=backend)
    drafting = draftproof.load(
        folder,
        backend=backend,
        speculative_config={"method": "ngram_tree", "prompt_lookup_min": 1},
    )
    assert plain.core.target.info.runtime == "torch"
    for extra in ({}, {"temperature": 0.9, "seed": 5, "rule": "coupled"}):
        expected = plain.generate(TEXT, **options, **extra)
        result = drafting.generate(TEXT, **options, **extra)
        assert result.token_ids == expected.token_ids
        assert result.text == expected.text
        assert result.stats.num_drafts > 0


def test_a_draft_model_may_be_a_folder(folder):
    engine = draftproof.load(
        folder, speculative_config={"model": str(folder), "num_speculative_tokens": 3}
    )
    result = engine.generate(TEXT, max_tokens=12, ignore_eos=True)
    assert result.stats.acceptance_rate == 1.0


def test_the_kernel_that_was_chosen_is_told(folder, monkeypatch):
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    said: list[str] = []
    backend, _ = load_model(folder, runtime=RuntimeOptions(attention="flex"), progress=said.append)
    assert said[-1] == f"attention: {backend.model.attention.kernel.name}"
    load_model(folder, progress=said.append)
    assert said[-1].startswith("loading")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "openvino"}, "is a Hugging Face folder"),
        ({"precision": "f32"}, "precision f32 is an option of the openvino backend"),
        ({"dtype": "int7"}, "int7"),
        ({"attention": "magic"}, "magic"),
        ({"linear": "magic"}, "magic"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_what_the_runtime_cannot_honour_is_refused_by_name(folder, options, message):
    with pytest.raises(ConfigError, match=message):
        draftproof.load(folder, **options)


def test_names_that_are_unknown():
    with pytest.raises(ConfigError, match="backend is 'jax'; expected one of auto"):
        RuntimeOptions(backend="jax")
    with pytest.raises(ConfigError, match="precision is 'int3'"):
        RuntimeOptions(precision="int3")
    with pytest.raises(ModelFileError, match="no such folder, and no hub id"):
        load_model("./nowhere", runtime=RuntimeOptions(backend="torch"))


def test_a_folder_without_a_tokenizer_is_refused(folder, tmp_path):
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    with pytest.raises(ModelFileError, match="but no tokenizer"):
        draftproof.load(tmp_path)
