"""From files to text: early exits, and draft models of another vocabulary, on OpenVINO.

The models are tiny and random, so that nothing is accepted for its sense; what is asked is
that the text is that of plain decoding, and that drafts were judged.
"""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from draftproof.build import load
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.models.head_files import HeadShape, HeadWeights, write_head
from draftproof.text.byte_level import BYTE_OF_CHAR

HIDDEN, FFN, LAYERS = 32, 48, 3
LETTERS = sorted(BYTE_OF_CHAR)
TEXT = "the then them there 12 the then them"


def write(path, merges, *, shuffled, seed):
    """Write a random llama whose tokens are all bytes and some merges of them."""
    letters = [LETTERS[i] for i in np.random.default_rng(seed).permutation(len(LETTERS))]
    texts = [*(letters if shuffled else LETTERS), *(merge.replace(" ", "") for merge in merges)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*texts, "<|end|>"])
    writer.add_token_types([1] * len(texts) + [3])
    writer.add_token_merges(list(merges))
    writer.add_eos_token_id(len(texts))
    rng = np.random.default_rng(seed)

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) * 2 / np.sqrt(columns)).astype(np.float32)

    tensors = {"token_embd.weight": matrix(len(texts) + 1, HIDDEN)}
    tensors["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"blk.{layer}.{name}.weight"] = matrix(HIDDEN, HIDDEN)
        for name, size in (
            ("ffn_gate", (FFN, HIDDEN)), ("ffn_up", (FFN, HIDDEN)), ("ffn_down", (HIDDEN, FFN)),
        ):  # fmt: skip
            tensors[f"blk.{layer}.{name}.weight"] = matrix(*size)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target, and a drafter with other ids and other merges."""
    folder = tmp_path_factory.mktemp("models")
    return (
        write(folder / "target.gguf", ["t h", "th e", "Ġ the"], shuffled=False, seed=1),
        write(folder / "other.gguf", ["t h", "h e", "Ġ th"], shuffled=True, seed=2),
        folder,
    )


def engine(models, **config):
    said = []
    made = load(
        models[0],
        speculative_config=config or None,
        precision="f32",
        kv_cache_bytes=4 << 20,
        threads=1,
        cache_dir=models[2],
        progress=said.append,
    )
    return made, said


@pytest.fixture(scope="module")
def plain(models):
    made, _ = engine(models)
    yield {
        name: made.generate(TEXT, max_tokens=24, ignore_eos=True, **options).token_ids
        for name, options in POLICIES.items()
    }
    made.close()


POLICIES = {"greedy": {}, "coupled": {"temperature": 0.9, "seed": 3, "rule": "coupled"}}
EXITS = (
    ({"method": "early-exit", "num_layers": 2}, "early-exit"),
    ({"method": "draft_model_tree", "num_layers": 1}, "draft-model-tree"),
    ({"method": "hybrid", "num_layers": 1}, "hybrid"),
)


@pytest.mark.parametrize(("config", "name"), EXITS)
def test_an_early_exit_drafts_and_the_text_is_the_plain_one(models, plain, config, name):
    made, _ = engine(models, **config)
    assert made.core.default_proposer == name
    for policy, options in POLICIES.items():
        result = made.generate(TEXT, max_tokens=24, ignore_eos=True, **options)
        assert result.token_ids == plain[policy]
        assert result.stats.num_draft_tokens > 20
        assert not result.notes
    made.close()


def random_head(folder):
    """A head of the target's width and vocabulary, with random weights."""
    shape = HeadShape(
        hidden_size=HIDDEN, num_heads=1, num_kv_heads=1, head_dim=HIDDEN, ffn_size=FFN,
        vocab_size=len(LETTERS) + 4, draft_vocab_size=100, window=16, rope_theta=10000.0,
    )  # fmt: skip
    generator = np.random.default_rng(3)
    tensors = {
        name: generator.normal(float(len(extent) == 1), 0.2, extent).astype(np.float32)
        for name, extent in shape.tensors().items()
    }
    write_head(folder, HeadWeights(shape, tensors, np.arange(100), "target", {}))
    return str(folder)


@pytest.mark.parametrize(
    ("method", "drafter", "part"),
    [("hybrid", "hybrid", "draft-head"), ("hybrid_tree", "hybrid-tree", "draft-head-tree")],
)
def test_a_head_behind_copies_drafts_and_the_text_is_the_plain_one(
    models, plain, method, drafter, part
):
    made, _ = engine(models, method=method, model=random_head(models[2] / method))
    assert made.core.default_proposer == drafter
    for policy, options in POLICIES.items():
        result = made.generate(TEXT, max_tokens=24, ignore_eos=True, **options)
        assert result.token_ids == plain[policy]
        assert result.stats.num_draft_tokens_per_drafter[part] > 10
        assert not result.notes
    made.close()


@pytest.mark.parametrize(
    ("mapping", "told"),
    [("auto", "258 of the target's 260 tokens"), ("retokenise", "of the drafter's text")],
)
def test_a_model_of_another_vocabulary_drafts_too(models, plain, mapping, told):
    made, said = engine(models, model=str(models[1]), vocab_mapping=mapping)
    assert any(told in line for line in said)
    for policy, options in POLICIES.items():
        result = made.generate(TEXT, max_tokens=24, ignore_eos=True, **options)
        assert result.token_ids == plain[policy]
        assert result.stats.num_draft_tokens > 20
    made.close()


def test_what_cannot_be_joined_is_refused_before_anything_runs(models):
    with pytest.raises(IncompatibleModelsError, match="vocab_mapping 'none'"):
        engine(models, model=str(models[1]), vocab_mapping="none")
    with pytest.raises(ConfigError, match="early exit after 4 layers, expected 1 to 3"):
        engine(models, method="early_exit", num_layers=4)
