"""Counters count leading runs, rates are pooled, and nothing divides by nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core.stats import SpecDecodeStats, format_rate, leading_accepts
from draftproof.core.types import StepRecord


def record(drafted: int, accepted: int, emitted: int | None = None, **fields) -> StepRecord:
    count = accepted + 1 if emitted is None else emitted
    last = "sampled" if not drafted else "bonus" if accepted == drafted else "recovered"
    sources = (["accepted"] * accepted + [last])[:count]
    return StepRecord("r", 0, (0,) * drafted, accepted, (0,) * count, tuple(sources), **fields)


def test_matches_after_the_first_rejection_do_not_count() -> None:
    masks = [[1, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 0]]
    assert sum(leading_accepts(mask) for mask in masks) == 5
    stats = SpecDecodeStats.from_records(record(4, leading_accepts(mask)) for mask in masks)
    assert stats.num_accepted_tokens == 5
    assert stats.num_accepted_tokens_per_pos == [2, 1, 1, 1]


@given(st.lists(st.booleans()))
def test_the_leading_run_is_the_sum_of_the_cumulative_product(mask: list[bool]) -> None:
    total, running = 0, 1
    for matched in mask:
        running *= matched
        total += running
    assert leading_accepts(mask) == total


def test_a_block_cut_by_an_end_token_reports_two() -> None:
    stats = SpecDecodeStats.from_records([record(4, 4, emitted=2)])
    assert stats.committed_per_round == 2.0
    assert stats.num_emitted_tokens == 2
    assert stats.accepted_per_draft == 4.0
    assert stats.mean_acceptance_length == 5.0
    assert stats.num_emitted_per_source == {
        "accepted": 2, "recovered": 0, "bonus": 0, "sampled": 0,
    }  # fmt: skip


def test_each_drafter_answers_for_its_own_tokens() -> None:
    mixed = record(4, 3, draft_sources=("suffix", "suffix", "model", "model"), proposer="hybrid")
    turned_down = record(3, 1, draft_sources=("suffix", "suffix", "model"), proposer="hybrid")
    certain = record(2, 2, proposer="grammar")
    branching = record(3, 1, proposer="tree", parents=(-1, -1, 0))
    halves = [[mixed, certain], [turned_down, record(0, 0), branching]]
    parts = [SpecDecodeStats.from_records(half) for half in halves]
    stats = parts[0].merge(parts[1])
    assert stats.num_draft_tokens_per_drafter == {
        "suffix": 4, "model": 3, "grammar": 2, "tree": 3,
    }  # fmt: skip
    assert stats.num_accepted_tokens_per_drafter == {
        "suffix": 3, "model": 1, "grammar": 2, "tree": 1,
    }  # fmt: skip
    assert sum(stats.num_accepted_tokens_per_drafter.values()) == stats.num_accepted_tokens
    assert sum(stats.num_draft_tokens_per_drafter.values()) == stats.num_draft_tokens
    assert stats.acceptance_rate_per_drafter["model"] == pytest.approx(1 / 3)
    assert parts[0].num_draft_tokens_per_drafter == {"suffix": 2, "model": 2, "grammar": 2}


def test_rates_are_pooled() -> None:
    short = [SpecDecodeStats.from_records([record(10, 1)]) for _ in range(7)]
    long = SpecDecodeStats.from_records([record(10, 8)] * 400)
    pooled = long
    for stats in [*short, SpecDecodeStats(), SpecDecodeStats()]:
        pooled = pooled.merge(stats)
    assert format_rate(pooled.acceptance_rate) == "0.788"
    ratios = [stats.acceptance_rate for stats in [*short, long]]
    assert sum(ratios) / 8 == pytest.approx(0.1875)
    assert long.num_drafts == 400, "merging changes neither side"


def test_not_drafting_is_neither_zero_nor_all() -> None:
    stats = SpecDecodeStats.from_records([record(0, 0)] * 5)
    assert (stats.num_rounds, stats.num_drafts, stats.num_draft_tokens) == (5, 0, 0)
    for rate in (stats.acceptance_rate, stats.mean_acceptance_length, stats.accepted_per_draft):
        assert math.isnan(rate)
        assert format_rate(rate) == "n/a"
    assert stats.drafted_per_emitted == 0.0
    assert stats.acceptance_rate_per_pos == []
    assert math.isnan(SpecDecodeStats().committed_per_round)
    assert stats.num_emitted_per_source["sampled"] == 5


def test_token_zero_is_a_draft_like_any_other() -> None:
    stats = SpecDecodeStats.from_records([StepRecord("r", 3, (0,), 1, (0, 4))])
    assert (stats.num_draft_tokens, stats.acceptance_rate) == (1, 1.0)


def test_each_position_has_its_own_denominator() -> None:
    stats = SpecDecodeStats.from_records([record(3, 1), record(1, 1), record(3, 3), record(2, 0)])
    assert stats.num_drafted_per_pos == [4, 3, 2]
    assert stats.num_reached_per_pos == [4, 2, 1]
    assert stats.num_accepted_tokens_per_pos == [3, 1, 1]
    assert stats.acceptance_rate_per_pos == [3 / 4, 1 / 3, 1 / 2]
    assert stats.conditional_rate_per_pos == [3 / 4, 1 / 2, 1.0]
    never = SpecDecodeStats.from_records([record(2, 0)])
    assert never.conditional_rate_per_pos[0] == 0.0
    assert math.isnan(never.conditional_rate_per_pos[1])


rounds = st.integers(0, 5).flatmap(
    lambda k: st.tuples(st.just(k), st.integers(0, k)).map(lambda pair: record(*pair))
)


@given(st.lists(rounds), st.lists(rounds))
def test_merging_is_folding_the_records_of_both(left, right) -> None:
    merged = SpecDecodeStats.from_records(left).merge(SpecDecodeStats.from_records(right))
    assert merged == SpecDecodeStats.from_records(left + right)
    assert merged.num_emitted_tokens == sum(len(r.emitted) for r in left + right)
    assert sum(merged.num_accepted_tokens_per_pos) == merged.num_accepted_tokens
    assert sum(merged.num_drafted_per_pos) == merged.num_draft_tokens
    assert sum(merged.num_emitted_per_source.values()) == merged.num_emitted_tokens
