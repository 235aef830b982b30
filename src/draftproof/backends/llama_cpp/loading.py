"""From a GGUF file to a running backend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from draftproof.backends.llama_cpp.backend import LlamaCppBackend
from draftproof.backends.llama_cpp.native import LlamaContext, LlamaModel
from draftproof.errors import ConfigError
from draftproof.models import GgufFile, read_gguf

__all__ = ["load_llama_cpp"]

#: Room for keys and values when nobody says. The library touches all of it at once.
_DEFAULT_KV_BYTES: Final = 1 << 28
#: Context that there is room for when nobody says, however large a cell is.
_LEAST_CONTEXT: Final = 8192
#: Most full contexts that there is room for when nobody says: each rollback walks over cells.
_MOST_CONTEXTS: Final = 8
#: The library rounds its number of cells up to this; it is rounded down here.
_CELL_UNIT: Final = 256
#: Bytes that a token of a saved sequence has besides: position, owners, its id.
_SAVED_BESIDES: Final = 12
#: Sequences for texts and for branches of rows. Logits of that many tokens are always kept.
_SLOTS: Final = 128
#: The same for recurrent models, where each one is a state in memory.
_RECURRENT_SLOTS: Final = 16


def load_llama_cpp(
    path: str | Path,
    *,
    name: str | None = None,
    vocab_size: int | None = None,
    context_length: int | None = None,
    kv_cache_bytes: int | None = None,
    threads: int | None = None,
    n_gpu_layers: int | None = None,
    main_gpu: int | None = None,
    flash_attn: bool | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    prefix_caching: bool = True,
) -> LlamaCppBackend:
    """Load a GGUF file of any architecture and type that llama.cpp runs.

    Parameters
    ----------
    path : str or Path
        The file.
    name : str, optional
        Name shown to people; the file's own when None.
    vocab_size : int, optional
        Number of real token ids; rows of the head past them are padding. All when None.
    context_length : int, optional
        Use less context than the model has.
    kv_cache_bytes : int, optional
        Room for keys and values; 256 MiB when None, or what 8,192 tokens take if that is
        more. All of it is memory from the start.
    threads : int, optional
        Threads of a pass; all cores that this process may use when None.
    n_gpu_layers : int, optional
        Layers on the GPU, -1 for all; all that fit by llama.cpp's own choice when None.
    main_gpu : int, optional
        Number of the only GPU to use; layers are split over all when None.
    flash_attn : bool, optional
        Whether attention is one fused kernel; llama.cpp chooses when None.
    cache_type_k, cache_type_v : str, default "f16"
        How keys and values are kept: ``"f32"``, ``"f16"``, ``"q8_0"``, ``"q5_1"``,
        ``"q5_0"``, ``"q4_1"`` or ``"q4_0"``.
    prefix_caching : bool, default True
        Whether committed beginnings are found again by later sequences.

    Returns
    -------
    LlamaCppBackend
        Ready to run.

    Raises
    ------
    ConfigError
        If an option is out of range, or this build of llama.cpp cannot honour it.
    ModelFileError
        If the file is missing, damaged, or not a causal language model.
    """
    cores = _num_cores()
    if threads is not None and not 1 <= threads <= 4 * cores:
        raise ConfigError(f"threads is {threads}, expected 1 to {4 * cores}")
    file = read_gguf(path)
    model = LlamaModel(file.path, n_gpu_layers=n_gpu_layers, main_gpu=main_gpu)
    if context_length is not None and not 1 <= context_length <= model.context_length:
        raise ConfigError(
            f"context_length is {context_length}, expected 1 to {model.context_length}"
        )

    def make(num_cells: int, num_slots: int) -> LlamaContext:
        return LlamaContext(
            model,
            num_cells=num_cells,
            num_slots=num_slots,
            threads=threads or cores,
            flash_attn=flash_attn,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
        )

    cell_bytes = _bytes_per_token(make(_CELL_UNIT, 1))
    num_cells = _num_cells(model, cell_bytes, context_length, kv_cache_bytes)
    context = make(num_cells, _RECURRENT_SLOTS if model.recurrent else _SLOTS)
    return LlamaCppBackend(
        context,
        name=name or file.name,
        precision=_precision(file),
        context_length=context_length or model.context_length,
        kv_bytes_per_token=cell_bytes,
        vocab_size=vocab_size,
        prefix_caching=prefix_caching,
    )


def _num_cells(
    model: LlamaModel, cell_bytes: int, context_length: int | None, kv_cache_bytes: int | None
) -> int:
    """Return how many tokens the memory shall hold."""
    wanted = context_length or min(model.context_length, _LEAST_CONTEXT)
    if not cell_bytes:
        return -(-wanted // _CELL_UNIT) * _CELL_UNIT
    if kv_cache_bytes is None:
        most = min(_DEFAULT_KV_BYTES // cell_bytes, _MOST_CONTEXTS * wanted)
        return -(-max(wanted, most) // _CELL_UNIT) * _CELL_UNIT
    num_cells = kv_cache_bytes // cell_bytes // _CELL_UNIT * _CELL_UNIT
    if num_cells < _CELL_UNIT:
        raise ConfigError(
            f"kv_cache_bytes is {kv_cache_bytes}, expected at least {_CELL_UNIT * cell_bytes}: "
            f"{_CELL_UNIT} tokens of {cell_bytes} bytes"
        )
    if context_length is not None and context_length > num_cells:
        raise ConfigError(
            f"context_length is {context_length}, but {kv_cache_bytes} bytes hold keys and "
            f"values of {num_cells} tokens; raise kv_cache_bytes"
        )
    return num_cells


def _precision(file: GgufFile) -> str:
    """Return the type of most of the weights, as the file names it where it does."""
    if not file.file_type.startswith("unknown"):
        return file.file_type
    sizes: dict[str, int] = {}
    for tensor in file.tensors:
        sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.num_bytes
    return max(sizes, key=lambda kind: sizes[kind])


def _bytes_per_token(context: LlamaContext) -> int:
    """Measure what one more token adds to a sequence.

    No formula holds for every architecture, but the library can tell the size of a
    sequence if it were saved.
    """
    sizes = []
    for position in range(2):
        context.decode(
            np.zeros(1, dtype=np.int32),
            np.array([position], dtype=np.int32),
            np.zeros(1, dtype=np.int32),
            np.ones(1, dtype=np.int32),
            np.ones(1, dtype=np.int8),
        )
        sizes.append(context.state_bytes(0))
    return max(0, sizes[1] - sizes[0] - _SAVED_BESIDES)


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
