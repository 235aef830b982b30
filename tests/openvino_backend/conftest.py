"""Tiny random decoders, written as GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino import OpenVINOBackend, load_openvino, prepare
from draftproof.backends.reference import reference_logits
from draftproof.core.types import FlatBatch, Row

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 96, 64, 4, 2, 16, 128, 2


class TinyGguf:
    """Writes tiny models into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def __call__(
        self,
        arch: str = "llama",
        *,
        tied: bool = True,
        kv_heads: int = KV_HEADS,
        biases: bool | None = None,
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        extra: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray | None] | None = None,
        context: int = 512,
        seed: int = 0,
    ) -> Path:
        """Write a model; ``extra`` is metadata, ``tensors`` replaces or (None) drops some."""
        self._count += 1
        path = self.folder / f"{arch}-{self._count}.gguf"
        drawn: dict[str, Any] = self._draw(
            arch, seed, tied, kv_heads, arch == "qwen2" if biases is None else biases
        )
        drawn.update(tensors or {})
        writer = gguf.GGUFWriter(path, arch)
        writer.add_context_length(context)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        for key, value in (extra or {}).items():
            add.get(type(value), writer.add_string)(key, value)
        for name, value in drawn.items():
            if value is None:
                continue
            if value.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
                writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _draw(
        self, arch: str, seed: int, tied: bool, kv_heads: int, biases: bool
    ) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)

        def matrix(rows: int, columns: int) -> np.ndarray:
            # Wide enough that laws are far from uniform, and that a wrong rotation shows.
            return (rng.standard_normal((rows, columns)) * 2 / np.sqrt(columns)).astype(np.float32)

        def vector(size: int) -> np.ndarray:
            return (1 + 0.3 * rng.standard_normal(size)).astype(np.float32)

        queries, keys = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
        drawn = {"token_embd.weight": matrix(VOCAB, HIDDEN), "output_norm.weight": vector(HIDDEN)}
        if not tied:
            drawn["output.weight"] = matrix(VOCAB, HIDDEN)
        matrices = {
            "attn_q.weight": (queries, HIDDEN),
            "attn_k.weight": (keys, HIDDEN),
            "attn_v.weight": (keys, HIDDEN),
            "attn_output.weight": (HIDDEN, queries),
            "ffn_gate.weight": (FFN, HIDDEN),
            "ffn_up.weight": (FFN, HIDDEN),
            "ffn_down.weight": (HIDDEN, FFN),
        }
        vectors = {"attn_norm.weight": HIDDEN, "ffn_norm.weight": HIDDEN}
        if biases:
            vectors |= {"attn_q.bias": queries, "attn_k.bias": keys, "attn_v.bias": keys}
        if arch == "qwen3":
            vectors |= {"attn_q_norm.weight": HEAD_DIM, "attn_k_norm.weight": HEAD_DIM}
        for layer in range(LAYERS):
            drawn |= {f"blk.{layer}.{name}": matrix(*size) for name, size in matrices.items()}
            drawn |= {f"blk.{layer}.{name}": vector(size) for name, size in vectors.items()}
        return drawn


class Decoder:
    """Feeds a backend; what the tests say most often."""

    def __init__(self, backend: OpenVINOBackend) -> None:
        self.backend = backend

    def feed(self, seq: int, tokens: Sequence[int], wanted: int | None = None) -> np.ndarray:
        """Append tokens and return the logits of the last ``wanted`` of them."""
        return self.feed_all([(seq, tokens)], wanted)

    def feed_all(
        self, rows: Sequence[tuple[int, Sequence[int]]], wanted: int | None = None
    ) -> np.ndarray:
        """Append tokens to several sequences in one pass."""
        batch = [
            Row(
                seq,
                list(tokens),
                self.backend.length(seq),
                len(tokens) if wanted is None else wanted,
            )
            for seq, tokens in rows
        ]
        return self.backend.forward(FlatBatch.from_rows(batch)).copy()

    def score(self, tokens: Sequence[int], widths: Sequence[int] | None = None) -> np.ndarray:
        """Score a text from scratch, cut into passes of the given widths."""
        seq, parts, begin = self.backend.open(), [], 0
        for width in widths or [len(tokens)]:
            parts.append(self.feed(seq, tokens[begin : begin + width]))
            begin += width
        self.backend.close(seq)
        assert begin == len(tokens)
        return np.concatenate(parts)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> TinyGguf:
    """Return the writer of tiny models."""
    return TinyGguf(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def prepared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for prepared models that all tests share."""
    return tmp_path_factory.mktemp("prepared")


@pytest.fixture(scope="session")
def load_tiny(prepared_cache: Path) -> Callable[..., Decoder]:
    """Return a function that prepares and loads a GGUF file."""

    def load(path: Path, precision: str = "f32", **options: Any) -> Decoder:
        options.setdefault("kv_cache_bytes", 4 << 20)
        return Decoder(load_openvino(prepare(path, precision, prepared_cache), **options))

    return load


@pytest.fixture(scope="session")
def llama(tiny_gguf: TinyGguf, load_tiny: Callable[..., Decoder]) -> Decoder:
    """Return a tiny float32 llama with 256 pages."""
    return load_tiny(tiny_gguf("llama"))


@pytest.fixture(scope="session")
def tokens() -> list[int]:
    """Return a text of 70 tokens, more than two pages."""
    return np.random.default_rng(7).integers(0, VOCAB, 70).tolist()


@pytest.fixture(scope="session")
def score_reference() -> Callable[[Path, Sequence[int]], np.ndarray]:
    """Return the plain numpy scorer."""

    def score(path: Path, text: Sequence[int]) -> np.ndarray:
        return reference_logits(DecoderWeights(path), np.array([text], dtype=np.int32))[0]

    return score
