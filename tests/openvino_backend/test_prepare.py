"""A model is prepared once, checked against a reference law, and kept whole."""

from __future__ import annotations

import json
import shutil
import threading

import numpy as np
import openvino as ov
import pytest

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino import graph as graph_module
from draftproof.backends.openvino import load_openvino, prepare, read_manifest
from draftproof.backends.openvino.graph import build_graph
from draftproof.backends.openvino.manifest import file_sha256
from draftproof.errors import ConfigError, ModelFileError


@pytest.fixture
def notes() -> list[str]:
    return []


def test_the_second_call_only_loads(tiny_gguf, tmp_path, notes):
    path = tiny_gguf("llama")
    folder = prepare(path, "int8", tmp_path, notes.append)
    assert len(notes) == 3
    stamps = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert prepare(path, "int8", tmp_path, notes.append) == folder
    assert len(notes) == 3
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == stamps
    assert [child.name for child in folder.parent.iterdir()] == [folder.name]


def test_the_manifest_says_what_was_made(tiny_gguf, tmp_path):
    path = tiny_gguf("qwen3")
    folder = prepare(path, "f16", tmp_path)
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.source_sha256 == file_sha256(path)
    assert (manifest.precision, manifest.architecture) == ("f16", "qwen3")
    assert (manifest.vocab_size, manifest.context_length) == (96, 512)
    assert 0 < manifest.mean_tv <= manifest.max_tv <= manifest.tv_limit == 0.01
    assert manifest.num_laws == 96
    assert set(manifest.files) == {"openvino_model.xml", "openvino_model.bin"}
    assert set(manifest.versions) == {"openvino", "gguf"}
    assert load_openvino(folder).info.name == path.stem


def flip_a_weight(folder):
    data = bytearray((folder / "openvino_model.bin").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "openvino_model.bin").write_bytes(data)


def drop_the_graph(folder):
    (folder / "openvino_model.xml").unlink()


def cut_the_record(folder):
    (folder / "draftproof.json").write_text("{", encoding="utf-8")


def drop_the_record(folder):
    (folder / "draftproof.json").unlink()


def age_the_record(folder):
    record = json.loads((folder / "draftproof.json").read_text(encoding="utf-8"))
    record["versions"]["openvino"] = "2020.1"
    (folder / "draftproof.json").write_text(json.dumps(record), encoding="utf-8")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (flip_a_weight, r"openvino_model\.bin is damaged"),
        (drop_the_graph, r"openvino_model\.xml is damaged"),
        (cut_the_record, "record is damaged"),
        (drop_the_record, "record is missing"),
        (age_the_record, "other versions"),
    ],
)
def test_a_damaged_folder_is_made_again(tiny_gguf, prepared_cache, tmp_path, notes, harm, message):
    path = tiny_gguf("llama")
    whole = prepare(path, "f32", prepared_cache)
    shutil.copytree(whole, tmp_path / "prepared" / whole.name)
    harm(tmp_path / "prepared" / whole.name)
    again = prepare(path, "f32", tmp_path, notes.append)
    assert message.replace("\\", "") in notes[0]
    assert file_sha256(again / "openvino_model.bin") == file_sha256(whole / "openvino_model.bin")
    assert prepare(path, "f32", tmp_path, notes.append) == again
    assert len(notes) == 3
    assert [child.name for child in again.parent.iterdir()] == [again.name]


def test_a_changed_source_gets_its_own_folder(tiny_gguf, tmp_path):
    path = tiny_gguf("llama")
    first = prepare(path, "f32", tmp_path)
    shutil.copy(tiny_gguf("llama", seed=1), path)
    second = prepare(path, "f32", tmp_path)
    assert first != second
    assert read_manifest(second).source_sha256 == file_sha256(path)


@pytest.mark.parametrize(("precision", "limit"), [("f32", "0.001"), ("int8", "0.15")])
def test_a_graph_of_another_law_is_refused(tiny_gguf, tmp_path, monkeypatch, precision, limit):
    # Planted fault: queries and keys keep the order that the file stores them in.
    monkeypatch.setattr(graph_module, "_halves_first", lambda array, *_sizes: array)
    with pytest.raises(ModelFileError, match=f"reference law, expected at most {limit}"):
        prepare(tiny_gguf("llama"), precision, tmp_path)
    assert list((tmp_path / "prepared").iterdir()) == []


def test_two_that_prepare_at_once_both_succeed(tiny_gguf, tmp_path):
    path, found = tiny_gguf("llama"), []
    threads = [
        threading.Thread(target=lambda: found.append(prepare(path, "f32", tmp_path)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert [child.name for child in found[0].parent.iterdir()] == [found[0].name]


def test_bad_arguments_are_refused(tiny_gguf, tmp_path):
    with pytest.raises(ConfigError, match="'int4', expected one of f32, f16, int8"):
        prepare(tiny_gguf("llama"), "int4", tmp_path)
    with pytest.raises(ModelFileError, match="no such file"):
        prepare(tmp_path / "absent.gguf", "f32", tmp_path)


@pytest.fixture
def exported(tiny_gguf, tmp_path):
    """A folder as an exporter writes it, and the file that it came from."""
    path = tiny_gguf("llama", tied=False)
    ov.save_model(build_graph(DecoderWeights(path), "f32"), tmp_path / "openvino_model.xml")
    config = {"max_position_embeddings": 256}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path, path


def test_an_exported_folder_is_loaded(exported, tokens, score_reference, load_tiny):
    folder, path = exported
    backend = load_openvino(folder, kv_cache_bytes=4 << 20)
    assert backend.info.context_length == 256
    decoder = type(load_tiny(path))(backend)
    # save_model rounds weights to f16 unless told otherwise, as exporters do.
    assert np.abs(decoder.score(tokens, [30, 40]) - score_reference(path, tokens)).max() < 0.05


def test_an_exported_folder_must_say_its_context(exported):
    folder, _ = exported
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="context_length"):
        load_openvino(folder, kv_cache_bytes=4 << 20)
    backend = load_openvino(folder, kv_cache_bytes=4 << 20, context_length=99)
    assert backend.info.context_length == 99


@pytest.mark.parametrize("text", ["[", "[]", '{"max_position_embeddings": "many"}'])
def test_a_broken_configuration_is_refused(exported, text):
    folder, _ = exported
    (folder / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load_openvino(folder)


def test_graphs_that_cannot_be_paged_are_refused(tmp_path):
    (tmp_path / "openvino_model.xml").write_text("<net", encoding="utf-8")
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_openvino(tmp_path, context_length=8)
    ids = ov.opset13.parameter(ov.PartialShape([-1, -1]), ov.Type.f32, name="input_ids")
    model = ov.Model([ov.opset13.result(ov.opset13.relu(ids))], [ids], "stateless")
    ov.save_model(model, tmp_path / "openvino_model.xml")
    with pytest.raises(ModelFileError, match="cannot be paged"):
        load_openvino(tmp_path, context_length=8)
