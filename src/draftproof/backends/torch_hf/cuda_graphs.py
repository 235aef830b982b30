"""CUDA's graphs, and when they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, get_args

import torch

from draftproof.backends.torch_hf.attention import Attention
from draftproof.backends.torch_hf.graphs import GraphRunner, Outputs
from draftproof.errors import ConfigError

__all__ = ["GRAPHS", "CudaCapturer", "GraphsName", "choose_graphs"]

#: Whether small passes are replayed. ``auto``: on CUDA, where they can be.
GraphsName = Literal["auto", "on", "off"]
GRAPHS: Final[tuple[GraphsName, ...]] = get_args(GraphsName)

#: Runs before a capture, so that nothing is set up or chosen inside it.
_WARM_UPS: Final = 3


class CudaCapturer:
    """Captures CUDA graphs that share their memory.

    A graph's intermediate results may lie where another's do. That is safe because one
    stream runs one graph at a time, and takes the outputs out before the next.

    Parameters
    ----------
    device : torch.device
        A CUDA device.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream: Any = None
        self._pool: Any = None

    def capture(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Return the replay of a call; see `Capturer`.

        Parameters
        ----------
        call : callable
            Runs on the current stream of the device.

        Returns
        -------
        callable
            Launches the graph on the stream that is current then.
        """
        here = torch.cuda.current_stream(self._device)
        # torch leaves its side stream current when a capture fails; ours is put back.
        with torch.cuda.device(self._device), torch.cuda.stream(here):
            if self._stream is None:
                make_stream: Any = torch.cuda.Stream  # torch does not type it
                self._stream = make_stream()
                self._pool = torch.cuda.graph_pool_handle()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    call()
            here.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may allocate meanwhile: only this one has to keep still.
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                outputs = call()
        return partial(_replay, graph, outputs)


def _replay(graph: Any, outputs: Outputs) -> Outputs:
    graph.replay()
    return outputs


def choose_graphs(
    choice: GraphsName, device: Any, num_ranks: int, attention: Attention | None = None
) -> Callable[..., GraphRunner] | None:
    """Return the maker of graph runners that a choice stands for.

    Parameters
    ----------
    choice : {"auto", "on", "off"}
        What the user wants.
    device : torch.device
        Where the model is.
    num_ranks : int
        Ranks that the model is cut over.
    attention : Attention, optional
        What it attends with; without, only what is known before a model is loaded is
        looked at.

    Returns
    -------
    callable or None
        Takes a `PagedModel` and its `KvPages`. None runs every pass in the ordinary way.

    Raises
    ------
    ConfigError
        If the choice is unknown, or ``"on"`` where there can be no graphs.
    """
    if choice not in GRAPHS:
        raise ConfigError(f"cuda_graphs is {choice!r}, expected one of {', '.join(GRAPHS)}")
    obstacle = ""
    if device.type != "cuda":
        obstacle = f"the model is on {device.type}"
    elif num_ranks > 1:
        obstacle = f"the model is cut over {num_ranks} ranks"
    elif attention is not None and not attention.capturable:
        obstacle = f"{attention.kernel.name} attention cannot be captured"
    if choice == "on" and obstacle:
        raise ConfigError(f"cuda_graphs is 'on', but {obstacle}; expected 'auto' or 'off'")
    if choice == "off" or obstacle:
        return None
    # A draft model that shares the weights shares the graphs' memory too.
    return partial(GraphRunner, capturer=CudaCapturer(device))
