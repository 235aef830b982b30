"""Linear layers of the CPU with weights laid out once, so that a wider pass costs little more.

A plain float32 product costs about twice as much for two tokens as for one. Two layouts
are made once, at load:

``packed``
    float32 in oneDNN's blocks. A row's result does not depend on the rows beside it.
``f16``
    Half-precision weights in fbgemm's blocks, multiplied and summed in float32.
    Activations are not rounded. Half the bytes, so twice as fast while weights dominate.

Int8 is not offered. With one scale of the activations for a whole pass the law of a row
would depend on which drafts travel with it. With a scale per row it does not, but seven
bits of activations, the most that AVX2 sums exactly, move the law far, and fourteen bits
in two rows are no faster than ``f16``; see docs/torch.md.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import torch
from transformers.pytorch_utils import Conv1D

from draftproof.errors import ConfigError, ModelFileError

__all__ = ["LINEARS", "LinearName", "pack_linears"]

#: How linear layers are held. ``auto``: on the CPU in float32, f16 for a layer that half
#: precision holds well and packed for others; plain elsewhere.
LinearName = Literal["auto", "plain", "packed", "f16"]
LINEARS: Final[tuple[LinearName, ...]] = get_args(LinearName)

#: Width of a pass that oneDNN's blocks are chosen for.
_WIDTH: Final = 8
_LARGEST_F16: Final = 65504.0
#: Largest error of a layer that ``auto`` rounds, relative to its weights (root mean
#: squares). Half precision gives 2e-4, and more where weights are below its normal range.
_ROUNDING: Final = 5e-4


class _Packed(torch.nn.Module):
    """A linear layer over oneDNN's blocks."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _WIDTH)
        self._product = _bare(torch.ops.mkldnn._linear_pointwise)

    def forward(self, inputs: Any) -> Any:
        """Return ``inputs @ weight.T + bias``."""
        if not inputs.numel():
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        return self._product(inputs, self._blocks, self._bias, "none", [], "")


class _Half(torch.nn.Module):
    """A linear layer over half-precision weights; its arithmetic is float32."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._blocks = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
        self._product = _bare(torch.ops.quantized.linear_dynamic_fp16)

    def forward(self, inputs: Any) -> Any:
        """Return ``inputs @ weight.T + bias``."""
        if not inputs.numel():
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        return self._product(inputs, self._blocks)


def _bare(packet: Any) -> Any:
    """Return the call of an operator without torch's Python around it.

    That Python looks for operators written in Python, on every call, and costs a pass of
    a small model 1 to 2 ms.
    """
    return getattr(packet, "_op", packet)


def pack_linears(model: Any, linear: LinearName, *, may_round: bool = True) -> str:
    """Lay the weights of all linear layers out for the CPU, in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Its linear layers are replaced one by one, so that no second copy of the weights
        is held.
    linear : {"auto", "plain", "packed", "f16"}
        How they are held.
    may_round : bool, default True
        Whether ``"auto"`` may round weights to float16.

    Returns
    -------
    str
        How the weights are held, for people.

    Raises
    ------
    ConfigError
        If the name is unknown, or the model is not float32 on the CPU.
    ModelFileError
        If a weight does not fit half precision.
    """
    if linear not in LINEARS:
        raise ConfigError(f"linear is {linear!r}, expected one of {', '.join(LINEARS)}")
    precision = str(model.dtype).removeprefix("torch.")
    fits = model.device.type == "cpu" and model.dtype == torch.float32
    if linear == "plain" or (linear == "auto" and not fits):
        return precision
    if not fits:
        raise ConfigError(
            f"linear is {linear!r}, expected 'plain' for {precision} on {model.device.type}"
        )
    modules = {
        name: module
        for name, module in model.named_modules()
        if type(module) in (torch.nn.Linear, Conv1D)
    }
    rounded = 0
    for name in list(modules):
        module = modules.pop(name)
        weight = module.weight.detach()
        if type(module) is Conv1D:
            weight = weight.t()
        bias = None if module.bias is None else module.bias.detach()
        half, lossy = _wants_half(name, weight, linear, may_round)
        rounded += lossy
        packed = _Half(weight, bias) if half else _Packed(weight, bias)
        model.set_submodule(name, packed)
    return f"{precision}, {rounded} matrices rounded to float16" if rounded else precision


def _wants_half(name: str, weight: Any, linear: LinearName, may_round: bool) -> tuple[bool, bool]:
    """Return whether a layer is held in half precision, and whether that rounds it."""
    if linear == "packed":
        return False, False
    largest = float(weight.abs().max())
    if largest > _LARGEST_F16:
        if linear == "f16":
            raise ModelFileError(f"{name}: a weight of {largest:g} does not fit float16")
        return False, False
    error = float((weight.half().float() - weight).norm())
    if not error or linear == "f16":
        return True, error > 0
    rounds = may_round and error <= _ROUNDING * float(weight.norm())
    return rounds, rounds
