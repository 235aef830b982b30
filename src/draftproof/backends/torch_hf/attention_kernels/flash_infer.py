"""FlashInfer: a pass is planned once for each kind of layer, and run for each layer.

Pages of any size are read in place. Passes that branch are carried out too: their mask is
given bit by bit. A window is then part of that mask, because it counts depth in a tree,
where the package would count slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

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

__all__ = ["FlashInferKernel"]

#: Widths of heads that it is built for. It does not check: others give wrong numbers, or
#: leave the memory of the device broken (its issue 4299).
_WIDTHS: Final = (64, 128, 256)
#: Bytes of the buffer in which parts of long rows are summed; what its documentation says.
_WORKSPACE: Final = 128 << 20
#: Arguments of the wrapper's ``plan`` that are given.
_PLAN: Final = (
    "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "num_qo_heads",
    "num_kv_heads", "head_dim_qk", "page_size", "custom_mask", "causal", "sm_scale",
    "window_left", "logits_soft_cap", "q_data_type",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a plan is made for, besides the pass: layers that agree share one."""

    num_heads: int
    kv_heads: int
    width: int
    scaling: float
    window: int | None
    softcap: float | None


class FlashInferKernel:
    """``BatchPrefillWithPagedKVCacheWrapper`` of FlashInfer.

    Parameters
    ----------
    place : Place
        Where the model computes.

    Raises
    ------
    ConfigError
        If the package is not installed or too old, or has no kernels for the place.
    """

    capturable = False
    page_multiple = 1

    def __init__(self, place: Place) -> None:
        refuse_place(place, "flashinfer", (8, 0))
        module, version = import_package("flashinfer", "flashinfer-python")
        self.name = f"flashinfer {version}"
        self._wrapper = call_of(
            module,
            "BatchPrefillWithPagedKVCacheWrapper",
            ("float_workspace_buffer", "kv_layout", "backend"),
            self.name,
        )
        call_of(self._wrapper, "plan", _PLAN, self.name)
        call_of(self._wrapper, "run", ("q", "paged_kv_cache"), self.name)
        self._dtype = place.dtype
        self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=place.device)
        self._wrappers: dict[tuple[_Kind, bool], Any] = {}

    def refuses(self, layer: LayerFacts, /) -> str | None:
        """Return why a layer cannot be carried out, or None."""
        if layer.has_sinks:
            return "sinks"
        if layer.kv.key_dim not in _WIDTHS:
            return f"heads of width {layer.kv.key_dim}, expected {', '.join(map(str, _WIDTHS))}"
        return refuse_shapes(layer)

    def refuses_pass(self, _plan: PassPlan, /) -> str | None:
        """Return None: every pass can be carried out."""
        return None

    def prepare(self, plan: PassPlan, /) -> PreparedPass:
        """Return the pass; it is planned when the first layer of a kind asks."""
        return _PlannedPass(self, plan)

    def planned(self, kind: _Kind, rows: RaggedRows, plan: PassPlan) -> Any:
        """Return the wrapper of a kind of layers, planned for a pass.

        Parameters
        ----------
        kind : _Kind
            The kind.
        rows : RaggedRows
            The rows of the pass.
        plan : PassPlan
            The pass.

        Returns
        -------
        object
            FlashInfer's wrapper.
        """
        key = (kind, plan.branches)
        if key not in self._wrappers:
            # Its choice for Hopper has no masks of ours; the other one has.
            self._wrappers[key] = self._wrapper(
                self._workspace, "NHD", backend="fa2" if plan.branches else "auto"
            )
        wrapper = self._wrappers[key]
        window = None if plan.branches else kind.window
        wrapper.plan(
            **_tables(rows, plan),
            num_qo_heads=kind.num_heads,
            num_kv_heads=kind.kv_heads,
            head_dim_qk=kind.width,
            page_size=plan.page_size,
            custom_mask=_mask(plan, kind.window) if plan.branches else None,
            causal=not plan.branches,
            sm_scale=kind.scaling,
            window_left=-1 if window is None else window - 1,
            logits_soft_cap=kind.softcap,
            q_data_type=self._dtype,
        )
        return wrapper


class _PlannedPass:
    def __init__(self, kernel: FlashInferKernel, plan: PassPlan) -> None:
        self._kernel = kernel
        self._plan = plan
        self._rows = RaggedRows(plan)
        # Wrappers outlive a pass, their plans do not: what is here was planned for this one.
        self._planned: dict[_Kind, Any] = {}

    def run(self, call: AttentionCall, query: Any, keys: Any, values: Any) -> Any:
        """Return the output of one layer; see `PreparedPass`."""
        kind = _Kind(
            query.shape[0], keys.shape[1], query.shape[2], call.scaling, call.window, call.softcap
        )
        if kind not in self._planned:
            self._planned[kind] = self._kernel.planned(kind, self._rows, self._plan)
        size = self._plan.page_size
        cache = (keys.unflatten(0, (-1, size)), values.unflatten(0, (-1, size)))
        return self._planned[kind].run(query.transpose(0, 1).contiguous(), cache)


def _tables(rows: RaggedRows, plan: PassPlan) -> dict[str, Any]:
    """Return where the rows are, as ``plan`` takes it.

    It is read on the host. Only to pack a mask it has to be on the device.
    """
    counts = np.array([len(pages) for pages in rows.pages], dtype=np.int32)
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    last = rows.lengths - (counts - 1) * plan.page_size
    names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
    arrays = [rows.query_begins, begins, np.concatenate(rows.pages), last]
    device = plan.device if plan.branches else torch.device("cpu")
    return dict(zip(names, send_int32(arrays, device), strict=True))


def _mask(plan: PassPlan, window: int | None) -> Any:
    """Return which slots the tokens of a pass see, one row after another, bool and flat."""
    found: dict[int, Any] = {}
    for group in plan.groups:
        seen = group.seen(window)
        for place, row in enumerate(group.rows):
            found[row] = seen[place, : group.counts[place], : group.lengths[place]].reshape(-1)
    return torch.cat([found[row] for row in sorted(found)])
