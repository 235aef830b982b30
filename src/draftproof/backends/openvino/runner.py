"""One compiled graph, its pages of keys and values, and one pass over a flat batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from draftproof.backends.openvino.exits import first_layers
from draftproof.backends.openvino.lanes import Lane, Lanes, numpy_type
from draftproof.backends.openvino.paging import BATCH_INPUTS, TREE_INPUTS, last_line, make_paged
from draftproof.cache import PageCopy, SlotMove
from draftproof.errors import BackendError, ConfigError, ModelFileError

__all__ = ["IR_FILE", "GraphRunner", "KvPrecision", "PassTables", "compile_paged"]

#: How keys and values are kept.
KvPrecision = Literal["f32", "f16"]

#: Name of the graph inside a model folder, as optimum writes it.
IR_FILE: Final = "openvino_model.xml"

_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class PassTables:
    """What one pass reads besides the pages. Arrays are int32, where nothing else is said.

    Parameters
    ----------
    token_ids : ndarray, shape (N,)
        Token ids.
    positions : ndarray, shape (N,)
        Absolute positions.
    past_lens : ndarray, shape (B,)
        Cached tokens of each row before the pass.
    row_begins : ndarray, shape (B + 1,)
        Row ``b`` holds the tokens ``row_begins[b]:row_begins[b + 1]``.
    block_indices : ndarray, shape (P,)
        Pages of all rows, one row after another.
    block_begins : ndarray, shape (B + 1,)
        Row ``b`` holds the pages ``block_begins[b]:block_begins[b + 1]``.
    max_context_len : int
        Longest row after the pass, in tokens.
    logits_rows : ndarray, shape (M,)
        Flat indices of the tokens to score.
    sees : ndarray of uint8, shape (S,)
        For each row that branches, n tokens long, an n by n matrix: 1 where the token of
        the line sees the one of the column. The matrices one after another.
    sees_begins : ndarray, shape (B + 1,) or (0,)
        Row ``b`` has ``sees[begins[b]:begins[b + 1]]``, empty for a chain. Empty when
        every row is a chain.
    """

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    past_lens: NDArray[np.int32]
    row_begins: NDArray[np.int32]
    block_indices: NDArray[np.int32]
    block_begins: NDArray[np.int32]
    max_context_len: int
    logits_rows: NDArray[np.int32]
    sees: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    sees_begins: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, dtype=np.int32))


def compile_paged(
    folder: Path,
    kv_precision: KvPrecision,
    threads: int | None,
    *,
    with_hidden: bool = False,
    num_layers: int | None = None,
) -> Any:
    """Read the graph of a folder, make it paged and compile it for the CPU.

    Parameters
    ----------
    folder : Path
        Holds ``openvino_model.xml`` and its ``.bin``.
    kv_precision : {"f32", "f16"}
        How keys and values are kept.
    threads : int or None
        Threads of the runtime; None lets it use every physical core.
    with_hidden : bool, default False
        Whether the graph also gives what its output layer reads.
    num_layers : int, optional
        Stop after the first so many layers; see `draftproof.backends.openvino.exits`.

    Returns
    -------
    openvino.CompiledModel
        The compiled graph.

    Raises
    ------
    ConfigError
        If there are not that many layers.
    ModelFileError
        If the graph cannot be read, cut, paged or compiled.
    """
    core = ov.Core()
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": kv_precision,
        # Activations quantised on the fly would make a row depend on its neighbours.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
    }
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = str(threads)
    path = folder / IR_FILE
    try:
        model = core.read_model(path)
    except RuntimeError as error:
        raise ModelFileError(f"{path}: cannot be read as an OpenVINO graph") from error
    if num_layers is not None:
        model = first_layers(model, num_layers)
    make_paged(model, with_hidden=with_hidden)
    try:
        return core.compile_model(model, "CPU", options)
    except RuntimeError as error:
        raise ModelFileError(f"{path}: cannot be compiled: {last_line(error)}") from error


class GraphRunner:
    """Runs passes. Knows pages and positions, nothing of sequences.

    Parameters
    ----------
    compiled : openvino.CompiledModel
        A paged graph.
    kv_cache_bytes : int
        Room for keys and values. Memory is touched page by page as it is used.
    scratch_pages : int, default 0
        Pages past that room, for what lives within a pass; their numbers follow
        ``num_pages``.
    compile_more : callable, optional
        Compiles the same graph again; see `draftproof.backends.openvino.lanes`.
    most_lanes : int, default 1
        Most copies of the graph.
    patience : int, default 100
        Changes of shape after which another copy is made.

    Raises
    ------
    ConfigError
        If the room is smaller than one page.
    """

    def __init__(
        self,
        compiled: Any,
        kv_cache_bytes: int,
        scratch_pages: int = 0,
        *,
        compile_more: Callable[[], Any] | None = None,
        most_lanes: int = 1,
        patience: int = 100,
    ) -> None:
        self.num_threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        ports = {str(port.get_any_name()): port for port in compiled.inputs}
        #: Whether rows may branch.
        self.trees = all(name in ports for name in TREE_INPUTS)
        names = (*BATCH_INPUTS, *TREE_INPUTS) if self.trees else BATCH_INPUTS
        pages = {name: port for name, port in ports.items() if "_cache." in name}
        shapes = {name: _page_shape(name, port) for name, port in pages.items()}
        self.page_size = next(iter(shapes.values()))[1]
        bytes_of = {
            name: int(np.prod(shapes[name])) * numpy_type(port).itemsize
            for name, port in pages.items()
        }
        self.bytes_per_page = sum(bytes_of.values())
        self.num_pages = kv_cache_bytes // self.bytes_per_page
        if self.num_pages < 1:
            raise ConfigError(
                f"kv_cache_bytes is {kv_cache_bytes}, expected at least one page of "
                f"{self.bytes_per_page} bytes"
            )
        self.vocab_size = int(compiled.outputs[0].get_partial_shape()[1].get_length())
        #: Width of the hidden states that a pass gives; 0 when it gives none.
        self.hidden_size = 0
        if len(compiled.outputs) > 1:
            self.hidden_size = int(compiled.outputs[1].get_partial_shape()[1].get_length())
        self.scratch = range(self.num_pages, self.num_pages + scratch_pages)
        #: Layers that keep keys and values.
        self.num_layers = len(pages) // 2
        held = {
            name: _lazy_zeros((self.scratch.stop, *shapes[name]), numpy_type(port))
            for name, port in pages.items()
        }
        self._pages = list(held.values())

        def make() -> Lane:
            return Lane(compiled if compile_more is None else compile_more(), names, held)

        most = 1 if compile_more is None else most_lanes
        self._lanes = Lanes(Lane(compiled, names, held), make, most=most, patience=patience)

    @property
    def num_lanes(self) -> int:
        """Copies of the graph that stand side by side; waits for one that is being made."""
        self._lanes.wait()
        return len(self._lanes)

    def copy_page(self, copy: PageCopy) -> None:
        """Copy a page in every layer.

        Parameters
        ----------
        copy : PageCopy
            The whole page is copied: where a slot lies in a page is the runtime's
            affair, and the slots past ``num_slots`` are written before they are read.
        """
        for array in self._pages:
            array[copy.dst_page] = array[copy.src_page]

    def move_slots(self, moves: Sequence[SlotMove]) -> None:
        """Copy keys and values of single tokens, in every layer, as if all at once.

        Parameters
        ----------
        moves : sequence of SlotMove
            No slot is written twice.

        Notes
        -----
        Pages of floating point numbers hold slots along their third axis, (page, head,
        slot, width). The conformance kit fails on a runtime that lays them out otherwise.
        """
        if not moves:
            return
        from_pages, from_slots, to_pages, to_slots = np.array(moves, dtype=np.intp).T
        for array in self._pages:
            array[to_pages, :, to_slots] = array[from_pages, :, from_slots]

    def run(self, tables: PassTables) -> NDArray[np.float32]:
        """Write keys and values of the tokens and score the wanted ones.

        Parameters
        ----------
        tables : PassTables
            The batch.

        Returns
        -------
        ndarray of float32, shape (M, V)
            A view that the next call overwrites.

        Raises
        ------
        BackendError
            If the runtime fails; the slots of the new tokens are then undefined.
        """
        count = len(tables.logits_rows)
        # The output layer is not made for zero rows: one is scored, and dropped.
        rows = tables.logits_rows if count else np.zeros(1, dtype=np.int32)
        values: dict[str, NDArray[np.integer] | int] = {
            "input_ids": tables.token_ids,
            "position_ids": tables.positions,
            "past_lens": tables.past_lens,
            "subsequence_begins": tables.row_begins,
            "block_indices": tables.block_indices,
            "block_indices_begins": tables.block_begins,
            "max_context_len": tables.max_context_len,
            "rows": rows,
        }
        if self.trees:
            values |= {"qq_bias": tables.sees, "qq_bias_begins": tables.sees_begins}
        shape = (len(tables.token_ids), len(tables.past_lens), len(rows), len(tables.sees))
        try:
            return self._lanes.run(shape, values, len(rows))[:count]
        except RuntimeError as error:
            raise BackendError(f"the runtime failed: {last_line(error)}") from error

    def hidden(self, count: int) -> NDArray[np.float32]:
        """Return a copy of what the output layer read in the last pass, (count, E).

        Parameters
        ----------
        count : int
            How many of the pass's tokens, from the first.
        """
        return self._lanes.last.output(1)[:count].copy()


def _page_shape(name: str, port: Any) -> tuple[int, ...]:
    """Return (heads, slots, width) of one page."""
    shape = port.get_partial_shape()
    if len(shape) != 4 or any(shape[i].is_dynamic for i in (1, 2, 3)):
        raise ModelFileError(
            f"the pages {name} have the shape {shape}, expected three fixed extents"
        )
    return tuple(int(shape[i].get_length()) for i in (1, 2, 3))


def _lazy_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return aligned zeros whose memory is not touched yet.

    Zeros matter: a masked slot is multiplied by weight 0, which NaN would survive.
    """
    count = int(np.prod(shape))
    raw = np.zeros(count * dtype.itemsize + _ALIGNMENT, dtype=np.uint8)
    skip = -raw.ctypes.data % _ALIGNMENT
    return raw[skip : skip + count * dtype.itemsize].view(dtype).reshape(shape)
