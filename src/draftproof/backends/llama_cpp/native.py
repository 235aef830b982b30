"""The C interface of llama.cpp as a model and a context with arrays for arguments.

Nothing here knows texts, requests or limits. A context holds numbered sequences. A cell
of its memory holds one token and belongs to one or more of them; it is free again when
no sequence has it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.llama_cpp.waiting import brief_waits
from draftproof.errors import BackendError, ConfigError, ModelFileError

with brief_waits():
    from llama_cpp import llama_cpp as lib

__all__ = ["KV_TYPES", "LlamaContext", "LlamaModel"]

_LOG = logging.getLogger("draftproof.llama_cpp")
#: Levels of ggml by number. Warnings are about what is done here on purpose, such as a
#: memory that holds more than one context.
_LEVELS: Final = {2: logging.DEBUG, 3: logging.INFO, 4: logging.ERROR}

#: How keys and values may be kept, by the names of llama.cpp.
KV_TYPES: Final = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "q4_0": lib.GGML_TYPE_Q4_0,
}
_FLASH: Final = {
    None: lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    True: lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    False: lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
#: What a pass that failed answers.
_FAILURES: Final = {
    1: "no free cells for the pass",
    2: "the pass was aborted",
    -1: "the batch was refused",
    -2: "memory for the pass could not be allocated",
    -3: "the computation failed",
}
#: Most tokens of one call; more are passed in several.
_CALL_TOKENS: Final = 512

Ints = NDArray[np.int32]


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _forward_log(level: int, text: bytes, _data: Any) -> None:
    """Hand what the library says to ``logging``, where nobody need listen."""
    _LOG.log(_LEVELS.get(level, logging.DEBUG), "%s", text.decode("utf-8", "replace").rstrip())


_LOG.addHandler(logging.NullHandler())
# The library writes to stderr otherwise, progress and all. One callback serves the process.
lib.llama_log_set(_forward_log, ctypes.c_void_p(0))
lib.llama_backend_init()


class _Errors(logging.Handler):
    """Keeps lines of errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def reason(self) -> str:
        """Return the first line, which says the cause; later ones say what it led to."""
        return self.lines[0] if self.lines else "llama.cpp gave no reason"


@contextmanager
def _errors() -> Iterator[_Errors]:
    """Collect what the library reports as errors meanwhile."""
    errors = _Errors()
    _LOG.addHandler(errors)
    try:
        yield errors
    finally:
        _LOG.removeHandler(errors)


class LlamaModel:
    """The weights of a GGUF file.

    Parameters
    ----------
    path : Path
        The file.
    n_gpu_layers : int, optional
        Layers on the GPU, -1 for all; llama.cpp's choice when None.
    main_gpu : int, optional
        Number of the only GPU to use; layers are split over all when None.

    Raises
    ------
    ConfigError
        If a GPU is asked for and this build of llama.cpp has none.
    ModelFileError
        If the file cannot be loaded, or is no model that continues a text.
    """

    def __init__(
        self, path: Path, *, n_gpu_layers: int | None = None, main_gpu: int | None = None
    ) -> None:
        if n_gpu_layers is not None and n_gpu_layers < -1:
            raise ConfigError(f"n_gpu_layers is {n_gpu_layers}, expected -1 or more")
        if main_gpu is not None and main_gpu < 0:
            raise ConfigError(f"main_gpu is {main_gpu}, expected 0 or more")
        if (n_gpu_layers or main_gpu is not None) and not lib.llama_supports_gpu_offload():
            given = (
                f"main_gpu {main_gpu}" if main_gpu is not None else f"n_gpu_layers {n_gpu_layers}"
            )
            raise ConfigError(
                f"{given} was asked for, but this build of llama-cpp-python has no GPU support"
            )
        params = lib.llama_model_default_params()
        if n_gpu_layers is not None:
            params.n_gpu_layers = n_gpu_layers
        if main_gpu is not None:
            # Otherwise the number would only say where small tensors go.
            params.split_mode = lib.LLAMA_SPLIT_MODE_NONE
            params.main_gpu = main_gpu
        with _errors() as errors:
            self.handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise ModelFileError(f"{path}: llama.cpp cannot load it: {errors.reason()}")
        weakref.finalize(self, lib.llama_model_free, self.handle)
        self.path = path
        vocab = lib.llama_model_get_vocab(self.handle)
        self.vocab_size = int(lib.llama_vocab_n_tokens(vocab))
        self.context_length = int(lib.llama_model_n_ctx_train(self.handle))
        self.window = int(lib.llama_model_n_swa(self.handle))
        #: Whether tokens change a state that keeps nothing of the state before.
        self.recurrent = bool(
            lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle)
        )
        if lib.llama_model_has_encoder(self.handle) or not lib.llama_model_has_decoder(self.handle):
            raise ModelFileError(f"{path}: has an encoder, expected a model that continues a text")
        if lib.llama_model_is_diffusion(self.handle):
            raise ModelFileError(f"{path}: a diffusion model has no law of the next token")


class LlamaContext:
    """A memory of cells over a model, and the passes that fill it.

    Parameters
    ----------
    model : LlamaModel
        The weights.
    num_cells : int
        Tokens that the memory holds, all sequences together; a multiple of 256.
    num_slots : int
        Numbered sequences, 1 to 256.
    threads : int
        Threads of a pass.
    flash_attn : bool, optional
        Whether attention runs as one fused kernel; llama.cpp chooses when None.
    cache_type_k, cache_type_v : str, default "f16"
        How keys and values are kept, from `KV_TYPES`.

    Raises
    ------
    ConfigError
        If llama.cpp refuses the options.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_cells: int,
        num_slots: int,
        threads: int,
        flash_attn: bool | None = None,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
    ) -> None:
        for name, kind in (("cache_type_k", cache_type_k), ("cache_type_v", cache_type_v)):
            if kind not in KV_TYPES:
                raise ConfigError(f"{name} is {kind!r}; expected one of {', '.join(KV_TYPES)}")
        params = lib.llama_context_default_params()
        params.n_ctx = num_cells
        params.n_batch = params.n_ubatch = min(_CALL_TOKENS, num_cells)
        params.n_seq_max = num_slots
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = _FLASH[flash_attn]
        params.type_k, params.type_v = KV_TYPES[cache_type_k], KV_TYPES[cache_type_v]
        params.kv_unified = True  # cells that sequences can share
        params.swa_full = True  # a window of cells that were dropped cannot be rewound
        params.no_perf = True
        self.model = model
        with _errors() as errors:
            self.handle = lib.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise ConfigError(f"llama.cpp cannot run {model.path.name} so: {errors.reason()}")
        # The model outlives its contexts: the finaliser holds it.
        weakref.finalize(self, _free, self.handle, model)
        self.num_cells = int(lib.llama_n_ctx(self.handle))
        self.num_slots = int(lib.llama_n_seq_max(self.handle))
        self._call_tokens = int(lib.llama_n_batch(self.handle))
        self._memory = lib.llama_get_memory(self.handle)
        if not self._memory:
            raise ModelFileError(f"{model.path}: has no memory of a text, expected a causal model")

    def share(self, source: int, target: int, length: int) -> None:
        """Let an empty sequence have the cells of another before a position."""
        lib.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def drop(self, slot: int, length: int) -> bool:
        """Take the cells of a sequence from a position on; False if its state forbids it."""
        return bool(lib.llama_memory_seq_rm(self._memory, slot, length, -1))

    def first_position(self, slot: int) -> int:
        """Return the lowest position that a sequence still has, -1 when it is empty."""
        return int(lib.llama_memory_seq_pos_min(self._memory, slot))

    def state_bytes(self, slot: int) -> int:
        """Return the size of what is kept of a sequence."""
        return int(lib.llama_state_seq_get_size(self.handle, slot))

    def decode(
        self,
        token_ids: Ints,
        positions: Ints,
        slots: Ints,
        slot_counts: Ints,
        wanted: NDArray[np.int8],
    ) -> NDArray[np.float32]:
        """Append tokens to sequences and return the logits of some of them.

        Parameters
        ----------
        token_ids, positions : ndarray of int32, shape (N,)
            The tokens, rising in position within each sequence.
        slots : ndarray of int32
            The sequences of each token, flat. A token sees the cells of the first one.
        slot_counts : ndarray of int32, shape (N,)
            How many sequences each token has; at least 1.
        wanted : ndarray of int8, shape (N,)
            1 where logits are wanted, else 0.

        Returns
        -------
        ndarray of float32, shape (M, V)
            A view of llama.cpp's own memory that the next call overwrites, or an array
            of its own when several calls were needed.

        Raises
        ------
        BackendError
            If a call failed. Tokens of calls before it stay appended.
        """
        # A token stands behind pointers to its sequences: address of the first one each.
        ends = np.cumsum(slot_counts, dtype=np.int64)
        firsts = (ends - slot_counts) * slots.itemsize + slots.ctypes.data
        pointers = firsts.astype(np.uintp)
        parts: list[NDArray[np.float32]] = []
        for begin in range(0, len(token_ids), self._call_tokens):
            piece = slice(begin, begin + self._call_tokens)
            if parts:
                parts[-1] = parts[-1].copy()
            parts.append(
                self._call(
                    token_ids[piece],
                    positions[piece],
                    slot_counts[piece],
                    pointers[piece],
                    wanted[piece],
                )
            )
        parts = [part for part in parts if len(part)] or parts[:1]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _call(
        self,
        token_ids: Ints,
        positions: Ints,
        slot_counts: Ints,
        pointers: NDArray[np.uintp],
        wanted: NDArray[np.int8],
    ) -> NDArray[np.float32]:
        """Run one call; the arrays are contiguous and live until it returns."""
        batch = lib.llama_batch()
        batch.n_tokens = len(token_ids)
        batch.token = _pointer(token_ids, ctypes.c_int32)
        batch.pos = _pointer(positions, ctypes.c_int32)
        batch.n_seq_id = _pointer(slot_counts, ctypes.c_int32)
        batch.seq_id = ctypes.cast(
            pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
        )
        batch.logits = _pointer(wanted, ctypes.c_int8)
        code = lib.llama_decode(self.handle, batch)
        if code:
            raise BackendError(f"llama.cpp: {_FAILURES.get(code, f'the pass failed with {code}')}")
        shape = (int(np.count_nonzero(wanted)), self.model.vocab_size)
        if not shape[0]:
            return np.empty(shape, dtype=np.float32)
        logits = lib.llama_get_logits(self.handle)
        if not logits:
            raise BackendError("llama.cpp: the pass left no logits")
        kind = ctypes.c_float * (shape[0] * shape[1])
        buffer: Any = kind.from_address(ctypes.addressof(logits.contents))
        buffer.owner = self  # memory of the context, which must not go before the view
        rows: NDArray[np.float32] = np.frombuffer(buffer, dtype=np.float32).reshape(shape)
        return rows


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _free(handle: Any, _model: LlamaModel) -> None:
    lib.llama_free(handle)
