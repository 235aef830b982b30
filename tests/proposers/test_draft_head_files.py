"""Draft heads on disk and on the runtime: read, refused, and computed alike."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from head_kit import SHAPE, matrices, numpy_head, weights

from draftproof.backends.openvino.head import OpenVINOHead
from draftproof.build import SpeculativeConfig
from draftproof.errors import ConfigError, ModelFileError
from draftproof.models.head_files import (
    built_in_heads,
    find_head,
    is_head,
    read_head,
    write_head,
)
from draftproof.models.tensor_file import read_tensors, write_tensors


@pytest.fixture
def folder(tmp_path):
    write_head(tmp_path, weights())
    return tmp_path


def test_a_head_comes_back_from_its_files(folder):
    head, written = read_head(folder), weights()
    assert head.shape == written.shape
    assert head.target == "a table"
    assert head.notes == {"seed": 0}
    np.testing.assert_array_equal(head.draft_ids, written.draft_ids)
    for name, array in written.tensors.items():
        np.testing.assert_array_equal(head.tensors[name], array.astype(np.float16))


def test_its_configuration_is_that_of_speculators(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle"
    assert config["transformer_layer_config"]["intermediate_size"] == SHAPE.ffn_size
    tensors = read_tensors(folder / "model.safetensors")
    assert tensors["d2t"].dtype == np.int64
    assert tensors["t2d"].sum() == SHAPE.draft_vocab_size
    assert find_head(str(folder)) == folder


def damage_key(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def damage_tensors(folder, change):
    path = folder / "model.safetensors"
    held = {name: array.copy() for name, array in read_tensors(path).items()}
    change(held)
    write_tensors(path, held)


def cut(held):
    held["fusion_fc.weight"] = held["fusion_fc.weight"][:-1]


def spoil(held):
    held["fusion_fc.weight"][0, 0] = np.nan


def shift(held):
    held["d2t"][0] += 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: damage_key(f, speculators_model_type="eagle3"),
            "'eagle3', which reads .* three",
        ),
        (lambda f: damage_key(f, speculators_model_type="dflash"), "type 'dflash'"),
        (lambda f: damage_key(f, fusion_bias=True), "without fusion_bias"),
        (lambda f: damage_key(f, window="wide"), "not the configuration"),
        (lambda f: damage_key(f, window=1), "window is 1"),
        (lambda f: (f / "config.json").write_text("{"), "not the configuration"),
        (lambda f: damage_tensors(f, cut), r"fusion_fc.weight is \(7, 16\)"),
        (lambda f: damage_tensors(f, spoil), "NaN"),
        (lambda f: damage_tensors(f, shift), "no map of 5 tokens"),
        (lambda f: damage_tensors(f, lambda held: held.pop("d2t")), "no map"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 20), "cut off"),
        (
            lambda f: (f / "model.safetensors").write_bytes(
                (f / "model.safetensors").read_bytes()[:-9]
            ),
            "header is damaged",
        ),
    ],
)
def test_refuses_a_damaged_head(folder, damage, message):
    damage(folder)
    with pytest.raises(ModelFileError, match=message):
        read_head(folder)


def test_refuses_a_folder_without_a_head(tmp_path):
    with pytest.raises(ModelFileError, match="no draft head"):
        find_head(str(tmp_path))


def arguments(seed=4, rows=3, tokens=2, cached=5):
    generator = np.random.default_rng(seed)

    def normal(*extent):
        return generator.normal(size=extent).astype(np.float32)

    mask = np.where(generator.random((rows, tokens, cached + tokens)) < 0.4, -1e9, 0.0)
    mask[:, :, -1] = 0.0
    return (
        normal(rows, tokens, SHAPE.hidden_size),
        generator.integers(0, SHAPE.vocab_size, (rows, tokens)),
        generator.integers(0, 90, (rows, tokens)),
        normal(rows, SHAPE.num_kv_heads, cached, SHAPE.head_dim),
        normal(rows, SHAPE.num_kv_heads, cached, SHAPE.head_dim),
        mask.astype(np.float32),
    )


@pytest.mark.parametrize(("tokens", "cached"), [(1, 0), (1, 8), (2, 5), (4, 0)])
def test_openvino_computes_what_numpy_does(tokens, cached):
    runner = OpenVINOHead(weights(), *matrices(), precision="f32", threads=1)
    given = arguments(tokens=tokens, cached=cached)
    for found, expected in zip(runner.run(*given), numpy_head().run(*given), strict=True):
        np.testing.assert_allclose(found, expected, atol=3e-5, rtol=1e-4)


def test_the_comparison_sees_a_wrong_rotation():
    other = replace(SHAPE, rope_theta=90.0)
    runner = OpenVINOHead(weights(other), *matrices(), precision="f32", threads=1)
    given = arguments()
    found, expected = runner.run(*given)[1], numpy_head().run(*given)[1]
    assert np.abs(found - expected).max() > 1e-3


def test_a_head_is_told_from_a_model(folder, tmp_path):
    assert is_head(str(folder))
    assert not is_head("smollm2")
    assert not is_head(str(tmp_path / "nothing"))
    assert SpeculativeConfig.parse({"model": str(folder)}).method == "draft_head"
    assert SpeculativeConfig.parse({"model": "smollm2"}).method == "draft_model"


def test_built_in_heads_can_be_read():
    assert "smollm2-head" in built_in_heads()
    for name, folder in built_in_heads().items():
        assert is_head(name)
        assert find_head(name) == folder
        head = read_head(folder)
        assert head.shape.draft_vocab_size < head.shape.vocab_size
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 16 << 20


@pytest.mark.parametrize(
    "config",
    [
        {"method": "draft_head"},
        {"method": "draft_head", "model": "h", "suffix_window": 9},
    ],
)
def test_refuses_what_a_head_would_ignore(config):
    with pytest.raises(ConfigError):
        SpeculativeConfig.parse(config)
