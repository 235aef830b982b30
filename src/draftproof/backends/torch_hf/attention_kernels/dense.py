"""Attention over rows that are gathered and padded: torch's fused kernel, and plain products.

These two carry out everything that a model may ask for, on every device, and need no
package beside torch.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftproof.backends.torch_hf.attention_kernels.protocol import LayerFacts
from draftproof.backends.torch_hf.interface import AttentionCall
from draftproof.backends.torch_hf.plan import PassPlan, RowGroup

__all__ = ["ExplicitKernel", "GroupedPass", "SdpaKernel", "gather"]

#: Query heads of a group are folded into the tokens up to this many rows of scores.
_FOLD: Final = 512


class ExplicitKernel:
    """Matrix products with scores and softmax in float32."""

    name = "explicit"
    capturable = True
    page_multiple = 1

    def refuses(self, _layer: LayerFacts, /) -> str | None:
        """Return None: every layer can be carried out."""
        return None

    def refuses_pass(self, _plan: PassPlan, /) -> str | None:
        """Return None: every pass can be carried out."""
        return None

    def prepare(self, plan: PassPlan, /) -> GroupedPass:
        """Return the pass; all there is to prepare is in its plan."""
        return _ExplicitPass(plan)


class SdpaKernel(ExplicitKernel):
    """torch's fused attention; softcaps and sinks, which it has not, as `ExplicitKernel`."""

    name = "sdpa"

    def prepare(self, plan: PassPlan, /) -> GroupedPass:
        """Return the pass; all there is to prepare is in its plan."""
        return _SdpaPass(plan)


class GroupedPass:
    """A pass that is carried out group by group of its plan.

    Parameters
    ----------
    plan : PassPlan
        The pass.
    """

    def __init__(self, plan: PassPlan) -> None:
        self._plan = plan

    def run(self, call: AttentionCall, query: Any, keys: Any, values: Any) -> Any:
        """Return the output of one layer; see `PreparedPass`."""
        plan = self._plan
        if len(plan.groups) == 1 and plan.groups[0].even:
            return self._group(plan.groups[0], call, query, keys, values)
        output = query.new_empty((plan.num_tokens, query.shape[0], values.shape[-1]))
        for group in plan.groups:
            rows = self._group(group, call, query, keys, values)
            if not group.even:
                rows = rows.index_select(0, group.get("places"))
            output.index_copy_(0, group.get("tokens"), rows)
        return output

    def _group(
        self, group: RowGroup, call: AttentionCall, query: Any, keys: Any, values: Any
    ) -> Any:
        """Return the output of a group of rows, shape (B * n, H, V)."""
        raise NotImplementedError


class _ExplicitPass(GroupedPass):
    def _group(
        self, group: RowGroup, call: AttentionCall, query: Any, keys: Any, values: Any
    ) -> Any:
        chosen, keys, values = gather(group, query, keys, values)
        repeat = chosen.shape[0] // keys.shape[1]
        mask = group.mask(call.window, repeat, torch.float32)
        output = _explicit(call, _folded(chosen, keys.shape[1]), keys, values, mask, repeat)
        return _unfolded(output, group)


class _SdpaPass(_ExplicitPass):
    def _group(
        self, group: RowGroup, call: AttentionCall, query: Any, keys: Any, values: Any
    ) -> Any:
        if call.softcap is not None or call.sinks is not None:
            return super()._group(group, call, query, keys, values)
        chosen, keys, values = gather(group, query, keys, values)
        repeat = chosen.shape[0] // keys.shape[1]
        if repeat > 1 and repeat * group.width > _FOLD:
            output = scaled_dot_product_attention(
                chosen.transpose(0, 1),
                keys,
                values,
                attn_mask=group.mask(call.window, 1, query.dtype),
                scale=call.scaling,
                enable_gqa=True,
            )
            return output.transpose(1, 2).reshape(-1, chosen.shape[0], values.shape[-1])
        mask = group.mask(call.window, repeat, query.dtype)
        output = scaled_dot_product_attention(
            _folded(chosen, keys.shape[1]), keys, values, attn_mask=mask, scale=call.scaling
        )
        return _unfolded(output, group)


def gather(group: RowGroup, query: Any, keys: Any, values: Any) -> tuple[Any, Any, Any]:
    """Return what a group of rows attends with.

    Parameters
    ----------
    group : RowGroup
        B rows, padded to n tokens and T slots.
    query : torch.Tensor, shape (H, N, D)
        Queries of all tokens of the pass.
    keys, values : torch.Tensor, shape (S, G, D) and (S, G, V)
        All slots of a layer.

    Returns
    -------
    query : torch.Tensor, shape (H, B, n, D)
        Those of the group.
    keys, values : torch.Tensor, shape (B, G, T, D) and (B, G, T, V)
        Those of its rows, in the order of their slots.
    """
    if group.even and group.contiguous:
        chosen = query[:, group.span[0] : group.span[1]]
    else:
        chosen = query.index_select(1, group.get("flat").view(-1))
    if group.run is not None:
        keys = keys[group.run : group.run + group.length][None]
        values = values[group.run : group.run + group.length][None]
    else:
        slots = group.get("kv")
        keys, values = keys[slots], values[slots]
    chosen = chosen.reshape(query.shape[0], group.num_rows, group.width, query.shape[-1])
    return chosen, keys.transpose(1, 2), values.transpose(1, 2)


def _folded(chosen: Any, kv_heads: int) -> Any:
    """Return queries (B, G, repeat * n, D): heads that share a key one after another."""
    num_heads, num_rows, width, key_dim = chosen.shape
    repeat = num_heads // kv_heads
    folded = chosen.reshape(kv_heads, repeat, num_rows, width, key_dim)
    return folded.permute(2, 0, 1, 3, 4).reshape(num_rows, kv_heads, repeat * width, key_dim)


def _unfolded(output: Any, group: RowGroup) -> Any:
    """Return outputs (B * n, H, V) of folded ones (B, G, repeat * n, V)."""
    num_rows, kv_heads, folded, value_dim = output.shape
    repeat = folded // group.width
    output = output.view(num_rows, kv_heads, repeat, group.width, -1).permute(0, 3, 1, 2, 4)
    return output.reshape(num_rows * group.width, kv_heads * repeat, value_dim)


def _explicit(
    call: AttentionCall, query: Any, keys: Any, values: Any, mask: Any, repeat: int
) -> Any:
    """Attend with matrix products; scores and softmax are float32."""
    scores = torch.matmul(query, keys.transpose(2, 3)).float() * call.scaling
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask is not None:
        scores = scores + mask
    if call.sinks is not None:
        rows, kv_heads, folded, _ = scores.shape
        sinks = call.sinks.float().view(1, kv_heads, repeat, 1)
        sinks = sinks.expand(rows, -1, -1, folded // repeat).reshape(rows, kv_heads, folded, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    if call.sinks is not None:
        weights = weights[..., :-1]
    return torch.matmul(weights.to(values.dtype), values)
