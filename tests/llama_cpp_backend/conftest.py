"""Tiny random models as GGUF files, with a tokenizer of all bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from draftproof.backends.llama_cpp import LlamaCppBackend, LlamaModel
from draftproof.backends.llama_cpp.native import LlamaContext
from draftproof.core.types import FlatBatch, Row

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 64, 4, 2, 16, 128, 2
INNER, STATE, CONV, RANK = 2 * HIDDEN, 16, 4, 4
MERGES = ["t h", "h e", "th e", "a n", "i n"]
END = "<|end|>"


def byte_pieces() -> list[str]:
    """Return the letter that byte-level vocabularies write for each byte."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


VOCABULARY = [*byte_pieces(), *(merge.replace(" ", "") for merge in MERGES), END]
VOCAB = len(VOCABULARY)


class TinyGguf:
    """Writes tiny models into a folder; the same arguments give the same file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, arch: str = "llama", kind: str = "F32", window: int = 0) -> Path:
        """Write a model of an architecture whose matrices are of some type."""
        path = self.folder / f"{arch}-{kind}-{window}.gguf"
        if path.exists():
            return path
        writer = gguf.GGUFWriter(path, arch)
        writer.add_name(f"tiny {arch}")
        writer.add_context_length(512)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_layer_norm_rms_eps(1e-5)
        tensors = self._tensors(arch, np.random.default_rng(3))
        if arch == "mamba":
            writer.add_ssm_conv_kernel(CONV)
            writer.add_ssm_inner_size(INNER)
            writer.add_ssm_state_size(STATE)
            writer.add_ssm_time_step_rank(RANK)
            writer.add_feed_forward_length(0)
            writer.add_head_count(0)
        else:
            writer.add_feed_forward_length(FFN)
            writer.add_head_count(HEADS)
            writer.add_head_count_kv(KV_HEADS)
            writer.add_key_length(HEAD_DIM)
            writer.add_value_length(HEAD_DIM)
            writer.add_rope_freq_base(10000.0)
        if window:
            writer.add_sliding_window(window)
        self._add_vocabulary(writer)
        wanted = gguf.GGMLQuantizationType[kind]
        for name, value in tensors.items():
            keep = value.ndim != 2 or name.endswith(("ssm_a", "conv1d.weight"))
            if keep or wanted == gguf.GGMLQuantizationType.F32:
                writer.add_tensor(name, value)
            else:
                writer.add_tensor(name, gguf.quants.quantize(value, wanted), raw_dtype=wanted)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_vocabulary(self, writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(VOCABULARY)
        writer.add_token_types([1] * (VOCAB - 1) + [3])
        writer.add_token_merges(MERGES)
        writer.add_eos_token_id(VOCAB - 1)
        writer.add_bos_token_id(VOCAB - 1)

    def _tensors(self, arch: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
        def matrix(rows: int, columns: int) -> np.ndarray:
            # Wide enough that laws are far from uniform, and that a wrong rotation shows.
            return (rng.standard_normal((rows, columns)) * 2 / np.sqrt(columns)).astype(np.float32)

        def vector(size: int) -> np.ndarray:
            return (1 + 0.3 * rng.standard_normal(size)).astype(np.float32)

        found = {"token_embd.weight": matrix(VOCAB, HIDDEN), "output_norm.weight": vector(HIDDEN)}
        for layer in range(LAYERS):
            part = (
                self._mamba(matrix, vector)
                if arch == "mamba"
                else self._block(arch, matrix, vector)
            )
            found |= {f"blk.{layer}.{name}": value for name, value in part.items()}
        return found

    def _block(self, arch: str, matrix: Any, vector: Any) -> dict[str, np.ndarray]:
        queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        part = {
            "attn_norm.weight": vector(HIDDEN),
            "ffn_norm.weight": vector(HIDDEN),
            "attn_q.weight": matrix(queries, HIDDEN),
            "attn_k.weight": matrix(keys, HIDDEN),
            "attn_v.weight": matrix(keys, HIDDEN),
            "attn_output.weight": matrix(HIDDEN, queries),
            "ffn_gate.weight": matrix(FFN, HIDDEN),
            "ffn_up.weight": matrix(FFN, HIDDEN),
            "ffn_down.weight": matrix(HIDDEN, FFN),
        }
        if arch in ("qwen3", "gemma3"):
            part |= {"attn_q_norm.weight": vector(HEAD_DIM), "attn_k_norm.weight": vector(HEAD_DIM)}
        if arch == "gemma3":
            part |= {
                "post_attention_norm.weight": vector(HIDDEN),
                "post_ffw_norm.weight": vector(HIDDEN),
            }
        return part

    def _mamba(self, matrix: Any, vector: Any) -> dict[str, np.ndarray]:
        states = np.tile(np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1))
        return {
            "attn_norm.weight": vector(HIDDEN),
            "ssm_in.weight": matrix(2 * INNER, HIDDEN),
            "ssm_conv1d.weight": matrix(INNER, CONV),
            "ssm_conv1d.bias": vector(INNER),
            "ssm_x.weight": matrix(RANK + 2 * STATE, INNER),
            "ssm_dt.weight": matrix(INNER, RANK),
            "ssm_dt.bias": -2 * vector(INNER),
            "ssm_a": -states / STATE,
            "ssm_d": vector(INNER),
            "ssm_out.weight": matrix(HIDDEN, INNER),
        }


class Decoder:
    """Feeds a backend; what the tests say most often."""

    def __init__(self, backend: LlamaCppBackend) -> None:
        self.backend = backend

    def feed(
        self,
        sequence_id: int,
        tokens: Sequence[int],
        wanted: int | None = None,
        parents: Sequence[int] | None = None,
    ) -> np.ndarray:
        """Append tokens and return a copy of the logits of the last ``wanted`` of them."""
        count = len(tokens) if wanted is None else wanted
        start = self.backend.length(sequence_id)
        row = Row(sequence_id, list(tokens), start, count, parents)
        return self.backend.forward(FlatBatch.from_rows([row])).copy()

    def score(self, tokens: Sequence[int], widths: Sequence[int] | None = None) -> np.ndarray:
        """Score a text from scratch, cut into passes of the given widths."""
        sequence_id, parts, begin = self.backend.open(), [], 0
        for width in widths or [len(tokens)]:
            parts.append(self.feed(sequence_id, tokens[begin : begin + width]))
            begin += width
        self.backend.close(sequence_id)
        assert begin == len(tokens)
        return np.concatenate(parts)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> TinyGguf:
    """Return the writer of tiny models."""
    return TinyGguf(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def make_backend(tiny_gguf: TinyGguf) -> Callable[..., LlamaCppBackend]:
    """Return a function that makes backends over shared weights."""
    models: dict[Path, LlamaModel] = {}

    def make(
        arch: str = "llama",
        kind: str = "F32",
        *,
        window: int = 0,
        cells: int = 1024,
        slots: int = 32,
        context: int = 512,
        kv: str = "f32",
        flash_attn: bool | None = False,  # the fused kernel rounds to float16
        context_type: type[LlamaContext] = LlamaContext,
        **options: Any,
    ) -> LlamaCppBackend:
        path = tiny_gguf(arch, kind, window)
        if path not in models:
            models[path] = LlamaModel(path)
        memory = context_type(
            models[path],
            num_cells=cells,
            num_slots=slots,
            threads=1,
            flash_attn=flash_attn,
            cache_type_k=kv,
            cache_type_v=kv,
        )
        size = 0 if arch == "mamba" else 2 * LAYERS * KV_HEADS * HEAD_DIM * 4
        return LlamaCppBackend(
            memory,
            name=f"tiny {arch}",
            precision=kind,
            context_length=context,
            kv_bytes_per_token=size,
            **options,
        )

    return make


@pytest.fixture(scope="session")
def decoder(make_backend: Callable[..., LlamaCppBackend]) -> Callable[..., Decoder]:
    """Return a function that makes backends with a short way to feed them."""
    return lambda *arguments, **options: Decoder(make_backend(*arguments, **options))


@pytest.fixture
def llama(make_backend: Callable[..., LlamaCppBackend]) -> Decoder:
    """Return a tiny float32 llama."""
    return Decoder(make_backend())


@pytest.fixture(scope="session")
def tokens() -> list[int]:
    """Return a text of 70 tokens, more than two pages."""
    drawn: list[int] = np.random.default_rng(7).integers(0, VOCAB - 1, 70).tolist()
    return drawn
