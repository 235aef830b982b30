"""GGUF headers: everything the writer wrote comes back, and damage is named."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from draftproof.errors import ModelFileError
from draftproof.models import read_gguf


@pytest.fixture
def small_gguf(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Small")
    writer.add_context_length(128)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_token_list(["a", "é", "日本", ""])
    writer.add_token_scores([0.0, -1.5, 2.0, 0.25])
    writer.add_token_types([1, 1, 3, 5])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("weight", np.arange(128, dtype=np.float32).reshape(2, 64))
    quantized = gguf.quants.quantize(
        np.ones((3, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    writer.add_tensor("quantized", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_header_comes_back(small_gguf: Path) -> None:
    file = read_gguf(small_gguf)
    assert file.architecture == "llama"
    assert file.name == "Small"
    assert file.context_length == 128
    assert file.num_layers == 2
    assert file.embedding_length == 64
    assert file.vocab_size == 4
    assert file.file_type == "Q8_0"
    assert file.chat_template == "{{ messages }}"
    assert file.get("tokenizer.ggml.add_bos_token", bool) is True
    assert file.require("tokenizer.ggml.tokens", tuple) == ("a", "é", "日本", "")
    scores = file.require("tokenizer.ggml.scores", np.ndarray)
    np.testing.assert_array_equal(scores, np.float32([0.0, -1.5, 2.0, 0.25]))
    assert file.get("no.such.key", str) is None
    assert file.get("no.such.key", str, "x") == "x"


def test_tensors_lie_where_the_directory_says(small_gguf: Path) -> None:
    file = read_gguf(small_gguf)
    weight, quantized = file.tensors
    assert (weight.name, weight.shape, weight.kind) == ("weight", (64, 2), "F32")
    data = small_gguf.read_bytes()[weight.offset : weight.offset + weight.num_bytes]
    np.testing.assert_array_equal(np.frombuffer(data, np.float32), np.arange(128))
    assert (quantized.shape, quantized.kind, quantized.num_bytes) == ((64, 3), "Q8_0", 3 * 2 * 34)


def test_agrees_with_the_reference_reader(small_gguf: Path) -> None:
    reference = gguf.GGUFReader(small_gguf)
    file = read_gguf(small_gguf)
    for key, field in reference.fields.items():
        if key.startswith("GGUF."):
            continue
        value = file.metadata[key]
        value = list(value) if isinstance(value, tuple | np.ndarray) else value
        assert value == field.contents(), key
    assert [(t.name, t.data_offset, t.n_bytes) for t in reference.tensors] == [
        (t.name, t.offset, t.num_bytes) for t in file.tensors
    ]


def test_every_truncation_is_refused(small_gguf: Path, tmp_path: Path) -> None:
    data = small_gguf.read_bytes()
    last = read_gguf(small_gguf).tensors[-1]
    end = last.offset + last.num_bytes
    cut_file = tmp_path / "cut.gguf"
    for length in [0, 3, 7, *range(8, end, 97), end - 1]:
        cut_file.write_bytes(data[:length])
        with pytest.raises(ModelFileError, match=r"truncated|too short") as caught:
            read_gguf(cut_file)
        assert "\n" not in str(caught.value)
    cut_file.write_bytes(data[:end])
    read_gguf(cut_file)


def test_truncation_names_the_place(small_gguf: Path, tmp_path: Path) -> None:
    data = small_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: data.index("日本".encode()) + 2])
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens, string 2"):
        read_gguf(cut)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(60), "version 1, expected 2 or 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "big-endian"),
        (b"", "0 bytes long"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**62), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "unknown value type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1), "array of arrays"),
        (b"GGUF" + struct.pack("<IQQQ1sIQ1s", 3, 0, 1, 1, b"k", 8, 1, b"\xff"), "not UTF-8"),
        (
            b"GGUF" + struct.pack("<IQQQ1sIBQ1sIB", 3, 0, 2, 1, b"k", 0, 1, 1, b"k", 0, 2),
            "k appears twice",
        ),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, head: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(head)
    with pytest.raises(ModelFileError, match=message) as caught:
        read_gguf(path)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="folder"):
        read_gguf(tmp_path)


def test_wrong_types_and_missing_keys_are_named(small_gguf: Path) -> None:
    file = read_gguf(small_gguf)
    with pytest.raises(ModelFileError, match=r"general\.name is of type str, expected int"):
        file.get("general.name", int)
    with pytest.raises(ModelFileError, match="add_bos_token is of type bool, expected int"):
        file.get("tokenizer.ggml.add_bos_token", int)
    with pytest.raises(ModelFileError, match=r"llama\.rope\.freq_base is missing"):
        file.require("{arch}.rope.freq_base", float)


def test_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError, match="part 2 of a model split in 3"):
        read_gguf(path)


@pytest.mark.model
def test_smollm2_header(smollm2_gguf: Path) -> None:
    file = read_gguf(smollm2_gguf)
    assert (file.architecture, file.context_length, file.num_layers) == ("llama", 8192, 30)
    assert (file.vocab_size, file.file_type, len(file.tensors)) == (49152, "Q4_1", 272)
    last = max(file.tensors, key=lambda tensor: tensor.offset)
    assert last.offset + last.num_bytes <= smollm2_gguf.stat().st_size
