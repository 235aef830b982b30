"""Attention of one pass over the pages of one layer."""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention

from draftproof.backends.torch_hf.interface import AttentionCall
from draftproof.backends.torch_hf.pages import KvPages
from draftproof.backends.torch_hf.plan import PassPlan, RowGroup
from draftproof.errors import InvariantError

__all__ = ["ATTENTIONS", "AttentionName", "PagedPass"]

#: How scores are computed: torch's fused attention, or matrix products with the softmax
#: in float32. Layers with a softcap or sinks always use the second.
AttentionName = Literal["sdpa", "explicit"]
ATTENTIONS: Final[tuple[AttentionName, ...]] = ("sdpa", "explicit")

#: Query heads of a group are folded into the tokens up to this many rows of scores.
_FOLD: Final = 512


class PagedPass:
    """Carries one pass through the model: writes keys and values, and attends.

    Parameters
    ----------
    plan : PassPlan
        The pass.
    pages : KvPages
        Keys and values of all layers.
    attention : {"sdpa", "explicit"}
        How scores are computed.
    """

    def __init__(self, plan: PassPlan, pages: KvPages, attention: AttentionName) -> None:
        self._plan = plan
        self._pages = pages
        self._attention = attention

    def attend(self, call: AttentionCall, query: Any, key: Any, value: Any, mask: Any) -> Any:
        """Write the keys and values of a layer and return its output.

        Parameters
        ----------
        call : AttentionCall
            What the layer asks for.
        query : torch.Tensor, shape (1, H, N, D)
            Queries of all tokens of the pass.
        key, value : torch.Tensor, shape (1, G, N, D)
            Keys and values of all tokens of the pass.
        mask : None
            No mask is made for our attention.

        Returns
        -------
        torch.Tensor, shape (1, N, H, D)
            The weighted values.

        Raises
        ------
        InvariantError
            If the model brought a mask of its own, or another number of tokens.
        """
        plan = self._plan
        if mask is not None or query.shape[0] != 1 or query.shape[2] != plan.num_tokens:
            raise InvariantError(
                f"layer {call.layer} attends with queries {tuple(query.shape)} and mask "
                f"{type(mask).__name__}; expected 1 row of {plan.num_tokens} tokens and none"
            )
        keys, values = self._pages.layer(call.layer)
        keys.index_copy_(0, plan.slots, key[0].transpose(0, 1))
        values.index_copy_(0, plan.slots, value[0].transpose(0, 1))
        if len(plan.groups) == 1 and plan.groups[0].even:
            return self._group(plan.groups[0], call, query[0], keys, values)[None]
        output = query.new_empty((plan.num_tokens, query.shape[1], value.shape[-1]))
        for group in plan.groups:
            rows = self._group(group, call, query[0], keys, values)
            if not group.even:
                rows = rows.index_select(0, group.get("places"))
            output.index_copy_(0, group.get("tokens"), rows)
        return output[None]

    def _group(
        self, group: RowGroup, call: AttentionCall, query: Any, keys: Any, values: Any
    ) -> Any:
        """Return the output of a group of rows, shape (B * n, H, D)."""
        num_heads, _, key_dim = query.shape
        num_rows, width = group.num_rows, group.width
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
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        kv_heads, repeat = keys.shape[1], num_heads // keys.shape[1]
        chosen = chosen.reshape(num_heads, num_rows, width, key_dim)
        plain = self._attention == "sdpa" and call.softcap is None and call.sinks is None
        if plain and repeat > 1 and repeat * width > _FOLD:
            output = scaled_dot_product_attention(
                chosen.transpose(0, 1),
                keys,
                values,
                attn_mask=group.mask(call.window, 1, query.dtype),
                scale=call.scaling,
                enable_gqa=True,
            )
            return output.transpose(1, 2).reshape(num_rows * width, num_heads, -1)
        folded = chosen.reshape(kv_heads, repeat, num_rows, width, key_dim)
        folded = folded.permute(2, 0, 1, 3, 4).reshape(num_rows, kv_heads, repeat * width, key_dim)
        if plain:
            mask = group.mask(call.window, repeat, query.dtype)
            output = scaled_dot_product_attention(
                folded, keys, values, attn_mask=mask, scale=call.scaling
            )
        else:
            mask = group.mask(call.window, repeat, torch.float32)
            output = _explicit(call, folded, keys, values, mask, repeat)
        output = output.view(num_rows, kv_heads, repeat, width, -1).permute(0, 3, 1, 2, 4)
        return output.reshape(num_rows * width, num_heads, -1)


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
