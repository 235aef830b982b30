"""Stand-ins for CUDA graphs: what they record, what they count, and how they fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from draftproof.backends.torch_hf import TorchBackend
from draftproof.backends.torch_hf.graphs import GraphRunner
from draftproof.backends.torch_hf.inspect import describe_layers
from draftproof.backends.torch_hf.model import PagedModel

#: Operators whose result the host reads: no graph can hold them.
_READS = ("item", "_local_scalar_dense", "nonzero", "is_nonzero", "equal")


class _Recorder(TorchDispatchMode):
    """Writes down every operator, its arguments and its results."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in _READS:
            raise RuntimeError(f"{function} waits for the device, which a capture cannot")
        found = function(*args, **(kwargs or {}))
        self.operators.append((function, args, kwargs or {}, found))
        return found


class RecordedOps:
    """Replays the operators of a call, as a CUDA graph replays its kernels.

    No Python of the model runs again, and no number of the host is read again. As on a GPU the
    call runs once before it is recorded.
    """

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any]:
        call()
        with _Recorder() as recorder:
            outputs = call()
        self.num_captured += 1
        return partial(self._replay, recorder.operators, outputs)

    def _replay(self, operators, outputs):
        self.num_replayed += 1
        made: dict[int, Any] = {}

        def now(value):
            return made.get(id(value), value)

        for function, args, kwargs, before in operators:
            found = function(*tree_map(now, args), **tree_map(now, kwargs))
            for old, new in zip(tree_flatten(before)[0], tree_flatten(found)[0], strict=True):
                made[id(old)] = new
        return tree_map(now, outputs)


class Failing:
    """Captures a few calls and then fails, as a GPU without memory does."""

    def __init__(self, num_captured: int) -> None:
        self._left = num_captured

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any]:
        if self._left == 0:
            try:
                raise RuntimeError("out of\nmemory")
            finally:
                raise RuntimeError("the capture was broken off")  # as torch does on its way out
        self._left -= 1
        return call


class Drifting:
    """Replays what it saw, and not what there is now."""

    def capture(self, call: Callable[[], Any]) -> Callable[[], Any]:
        logits, states = call()
        seen = logits.clone()
        return lambda: (logits.copy_(seen), states)


def with_graphs(model: Any, capturer: Any = None, *, context: int = 256, **options: Any) -> Any:
    """Return a backend whose passes are captured at first sight."""
    limits = {name: options.pop(name) for name in ("most_graphs", "sightings") if name in options}
    make = partial(GraphRunner, capturer=capturer or RecordedOps(), **{"sightings": 1, **limits})
    attention = options.pop("attention", "sdpa")
    paged = model
    if not isinstance(model, PagedModel):
        paged = PagedModel(
            model, [layer.kv for layer in describe_layers(model, context)], attention
        )
    return TorchBackend(
        paged,
        name="tiny",
        precision="float32",
        context_length=context,
        **{"kv_cache_bytes": 1 << 20, "make_graphs": make, **options},
    )
