"""Whatever sequences do to each other, each reads only its own past."""

from __future__ import annotations

import pytest

from draftproof.cache import PagedCache


@pytest.mark.parametrize(
    ("num_pages", "page_size", "prefix_caching", "max_examples"),
    [(7, 3, True, 100), (12, 2, True, 50), (5, 1, True, 30), (7, 3, False, 30)],
)
def test_every_reachable_slot_holds_what_a_fresh_prefill_writes(
    live, simulation_class, num_pages, page_size, prefix_caching, max_examples
):
    live(
        lambda: simulation_class(PagedCache, num_pages, page_size, prefix_caching=prefix_caching),
        max_examples=max_examples,
    )


@pytest.mark.parametrize(
    ("num_pages", "page_size", "window", "prefix_caching"),
    [(9, 2, 4, True), (7, 3, 3, True), (9, 2, 5, False), (9, 1, 2, True)],
)
def test_what_a_window_has_left_behind_is_given_up_and_the_rest_stays_right(
    live, simulation_class, num_pages, page_size, window, prefix_caching
):
    live(
        lambda: simulation_class(
            PagedCache, num_pages, page_size, window=window, prefix_caching=prefix_caching
        ),
        max_examples=40,
    )
