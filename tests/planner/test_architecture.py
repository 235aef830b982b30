"""Dimensions, bytes and memory from configuration files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftproof.errors import ConfigError, ModelFileError
from draftproof.planner.catalogue import hardware_entry, hardware_names, model_config, model_names
from draftproof.planner.cost import RooflineCost, step_seconds
from draftproof.planner.derive import derive_costs
from draftproof.planner.hardware import read_hardware
from draftproof.planner.memory import max_concurrency
from draftproof.planner.read_config import read_model, shape_from_config

H100 = read_hardware("h100-sxm")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.55),
        ("llama-3.1-405b", 405.85),
        ("llama-3.2-1b", 1.24),
        ("llama-3.2-3b", 3.21),
        ("mistral-7b", 7.25),
        ("mixtral-8x7b", 46.7),
        ("qwen2.5-0.5b", 0.494),
        ("qwen2.5-7b", 7.62),
        ("qwen2.5-72b", 72.7),
        ("qwen3-0.6b", 0.60),
        ("qwen3-8b", 8.19),
        ("qwen3-32b", 32.8),
        ("qwen3-30b-a3b", 30.5),
        ("gemma-2-9b", 9.24),
        ("deepseek-v3", 671.0),
        ("smollm2-135m", 0.1345),
        ("smollm2-1.7b", 1.71),
    ],
)
def test_parameters_agree_with_model_cards(name, billions):
    assert read_model(name).total_params / 1e9 == pytest.approx(billions, rel=0.007)


def test_active_parameters_of_experts():
    assert read_model("qwen3-30b-a3b").active_params / 1e9 == pytest.approx(3.0, abs=0.35)
    assert read_model("deepseek-v3").active_params / 1e9 == pytest.approx(37, abs=0.5)
    assert read_model("mixtral-8x7b").active_params / 1e9 == pytest.approx(12.9, abs=0.2)


def test_every_entry_names_its_source():
    for name in model_names():
        assert "hub" in model_config(name)["source"]
        read_model(name)
    for name in hardware_names():
        assert len(hardware_entry(name)["source"]) > 10
    with pytest.raises(ConfigError, match="h100-sxm"):
        read_hardware("h100-sxn")
    with pytest.raises(ConfigError, match="bf16"):
        read_hardware("a100-80gb-sxm", "fp8")


def test_experts_touched_by_simulation():
    shape = read_model("mixtral-8x7b")
    rng = np.random.default_rng(0)
    touched = [
        len({e for _ in range(6) for e in rng.choice(8, 2, replace=False)}) for _ in range(1500)
    ]
    assert shape.moe.distinct_experts(6) == pytest.approx(np.mean(touched), abs=0.1)
    assert shape.moe.distinct_experts(1) == pytest.approx(2)
    # A wider pass streams more experts, until it streams all.
    one, many = shape.streamed_bytes(1), shape.streamed_bytes(1000)
    assert many / one > 3
    assert many == pytest.approx(shape.stored_bytes - shape.bytes_of_parts()[3], rel=1e-6)


def test_verification_of_experts_is_not_flat():
    cost = RooflineCost.of(read_model("qwen3-30b-a3b"), H100)
    dense = RooflineCost.of(read_model("llama-3-8b"), H100)
    assert step_seconds(dense, 1, 4) == pytest.approx(step_seconds(dense, 1, 1))
    assert step_seconds(cost, 1, 4) > 2 * step_seconds(cost, 1, 1)


def test_cache_bytes_of_each_kind_of_attention():
    assert read_model("llama-3.1-70b").kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    # Latent attention caches 512 + 64 numbers per layer, keys and values together.
    assert read_model("deepseek-v3").kv_bytes_per_token == 61 * 576 * 2
    gemma = read_model("gemma-2-9b")
    assert gemma.num_windowed_layers == 21
    full, windowed = 42 * 8000, 21 * 8000 + 21 * 4096
    assert gemma.kv_bytes(8000) / gemma.kv_bytes_per_token * 42 == pytest.approx(windowed)
    assert windowed < full
    assert read_model("llama-3-8b").quantised(kv_bits=8).kv_bytes_per_token == 64 * 1024


def test_quantised_weights():
    shape = read_model("llama-3-8b")
    assert shape.quantised(4.5).streamed_bytes() == pytest.approx(shape.streamed_bytes() * 4.5 / 16)
    config = {**model_config("llama-3-8b"), "quantization_config": {"bits": 4, "group_size": 128}}
    found = shape_from_config(config)
    assert found.weight_bytes_per_param == pytest.approx(4.125 / 8)
    assert found.head_bytes_per_param == 2.0


def test_long_contexts_move_the_ridge():
    # One request of 100,000 tokens reads 13 GB of cache beside 15 GB of weights.
    cost = RooflineCost.of(read_model("llama-3-8b"), H100, context=100_000)
    assert step_seconds(cost, 1, 1, 100_000) == pytest.approx(8.39e-3, abs=0.02e-3)


def test_tensor_parallel():
    shape = read_model("llama-3.1-70b")
    one = RooflineCost.of(shape, H100)
    eight = RooflineCost.of(shape, H100, tensor_parallel=8)
    assert step_seconds(eight, 1, 1) == pytest.approx(step_seconds(one, 1, 1) / 8, rel=0.01)
    assert step_seconds(eight, 1, 1) > step_seconds(one, 1, 1) / 8  # the link is not free
    # Two key heads on eight devices are each held by four.
    small = RooflineCost.of(read_model("qwen2.5-0.5b"), H100, tensor_parallel=8)
    assert small.kv_bytes_per_token == 4 * read_model("qwen2.5-0.5b").kv_bytes_per_token
    with pytest.raises(ConfigError, match="tensor parallel 0"):
        RooflineCost.of(shape, H100, tensor_parallel=0)


def test_concurrency_shrinks_with_speculation():
    target, draft = read_model("llama-3-8b"), read_model("llama-3.2-1b")
    found = max_concurrency(target, H100, 4000, 3, draft=draft)
    assert found.plain == int((72e9 - target.stored_bytes) / (4001 * 128 * 1024))
    assert found.speculative < found.plain
    alone = max_concurrency(target, H100, 4000, 0, draft=draft)
    assert alone.speculative == alone.plain  # without drafts no draft model is loaded
    with pytest.raises(ConfigError, match="GB"):
        max_concurrency(read_model("llama-3.1-70b"), H100, 100, 0)


def test_draft_kinds():
    target, draft = read_model("llama-3-8b"), read_model("llama-3.2-1b")
    serial = derive_costs(target, H100, draft=draft).cost
    parallel = derive_costs(target, H100, draft=draft, draft_kind="parallel").cost
    lookup = derive_costs(target, H100, draft_kind="none").cost
    times = [[cost.round_s(1, kappa) for kappa in (1, 4)] for cost in (serial, parallel, lookup)]
    assert times[0][0] == pytest.approx(times[1][0])
    assert times[0][1] > times[1][1] > times[2][1]
    with pytest.raises(ConfigError, match="no draft model"):
        derive_costs(target, H100, draft_kind="parallel")


def test_a_configuration_file(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = dict(model_config("llama-3.2-1b"))
    (folder / "config.json").write_text(json.dumps(config))
    assert read_model(str(folder)).total_params == read_model("llama-3.2-1b").total_params
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="no num_hidden_layers"):
        read_model(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match="not a JSON"):
        read_model(str(folder))
    with pytest.raises(ConfigError, match="no model configuration"):
        read_model("nowhere")


@pytest.mark.model
def test_a_gguf_file_gives_exact_bytes():
    from draftproof.models import pull

    path = pull("smollm2")
    found = read_model(str(path))
    assert found.tied_embeddings
    assert found.total_params == read_model("smollm2-135m").total_params
    # All tensors but the header; Q4_1 holds 5 bits per weight, the tied head 8.5.
    assert found.stored_bytes == pytest.approx(path.stat().st_size, rel=0.03)
    assert found.bytes_of_parts()[2] == found.head_params * 34 / 32
