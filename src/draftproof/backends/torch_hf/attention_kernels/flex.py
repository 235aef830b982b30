"""FlexAttention: torch's compiled kernel with masks and scores of one's own.

Rows are gathered and padded as for `SdpaKernel`; what the kernel adds is that windows skip
blocks, and that softcaps and sinks are part of it. Where torch computes on the CPU it runs
uncompiled, which is slow and meant for tests.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

import torch

from draftproof.backends.torch_hf.attention_kernels.dense import GroupedPass, gather
from draftproof.backends.torch_hf.attention_kernels.packages import call_of
from draftproof.backends.torch_hf.attention_kernels.protocol import LayerFacts, Place, PreparedPass
from draftproof.backends.torch_hf.interface import AttentionCall
from draftproof.backends.torch_hf.plan import PassPlan, RowGroup
from draftproof.errors import ConfigError

__all__ = ["FlexKernel"]

#: Narrowest head of the compiled kernel: one side of a product of tensor cores.
_NARROWEST: Final = 16
_ARGUMENTS: Final = ("score_mod", "block_mask", "scale", "enable_gqa")
#: Most variants that are compiled: kinds of layers, times sizes that are 1 or not. torch's
#: own limit is 8, beyond which it computes uncompiled.
_MOST_VARIANTS: Final = 64


class FlexKernel:
    """``torch.nn.attention.flex_attention``.

    Parameters
    ----------
    place : Place
        Where the model computes.

    Raises
    ------
    ConfigError
        If this torch has no FlexAttention, or nothing to compile it with.
    """

    capturable = False
    page_multiple = 1

    def __init__(self, place: Place) -> None:
        self.name = f"flex of torch {torch.__version__}"
        try:
            flex = importlib.import_module("torch.nn.attention.flex_attention")
        except ImportError as error:
            raise ConfigError(f"torch {torch.__version__} has no FlexAttention") from error
        attend = call_of(flex, "flex_attention", _ARGUMENTS, self.name)
        self._compiled = place.device.type == "cuda"
        if self._compiled and find_spec("triton") is None:
            raise ConfigError("FlexAttention is compiled with triton, which is not installed")
        self._attend = _compiled(attend) if self._compiled else _quiet(attend)
        self._block_mask: Callable[..., Any] = flex.create_block_mask
        self._sums = getattr(flex, "AuxRequest", None)
        self._softcaps: dict[float, Callable[..., Any]] = {}

    def refuses(self, layer: LayerFacts, /) -> str | None:
        """Return why a layer cannot be carried out, or None."""
        if layer.has_sinks and self._sums is None:
            return "sinks, which need torch 2.9"
        if self._compiled and min(layer.kv.key_dim, layer.kv.value_dim) < _NARROWEST:
            return f"heads of width {layer.kv.key_dim}, expected at least {_NARROWEST}"
        if layer.num_heads % layer.kv.num_heads:
            return f"{layer.num_heads} query heads over {layer.kv.num_heads} key heads"
        return None

    def refuses_pass(self, _plan: PassPlan, /) -> str | None:
        """Return None: every pass can be carried out."""
        return None

    def prepare(self, plan: PassPlan, /) -> PreparedPass:
        """Return the pass; masks are made when the first layer of a window asks."""
        return _FlexPass(self, plan)

    def block_mask(self, group: RowGroup, window: int | None) -> Any:
        """Return the mask of a group of rows, and which blocks of it are empty.

        Parameters
        ----------
        group : RowGroup
            B rows, padded to n tokens and T slots.
        window : int or None
            Width of the sliding window.

        Returns
        -------
        BlockMask
            Of shape (B, 1, n, T).
        """
        seen = group.seen(window).contiguous()

        def sees(row: Any, _head: Any, token: Any, slot: Any) -> Any:
            return seen[row, token, slot]

        return self._block_mask(
            sees, group.num_rows, None, group.width, group.length, device=seen.device
        )

    def attend(
        self, call: AttentionCall, query: Any, keys: Any, values: Any, block_mask: Any
    ) -> Any:
        """Return the output of a group of rows.

        Parameters
        ----------
        call : AttentionCall
            What the layer asks for.
        query : torch.Tensor, shape (B, H, n, D)
            Queries.
        keys, values : torch.Tensor, shape (B, G, T, D) and (B, G, T, V)
            Keys and values.
        block_mask : BlockMask
            What each token sees.

        Returns
        -------
        torch.Tensor, shape (B, H, n, V)
            The weighted values.
        """
        options: dict[str, Any] = {
            "score_mod": self._score_mod(call.softcap),
            "block_mask": block_mask,
            "scale": call.scaling,
            "enable_gqa": query.shape[1] != keys.shape[1],
        }
        if call.sinks is None:
            return self._attend(query, keys, values, **options)
        assert self._sums is not None  # such a layer is refused at load otherwise
        output, told = self._attend(query, keys, values, **options, return_aux=self._sums(lse=True))
        # A sink adds exp(sink) to the sum exp(lse) that the weights were divided by.
        share = torch.sigmoid(told.lse.float() - call.sinks.float()[None, :, None])
        return (output.float() * share[..., None]).to(output.dtype)

    def _score_mod(self, softcap: float | None) -> Callable[..., Any] | None:
        """Return the function of a softcap, always the same one: a new one is compiled."""
        if softcap is None:
            return None
        if softcap not in self._softcaps:

            def capped(score: Any, _row: Any, _head: Any, _token: Any, _slot: Any) -> Any:
                return softcap * torch.tanh(score / softcap)

            self._softcaps[softcap] = capped
        return self._softcaps[softcap]


class _FlexPass(GroupedPass):
    def __init__(self, kernel: FlexKernel, plan: PassPlan) -> None:
        super().__init__(plan)
        self._kernel = kernel
        self._masks: dict[tuple[int, int | None], Any] = {}

    def _group(
        self, group: RowGroup, call: AttentionCall, query: Any, keys: Any, values: Any
    ) -> Any:
        chosen, keys, values = gather(group, query, keys, values)
        window = None if call.window is None or call.window >= group.length else call.window
        key = (group.rows[0], window)
        if key not in self._masks:
            self._masks[key] = self._kernel.block_mask(group, window)
        output = self._kernel.attend(call, chosen.transpose(0, 1), keys, values, self._masks[key])
        return output.transpose(1, 2).reshape(-1, query.shape[0], values.shape[-1])


def _compiled(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled with sizes as symbols: lengths change with every pass."""
    made = torch.compile(attend, dynamic=True)
    settings = torch._dynamo.config
    name = "recompile_limit" if hasattr(settings, "recompile_limit") else "cache_size_limit"

    def run(*arguments: Any, **options: Any) -> Any:
        with settings.patch({name: _MOST_VARIANTS}):
            return made(*arguments, **options)

    return run


def _quiet(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Return the uncompiled function without its warning that it is slow."""

    def quietly(*arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return attend(*arguments, **options)

    return quietly
