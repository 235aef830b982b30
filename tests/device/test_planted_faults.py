"""Each fault that a batched verifier can have turns the comparison red."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from device_kit import TOP, EndCoins, Pass, has_mass, planted, random_pass, same  # noqa: E402

from draftproof.core.law import DenseLaw  # noqa: E402
from draftproof.core.policy import History, SamplingParams  # noqa: E402
from draftproof.core.rng import CoinSource  # noqa: E402
from draftproof.core.types import Draft  # noqa: E402
from draftproof.device import TorchExecutor  # noqa: E402
from draftproof.verify import VerifyRow  # noqa: E402

HOT = SamplingParams(temperature=1.0)
TWO = SamplingParams(temperature=0.8, top_k=3)

#: Module, right line, wrong line.
FAULTS = {
    "row offset by one": [
        (
            "executor",
            "Place(row.first_row + 1 + node,",
            "Place(row.first_row + max(node, 0),",
        )
    ],
    "residual not clamped": [
        (
            "laws",
            "block_sums(excess.clamp_(min=0))",
            "block_sums(excess.abs_())",
        )
    ],
    "residual is the target": [("rules", "usable = ~is_full &", "usable = is_full &")],
    "refused one-hot draft stays": [
        (
            "rules",
            "dropped = torch.where(is_full | ~is_one_hot, -1, dropped)",
            "dropped = torch.full_like(dropped, -1)",
        )
    ],
    "not strict": [("rules", "(claimed < scores.probs)", "(claimed <= scores.probs)")],
    "float32 coins": [
        (
            "chains",
            "reals = np.ones((size, 3 * kappa + 1), dtype=np.float64)",
            "reals = np.ones((size, 3 * kappa + 1), dtype=np.float32)",
        )
    ],
    "padding of -1 is an index": [
        ("chains", "whole = np.zeros((size, 2 + kappa)", "whole = np.full((size, 2 + kappa), -1"),
        (
            "chains",
            "self.kappa, device=self.first.device) < self.count[:, None]",
            "self.kappa, device=self.first.device) < self.kappa + 0 * self.count[:, None]",
        ),
    ],
    "padding is judged": [
        (
            "chains",
            "self.kappa, device=self.first.device) < self.count[:, None]",
            "self.kappa, device=self.first.device) < self.kappa + 0 * self.count[:, None]",
        )
    ],
    "draft law of the next draft": [
        (
            "chains",
            "draft_rows[s, :count] = range(begin, begin + count)",
            "draft_rows[s, :count] = [*range(begin + 1, begin + count), begin]",
        )
    ],
    "draft laws of the next row": [
        (
            "chains",
            "draft_rows[s, :count] = range(begin, begin + count)",
            "draft_rows[s, :count] = range(len(laws) - begin - count, len(laws) - begin)",
        )
    ],
    "ragged offsets of equal rows": [
        (
            "executor",
            "[int(end) - len(job.places) for end, job in zip(ends, jobs, strict=True)]",
            "[i * len(job.places) for i, job in enumerate(jobs)]",
        )
    ],
    "settings of the first row": [
        (
            "places",
            "inverse[i] = 1.0 / params.temperature",
            "inverse[i] = 1.0 / max(places[0].params.temperature, 1e-3)",
        )
    ],
    "first failure ends a block": [
        (
            "rules",
            "accepted = (wins * numbers).amax(1)",
            "accepted = wins.long().cumprod(1).sum(1)",
        )
    ],
    "block without its scale": [
        (
            "rules",
            "scale = held.gather(1, accepted[:, None])[:, 0]",
            "scale = torch.ones_like(held[:, 0])",
        )
    ],
    "block accepts by its weight": [
        (
            "rules",
            "bounds = torch.where(is_last, held[:, 1:], masses / gaps)",
            "bounds = held[:, 1:]",
        )
    ],
    "last index of ties": [("filters", "> spare[:, None]", "<= (ties.sum(1) - spare)[:, None]")],
    "coin of another draft": [
        (
            "chains",
            "[row.coins.accept(i) for i in range(count)]",
            "[row.coins.accept(0) for i in range(count)]",
        )
    ],
    "coin of another place": [
        (
            "executor",
            "job.row.coins.sample(len(place.extra))",
            "job.row.coins.sample(0)",
        )
    ],
    "history without the drafts": [
        (
            "executor",
            "row.params, row.history, extra, allowed",
            "row.params, row.history, (), allowed",
        )
    ],
}


def passes():
    """Fixed passes whose rows are ragged, with and without laws, of all rules."""
    yield tail_pass()
    # An index of -1 would read token 255, which has all mass: padding would be accepted.
    last = random_pass(1, 256, [1, 3, 2], rule="standard", kind=0, params=HOT)
    last.logits[:, 255] = 40.0
    drafts = [Draft((255,) * len(row.draft), None, "kit") for row in last.rows]
    yield Pass(
        [replace(row, draft=draft) for row, draft in zip(last.rows, drafts, strict=True)],
        last.logits,
    )
    for seed in range(16):
        yield random_pass(seed, 40 + 300 * (seed % 2), [3, 0, 5, 1])
    for seed in range(6):
        for rule in ("standard", "block"):
            yield random_pass(seed, 30, [4, 2, 5], rule=rule, kind=2, params=HOT)
            yield random_pass(seed, 30, [4, 2, 5], rule=rule, kind=0, params=TWO)
        coins = EndCoins(CoinSource(seed).round(1), 0.0)
        yield random_pass(seed, 30, [2, 3], rule="standard", kind=2, params=TWO, coins=coins)
        yield random_pass(seed, 30, [4, 4, 4], rule="sample-match", kind=0, params=TWO)
        yield random_pass(seed, 30, [2, 3, 4], rule="standard")  # other settings in each row
    for seed in range(100, 124):
        yield random_pass(seed, 6, [3, 4, 5, 6], rule="block", kind=2, params=HOT)


def tail_pass():
    """A coin among tokens of mass 1e-9: float32 would round it to 1."""
    logits = np.full((1, 20), -20.7, dtype=np.float32)  # 1e-9
    logits[0, 0] = 0.0
    coins = EndCoins(CoinSource(0).round(0), 0.5, 1 - 1.05e-8)
    row = VerifyRow("tail", "standard", Draft(), SamplingParams(), History(), coins, None, 0)
    return Pass([row], logits)


@pytest.fixture(scope="module")
def known():
    """Each pass, what the definition says, and what the right executor counts."""
    held = []
    for work in passes():
        right = TorchExecutor(pad=True)
        right.judge(work.rows, work.logits)
        held.append((work, work.truth(), astuple(right.counts)))
    return held


def first_flaw(executor_class, known) -> str:
    """Say where an executor errs first; empty if it does not.

    It errs where a verdict differs, where it crashes, where it hands other rows to the
    definition than the right one does, and where its own decision near an edge has no
    target mass.
    """
    for number, (work, truth, counts) in enumerate(known):
        strict, keep = executor_class(pad=True), executor_class("keep", pad=True)
        try:
            got = strict.judge(work.rows, work.logits)
            kept = keep.judge(work.rows, work.logits)
        except (IndexError, RuntimeError) as error:
            return f"pass {number} crashes: {error!r}"
        if not all(map(same, truth, got)):
            return f"pass {number} decides otherwise"
        if astuple(strict.counts) != counts:
            return f"pass {number} is counted otherwise"
        if not all(has_mass(row, v, work.logits) for row, v in zip(work.rows, kept, strict=True)):
            return f"pass {number} emits what has no mass"
    return ""


def test_a_copy_without_a_fault_passes(known):
    with planted() as copy:
        assert not first_flaw(copy, known)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(name, known):
    with planted(*FAULTS[name]) as wrong:
        assert first_flaw(wrong, known)


def test_a_coin_below_1_stays_below_1():
    """The largest coin never gives a token behind the last one of positive mass."""
    weights = np.zeros(600, dtype=np.float32)
    weights[[3, 400]] = 1.0
    law = DenseLaw(weights)
    assert law.draw(TOP) == 400
    with np.errstate(divide="ignore"):
        logits = np.log(weights)[None]
    coins = EndCoins(CoinSource(0).round(0), TOP, TOP)
    row = VerifyRow("r", "standard", Draft(), SamplingParams(), History(), coins, None, 0)
    (verdict,) = TorchExecutor("keep").judge([row], torch.from_numpy(logits))
    assert verdict.token_id == 400
