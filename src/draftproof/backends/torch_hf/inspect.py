"""What a model does in its attention layers, found out by asking it once.

Before a model is accepted it runs a few tokens under a probe that writes down, layer by
layer, what the model hands to its attention and which mask it would use. A model that
keeps state elsewhere, masks in another way or attends past us is refused here by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from draftproof.backends.torch_hf.attention_kernels import LayerFacts
from draftproof.backends.torch_hf.interface import ATTENTION, PASS, PROBE, AttentionCall, register
from draftproof.backends.torch_hf.pages import KvShape
from draftproof.errors import DraftproofError, ModelFileError

__all__ = ["describe_layers", "refuse_by_config"]

#: Kinds of layers whose only state is keys and values.
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "attention"})
#: Rotations whose frequencies depend on the longest text of the call.
_SHIFTING_ROTATIONS = frozenset({"dynamic", "longrope"})


@dataclass(slots=True)
class _MaskFunction:
    """A mask as the model describes it: a function of two positions."""

    function: Any

    def seen(self, queries: Any, keys: Any) -> Any:
        """Return which keys are seen, bool of shape (queries, keys)."""
        zero = torch.zeros((), dtype=torch.int64)
        found = self.function(zero, zero, queries[:, None], keys[None, :])
        return torch.as_tensor(found).expand(len(queries), len(keys))


def _describe_mask(*_args: Any, **described: Any) -> _MaskFunction:
    """Stand in for the making of a mask."""
    return _MaskFunction(described["mask_function"])


@dataclass(slots=True)
class _Probe:
    """Writes down what each layer asks for, and attends plainly."""

    limit: int
    layers: dict[int, LayerFacts] = field(default_factory=dict)

    def attend(self, call: AttentionCall, query: Any, key: Any, value: Any, mask: Any) -> Any:
        """Attend over the tokens of this call alone."""
        if call.layer in self.layers:
            raise ModelFileError(f"layer {call.layer} attends twice, expected once")
        _check_mask(call, mask, self.limit)
        self.layers[call.layer] = LayerFacts(
            num_heads=query.shape[1],
            kv=KvShape(key.shape[1], key.shape[3], value.shape[3]),
            scaling=call.scaling,
            window=call.window,
            softcap=call.softcap,
            has_sinks=call.sinks is not None,
        )
        repeat = query.shape[1] // key.shape[1]
        output = torch.nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(repeat, 1),
            value.repeat_interleave(repeat, 1),
            is_causal=True,
            scale=call.scaling,
        )
        return output.transpose(1, 2)


def _check_mask(call: AttentionCall, mask: Any, limit: int) -> None:
    """Refuse a layer whose own mask is not the one that we shall apply."""
    if not isinstance(mask, _MaskFunction):
        raise ModelFileError(
            f"layer {call.layer} makes its mask in a way that is not understood: "
            f"{type(mask).__name__}"
        )
    window = call.window
    edges = {0, 1, 2, limit // 2, limit - 1}
    for base in (window or 0, 2 * (window or 0)):
        edges |= {base - 1, base, base + 1}
    queries = torch.tensor(sorted(edge for edge in edges if 0 <= edge < limit))
    keys = torch.arange(limit)
    try:
        found = mask.seen(queries, keys)
    except Exception as error:
        raise ModelFileError(
            f"layer {call.layer} has a mask that is no function of two positions: {error}"
        ) from error
    ours = keys[None, :] <= queries[:, None]
    if window is not None:
        ours = ours & (keys[None, :] > queries[:, None] - window)
    if not torch.equal(found.bool(), ours):
        kind = "causal" if window is None else f"causal within {window} tokens"
        raise ModelFileError(
            f"layer {call.layer} masks otherwise than {kind} (chunks or both directions?): "
            "not supported"
        )


def refuse_by_config(config: Any, context_length: int) -> None:
    """Refuse what the configuration already shows.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        The configuration of the text model.
    context_length : int
        Tokens of the longest sequence.

    Raises
    ------
    ModelFileError
        Naming the kind of layers, rotation or quantisation that is not supported.
    """
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelFileError(f"{kind} has an encoder; expected a decoder-only model")
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS)
    if others:
        raise ModelFileError(
            f"{kind} has layers of kind {', '.join(others)}: only layers whose state is keys and "
            "values can be rolled back"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ModelFileError(
            f"{kind} is stored quantised; expected plain weights (rounding of activations over a "
            "whole pass would let the law of a row depend on its neighbours)"
        )
    for rotation in _rotations(getattr(config, "rope_parameters", None)):
        rope, original = rotation
        if rope in _SHIFTING_ROTATIONS and (original is None or context_length > original):
            raise ModelFileError(
                f"{kind} has {rope} rotation, which changes with the longest text of a pass; "
                f"hint: pass a context_length of at most {original}"
            )


def _rotations(parameters: Any) -> Iterator[tuple[str, int | None]]:
    """Yield kind and original context of all rotations, nested ones included."""
    if not isinstance(parameters, dict):
        return
    if "rope_type" in parameters:
        yield parameters["rope_type"], parameters.get("original_max_position_embeddings")
    for value in parameters.values():
        yield from _rotations(value)


def describe_layers(model: Any, context_length: int) -> tuple[LayerFacts, ...]:
    """Run a few tokens and return what each layer keeps, and asks of its attention.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model in evaluation mode. Its attention is ours afterwards.
    context_length : int
        Masks are compared up to this many tokens.

    Returns
    -------
    tuple of LayerFacts
        One per layer.

    Raises
    ------
    ModelFileError
        If the model cannot be run in pages; the message says why.
    """
    register(_describe_mask)
    kind = type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise ModelFileError(
            f"{kind} carries a recurrent state, which cannot be rolled back to an earlier token"
        )
    probe = _Probe(min(context_length, 4096))
    previous = model.config._attn_implementation
    try:
        _use_attention(model, PROBE, kind)
        ids = torch.zeros((1, 3), dtype=torch.int64, device=model.device)
        positions = torch.arange(3, device=model.device)[None]
        with torch.inference_mode():
            model(input_ids=ids, position_ids=positions, use_cache=False, **{PASS: probe})
        expected = model.config.get_text_config().num_hidden_layers
        if sorted(probe.layers) != list(range(expected)):
            raise ModelFileError(
                f"{kind} has {expected} layers, of which {len(probe.layers)} attend through "
                "transformers' attention interface: the others keep state that cannot be rolled "
                "back, or attend by code of their own"
            )
        _use_attention(model, ATTENTION, kind)
    except BaseException as error:
        model.set_attn_implementation(previous)
        if isinstance(error, DraftproofError) or not isinstance(error, Exception):
            raise
        raise ModelFileError(f"{kind} cannot be run in pages: {_line(error)}") from error
    return tuple(probe.layers[layer] for layer in range(expected))


def _use_attention(model: Any, name: str, kind: str) -> None:
    try:
        model.set_attn_implementation(name)
    except (ValueError, KeyError) as error:
        raise ModelFileError(
            f"{kind} does not attend through transformers' attention interface"
        ) from error
    if model.config.get_text_config()._attn_implementation != name:
        raise ModelFileError(f"{kind} does not attend through transformers' attention interface")


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
