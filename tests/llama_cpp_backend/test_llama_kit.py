"""The shipped kit on llama.cpp: scoring, rolling back, sharing and trees."""

from __future__ import annotations

import pytest

from draftproof.testing import check_backend

#: Largest difference of two logits of the tiny models, which are of the order of 4.
CLOSE = 2e-4
#: The same where attention is the fused kernel, which adds up in float16.
FUSED = 0.1


def test_the_runtime_passes_the_kit(make_backend):
    report = check_backend(make_backend, tolerance=CLOSE)
    report.require()
    skipped = {result.name for result in report.results if result.status == "skipped"}
    assert skipped == {"unwindable_state_is_refused", "trees_are_refused"}


@pytest.mark.parametrize(("arch", "kind"), [("llama", "F32"), ("qwen3", "F16")])
def test_the_fused_kernel_passes_the_kit(make_backend, arch, kind):
    names = ["block_equals_incremental", "ragged_equals_solo", "trees_share_a_pass"]
    report = check_backend(
        lambda: make_backend(arch, kind, flash_attn=True, kv="f16"), tolerance=FUSED, names=names
    )
    report.require()
    assert {result.status for result in report.results} == {"passed"}


def test_a_recurrent_model_goes_back_by_replay(make_backend):
    names = {"rollback_equals_fresh", "ragged_equals_solo", "forks_share_and_part"}
    names |= {"trees_are_refused", "forks_roll_back_alone", "granted_room_is_kept"}
    report = check_backend(lambda: make_backend("mamba", slots=8), tolerance=CLOSE, names=names)
    report.require()
    assert {result.status for result in report.results} == {"passed"}
