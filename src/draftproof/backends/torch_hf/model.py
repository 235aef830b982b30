"""A causal language model of transformers, run over flat passes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from draftproof.backends.torch_hf.attention import (
    Attention,
    AttentionName,
    PagedPass,
    as_attention,
)
from draftproof.backends.torch_hf.interface import PASS
from draftproof.backends.torch_hf.pages import KvPages, KvShape
from draftproof.backends.torch_hf.plan import PassPlan
from draftproof.backends.torch_hf.taps import StateTaps
from draftproof.errors import BackendError, ConfigError, ModelFileError

__all__ = ["PagedModel"]


class PagedModel:
    """Runs passes of one model. Knows nothing of sequences.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, with our attention.
    shapes : sequence of KvShape
        What each layer keeps.
    attention : Attention or {"sdpa", "explicit"}
        What scores are computed with.
    """

    def __init__(
        self, model: Any, shapes: Sequence[KvShape], attention: Attention | AttentionName
    ) -> None:
        self.model = model
        self.shapes = tuple(shapes)
        self.attention = as_attention(attention)
        self.device = model.device
        self.dtype = model.dtype
        self.vocab_size = int(model.get_output_embeddings().out_features)
        self._layers: Any = None

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return len(self.shapes)

    @property
    def hidden_size(self) -> int:
        """Return the width of what the output layer reads."""
        return int(self.model.get_output_embeddings().in_features)

    def layers(self) -> Any:
        """Return the list of decoder layers, looked up once."""
        if self._layers is None:
            self._layers = self.model.get_submodule(_layer_list(self.model, self.num_layers))
        return self._layers

    def embedding(self) -> Any:
        """Return the embedding where it is, (V, E)."""
        return self.model.get_input_embeddings().weight.detach()

    def matrices(self) -> tuple[Any, Any]:
        """Return embedding and output layer on the host, (V, E) each, in float32."""
        table = self.model.get_input_embeddings().weight.detach().float().cpu()
        with torch.inference_mode():
            # A packed layer has no weight to read; unit vectors spell it out.
            units = torch.eye(self.hidden_size, dtype=self.dtype, device=self.device)
            output = self.model.get_output_embeddings()(units).float().cpu().T.contiguous()
        return table, output

    def run(
        self,
        plan: PassPlan,
        pages: KvPages,
        layers: Sequence[int] = (),
        *,
        all_rows: bool = False,
        joined: Sequence[int] = (),
        into: Any = None,
    ) -> tuple[Any, Any]:
        """Write keys and values of the tokens and score the wanted ones.

        Parameters
        ----------
        plan : PassPlan
            The pass.
        pages : KvPages
            Where keys and values are.
        layers : sequence of int
            Layers after which the hidden states are wanted: 0 is the embedding, the
            number of layers is what the head reads.
        all_rows : bool, default False
            Return hidden states of all N tokens, not of the wanted ones alone.
        joined : sequence of int
            Instead of ``layers``: numbers of states between the layers, as
            `draftproof.backends.torch_hf.taps` counts them, which are joined for all N
            tokens.
        into : torch.Tensor of float32, shape (M, V), optional
            Where the logits go; new memory when None.

        Returns
        -------
        logits : torch.Tensor of float32, shape (M, V)
            On the device of the model.
        hidden : torch.Tensor or None, shape (len(layers), M, E) or (N, len(joined) * E)
            Hidden states of the wanted rows, or of all.

        Raises
        ------
        BackendError
            If torch fails; the slots of the new tokens are then undefined.
        """
        extra: dict[str, Any] = {"output_hidden_states": True} if layers else {}
        try:
            with torch.inference_mode(), ExitStack() as hooks:
                told: Any = None
                if joined:
                    extent = (plan.token_ids.numel(), len(joined) * self.hidden_size)
                    told = torch.empty(extent, dtype=self.dtype, device=self.device)
                    hooks.enter_context(StateTaps(self.layers(), joined, told))
                output = self.model(
                    input_ids=plan.token_ids,
                    position_ids=plan.positions,
                    use_cache=False,
                    logits_to_keep=plan.logits_rows,
                    **extra,
                    **{PASS: PagedPass(plan, pages, self.attention)},
                )
                scored = output.logits[0]
                logits = scored.float() if into is None else into.copy_(scored)
                if not layers:
                    return logits, told
                states = [output.hidden_states[layer][0] for layer in layers]
                if all_rows:
                    return logits, torch.stack(states)
                return logits, torch.stack([s.index_select(0, plan.logits_rows) for s in states])
        except RuntimeError as error:
            line = " ".join(str(error).split())[:300]
            raise BackendError(f"torch failed: {line}") from error

    def first_layers(self, count: int) -> PagedModel:
        """Return the model that stops after its first layers, with the same weights.

        Parameters
        ----------
        count : int
            Layers that stay; the final norm and the head follow them.

        Returns
        -------
        PagedModel
            A view: the modules are shared, nothing is copied.

        Raises
        ------
        ConfigError
            If there are not that many layers.
        """
        if not 1 <= count <= self.num_layers:
            raise ConfigError(f"early exit after {count} layers, expected 1 to {self.num_layers}")
        name = _layer_list(self.model, self.num_layers)
        view = _shallow(self.model)
        owner = view
        for step in name.split(".")[:-1]:
            owner._modules[step] = _shallow(owner._modules[step])
            owner = owner._modules[step]
        last = name.split(".")[-1]
        owner._modules[last] = owner._modules[last][:count]
        return PagedModel(view, self.shapes[:count], self.attention)


def _shallow(module: Any) -> Any:
    """Return a second module over the same children, whose list of children is its own."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _layer_list(model: Any, count: int) -> str:
    """Return the name of the list of decoder layers."""
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    if not names:
        raise ModelFileError(f"{type(model).__name__} has no list of {count} layers")
    return str(min(names, key=lambda name: name.count(".")))
