"""What a kernel of attention is to a pass: prepared once, then run layer by layer.

A kernel is asked at load whether it can carry out a layer, before each pass whether it
can carry out the pass, and then once per layer for the output. Keys and values of the
tokens of the pass are in their pages by then. A kernel that says no gives the reason in
words that end up before the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from draftproof.backends.torch_hf.interface import AttentionCall
from draftproof.backends.torch_hf.pages import KvShape
from draftproof.backends.torch_hf.plan import PassPlan

__all__ = ["AttentionKernel", "LayerFacts", "Place", "PreparedPass"]


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What one layer will ask of its attention, known at load.

    Parameters
    ----------
    num_heads : int
        Query heads.
    kv : KvShape
        Key and value heads, and their widths.
    scaling : float
        Factor of the scores.
    window : int or None
        A token sees this many tokens, itself included; None sees all before it.
    softcap : float or None
        Scores become ``softcap * tanh(scores / softcap)`` before the mask.
    has_sinks : bool
        Whether a logit per query head takes part in the softmax and has no value.
    """

    num_heads: int
    kv: KvShape
    scaling: float
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model computes, and with what.

    Parameters
    ----------
    kind : str
        Kind of the device, ``"cuda"`` or ``"cpu"``.
    device : torch.device
        Where its tensors are.
    dtype : torch.dtype
        Type of queries, keys and values.
    capability : tuple of int or None
        Compute capability of a CUDA device.
    """

    kind: str
    device: Any
    dtype: Any
    capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, model: Any) -> Place:
        """Return the place of a model of transformers."""
        device = torch.device(model.device)
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        return cls(device.type, device, model.dtype, capability)

    @property
    def type_name(self) -> str:
        """Return the type of the numbers in words."""
        return str(self.dtype).removeprefix("torch.")


class PreparedPass(Protocol):
    """One pass, as its layers are given to a kernel."""

    def run(self, call: AttentionCall, query: Any, keys: Any, values: Any) -> Any:
        """Return the output of one layer.

        Parameters
        ----------
        call : AttentionCall
            What the layer asks for.
        query : torch.Tensor, shape (H, N, D)
            Queries of all tokens.
        keys : torch.Tensor, shape (S, G, D)
            Keys of all slots of all pages.
        values : torch.Tensor, shape (S, G, V)
            Values of the same slots.

        Returns
        -------
        torch.Tensor, shape (N, H, V)
            The weighted values.
        """
        ...


class AttentionKernel(Protocol):
    """A way to compute attention over pages."""

    @property
    def name(self) -> str:
        """Name and version shown to people."""
        ...

    @property
    def capturable(self) -> bool:
        """Whether its runs may be captured in a CUDA graph.

        A captured run must read what changes from pass to pass from tensors that stay
        where they are, and must decide nothing on the host.
        """
        ...

    @property
    def page_multiple(self) -> int:
        """A page that it reads in place has a multiple of this many slots."""
        ...

    def refuses(self, layer: LayerFacts, /) -> str | None:
        """Return why it cannot carry out a layer, or None when it can.

        Parameters
        ----------
        layer : LayerFacts
            The layer.
        """
        ...

    def refuses_pass(self, plan: PassPlan, /) -> str | None:
        """Return why it cannot carry out a pass, or None when it can.

        Parameters
        ----------
        plan : PassPlan
            The pass.
        """
        ...

    def prepare(self, plan: PassPlan, /) -> PreparedPass:
        """Do what a pass needs once, whatever its layers.

        Parameters
        ----------
        plan : PassPlan
            The pass.

        Returns
        -------
        PreparedPass
            Good for this pass only.
        """
        ...
