"""From what a user typed to a model, or to a sentence that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.errors import ConfigError, ModelFileError
from draftproof.models import CATALOG, CatalogEntry, ModelSource, cached_path, resolve


def never(entry: CatalogEntry, folder: Path, fresh: bool) -> Path:
    raise AssertionError("nothing should be fetched")


def ir_folder(folder: Path) -> Path:
    folder.mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def test_gguf_path(tmp_path: Path) -> None:
    path = tmp_path / "My-Model.Q8_0.GGUF"
    path.write_bytes(b"GGUF")
    assert resolve(str(path)) == ModelSource("gguf", path, "My-Model.Q8_0")


def test_ir_folder_and_its_xml(tmp_path: Path) -> None:
    folder = ir_folder(tmp_path / "qwen-int8")
    expected = ModelSource("openvino-ir", folder, "qwen-int8")
    assert resolve(str(folder)) == expected
    assert resolve(str(folder / "openvino_model.xml")) == expected


@pytest.mark.parametrize("missing", ["openvino_model.bin", "tokenizer.json"])
def test_incomplete_ir_folder(tmp_path: Path, missing: str) -> None:
    folder = ir_folder(tmp_path / "ir")
    (folder / missing).unlink()
    with pytest.raises(ModelFileError, match=f"but no {missing}"):
        resolve(str(folder))


def test_folder_with_a_gguf_inside_names_it(tmp_path: Path) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"it holds weights\.gguf"):
        resolve(str(tmp_path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x")
    with pytest.raises(ModelFileError, match="unknown kind of model file"):
        resolve(str(path))


def test_catalogue_name_wins_over_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = CATALOG["smollm2"]
    cached = cached_path("smollm2", cache_dir=tmp_path)
    cached.parent.mkdir(parents=True)
    with cached.open("wb") as stream:
        stream.truncate(entry.file_bytes)
    (tmp_path / "smollm2").write_text("not a model")
    monkeypatch.chdir(tmp_path)
    source = resolve("smollm2", cache_dir=tmp_path, fetch=never)
    assert source == ModelSource("gguf", cached, "smollm2")
    with pytest.raises(ModelFileError, match="unknown kind"):
        resolve("./smollm2", cache_dir=tmp_path, fetch=never)


@pytest.mark.parametrize("typed", ["smolm2", "SmolLM2", "smollm"])
def test_unknown_name_names_the_nearest_and_the_missing_path(typed: str) -> None:
    with pytest.raises(ConfigError, match="no such path exists; did you mean 'smollm2'") as caught:
        resolve(typed, fetch=never)
    assert repr(typed) in str(caught.value)


@pytest.mark.parametrize("typed", ["", "   "])
def test_empty_name(typed: str) -> None:
    with pytest.raises(ConfigError, match="the model is empty"):
        resolve(typed, fetch=never)


def test_missing_path() -> None:
    with pytest.raises(ConfigError, match="no such path exists"):
        resolve("/nowhere/at/all.gguf", fetch=never)
