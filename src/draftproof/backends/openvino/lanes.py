"""Copies of one compiled graph, so that passes of different shapes do not wait for a new shape.

A graph with dynamic extents works out kernels and buffers anew in every layer when a pass
has another shape than the one before: about 10 ms for 30 layers on two cores, half a plain
pass of a small model. Plain passes have one shape, passes with drafts many. So a few copies
of the graph stand side by side, each of which goes on with the shape it had. They share the
pages of keys and values; each packs the weights for itself. To make one takes as long as
loading the graph did, so that it is done beside the passes, and only where shapes change often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import Thread
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from draftproof.errors import DraftproofError

__all__ = ["Lane", "Lanes", "numpy_type"]


def numpy_type(port: Any) -> np.dtype[Any]:
    """Return the element type of an input."""
    kind: np.dtype[Any] = np.dtype(port.get_element_type().to_dtype())
    return kind


class _Input:
    """One input of a request. Its tensor is replaced only when the extent changes."""

    def __init__(self, request: Any, port: Any) -> None:
        self._request = request
        self._port = port
        self._type = numpy_type(port)
        self._held: NDArray[Any] | None = None

    def put(self, values: NDArray[np.integer] | int) -> None:
        """Give the input its values for the next pass."""
        extent = np.shape(values)
        if self._held is None or self._held.shape != extent:
            self._held = np.empty(extent, dtype=self._type)
            self._request.set_tensor(self._port, ov.Tensor(self._held, shared_memory=True))
        self._held[...] = values


class Lane:
    """One copy of the graph.

    Parameters
    ----------
    compiled : openvino.CompiledModel
        The graph.
    names : sequence of str
        Its inputs that change with every pass.
    pages : mapping of str to ndarray
        Its other inputs, which all copies share.
    """

    def __init__(
        self, compiled: Any, names: Sequence[str], pages: Mapping[str, NDArray[Any]]
    ) -> None:
        self._request = compiled.create_infer_request()
        ports = {str(port.get_any_name()): port for port in compiled.inputs}
        self._inputs = {name: _Input(self._request, ports[name]) for name in names}
        for name, array in pages.items():
            self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        vocab_size = int(compiled.outputs[0].get_partial_shape()[1].get_length())
        self._logits: NDArray[np.float32] = np.empty((0, vocab_size), dtype=np.float32)
        #: Shape of the last pass, None where none succeeded; and when that was.
        self.shape: tuple[int, ...] | None = None
        self.last_used = 0

    def run(
        self, values: Mapping[str, NDArray[np.integer] | int], rows: int
    ) -> NDArray[np.float32]:
        """Run one pass.

        Parameters
        ----------
        values : mapping of str to ndarray or int
            The inputs that change.
        rows : int
            Rows M of logits that are wanted, at least one.

        Returns
        -------
        ndarray of float32, shape (M, V)
            A view that the next pass of this copy overwrites.

        Raises
        ------
        RuntimeError
            If the runtime fails.
        """
        for name, array in values.items():
            self._inputs[name].put(array)
        if rows != len(self._logits):
            # Memory of ours, which outlives a change of their number.
            self._logits = np.empty((rows, self._logits.shape[1]), dtype=np.float32)
            self._request.set_output_tensor(0, ov.Tensor(self._logits, shared_memory=True))
        self._request.infer()
        return self._logits

    def output(self, index: int) -> NDArray[np.float32]:
        """Return a further output of the last pass; a view."""
        held: NDArray[np.float32] = self._request.get_output_tensor(index).data
        return held


class Lanes:
    """Chooses the copy for a pass, and adds copies while changes of shape go on.

    Parameters
    ----------
    first : Lane
        The copy that is there.
    make : callable
        Makes another one; called in a thread of its own.
    most : int, default 1
        Most copies.
    patience : int, default 100
        Changes of shape after which another copy is made: by then they took about as
        long as making it.
    """

    def __init__(
        self,
        first: Lane,
        make: Callable[[], Lane],
        *,
        most: int = 1,
        patience: int = 100,
    ) -> None:
        self._lanes = [first]
        self._make = make
        self._most = most
        self._patience = patience
        self._changes = 0
        self._maker: Thread | None = None
        self._made: list[Lane] = []
        self._turns = count(1)
        #: The copy that ran last.
        self.last = first

    def __len__(self) -> int:
        """Return how many copies there are."""
        return len(self._lanes)

    def run(
        self,
        shape: tuple[int, ...],
        values: Mapping[str, NDArray[np.integer] | int],
        rows: int,
    ) -> NDArray[np.float32]:
        """Run one pass on the copy that had its shape, else on the one that waited longest.

        Otherwise as `Lane.run`; later passes overwrite what it returned.

        Parameters
        ----------
        shape : tuple of int
            What kernels and buffers depend on.
        """
        lane = next((each for each in self._lanes if each.shape == shape), None)
        if lane is None:
            lane = self._changed()
        lane.shape = None  # until the pass has succeeded
        logits = lane.run(values, rows)
        lane.shape, lane.last_used, self.last = shape, next(self._turns), lane
        return logits

    def wait(self) -> None:
        """Wait for the copy that is being made, if one is."""
        if self._maker is not None:
            self._maker.join()
            self._take()

    def _changed(self) -> Lane:
        """Return the copy that takes a new shape."""
        self._take()
        self._changes += 1
        is_due = self._changes >= self._patience and len(self._lanes) < self._most
        if is_due and self._maker is None:
            self._changes = 0
            # No daemon: the runtime must not be torn down while it compiles.
            self._maker = Thread(target=self._another, name="another copy of the graph")
            self._maker.start()
        return min(self._lanes, key=lambda each: each.last_used)

    def _take(self) -> None:
        """Take up the copy that was made; where that failed, those that are there do."""
        if self._maker is None or self._maker.is_alive():
            return
        self._maker = None
        if not self._made:
            self._most = len(self._lanes)
        while self._made:
            self._lanes.append(self._made.pop())

    def _another(self) -> None:
        """Make a copy, in a thread of its own."""
        try:
            self._made.append(self._make())
        except (DraftproofError, RuntimeError, MemoryError):
            return  # as for want of memory: `_take` sees that there is none
