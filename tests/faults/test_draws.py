"""Draws of faulty engines, and the page that tells how many it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftproof.errors import ConfigError
from draftproof.evidence import SequentialAudit, count_draws
from draftproof.testing.faults import (
    COMBINATIONS,
    ENGINE_FAULTS,
    SCENES,
    draw_texts,
    nothing_wrong,
    reference_law,
)

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "benchmarks" / "results" / "engine_faults.json"


def watched(plant, scene, most=768, batch=64):
    """The sequential test over real texts: false-alarm rate 0.001 over its whole life."""
    law = reference_law(scene)
    audit = SequentialAudit([law], alpha=1e-3)
    for begin in range(0, most, batch):
        audit.add(0, count_draws(law, draw_texts(scene, plant, begin, batch)))
    return audit


@pytest.mark.statistical
def test_real_texts_of_a_faulty_engine_raise_the_alarm():
    """A TV of 0.25 needs about 200 draws; the right engine is blamed in 1 of 1,000 runs."""
    fault = next(f for f in ENGINE_FAULTS if f.name == "certain drafts drawn from p again")
    assert watched(fault.plant, fault.scene).is_alarmed
    assert not watched(nothing_wrong, fault.scene).is_alarmed


def test_scenes_with_other_requests_are_not_drawn_in_batches():
    with pytest.raises(ConfigError, match="in company has other requests"):
        draw_texts(SCENES["in company"], nothing_wrong, 0, 2)


def test_the_page_and_the_figures_are_those_of_the_catalogue():
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    catalogue = (*ENGINE_FAULTS, *COMBINATIONS)
    stored = {row["name"]: row for row in figures["faults"]}
    assert list(stored) == [fault.name for fault in catalogue]
    for fault in catalogue:
        row = stored[fault.name]
        assert (row["check"], row["scene"], row["is_caught"]) == (
            fault.check, fault.scene.name, True,
        )  # fmt: skip
        assert f"| {fault.name} " in page
    assert not any(row["is_caught"] for row in figures["right_engine"])
