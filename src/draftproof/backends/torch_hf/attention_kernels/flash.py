"""flash-attn: ragged rows over pages, with windows and softcaps.

Two packages go by that name. ``flash_attn`` (flash-attn 2) reads pages in place where they
have a multiple of 256 slots; other pages are gathered first. ``flash_attn_interface``
(flash-attn 3, Hopper) reads pages of any size. Both mask causally from the bottom right
corner and know no mask of another form, so that passes that branch are not theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from draftproof.backends.torch_hf.attention_kernels.packages import (
    call_of,
    import_package,
    refuse_place,
    refuse_shapes,
)
from draftproof.backends.torch_hf.attention_kernels.protocol import LayerFacts, Place, PreparedPass
from draftproof.backends.torch_hf.attention_kernels.ragged import RaggedRows, send_int32
from draftproof.backends.torch_hf.interface import AttentionCall
from draftproof.backends.torch_hf.plan import PassPlan
from draftproof.errors import ConfigError

__all__ = ["FlashAttention2", "FlashAttention3"]

#: Largest width of a head.
_WIDEST: Final = 256
#: Arguments of ``flash_attn.flash_attn_varlen_func`` that are given.
_VARLEN: Final = (
    "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
    "softmax_scale", "causal", "window_size", "softcap", "block_table",
)  # fmt: skip
#: Arguments of ``flash_attn_interface.flash_attn_with_kvcache`` that are given.
_KVCACHE: Final = (
    "q", "k_cache", "v_cache", "cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q",
    "softmax_scale", "causal", "window_size", "softcap",
)  # fmt: skip


class _FlashAttention:
    """What both have in common."""

    capturable = False

    def refuses(self, layer: LayerFacts, /) -> str | None:
        """Return why a layer cannot be carried out, or None."""
        if layer.has_sinks:
            return "sinks"
        if layer.kv.key_dim > _WIDEST or layer.kv.key_dim % 8:
            return f"heads of width {layer.kv.key_dim}, expected a multiple of 8 up to {_WIDEST}"
        return refuse_shapes(layer)

    def refuses_pass(self, plan: PassPlan, /) -> str | None:
        """Refuse passes that branch: there is no mask but the causal one."""
        return "passes that branch" if plan.branches else None


class FlashAttention2(_FlashAttention):
    """``flash_attn_varlen_func`` of flash-attn 2.

    Parameters
    ----------
    place : Place
        Where the model computes.

    Raises
    ------
    ConfigError
        If the package is not installed or too old, or has no kernels for the place.
    """

    #: The package refuses pages of another size.
    page_multiple = 256

    def __init__(self, place: Place) -> None:
        refuse_place(place, "flash-attn", (8, 0))
        module, version = import_package("flash_attn", "flash-attn")
        self.name = f"flash-attn {version}"
        self._attend = call_of(module, "flash_attn_varlen_func", _VARLEN, self.name)

    def prepare(self, plan: PassPlan, /) -> PreparedPass:
        """Send where rows begin, and their pages or slots."""
        return _VarlenPass(plan, self._attend, in_place=plan.page_size % self.page_multiple == 0)


class _VarlenPass:
    def __init__(self, plan: PassPlan, attend: Callable[..., Any], *, in_place: bool) -> None:
        self._attend = attend
        self._in_place = in_place
        self._page_size = plan.page_size
        self._rows = RaggedRows(plan)
        rows = self._rows
        self._begins, self._key_begins, self._where = send_int32(
            [rows.query_begins, rows.key_begins, rows.table() if in_place else rows.slots()],
            plan.device,
        )

    def run(self, call: AttentionCall, query: Any, keys: Any, values: Any) -> Any:
        """Return the output of one layer; see `PreparedPass`."""
        if self._in_place:
            keys = keys.unflatten(0, (-1, self._page_size))
            values = values.unflatten(0, (-1, self._page_size))
        else:
            keys, values = keys.index_select(0, self._where), values.index_select(0, self._where)
        return self._attend(
            q=query.transpose(0, 1),
            k=keys,
            v=values,
            cu_seqlens_q=self._begins,
            cu_seqlens_k=self._key_begins,
            max_seqlen_q=self._rows.max_query,
            max_seqlen_k=self._rows.max_key,
            softmax_scale=call.scaling,
            causal=True,
            window_size=_window(call),
            softcap=call.softcap or 0.0,
            block_table=self._where if self._in_place else None,
        )


class FlashAttention3(_FlashAttention):
    """``flash_attn_with_kvcache`` of flash-attn 3, for Hopper.

    Parameters
    ----------
    place : Place
        Where the model computes.

    Raises
    ------
    ConfigError
        If the package is not installed or too old, or has no kernels for the place.
    """

    page_multiple = 1

    def __init__(self, place: Place) -> None:
        refuse_place(place, "flash-attn-3", (9, 0))
        if place.capability is not None and place.capability[0] != 9:
            raise ConfigError("flash-attn-3 is for Hopper, this device is newer")
        module, version = import_package("flash_attn_interface", "flash-attn-3")
        self.name = f"flash-attn-3 {version}"
        self._attend = call_of(module, "flash_attn_with_kvcache", _KVCACHE, self.name)

    def prepare(self, plan: PassPlan, /) -> PreparedPass:
        """Send where rows begin, and their pages."""
        return _KvCachePass(plan, self._attend)


class _KvCachePass:
    def __init__(self, plan: PassPlan, attend: Callable[..., Any]) -> None:
        self._attend = attend
        self._page_size = plan.page_size
        rows = RaggedRows(plan)
        self._max_query = rows.max_query
        self._begins, self._lengths, self._table = send_int32(
            [rows.query_begins, rows.lengths, rows.table()], plan.device
        )

    def run(self, call: AttentionCall, query: Any, keys: Any, values: Any) -> Any:
        """Return the output of one layer; see `PreparedPass`."""
        return self._attend(
            q=query.transpose(0, 1),
            k_cache=keys.unflatten(0, (-1, self._page_size)),
            v_cache=values.unflatten(0, (-1, self._page_size)),
            cache_seqlens=self._lengths,
            page_table=self._table,
            cu_seqlens_q=self._begins,
            max_seqlen_q=self._max_query,
            softmax_scale=call.scaling,
            causal=True,
            window_size=_window(call),
            softcap=call.softcap or 0.0,
        )


def _window(call: AttentionCall) -> tuple[int, int]:
    """Return how many tokens before and after a token are seen, itself not counted."""
    return (-1, -1) if call.window is None else (call.window - 1, 0)
