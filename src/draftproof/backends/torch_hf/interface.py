"""Where transformers hands attention to us, and what it may ask for.

transformers calls a registered function in every attention layer with the queries, keys
and values of the tokens of this call. Ours gets all tokens of a ragged pass as one row,
and finds the pages and the shape of the pass in an object that travels through the model
as the keyword argument ``draftproof_pass``. The model's code is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from draftproof.errors import ModelFileError

__all__ = ["ATTENTION", "PASS", "PROBE", "AttentionCall", "PassHandler", "register"]

#: Name of our attention with transformers. No mask is made for it.
ATTENTION: Final = "draftproof"
#: The same function under a name for which the model describes its masks; used at load.
PROBE: Final = "draftproof-probe"
#: Keyword argument in which the pass travels through the model.
PASS: Final = "draftproof_pass"

#: Arguments that tell nothing that our attention does not know from the pass.
_KNOWN_ELSEWHERE: Final = frozenset(
    {"position_ids", "position_embeddings", "cache_position", "output_hidden_states"}
)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer asks for besides queries, keys and values.

    Parameters
    ----------
    layer : int
        Number of the layer.
    scaling : float
        Factor of the scores.
    window : int or None
        A token sees this many tokens, itself included; None sees all before it.
    softcap : float or None
        Scores become ``softcap * tanh(scores / softcap)`` before the mask.
    sinks : torch.Tensor or None
        One logit per query head, shape (H,), that takes part in the softmax and has no
        value.
    """

    layer: int
    scaling: float
    window: int | None
    softcap: float | None
    sinks: Any


class PassHandler(Protocol):
    """What travels through the model as ``draftproof_pass``."""

    def attend(self, call: AttentionCall, query: Any, key: Any, value: Any, mask: Any) -> Any:
        """Return the output of one layer.

        Parameters
        ----------
        call : AttentionCall
            What the layer asks for.
        query : torch.Tensor, shape (1, H, N, D)
            Rotated queries of all tokens.
        key, value : torch.Tensor, shape (1, G, N, D)
            Rotated keys, and values.
        mask : object or None
            What the model made of its masks.

        Returns
        -------
        torch.Tensor, shape (1, N, H, D)
            The weighted values.
        """
        ...


def register(describe_mask: Any) -> None:
    """Make our attention known to transformers; again has no effect.

    Parameters
    ----------
    describe_mask : callable
        Called in place of the making of a mask, for `PROBE` only.
    """
    for name in (ATTENTION, PROBE):
        AttentionInterface.register(name, paged_attention)
    AttentionMaskInterface.register(PROBE, describe_mask)


def paged_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    **options: Any,
) -> tuple[Any, None]:
    """Attend over the pages of the pass; what transformers calls in every layer.

    Parameters
    ----------
    module : torch.nn.Module
        The attention module; its ``layer_idx`` names the layer.
    query : torch.Tensor, shape (1, H, N, D)
        Rotated queries of all tokens.
    key, value : torch.Tensor, shape (1, G, N, D)
        Rotated keys, and values.
    attention_mask : object or None
        The model's own mask; None but at load.
    **options : object
        Everything else that the model hands to its attention.

    Returns
    -------
    output : torch.Tensor, shape (1, N, H, D)
        The weighted values.
    weights : None
        Attention weights are never returned.

    Raises
    ------
    ModelFileError
        If the model dropped the argument that carries the pass, or if the layer asks for
        something that is not implemented here.
    """
    handler: PassHandler | None = options.pop(PASS, None)
    if handler is None:
        raise ModelFileError(
            f"{type(module).__name__} does not hand the arguments of a call to its attention; "
            "hint: a newer transformers may"
        )
    call = _read_call(module, query, options)
    return handler.attend(call, query, key, value, attention_mask), None


def _read_call(module: Any, query: Any, options: dict[str, Any]) -> AttentionCall:
    """Take out the options that are understood and refuse the others."""
    kind = type(module).__name__
    scaling, dropout = options.pop("scaling", None), options.pop("dropout", 0.0)
    window, softcap = options.pop("sliding_window", None), options.pop("softcap", None)
    sinks = options.pop("s_aux", None)
    causal = options.pop("is_causal", None)
    if dropout:
        raise ModelFileError(f"{kind} asks for dropout {dropout}, expected a model in evaluation")
    if causal is False or getattr(module, "is_causal", True) is False:
        raise ModelFileError(f"{kind} sees tokens that come later; expected causal attention")
    _refuse_rest(kind, options)
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelFileError(f"{kind} has no layer number, so its keys cannot be kept")
    return AttentionCall(
        layer=layer,
        scaling=float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        window=window,
        softcap=softcap,
        sinks=sinks,
    )


def _refuse_rest(kind: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if value is None or value is False or name in _KNOWN_ELSEWHERE:
            continue
        shown = tuple(value.shape) if isinstance(value, torch.Tensor) else value
        raise ModelFileError(f"{kind} asks its attention for {name} = {shown}: not supported")
