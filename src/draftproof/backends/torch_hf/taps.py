"""Hidden states between the layers of a model, through hooks that last one pass.

States are counted as EAGLE-3 and vLLM count them: 0 is what the first layer reads, the
embedding; ``i`` is what layer ``i`` reads, which is the residual stream behind ``i``
layers; the number of layers is what the last one gives, before the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import TracebackType
from typing import Any

from draftproof.errors import BackendError, ConfigError

__all__ = ["StateTaps", "check_layers", "eagle3_layers"]


def eagle3_layers(num_layers: int) -> tuple[int, int, int]:
    """Return which states EAGLE-3 reads of a model when a head names none.

    Parameters
    ----------
    num_layers : int
        Layers n of the model.

    Returns
    -------
    tuple of int
        2, n // 2 and n - 3.

    Raises
    ------
    ConfigError
        If the model has too few layers for three different ones.

    References
    ----------
    Li et al., EAGLE-3, 2503.01840: low, middle and high features. The numbers are those
    of the authors' code.
    """
    found = (2, num_layers // 2, num_layers - 3)
    if not found[0] < found[1] < found[2]:
        raise ConfigError(
            f"a head that names no layers reads 2, n // 2 and n - 3; of {num_layers} layers these "
            f"are {found}; expected rising numbers, as from 7 layers on"
        )
    return found


class StateTaps:
    """Joins the states of several layers while a pass runs.

    Parameters
    ----------
    layers : torch.nn.ModuleList
        The decoder layers.
    wanted : sequence of int
        Rising numbers of states, each from 0 to the number of layers.
    joined : torch.Tensor, shape (N, len(wanted) * E)
        Where they are written, one after the other for each token.
    """

    def __init__(self, layers: Any, wanted: Sequence[int], joined: Any) -> None:
        self._layers = layers
        self._wanted = tuple(wanted)
        self._parts = joined.chunk(len(self._wanted), dim=1)
        self._missing = set(self._wanted)
        self._handles: list[Any] = []

    def __enter__(self) -> StateTaps:
        """Hang the hooks."""
        for part, state in zip(self._parts, self._wanted, strict=True):
            if state < len(self._layers):
                self._handles.append(
                    self._layers[state].register_forward_pre_hook(
                        self._reader(state, part), with_kwargs=True
                    )
                )
            else:
                self._handles.append(
                    self._layers[state - 1].register_forward_hook(self._ending(state, part))
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the hooks away, and refuse a pass that went past one of them."""
        for handle in self._handles:
            handle.remove()
        if kind is None and self._missing:
            raise BackendError(f"no hidden state of layers {sorted(self._missing)} came by")

    def _reader(self, state: int, part: Any) -> Any:
        def before(_module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._write(state, part, given[0] if given else named["hidden_states"])

        return before

    def _ending(self, state: int, part: Any) -> Any:
        def after(_module: Any, _given: Any, output: Any) -> None:
            self._write(state, part, output[0] if isinstance(output, tuple) else output)

        return after

    def _write(self, state: int, part: Any, hidden: Any) -> None:
        # Copied at once: a model may go on to add to its residual stream in place.
        part.copy_(hidden.reshape(part.shape))
        self._missing.discard(state)


def check_layers(wanted: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Return the numbers of states, checked.

    Parameters
    ----------
    wanted : sequence of int
        Numbers of states.
    num_layers : int
        Layers of the model.

    Returns
    -------
    tuple of int
        The same.

    Raises
    ------
    ConfigError
        If they do not rise, or one is none of the model's.
    """
    found = tuple(wanted)
    rises = all(low < high for low, high in pairwise(found))
    if not found or not rises or found[0] < 0 or found[-1] > num_layers:
        raise ConfigError(
            f"hidden_layers is {found}; expected rising numbers from 0 to {num_layers}, the layers "
            "of the model"
        )
    return found
