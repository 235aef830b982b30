"""Linear layers of the CPU with weights laid out once, so that a wider pass costs little more.

A plain float32 product costs about twice as much for two tokens as for one. Two layouts
are made once, at load:

``packed``
    float32 in oneDNN's blocks. A row's result does not depend on the rows beside it.
``f16``
    Half-precision weights in fbgemm's blocks, multiplied and summed in float32.
    Activations are not rounded. Half the bytes, so twice as fast while weights dominate.

Dynamic int8 is not offered: torch rounds the activations of a pass with one scale for
all of its rows, so the law of a row would depend on which drafts travel with it.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import torch
from transformers.pytorch_utils import Conv1D

from draftproof.errors import ConfigError, ModelFileError

__all__ = ["LINEARS", "LinearName", "pack_linears"]

#: How linear layers are held. ``auto``: on the CPU in float32, f16 for a layer whose
#: weights are half-precision numbers anyway and packed for others; plain elsewhere.
LinearName = Literal["auto", "plain", "packed", "f16"]
LINEARS: Final[tuple[LinearName, ...]] = get_args(LinearName)

#: Width of a pass that oneDNN's blocks are chosen for.
_WIDTH: Final = 8
_LARGEST_F16: Final = 65504.0


class _Packed(torch.nn.Module):
    """A linear layer over oneDNN's blocks."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _WIDTH)

    def forward(self, inputs: Any) -> Any:
        """Return ``inputs @ weight.T + bias``."""
        if not inputs.numel():
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        return torch.ops.mkldnn._linear_pointwise(inputs, self._blocks, self._bias, "none", [], "")


class _Half(torch.nn.Module):
    """A linear layer over half-precision weights; its arithmetic is float32."""

    def __init__(self, weight: Any, bias: Any) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._blocks = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)

    def forward(self, inputs: Any) -> Any:
        """Return ``inputs @ weight.T + bias``."""
        if not inputs.numel():
            return inputs.new_empty((*inputs.shape[:-1], self.out_features))
        return torch.ops.quantized.linear_dynamic_fp16(inputs, self._blocks)


def pack_linears(model: Any, linear: LinearName) -> str:
    """Lay the weights of all linear layers out for the CPU, in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Its linear layers are replaced one by one, so that no second copy of the weights
        is held.
    linear : {"auto", "plain", "packed", "f16"}
        How they are held; ``"auto"`` never rounds a weight.

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
        half, lossy = _wants_half(name, weight, linear)
        rounded += lossy
        packed = _Half(weight, bias) if half else _Packed(weight, bias)
        model.set_submodule(name, packed)
    return f"{precision}, {rounded} matrices rounded to float16" if rounded else precision


def _wants_half(name: str, weight: Any, linear: LinearName) -> tuple[bool, bool]:
    """Return whether a layer is held in half precision, and whether that rounds it."""
    if linear == "packed":
        return False, False
    largest = float(weight.abs().max())
    if largest > _LARGEST_F16:
        if linear == "f16":
            raise ModelFileError(f"{name}: a weight of {largest:g} does not fit float16")
        return False, False
    lossy = not bool((weight.half().float() == weight).all())
    return (linear == "f16" or not lossy), lossy and linear == "f16"
