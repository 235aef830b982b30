"""Kernels of other packages: what they are given, and what comes back through the backend.

The packages need a GPU. Here stand-ins with their signatures, their meaning and their
refusals take their place (``kernel_stand_ins``); FlexAttention runs as it is, uncompiled.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from kernel_stand_ins import HopperWrapper, attend, make_packages
from torch.nn.attention import flex_attention

from draftproof.backends.torch_hf import TorchBackend
from draftproof.backends.torch_hf.attention_kernels import Place, choose_attention
from draftproof.backends.torch_hf.attention_kernels import flash as flash_module
from draftproof.backends.torch_hf.attention_kernels.choose import Attention
from draftproof.backends.torch_hf.attention_kernels.flash import FlashAttention2, FlashAttention3
from draftproof.backends.torch_hf.attention_kernels.flash_infer import FlashInferKernel
from draftproof.backends.torch_hf.attention_kernels.ragged import RaggedRows
from draftproof.backends.torch_hf.attention_kernels.trial import try_kernel
from draftproof.backends.torch_hf.inspect import describe_layers
from draftproof.backends.torch_hf.model import PagedModel
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import BackendError

AMPERE, HOPPER = (8, 0), (9, 0)
#: Kernels by name, the device that they are for, and the page size.
KERNELS = {
    "flash-attn in place": (FlashAttention2, AMPERE, 256),
    "flash-attn gathered": (FlashAttention2, AMPERE, 16),
    "flash-attn-3": (FlashAttention3, HOPPER, 16),
    "flashinfer": (FlashInferKernel, AMPERE, 16),
}
#: Families with what kernels have to carry out: shared keys, windows, softcaps.
FAMILIES = ["qwen3", "mistral", "gemma2"]


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Let FlexAttention run op by op: tracing it first takes a second for every call."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def packages(monkeypatch):
    """Put the stand-ins in the place of the packages."""
    made = make_packages()
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def place_of(model, capability=AMPERE):
    """Say that the model is on a GPU; its tensors are on the CPU."""
    return Place("cuda", torch.device("cpu"), model.dtype, capability)


def half(build_model, family):
    """Return a model in float16 with heads of width 64, which all packages have."""
    model = build_model(family, head_dim=64)
    with torch.no_grad():  # scores of the order of 1, so that rounding stays small
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.div_(2)
    return model.half()


def backend_of(model, attention, page_size):
    layers = describe_layers(model, 256)
    paged = PagedModel(model, [layer.kv for layer in layers], attention)
    return TorchBackend(
        paged,
        name="tiny",
        precision="float16",
        context_length=256,
        kv_cache_bytes=8 << 20,
        page_size=page_size,
    )


def history(backend, *, trees=False):
    """Return the logits of passes of several rows, with rollbacks, a fork and reused pages."""
    random, found = np.random.default_rng(3), []

    def feed(*rows):
        batch = []
        for sequence, count, *parents in rows:
            tokens = random.integers(0, 96, count).tolist()
            batch.append(Row(sequence, tokens, backend.length(sequence), count, *parents))
        found.append(backend.forward(FlatBatch.from_rows(batch)).copy())

    first, second, third = (backend.open() for _ in range(3))
    feed((first, 40), (second, 3), (third, 17))
    feed((third, 1), (first, 5), (second, 2))
    backend.truncate(first, 42)
    backend.truncate(third, 10)
    feed((second, 4), (first, 1), (third, 36))
    fourth = backend.fork(third)
    feed((fourth, 2), (third, 3))
    if trees:
        feed((second, 5, [-1, 0, 0, 1, 2]), (first, 2))
        backend.truncate(second, 10, [11, 13])
    backend.close(third)
    fifth = backend.open()
    feed((fifth, 30), (fourth, 1))
    feed((fifth, 1), (fourth, 1), (second, 1), (first, 1))
    feed((first, 1))
    return np.concatenate(found)


def gap_of(found, expected):
    """Return the largest difference, relative to the largest logit; NaN is infinite."""
    gap = np.abs(found - expected).max() / np.abs(expected).max()
    return gap if np.isfinite(gap) else np.inf


#: Rounding of float16 through two layers: measured gaps are 0.001 to 0.002, those of the
#: faults below 0.3 and more.
TOLERANCE = 0.005


@pytest.fixture(scope="module")
def explicit(build_model):
    """Return a family in float16 and what explicit attention makes of the history."""
    made = {}

    def get(family, trees):
        if (family, trees) not in made:
            model = half(build_model, family)
            made[family, trees] = model, history(backend_of(model, "explicit", 16), trees=trees)
        return made[family, trees]

    return get


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_gives_the_logits_of_explicit_attention(packages, explicit, kernel, family):
    make, capability, page_size = KERNELS[kernel]
    model, expected = explicit(family, trees=True)
    attention = Attention(make(place_of(model, capability)))
    found = history(backend_of(model, attention, page_size), trees=True)
    assert gap_of(found, expected) < TOLERANCE


@pytest.mark.parametrize("name", ["flash-attn", "flashinfer"])
def test_passes_go_to_the_kernel_that_was_chosen(packages, explicit, name, monkeypatch):
    """A tree is flashinfer's too; flash-attn leaves it to sdpa, and says so."""
    model, _ = explicit("qwen3", trees=True)
    attention = choose_attention(name, describe_layers(model, 256), place_of(model))
    prepared = []
    for kernel in (attention.kernel, attention.fallback):
        right = type(kernel).prepare

        def count(self, plan, right=right):
            prepared.append((self.name.split()[0], plan.branches))
            return right(self, plan)

        monkeypatch.setattr(type(kernel), "prepare", count)
    history(backend_of(model, attention, attention.page_size()), trees=True)
    assert prepared.count((name, False)) == 7
    assert prepared.count(("sdpa" if name == "flash-attn" else name, True)) == 1
    assert len(prepared) == 8
    told = "; passes that branch by sdpa" if name == "flash-attn" else ""
    assert attention.note() == f"{name} 1.2.3{told}"


def top_left(q, k, v, **options):
    """Attend as a kernel that aligns the causal mask at the other corner."""
    mask = torch.arange(len(k))[None, :] <= torch.arange(len(q))[:, None]
    return attend(q, k, v, **{**options, "causal": False, "mask": mask})


def stale(kernel, kind, rows, plan):
    """Give the wrapper of an earlier pass as it is."""
    if (kind, plan.branches) in kernel._wrappers:
        return kernel._wrappers[kind, plan.branches]
    return planned(kernel, kind, rows, plan)


def rolled(rows):
    """Give each row the pages of the next one."""
    return np.roll(table(rows), 1, axis=0)


def one_too_many(call):
    """Let a token see one more than its window."""
    return (-1, -1) if call.window is None else (call.window, 0)


planned, table = FlashInferKernel.planned, RaggedRows.table
FAULTS = {
    "corner": ("flash-attn in place", "kernel_stand_ins.attend", top_left),
    "corner, flashinfer": ("flashinfer", "kernel_stand_ins.attend", top_left),
    "window": ("flash-attn gathered", f"{flash_module.__name__}._window", one_too_many),
    "table": ("flash-attn in place", (RaggedRows, "table"), rolled),
    "table, 3": ("flash-attn-3", (RaggedRows, "table"), rolled),
    "stale plan": ("flashinfer", (FlashInferKernel, "planned"), stale),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(packages, explicit, monkeypatch, fault):
    """In the logits, and before that by the trial at load."""
    kernel, where, wrong = FAULTS[fault]
    monkeypatch.setattr(*([where] if isinstance(where, str) else where), wrong)
    make, capability, page_size = KERNELS[kernel]
    model, expected = explicit("mistral", trees=False)
    place = place_of(model, capability)
    try:
        found = history(backend_of(model, Attention(make(place)), page_size))
    except BackendError:
        found = np.full_like(expected, np.nan)
    assert gap_of(found, expected) > 20 * TOLERANCE
    assert try_kernel(make(place), describe_layers(model, 256), place, page_size) is not None


def test_a_softcap_that_is_ignored_fails_the_trial(packages, explicit, monkeypatch):
    def uncapped(q, k, v, **options):
        return attend(q, k, v, **{**options, "softcap": 0.0})

    monkeypatch.setattr("kernel_stand_ins.attend", uncapped)
    model, _ = explicit("gemma2", trees=True)
    place, layers = place_of(model), describe_layers(model, 256)
    assert "differs from explicit" in try_kernel(FlashAttention2(place), layers, place, 16)
    assert "differs from explicit" in try_kernel(FlashInferKernel(place), layers, place, 16)


def test_hopper_plans_trees_apart(packages, explicit):
    """FlashInfer's kernels for Hopper have no mask of ours: trees get a wrapper of their own."""
    packages["flashinfer"].BatchPrefillWithPagedKVCacheWrapper = HopperWrapper
    model, expected = explicit("mistral", trees=True)
    attention = Attention(FlashInferKernel(place_of(model, HOPPER)))
    assert gap_of(history(backend_of(model, attention, 16), trees=True), expected) < TOLERANCE


FLEX = ["llama", "mistral", "gemma2", "gpt-oss", "deepseek-v3"]


@pytest.mark.parametrize("family", FLEX)
def test_flex_gives_the_logits_of_explicit_attention(build_model, family):
    """Windows, softcaps, sinks, shared keys, values of another width, trees; in float32."""
    model = build_model(family)
    expected = history(backend_of(model, "explicit", 16), trees=True)
    place = Place("cpu", torch.device("cpu"), torch.float32)
    attention = choose_attention("flex", describe_layers(model, 256), place)
    found = history(backend_of(model, attention, 16), trees=True)
    assert np.abs(found - expected).max() < 2e-5
