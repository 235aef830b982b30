"""Plans: the decision, the crossing and its interval, the schedule, the outputs."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from draftproof.build.speculative import SpeculativeConfig
from draftproof.errors import ConfigError
from draftproof.planner.acceptance import iid_survival
from draftproof.planner.cost import AffineCost, RooflineCost, ScaledCost
from draftproof.planner.cost_table import TableCost
from draftproof.planner.counts import AcceptanceCounts
from draftproof.planner.documents import plan_document
from draftproof.planner.emit import EMITTERS, Emission, emit
from draftproof.planner.estimate import assumed_survival, estimate_survival
from draftproof.planner.fit import Cell, table_of
from draftproof.planner.plan import make_plan
from draftproof.planner.report_html import plan_page
from draftproof.planner.report_text import plan_renderables
from draftproof.planner.rounds import (
    AutoregressiveDraft,
    ParallelDraft,
    RoundCost,
    TableDraft,
    published_round_cost,
)
from draftproof.planner.search import (
    RoundTimes,
    batch_schedule,
    best_kappa,
    crossing_batch,
    speedup,
)

EAGLE = published_round_cost("llama-3.1-8b-h100-eagle")
NAMES = Emission("org/target", "org/draft")


@cache
def plan(alpha=0.7, cost=EAGLE, batches=(1, 8, 64, 512), max_kappa=6, context=1000):
    return make_plan(
        cost, assumed_survival(alpha, max_kappa), batches, max_kappa=max_kappa, context=context
    )


def test_a_plan_that_speculates():
    made = plan()
    assert made.speculate
    assert [each.best for each in made.batches] == sorted(
        (each.best for each in made.batches), reverse=True
    )
    first = made.batches[0]
    assert first.best_point.speedup == max(point.speedup for point in first.points)
    assert first.points[0].speedup == 1.0
    point = first.points[3]
    assert point.speedup == pytest.approx(point.tokens / point.break_even_tokens)


def test_do_not_speculate_has_its_reasons():
    low = plan(alpha=0.05)
    assert not low.speculate
    assert "acceptance is too low" in low.reason
    # Compute-bound, and the drafter costs something: not even full acceptance pays.
    target = RooflineCost.normalised(1.0)
    dear = RoundCost(target, AutoregressiveDraft(ScaledCost(target, 0.5)))
    never = plan(alpha=1.0, cost=dear, context=0)
    assert not never.speculate
    assert "even full acceptance" in never.reason
    assert (never.crossing.batch, never.fixed_crossing.batch) == (1, 1)
    assert never.schedule == ((1, 512, 0),)


def test_the_crossing_has_the_interval_of_the_acceptance():
    counts = AcceptanceCounts.from_fixed_kappa(400, [180, 85, 40])
    made = make_plan(EAGLE, estimate_survival(counts), (1, 64), max_kappa=3, context=200)
    crossing = made.fixed_crossing
    assert crossing.low < crossing.batch < crossing.high
    # At the crossing the gain has just ended.
    kappa = crossing.kappa
    curve = made.survival.curve
    assert speedup(EAGLE, curve, crossing.batch, kappa, 200) <= 1.0
    assert speedup(EAGLE, curve, crossing.batch - 1, kappa, 200) > 1.0


def test_certainty():
    many = AcceptanceCounts.from_fixed_kappa(4000, [2800, 2000, 1500])
    few = AcceptanceCounts.from_fixed_kappa(4, [2, 1, 1])
    for counts, certain in ((many, True), (few, False)):
        made = make_plan(EAGLE, estimate_survival(counts), (1, 64), max_kappa=3, context=200)
        assert made.speculate
        assert made.certain is certain


def test_the_schedule_covers_every_batch_once_and_agrees_with_the_search():
    times, curve = RoundTimes(EAGLE, 6, 1000), iid_survival(0.7, 6)
    ranges = batch_schedule(times, curve, 300)
    assert ranges[0][0] == 1
    assert ranges[-1][1] == 300
    for (_, end, left), (start, _, right) in pairwise(ranges):
        assert start == end + 1
        assert left != right
        for batch, kappa in ((end, left), (start, right)):
            assert best_kappa(times, curve, batch) == kappa


def test_an_early_dip_is_not_the_crossing():
    # Passes are padded to these sizes: 2 rows lose, 5 gain again, and so do 13.
    cost = RoundCost(AffineCost(1.0, 1.0, pad_to=(3, 12, 24)), ParallelDraft())
    curve = iid_survival(0.9, 1)
    gains = [speedup(cost, curve, batch, 1) > 1 for batch in range(1, 200)]
    assert gains[:7] == [True, False, False, True, True, True, False]
    assert crossing_batch(RoundTimes(cost, 1), curve) == 199 - gains[::-1].index(True) + 1


def test_what_a_plan_refuses():
    with pytest.raises(ConfigError, match="known up to 3"):
        make_plan(EAGLE, assumed_survival(0.5, 3), (1,), max_kappa=5)
    with pytest.raises(ConfigError, match="rising"):
        make_plan(EAGLE, assumed_survival(0.5, 3), (4, 2), max_kappa=3)


# Costs.


def test_a_table_rises_between_its_points_where_the_curve_does():
    law = AffineCost(1.0, 0.5)
    seconds = np.array([[[2.0], [9.0]], [[4.0], [16.0]]])  # 1 and 4 rows of 1 and 4 tokens
    curve = ((1, 1.0), (2, 1.1), (3, 1.2), (4, 1.3), (5, 3.3), (6, 3.4), (8, 3.5), (16, 5.3))
    table = TableCost((1, 4), (1, 4), (0,), seconds, law, curve)
    straight = TableCost((1, 4), (1, 4), (0,), seconds, law)

    def at(batch, tokens, cost=table):
        return float(cost.many(batch, np.array([float(tokens)]), 0)[0])

    for batch, tokens, expected in ((1, 1, 2.0), (1, 4, 9.0), (4, 4, 4.0), (4, 16, 16.0)):
        assert at(batch, tokens) == pytest.approx(expected)
    # From 4 to 16 tokens in 4 rows the curve rises by 4, half of it with the fifth token.
    assert at(4, 5) == pytest.approx(4 + 12 * 0.5)
    assert at(4, 5, straight) == pytest.approx(4 + 12 / 12)
    # Between 1 and 4 rows: two thirds of the way along the curve.
    assert at(3, 3) == pytest.approx(2 + (4 - 2) * 2 / 3)
    times = [at(4, tokens) for tokens in range(4, 17)]
    assert times == sorted(times)
    with pytest.raises(ConfigError, match="curve"):
        TableCost((1,), (1,), (0,), np.array([[[1.0]]]), law, ((1, 1.0), (2, 1.0)))


def test_a_number_of_rows_between_finds_the_steps_at_its_own_tokens():
    # Times that depend on the tokens alone, with a kernel that changes at the fifth.
    curve = tuple((n, 1.0 + 0.1 * n + 2.0 * (n >= 5)) for n in (*range(1, 9), 12, 16))
    known = np.asarray(curve, dtype=float).T
    batches, widths = (2, 4), (1, 2, 3, 4)
    times = np.interp(np.outer(batches, widths), *known)[:, :, None]
    table = TableCost(batches, widths, (0,), times, AffineCost(1.0, 0.1), curve)
    tokens = np.arange(3.0, 13.0)
    assert table.many(3, tokens, 0) == pytest.approx(np.interp(tokens, *known))


def test_a_table_of_noisy_times_rises():
    rng = np.random.default_rng(0)
    law = AffineCost(1e-2, 1e-3)
    cells = [
        Cell(b, w, 8, (float(law.many(b, np.array([1.0 * b * w]), 0)[0]) * rng.uniform(0.8, 1.2),))
        for b in (1, 2, 4, 8)
        for w in (1, 2, 3, 4, 6)
    ]
    table = table_of(cells, law)
    assert (np.diff(table.seconds, axis=0) >= 0).all()
    assert (np.diff(table.seconds, axis=1) >= 0).all()
    for batch in (1, 2, 3, 5, 8):
        times = table.many(batch, np.arange(batch, 6.0 * batch + 1), 8.0 * batch)
        assert (np.diff(times) >= -1e-12).all()


def test_table_costs_interpolate_and_keep_their_level_outside():
    law = AffineCost(1.0, 0.5, 0.001)
    seconds = np.array([[[2.0, 4.0], [3.0, 5.0]], [[4.0, 6.0], [8.0, 9.0]]])
    table = TableCost((1, 3), (1, 3), (0, 100), seconds, law)

    def at(batch, tokens, kv):
        return float(table.many(batch, np.array([float(tokens)]), kv)[0])

    assert at(1, 1, 0) == 2.0
    assert at(1, 2, 50) == pytest.approx(3.5)
    assert at(2, 4, 0) == pytest.approx((2 + 3 + 4 + 8) / 4)
    beyond = float(law.many(6, np.array([18.0]), 0)[0] / law.many(3, np.array([9.0]), 0)[0])
    assert at(6, 18, 0) == pytest.approx(8.0 * beyond)
    with pytest.raises(ConfigError, match="not positive"):
        TableCost((1,), (1,), (1,), np.array([[[0.0]]]), law)


def test_padded_passes_have_steps():
    cost = AffineCost(1.0, 1.0, pad_to=(4, 8))
    found = cost.many(1, np.array([1.0, 4.0, 5.0, 8.0, 9.0]), 0)
    assert found.tolist() == [5.0, 5.0, 9.0, 9.0, 10.0]


def test_draft_tables_add_up_to_what_was_measured():
    table = TableDraft((1, 4), (1, 4), np.array([[1.0, 4.0], [2.0, 8.0]]))
    cost = RoundCost(AffineCost(10.0, 0.0), table)
    assert cost.round_s(1, 4) == pytest.approx(14.0)
    assert cost.round_s(4, 4) == pytest.approx(18.0)
    assert cost.round_s(1, 2) == pytest.approx(12.0)
    assert cost.round_s(1, 6) == pytest.approx(16.0)  # the last slope goes on


def test_a_round_without_drafts_is_a_plain_step():
    cost = RoundCost(AffineCost(1.0, 0.1), ParallelDraft(0.5), 0.2, 0.01, 0.3)
    assert cost.round_s(4, 0) == cost.plain_s(4) == pytest.approx(1.4 + 0.2 + 0.04)
    assert cost.round_s(4, 1) == pytest.approx(1.8 + 0.5 + 0.2 + 0.08 + 0.3)


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.7, 0.9])
def test_tokens_per_second_agree_with_a_simulation(alpha):
    # 20,000 rounds each: the relative standard error of the mean is below 0.7 %.
    rng = np.random.default_rng(1)
    for kappa in range(9):
        kept = (rng.random((20_000, kappa)) < alpha).cumprod(axis=1).sum(axis=1)
        simulated = (1 + kept).mean() * EAGLE.plain_s(8, 500) / EAGLE.round_s(8, kappa, 500)
        found = speedup(EAGLE, iid_survival(alpha, kappa), 8, kappa, 500)
        assert found == pytest.approx(simulated, rel=0.03)


# Outputs.


def test_vllm_gets_a_schedule():
    text = emit(plan(), "vllm", NAMES)
    config = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert config["method"] == "draft_model"
    assert config["num_speculative_tokens"] == max(k for _, _, k in plan().schedule)
    assert config["num_speculative_tokens_per_batch_size"] == [list(r) for r in plan().schedule]


def test_sglang_counts_the_pending_token():
    words = emit(plan(), "sglang", NAMES).split()
    steps = int(words[words.index("--speculative-num-steps") + 1])
    assert int(words[words.index("--speculative-num-draft-tokens") + 1]) == steps + 1


def test_our_configuration_is_one_we_accept():
    for alpha in (0.05, 0.7):
        for names in (NAMES, Emission("org/target")):
            schedule = plan(alpha).schedule
            config = SpeculativeConfig.parse(emit(plan(alpha), "draftproof", names))
            assert config.kappa == max(kappa for _low, _high, kappa in schedule)
            if config.kappa and len(schedule) > 1:
                assert config.num_speculative_tokens_per_batch_size == schedule
    assert len(plan(0.7).schedule) > 1, "the case has no schedule"


@pytest.mark.parametrize("engine", list(EMITTERS))
def test_do_not_speculate_has_its_own_output(engine):
    text = emit(plan(alpha=0.05), engine, NAMES)
    assert "do not speculate" in text or engine == "draftproof"
    assert "org/draft" not in text
    for names in (NAMES, Emission("org/target")):
        assert ("org/draft" in emit(plan(), engine, names)) is (names is NAMES)


def test_unknown_engine():
    with pytest.raises(ConfigError, match="vllm"):
        emit(plan(), "other", NAMES)


def test_document_holds_finite_numbers():
    for alpha in (0.05, 0.7, 1.0):
        text = json.dumps(plan_document(plan(alpha)), allow_nan=False)
        held = json.loads(text)
        assert held["batches"][0]["kappas"][0]["speedup"] == 1.0


def test_tables_fit_80_columns():
    from rich.console import Console

    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for part in plan_renderables(plan(max_kappa=16, batches=(1, 64, 512))):
        console.print(part)
    lines = console.export_text().splitlines()
    console.file.close()
    assert all(len(line) <= 80 for line in lines)
    assert not any("…" in line for line in lines)


def test_page_is_whole_and_escapes():
    made = plan()
    page = plan_page(made, EAGLE, title="<b>&", basis=("</script>",), assets="/*js*/")
    assert "&lt;b&gt;&amp;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in page
    assert page.count("</script>") == 3
    start = page.index('id="charts">') + len('id="charts">')
    charts = json.loads(page[start : page.index("</script>", start)])
    surface = charts["surface"]["data"][0]["z"]
    assert surface[3][1] == made.batches[1].points[3].speedup
    assert {"surface", "crossing", "sensitivity"} == set(charts)
