"""Which kernel is chosen, what is refused, and what is told about it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from kernel_stand_ins import make_packages
from torch.nn.attention import flex_attention

from draftproof.backends.torch_hf import load_torch
from draftproof.backends.torch_hf.attention_kernels import (
    LayerFacts,
    Place,
    SdpaKernel,
    choose_attention,
)
from draftproof.backends.torch_hf.attention_kernels.flash import FlashAttention2
from draftproof.backends.torch_hf.pages import KvShape
from draftproof.errors import ConfigError, InvariantError

PLAIN = LayerFacts(4, KvShape(2, 64, 64), 0.125)
WINDOW = LayerFacts(4, KvShape(2, 64, 64), 0.125, window=7)
SOFTCAP = LayerFacts(4, KvShape(2, 64, 64), 0.125, softcap=30.0)
SINKS = LayerFacts(4, KvShape(2, 64, 64), 0.125, has_sinks=True)
NARROW = LayerFacts(4, KvShape(2, 24, 24), 0.125)
ODD = LayerFacts(4, KvShape(2, 20, 20), 0.125)
WIDE = LayerFacts(4, KvShape(2, 512, 512), 0.125)
LATENT = LayerFacts(4, KvShape(4, 24, 16), 0.125)


def place(dtype=torch.float16, kind="cuda", capability=(8, 0)):
    return Place(kind, torch.device("cpu"), dtype, capability if kind == "cuda" else None)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Let FlexAttention run op by op: tracing it first takes a second for every call."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def without(monkeypatch):
    """Hide packages that may be installed, and put none in their place."""
    for name in make_packages():
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def packages(monkeypatch):
    """Put stand-ins in the place of all packages."""
    made = make_packages()
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made


def test_on_the_cpu_auto_is_sdpa(packages):
    attention = choose_attention("auto", [PLAIN, SINKS], place(torch.float32, "cpu"))
    assert isinstance(attention.kernel, SdpaKernel)
    assert (attention.note(), attention.page_size(), attention.capturable) == ("", 16, True)


def test_on_cuda_auto_says_what_is_missing(without):
    attention = choose_attention("auto", [PLAIN], place())
    assert attention.kernel.name == "sdpa"
    assert attention.note() == (
        "sdpa; not taken: flash-attn-3 needs compute capability 9.0, this device has 8.0; "
        "not taken: flash-attn is not installed; not taken: flashinfer-python is not installed"
    )


@pytest.mark.parametrize(
    ("layers", "options", "taken"),
    [
        ([PLAIN, WINDOW, SOFTCAP], {}, "flash-attn 1.2.3"),
        ([PLAIN, WINDOW], {"capability": (9, 0)}, "flash-attn-3 1.2.3"),
        ([PLAIN, WINDOW], {"capability": (10, 0)}, "flash-attn 1.2.3"),
        ([PLAIN, WINDOW], {"dtype": torch.float32}, "sdpa"),
        ([PLAIN, WINDOW], {"capability": (7, 5)}, "sdpa"),
        ([NARROW], {}, "flash-attn 1.2.3"),
        ([ODD], {}, "sdpa"),
        ([LATENT], {}, "sdpa"),
        ([SINKS], {}, f"flex of torch {torch.__version__}"),
        ([SOFTCAP], {"dtype": torch.float32}, f"flex of torch {torch.__version__}"),
    ],
)
def test_auto_takes_the_first_that_carries_out_the_model(packages, layers, options, taken):
    attention = choose_attention("auto", layers, place(**options))
    assert attention.kernel.name == taken
    assert attention.capturable  # captured passes are left to sdpa


def test_without_flash_attn_auto_takes_flashinfer(packages, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    attention = choose_attention("auto", [PLAIN], place())
    assert attention.kernel.name == "flashinfer 1.2.3"
    assert attention.page_size() == 16


def test_layers_that_the_best_kernel_refuses_are_left_to_sdpa_and_told(packages):
    attention = choose_attention("auto", [PLAIN, SINKS, PLAIN, SINKS], place(torch.bfloat16))
    assert attention.kernel.name.startswith("flex")  # carries out all four
    attention = choose_attention("auto", [PLAIN, ODD, WIDE, ODD], place())
    assert attention.kernel.name == "flash-attn 1.2.3"
    assert attention.refused.keys() == {1, 2, 3}
    assert attention.note().startswith(
        "flash-attn 1.2.3; layers 1, 3 by sdpa: heads of width 20, expected a multiple of 8 up to "
        "256; layer 2 by sdpa: heads of width 512, expected a multiple of 8 up to 256; passes "
        "that branch or in CUDA graphs by sdpa; not taken: flash-attn-3 needs"
    )


def test_a_kernel_that_fails_its_trial_is_passed_over(packages):
    def broken(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
               softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
               block_table=None):  # fmt: skip
        raise RuntimeError("no kernel image is available\nfor execution on the device")

    packages["flash_attn"].flash_attn_varlen_func = broken
    attention = choose_attention("auto", [PLAIN], place())
    assert attention.kernel.name == "flashinfer 1.2.3"
    told = (
        "flash-attn 1.2.3 is unusable here: a trial at load raised RuntimeError: no kernel image "
        "is available for execution on the device"
    )
    assert told in attention.note()
    with pytest.raises(ConfigError, match=f"attention is 'flash-attn', but {told}"):
        choose_attention("flash-attn", [PLAIN], place())


@pytest.mark.parametrize(
    ("name", "layers", "options", "reason"),
    [
        ("flash-attn", [PLAIN], {"kind": "cpu"}, "flash-attn needs a CUDA device, this is cpu"),
        ("flashinfer", [PLAIN], {"kind": "cpu"}, "flashinfer needs a CUDA device, this is cpu"),
        (
            "flash-attn",
            [PLAIN],
            {"dtype": torch.float32},
            "flash-attn has no kernels for float32; expected float16 or bfloat16",
        ),
        (
            "flash-attn",
            [PLAIN],
            {"capability": (7, 5)},
            "flash-attn needs compute capability 8.0, this device has 7.5",
        ),
        (
            "flash-attn",
            [PLAIN, SINKS],
            {},
            r"flash-attn 1.2.3 cannot carry out layer 1 \(sinks\); expected auto, sdpa or explicit",
        ),
        ("flash-attn", [WIDE], {}, r"cannot carry out layer 0 \(heads of width 512, expected a"),
        ("flashinfer", [NARROW], {}, "heads of width 24, expected 64, 128, 256"),
        ("flash-attn", [LATENT], {}, "keys of width 24 and values of width 16"),
        (
            "flashinfer",
            [LayerFacts(3, KvShape(2, 64, 64), 0.125)],
            {},
            "3 query heads over 2 key heads",
        ),
        ("magic", [PLAIN], {}, "attention is 'magic', expected one of auto, sdpa, explicit"),
    ],
)
def test_a_named_kernel_that_cannot_is_an_error(packages, name, layers, options, reason):
    with pytest.raises(ConfigError, match=reason):
        choose_attention(name, layers, place(**options))


def test_a_named_kernel_that_is_not_installed_is_an_error(without):
    with pytest.raises(ConfigError, match=r"'flash-attn', but .*; flash-attn is not installed"):
        choose_attention("flash-attn", [PLAIN], place())
    with pytest.raises(ConfigError, match="'flashinfer', but flashinfer-python is not installed"):
        choose_attention("flashinfer", [PLAIN], place())


def test_another_version_is_refused_by_the_argument_that_it_lacks(packages):
    def old(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
            softmax_scale=None, causal=False, window_size=(-1, -1)):  # fmt: skip
        raise AssertionError

    packages["flash_attn"].flash_attn_varlen_func = old
    with pytest.raises(ConfigError, match="flash_attn_varlen_func has no argument softcap"):
        choose_attention("flash-attn", [PLAIN], place())
    del packages["flashinfer"].BatchPrefillWithPagedKVCacheWrapper
    with pytest.raises(ConfigError, match=r"1\.2\.3 has no BatchPrefillWithPagedKVCacheWrapper"):
        choose_attention("flashinfer", [PLAIN], place())


def test_pages_are_of_the_size_that_is_read_in_place(packages):
    assert choose_attention("flash-attn", [PLAIN], place()).page_size() == 256
    assert choose_attention("flash-attn", [PLAIN], place(capability=(9, 0))).page_size() == 16
    assert FlashAttention2.page_multiple == 256
    assert choose_attention("auto", [PLAIN], place()).page_size() == 16


def test_named_kernels_are_not_captured(packages):
    for name in ("flash-attn", "flashinfer"):
        assert not choose_attention(name, [PLAIN], place()).capturable
    assert choose_attention("sdpa", [PLAIN], place()).capturable


def test_passes_of_fixed_shapes_are_left_to_a_kernel_that_can_be_captured(packages):
    fixed = SimpleNamespace(groups=[SimpleNamespace(is_fixed=True)], branches=False)
    free = SimpleNamespace(groups=[SimpleNamespace(is_fixed=False)], branches=False)
    chosen = choose_attention("auto", [PLAIN], place())
    assert [chosen.kernel_of(plan).name for plan in (fixed, free)] == ["sdpa", "flash-attn 1.2.3"]
    named = choose_attention("flash-attn", [PLAIN], place())
    with pytest.raises(InvariantError, match="cannot carry out passes of fixed shapes"):
        named.kernel_of(fixed)


def test_a_model_on_the_cpu_refuses_a_kernel_for_cuda(build_model):
    with pytest.raises(ConfigError, match="flash-attn needs a CUDA device, this is cpu"):
        load_torch(build_model("llama"), attention="flash-attn", kv_cache_bytes=1 << 20)


def test_the_kernel_is_part_of_the_precision(build_model):
    named = load_torch(build_model("llama"), attention="flex", kv_cache_bytes=1 << 20)
    assert named.info.precision == f"float32, attention by flex of torch {torch.__version__}"
    plain = load_torch(build_model("llama"), kv_cache_bytes=1 << 20)
    assert plain.info.precision == "float32"
