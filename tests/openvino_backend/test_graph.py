"""The graph computes what the file says, for every architecture and weight format."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino.weights import quantize_rows
from draftproof.backends.reference import next_token_laws, total_variation
from draftproof.errors import ModelFileError

Kind = gguf.GGMLQuantizationType

#: Logits are of the order of 8. Float32 rounding through two layers stays below this.
CLOSE = 2e-4


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_graph_equals_reference(tiny_gguf, load_tiny, score_reference, tokens, arch):
    path = tiny_gguf(arch)
    expected = score_reference(path, tokens)
    assert np.abs(load_tiny(path).score(tokens) - expected).max() < CLOSE
    assert expected.std() > 1  # a flat law would agree with anything


@pytest.mark.parametrize(
    "options",
    [
        {"tied": False},
        {"kv_heads": 1},
        {"kv_heads": 4},
        {"biases": True},
        {"extra": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
        {"tensors": {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}},
        {"tensors": {f"blk.{i}.attn_output.bias": np.ones(64, np.float32) for i in (0, 1)}},
    ],
    ids=["untied", "one-kv-head", "no-sharing", "biases", "linear-rope", "rope-freqs", "out-bias"],
)
def test_features_equal_reference_and_matter(
    tiny_gguf, load_tiny, score_reference, tokens, options
):
    if options.get("biases"):
        options = options | {
            "tensors": {
                f"blk.{i}.attn_{part}.bias": np.linspace(-2, 2, size, dtype=np.float32)
                for i in (0, 1)
                for part, size in (("q", 64), ("k", 32), ("v", 32))
            }
        }
    path = tiny_gguf("llama", **options)
    expected = score_reference(path, tokens)
    assert np.abs(load_tiny(path).score(tokens) - expected).max() < CLOSE
    assert np.abs(expected - score_reference(tiny_gguf("llama"), tokens)).max() > 0.1


def test_rotation_of_llama_is_not_that_of_qwen(tiny_gguf, score_reference, tokens, monkeypatch):
    # The two rotations differ on the same weights: a wrong permutation cannot hide.
    path = tiny_gguf("llama")
    right = score_reference(path, tokens)
    monkeypatch.setattr(
        "draftproof.backends.reference._pairs", lambda _r, d: (range(d // 2), range(d // 2, d))
    )
    assert np.abs(score_reference(path, tokens) - right).max() > 0.5


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_weight_formats_are_decoded_as_the_file_says(
    tiny_gguf, load_tiny, score_reference, tokens, kind
):
    path = tiny_gguf("llama", kind=kind)
    expected = score_reference(path, tokens)
    assert np.abs(load_tiny(path).score(tokens) - expected).max() < CLOSE


def test_q4_1_keeps_its_float_minimum(tiny_gguf):
    # Blocks that start far from a multiple of their step: rounding the minimum to a
    # whole number of steps, as one converter does, moves every weight by up to half a step.
    matrix = np.tile(np.linspace(0.4, 1.9, 32, dtype=np.float32), (96, 2))
    path = tiny_gguf("llama", kind=Kind.Q4_1, tensors={"token_embd.weight": matrix})
    decoded = DecoderWeights(path).tensor("token_embd.weight")
    assert np.abs(decoded - matrix).max() < 0.06
    assert decoded.min() == pytest.approx(0.4, abs=1e-3)


@pytest.mark.parametrize(("precision", "limit"), [("f32", 1e-5), ("f16", 0.01), ("int8", 0.08)])
def test_precisions_stay_near_the_reference_law(
    tiny_gguf, load_tiny, score_reference, tokens, precision, limit
):
    path = tiny_gguf("qwen2", tied=False)
    decoder = load_tiny(path, precision)
    assert decoder.backend.info.precision == precision
    expected = next_token_laws(score_reference(path, tokens))
    assert total_variation(next_token_laws(decoder.score(tokens)), expected).mean() < limit


def test_int8_graph_is_exactly_the_rounded_model(
    tiny_gguf, load_tiny, score_reference, tokens, monkeypatch
):
    # What int8 changes is the rounding of the weights and nothing else: the reference
    # over rounded weights agrees as closely as float32 does.
    path = tiny_gguf("llama", tied=False)
    scored = load_tiny(path, "int8").score(tokens)
    original = DecoderWeights.tensor

    def rounded(self, name):
        values = original(self, name)
        if values.ndim < 2:
            return values
        codes, scales = quantize_rows(values)
        return codes * scales

    monkeypatch.setattr(DecoderWeights, "tensor", rounded)
    assert np.abs(scored - score_reference(path, tokens)).max() < CLOSE


def test_quantize_rows_rounds_to_half_a_step():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((50, 33)).astype(np.float32)
    matrix[3] = 0
    matrix[4] = 1e-42
    codes, scales = quantize_rows(matrix)
    assert np.isfinite(scales).all()
    assert (np.abs(codes * scales - matrix) <= scales * 0.5 * (1 + 1e-5)).all()
    assert (np.abs(codes[5:]).max(axis=1) == 127).all()


@pytest.mark.parametrize(
    ("arch", "options", "named"),
    [
        ("gemma2", {}, "gemma2"),
        ("llama", {"extra": {"llama.expert_count": 8}}, "expert_count"),
        ("llama", {"extra": {"llama.rope.scaling.type": "yarn"}}, "yarn"),
        ("llama", {"extra": {"llama.rope.dimension_count": 8}}, "8 rotated"),
        ("llama", {"extra": {"llama.attention.value_length": 32}}, "32 values"),
        ("qwen2", {"extra": {"qwen2.attention.sliding_window": 64}}, "sliding_window"),
        ("llama", {"extra": {"llama.attention.causal": False}}, "causal"),
        ("llama", {"extra": {"llama.logit_scale": 0.5}}, "logit_scale"),
        (
            "llama",
            {"tensors": {"blk.0.ffn_gate_exps.weight": np.ones((4, 64), np.float32)}},
            "exps",
        ),
        ("llama", {"tensors": {"blk.1.ffn_up.weight": None}}, "blk.1.ffn_up.weight"),
        ("llama", {"tensors": {"blk.1.attn_k.bias": np.ones(32, np.float32)}}, "blk.1.attn_q.bias"),
        ("qwen2", {"biases": False}, "attn_k.bias"),
        ("llama", {"tensors": {"blk.0.attn_q.weight": np.ones((32, 64), np.float32)}}, "extents"),
        ("llama", {"tensors": {"output_norm.weight": None}}, "output_norm.weight"),
    ],
)
def test_unknown_features_are_refused_by_name(tiny_gguf, arch, options, named):
    with pytest.raises(ModelFileError, match=named):
        DecoderWeights(tiny_gguf(arch, **options))


def test_neutral_metadata_is_accepted(tiny_gguf):
    extra = {
        "llama.rope.dimension_count": 16,
        "llama.attention.key_length": 16,
        "llama.attention.sliding_window": 0,
        "llama.expert_count": 0,
        "llama.rope.scaling.type": "none",
        "llama.logit_scale": 1.0,
    }
    assert DecoderWeights(tiny_gguf("llama", extra=extra)).shape.head_dim == 16


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tiny_gguf, bad):
    broken = np.ones(64, dtype=np.float32)
    broken[3] = bad
    weights = DecoderWeights(tiny_gguf("llama", tensors={"output_norm.weight": broken}))
    with pytest.raises(ModelFileError, match=r"output_norm\.weight"):
        weights.tensor("output_norm.weight")
