"""Attention of one pass over the pages of all layers."""

from __future__ import annotations

from typing import Any

from draftproof.backends.torch_hf.attention_kernels import (
    ATTENTIONS,
    Attention,
    AttentionKernel,
    AttentionName,
    ExplicitKernel,
    PreparedPass,
    SdpaKernel,
)
from draftproof.backends.torch_hf.interface import AttentionCall
from draftproof.backends.torch_hf.pages import KvPages
from draftproof.backends.torch_hf.plan import PassPlan
from draftproof.errors import InvariantError

__all__ = ["ATTENTIONS", "Attention", "AttentionName", "PagedPass", "as_attention"]


class PagedPass:
    """Carries one pass through the model: writes keys and values, and attends.

    Parameters
    ----------
    plan : PassPlan
        The pass.
    pages : KvPages
        Keys and values of all layers.
    attention : Attention
        What scores are computed with.
    """

    def __init__(self, plan: PassPlan, pages: KvPages, attention: Attention) -> None:
        self._plan = plan
        self._pages = pages
        self._attention = attention
        self._kernel = attention.kernel_of(plan)
        self._prepared: dict[AttentionKernel, PreparedPass] = {}

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
        return self._of(call.layer).run(call, query[0], keys, values)[None]

    def _of(self, layer: int) -> PreparedPass:
        """Return the pass as the kernel of a layer has prepared it."""
        attention = self._attention
        kernel = attention.fallback if layer in attention.refused else self._kernel
        if kernel not in self._prepared:
            self._prepared[kernel] = kernel.prepare(self._plan)
        return self._prepared[kernel]


def as_attention(attention: Attention | AttentionName) -> Attention:
    """Return torch's own attention by its name; what was chosen stays as it is.

    Parameters
    ----------
    attention : Attention or {"sdpa", "explicit"}
        What a model attends with. Other names stand for a choice, which is made with
        `draftproof.backends.torch_hf.attention_kernels.choose_attention`.

    Returns
    -------
    Attention
        Ready to carry out passes.

    Raises
    ------
    InvariantError
        If the name stands for a choice.
    """
    if isinstance(attention, Attention):
        return attention
    if attention not in ("sdpa", "explicit"):
        raise InvariantError(f"attention {attention!r} has to be chosen for a model")
    return Attention(SdpaKernel() if attention == "sdpa" else ExplicitKernel())
