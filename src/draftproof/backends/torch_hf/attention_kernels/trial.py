"""A kernel is tried at load: its output is held against plain products in float32.

Packages change, and are built for some devices and not for others. So before a kernel is
trusted it attends over rows of several lengths in scattered pages, and over trees, in the
shapes of the model. Rows are short, windows narrow and softcaps low there, so that a mask
that is off by one token, a wrong page or a score that is not capped shows at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch

from draftproof.backends.torch_hf.attention_kernels.dense import ExplicitKernel
from draftproof.backends.torch_hf.attention_kernels.protocol import (
    AttentionKernel,
    LayerFacts,
    Place,
)
from draftproof.backends.torch_hf.interface import AttentionCall
from draftproof.backends.torch_hf.plan import PassPlan
from draftproof.core.types import FlatBatch, Row

__all__ = ["try_kernel"]

#: Largest difference that is rounding, where outputs are of the order of 1. A token too
#: many or too few moves them by a tenth or more: rows are short, numbers independent.
_TOLERANCES: Final = {"float32": 0.005, "float16": 0.01, "bfloat16": 0.05}
#: Window and softcap of a trial, where the model has wider and higher ones.
_WINDOW: Final = 7
_SOFTCAP: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Trial:
    """One pass: slots before it, tokens and parents of each row."""

    past: tuple[int, ...]
    counts: tuple[int, ...]
    parents: tuple[Sequence[int] | None, ...]


def try_kernel(
    kernel: AttentionKernel, layers: Iterable[LayerFacts], place: Place, page_size: int
) -> str | None:
    """Return what is wrong with a kernel on this machine, or None.

    Parameters
    ----------
    kernel : AttentionKernel
        The kernel.
    layers : iterable of LayerFacts
        The layers that it shall carry out; equal ones are tried once.
    place : Place
        Where the model computes.
    page_size : int
        Slots of a page.

    Returns
    -------
    str or None
        What it raised, or how far it is off.
    """
    limit = _TOLERANCES.get(place.type_name, 0.05)
    for layer in dict.fromkeys(map(_strained, layers)):
        for trial in _trials(page_size):
            try:
                gap = _gap(kernel, layer, trial, place, page_size)
            except Exception as error:  # noqa: BLE001  whatever a package raises is its answer
                line = " ".join(str(error).split())[:200]
                return f"a trial at load raised {type(error).__name__}: {line}"
            if not gap <= limit:
                return (
                    f"a trial at load differs from explicit attention by {gap:.2g}, "
                    f"expected at most {limit:.2g}"
                )
    return None


def _strained(layer: LayerFacts) -> LayerFacts:
    """Return a layer of the same kind in which a fault shows."""
    window = None if layer.window is None else min(layer.window, _WINDOW)
    softcap = None if layer.softcap is None else min(layer.softcap, _SOFTCAP)
    return replace(layer, window=window, softcap=softcap)


def _trials(page_size: int) -> tuple[_Trial, ...]:
    """Return passes: prompt, draft and single token together, a token alone, trees."""
    long = page_size + _WINDOW + 3
    return (
        _Trial((long, 5, 0), (1, 4, 40), (None, None, None)),
        _Trial((long,), (1,), (None,)),
        _Trial((long, 5), (5, 2), ([-1, 0, 0, 1, 1], None)),
    )


def _gap(
    kernel: AttentionKernel, layer: LayerFacts, trial: _Trial, place: Place, page_size: int
) -> float:
    """Return the largest difference to plain products over the same numbers."""
    generator = torch.Generator().manual_seed(20)
    lengths = np.array(trial.past) + np.array(trial.counts)
    num_pages = -(-lengths // page_size)
    order = np.random.default_rng(20).permutation(int(num_pages.sum())).astype(np.int32)
    begins = np.concatenate([[0], np.cumsum(num_pages)]).astype(np.int32)
    rows = [
        Row(number, [0] * count, past, 0, parents)
        for number, (past, count, parents) in enumerate(
            zip(trial.past, trial.counts, trial.parents, strict=True)
        )
    ]
    past_lens = np.array(trial.past, dtype=np.int32)
    plan = PassPlan(FlatBatch.from_rows(rows), past_lens, (order, begins), page_size, place.device)
    if kernel.refuses_pass(plan) is not None:
        return 0.0

    def numbers(*shape: int) -> Any:
        return torch.randn(shape, generator=generator).to(place.device, place.dtype)

    kv = layer.kv
    query = numbers(layer.num_heads, plan.num_tokens, kv.key_dim)
    slots = len(order) * page_size
    keys = numbers(slots, kv.num_heads, kv.key_dim)
    values = numbers(slots, kv.num_heads, kv.value_dim)
    sinks = numbers(layer.num_heads) if layer.has_sinks else None
    call = AttentionCall(0, layer.scaling, layer.window, layer.softcap, sinks)
    with torch.inference_mode():
        found = kernel.prepare(plan).run(call, query, keys, values)
        plain = ExplicitKernel().prepare(plan)
        expected = plain.run(call, query.float(), keys.float(), values.float())
        return float((found.float() - expected).abs().max())
