"""What chosen draft lengths cost and yield, without a model: recorded texts and made-up ones.

Recorded are greedy texts of SmolLM2-135M (int8; ``results/controller_texts.json``): the
n-gram drafter drafts on them, and what it would have had accepted is known. Made-up requests
accept at a rate of their own, or switch between easy and hard. Seconds are those of the
built-in costs, of the same passes with a draft model, and of published constants of an 8B
model on an H100, so paces are predictions: equal costs for every policy. Recorded texts are
calls of their own, without memory of the one before, as the engine does it. In a batch of
made-up requests a new one takes the place of each that ends, until there are no more: what
follows, a batch that empties, is not counted. A last table times decisions.

    python benchmarks/controller_choices.py [--before PACKAGE] [--output FILE]

``--before`` names an importable package that has a ``controller`` of an earlier version; it
runs interleaved with this one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from measure import environment, interleave, ratios, report, shown, summary

from draftproof.build.lengths import built_in_cost
from draftproof.core.kappa_policy import KappaPolicy, RowState
from draftproof.core.params import SamplingParams
from draftproof.core.policy import History
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.core.types import StepRecord
from draftproof.planner import controller
from draftproof.planner.cost import ScaledCost
from draftproof.planner.rounds import AutoregressiveDraft, RoundCost, published_round_cost
from draftproof.planner.simulate import StaticPolicy
from draftproof.proposers import NgramProposer

TEXTS = Path(__file__).parent / "results/controller_texts.json"
GREEDY = SamplingParams(temperature=0.0)
#: Passes that have the shape of the one before.
LOOKUP = replace(built_in_cost("int8"), change_s=0.0)
#: A draft model of a sixth of the target's passes.
MODEL = RoundCost(
    LOOKUP.target,
    AutoregressiveDraft(ScaledCost(LOOKUP.target, 1 / 6)),
    LOOKUP.overhead_s,
    LOOKUP.overhead_per_token_s,
)
EAGLE = published_round_cost("llama-3.1-8b-h100-eagle")


class Recorded:
    """A text that a model wrote, and what n-grams draft on it."""

    def __init__(self, name: str, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.name, self._output = name, list(output)
        self._tokens, self._place = [*prompt, output[0]], 1
        self._drafter = NgramProposer(2, 5)

    @property
    def left(self) -> int:
        """Tokens to come."""
        return len(self._output) - self._place

    def state(self, max_kappa: int, *, signs: bool) -> RowState:
        """Return what a policy is told before a round."""
        sign = (self._drafter.foretell(self.name, self._tokens),) if signs else ()
        most = min(max_kappa, self.left - 1)
        return RowState(self.name, len(self._tokens) - 1, most, ("ngram",), sign, self.left)

    def play(self, kappa: int) -> tuple[int, int]:
        """Return drafts that came and drafts accepted."""
        drafted: Sequence[int] = ()
        if kappa:
            request = ProposalRequest(
                self.name, self._tokens, kappa, GREEDY, History(()), CoinSource(0).round(0), False
            )
            drafted = self._drafter.propose([request])[0].token_ids
        wanted = self._output[self._place : self._place + len(drafted)]
        accepted = 0
        while accepted < len(wanted) and drafted[accepted] == wanted[accepted]:
            accepted += 1
        new = self._output[self._place : self._place + accepted + 1]
        self._tokens += new
        self._place += len(new)
        return len(drafted), accepted


class Made:
    """A request whose drafts survive at given rates by position."""

    def __init__(self, name: str, rates: Sequence[float], seed: int) -> None:
        self.name, self._place = name, 0
        self._kept = np.random.default_rng([seed, 7]).random(len(rates)) < np.asarray(rates)

    @property
    def left(self) -> int:
        """Tokens to come."""
        return len(self._kept) - self._place

    def state(self, max_kappa: int, *, signs: bool) -> RowState:  # noqa: ARG002
        """Return what a policy is told before a round; nothing is foretold."""
        most = min(max_kappa, self.left - 1)
        return RowState(self.name, 200 + self._place, most, ("ngram",), remaining=self.left)

    def play(self, kappa: int) -> tuple[int, int]:
        """Return drafts that came and drafts accepted."""
        coming = self._kept[self._place : self._place + kappa]
        accepted = int(coming.cumprod().sum())
        self._place += accepted + 1
        return kappa, accepted


def seconds_of(
    policy: KappaPolicy,
    texts: Sequence[Any],
    cost: RoundCost,
    most: int,
    width: int,
    *,
    signs: bool,
) -> tuple[int, float]:
    """Decode texts, so many at once; return tokens and seconds while the batch is full."""
    tokens, seconds, price = 0, 0.0, {}
    rows, waiting = list(texts[:width]), list(texts[width:])
    while rows and (len(rows) == width or len(texts) <= width):
        states = [row.state(most, signs=signs) for row in rows]
        choices = policy.choose(states)
        kappas = [choice.kappa for choice in choices]
        played = [row.play(kappa) for row, kappa in zip(rows, kappas, strict=True)]
        context = sum(state.kv_tokens for state in states) / len(rows)
        drafted = sum(came for came, _ in played)
        seconds += float(
            cost.pass_seconds(len(rows), np.asarray([len(rows) + drafted]), context)[0]
        )
        for depth in range(1, max(kappas) + 1):
            key = (depth, sum(kappa >= depth for kappa in kappas))
            if key not in price:
                price[key] = float(
                    cost.draft.depth_seconds(depth, np.asarray([1.0 * key[1]]), 0.0)[0]
                )
            seconds += price[key]
        tokens += sum(accepted + 1 for _, accepted in played)
        for state, choice, (came, accepted) in zip(states, choices, played, strict=True):
            record = StepRecord(state.request_id, 0, (0,) * came, accepted, (0,) * (accepted + 1))
            if choice.kappa:
                policy.observe(record)
        for row in rows:
            if not row.left:
                policy.release(row.name)
        rows = [row for row in rows if row.left]
        while waiting and len(rows) < width:
            rows.append(waiting.pop(0))
    policy.reset()
    return tokens, seconds


def cells(
    texts: Sequence[dict[str, Any]],
) -> dict[str, tuple[RoundCost, int, int, Callable[[], list]]]:
    """Return by name: costs, most drafts, rows, and the calls to make."""
    found: dict[str, tuple[RoundCost, int, int, Callable[[], list]]] = {}

    def recorded(kind: str, batch: int) -> Callable[[], list]:
        mine = [text for text in texts if text["kind"] == kind]

        def make() -> list:
            rows = [Recorded(str(i), t["prompt"], t["output"]) for i, t in enumerate(mine)]
            return [rows[i : i + batch] for i in range(0, len(rows), batch)]

        return make

    def made(kinds: Sequence[str], batch: int, tokens: int) -> Callable[[], list]:
        def make() -> list:
            if batch == 1:  # calls of their own
                return [
                    [Made(str(i), rates_of(kinds[i % len(kinds)], tokens), i)] for i in range(8)
                ]
            rows = range(4 * batch)
            return [[Made(str(i), rates_of(kinds[i % len(kinds)], tokens), i) for i in rows]]

        return make

    for kind in sorted({text["kind"] for text in texts}):
        for batch in (1, 4):
            found[f"{kind}, {batch}"] = (LOOKUP, 15, batch, recorded(kind, batch))
    for label, cost, most in (("lookup", LOOKUP, 15), ("model", MODEL, 8), ("H100", EAGLE, 8)):
        for batch in (1, 4, 16):
            for name, kinds in (
                ("easy", ("easy",)), ("middle", ("middle",)), ("hard", ("hard",)),
                ("mixed", ("easy", "hard")), ("switching", ("switching", "switched")),
            ):  # fmt: skip
                found[f"{label}: {name}, {batch}"] = (cost, most, batch, made(kinds, batch, 150))
    return found


def rates_of(kind: str, tokens: int) -> list[float]:
    """Return the acceptance by position of a kind of request."""
    easy, middle, hard = 0.97, 0.75, 0.15
    if kind.startswith("switch"):
        begin = kind == "switched"
        return [(easy, hard)[(place // 50 + begin) % 2] for place in range(tokens)]
    return [{"easy": easy, "middle": middle, "hard": hard}[kind]] * tokens


def policies(before: Any, cost: RoundCost, most: int) -> dict[str, tuple[Callable[[], Any], bool]]:
    """Return by name: how a policy is made, and whether it is told signs."""

    def static(kappa: int) -> Callable[[], Any]:
        return lambda: StaticPolicy(kappa, "ngram")

    def chosen(module: Any) -> Callable[[], Any]:
        limits = module.ControllerConfig(max_kappa=most)
        return lambda: module.GoodputController(cost, config=limits)

    named = {str(k): (static(k), False) for k in (0, 1, 3, 7, 15) if k <= most}
    named["auto"] = (chosen(controller), True)
    if before is not None:
        named["before"] = (chosen(before), False)
    return named


def sweep(texts: Sequence[dict[str, Any]], before: Any, only: str) -> dict[str, Any]:
    """Predict the pace of every policy in every cell."""
    figures: dict[str, Any] = {}
    for name, (cost, most, width, make) in cells(texts).items():
        if only not in name:
            continue
        pace = {}
        for label, (build, signs) in policies(before, cost, most).items():
            policy = build()
            pairs = [seconds_of(policy, call, cost, most, width, signs=signs) for call in make()]
            pace[label] = sum(t for t, _ in pairs) / sum(s for _, s in pairs)
        static = {label: value for label, value in pace.items() if label.isdigit()}
        best = max(static, key=lambda label: static[label])
        figures[name] = {"best_static": int(best), "best_over_plain": pace[best] / pace["0"]}
        for label in sorted(set(pace) - set(static)):
            figures[name][label] = {
                "over_plain": pace[label] / pace["0"], "over_best": pace[label] / pace[best],
            }  # fmt: skip
        print(
            f"{name:24} best {best:>2} x {pace[best] / pace['0']:.2f} "
            + "  ".join(
                f"{label}: {figures[name][label]['over_best']:.3f} of best, "
                f"{figures[name][label]['over_plain']:.3f} of plain"
                for label in ("before", "auto")
                if label in pace
            )
        )
    for label in ("before", "auto"):
        rows = [cell[label] for cell in figures.values() if label in cell]
        if rows:
            print(
                f"{label}: mean of best {geometric_mean(r['over_best'] for r in rows):.3f}, "
                f"least of best {min(r['over_best'] for r in rows):.3f}, "
                f"least of plain {min(r['over_plain'] for r in rows):.3f}"
            )
    return figures


def decision_us(build: Callable[[], Any], batch: int, signs: bool, rounds: int = 200) -> float:
    """Return microseconds per round of choosing and learning, on rounds that are made up.

    The time of this thread alone, since another program may take the processor; what is made up
    is made beforehand, and the clock is read twice.
    """
    policy, chance = build(), random.Random(0)
    told = (3,) if signs else ()
    turns = [
        [RowState(str(i), 200 + turn, 15, ("ngram",), told) for i in range(batch)]
        for turn in range(rounds)
    ]
    luck = [[next(k for k in range(99) if chance.random() > 0.8) for _ in turns[0]] for _ in turns]
    made = {
        (row.request_id, kappa, kept): StepRecord(row.request_id, 0, (0,) * kappa, kept, (0,))
        for row in turns[0]
        for kappa in range(16)
        for kept in range(kappa + 1)
    }
    begin = time.thread_time()
    for rows, lucky in zip(turns, luck, strict=True):
        for row, choice, kept in zip(rows, policy.choose(rows), lucky, strict=True):
            policy.observe(made[row.request_id, choice.kappa, min(kept, choice.kappa)])
    return (time.thread_time() - begin) / rounds * 1e6


def decisions(before: Any, repeats: int) -> dict[str, Any]:
    """Time decisions, versions interleaved."""
    found: dict[str, Any] = {}
    made = policies(before, LOOKUP, 15)
    for batch in (1, 4, 16):
        subjects = {
            label: lambda build=made[label][0], batch=batch, signs=made[label][1]: decision_us(
                build, batch, signs
            )
            for label in ("auto", "before")
            if label in made
        }
        times = interleave(subjects, repeats=repeats)
        found[str(batch)] = {label: summary(each) for label, each in times.items()}
        line = f"decision, {batch} rows: "
        line += ", ".join(f"{label} {median(each):.0f} us" for label, each in times.items())
        if before is not None:
            found[str(batch)]["auto_to_before"] = ratios(times["auto"], times["before"])
            line += f", x {shown(found[str(batch)]['auto_to_before'])}"
        print(line)
    return found


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--before", help="an importable package with an earlier controller")
    parser.add_argument("--only", default="", help="cells whose name has this")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    before = options.before and importlib.import_module(f"{options.before}.controller")
    print(environment()["cpu"])
    texts = json.loads(options.texts.read_text(encoding="utf-8"))
    figures = sweep(texts, before, options.only)
    times = decisions(before, options.repeats)
    report({"benchmark": "controller_choices", "cells": figures, "us": times}, options.output)


if __name__ == "__main__":
    main()
