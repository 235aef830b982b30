"""What verification costs beside reading the logits it reached once.

Every rule and policy over vocabularies, batches and numbers of drafts. The figure is
nanoseconds per entry of a row that was reached: positions after a rejection cost
nothing and count nothing. The baseline is one maximum over each of the same rows, which
is what memory allows. Both are CPU time of one thread, so that neighbours on the
machine count only through the caches they share; drafting is not timed. Rows are taken
as stable, the way a step may use the logits of its pass.

    python law_cost.py --output results/law_cost.json
    python law_cost.py --peers --output results/law_cost_peers.json
    python law_cost.py --step --output results/law_cost_step.json

The second form compares the laws with transformers' warpers and torch.multinomial on
the same rows, in the same process and on one thread. The third one measures the share
of verification in a step of SmolLM2: 16 rows of 5 tokens, all positions reached. There
the pass is wall-clock time of all cores, so an idle machine is needed for the shares.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import interleave, ratios, report, summary

from draftproof.core.law import Law
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft
from draftproof.verify import NumpyExecutor, VerifyRow, verify

VOCABS = (32_768, 131_072, 262_144)
#: Batch and number of drafts.
SHAPES = tuple((batch, kappa) for batch in (1, 16, 64) for kappa in (1, 4, 8))
MAX_KAPPA = 8
RULES = ("standard", "block", "coupled")
POLICIES = {
    "greedy": SamplingParams(temperature=0.0),
    "T = 1": SamplingParams(),
    "top-k 50": SamplingParams(top_k=50),
    "top-p 0.9": SamplingParams(top_p=0.9),
}
#: Distinct rows of a batch; more are the same again.
PROMPTS = 8
HISTORY = History()


@dataclass(frozen=True, slots=True)
class Rows:
    """Logits of some prompts: shape (PROMPTS, kappa + 1, V) each."""

    target: np.ndarray
    draft: np.ndarray


def made_rows(vocab: int, spread: float, drift: float = 0.7) -> Rows:
    """Return normal logits, spread 3 like a language model's, and a drafter's beside them."""
    rng = np.random.default_rng(vocab)
    shape = (PROMPTS, MAX_KAPPA + 1, vocab)
    target = rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)
    draft = target + rng.standard_normal(shape, dtype=np.float32) * np.float32(drift)
    return Rows(target, draft)


def drafts_of(rows: Rows, params: SamplingParams, *, coupled: bool) -> list[Draft]:
    """Draft as a draft model would, with the coins of each prompt."""
    drafts = []
    for prompt in range(PROMPTS):
        coins = CoinSource(prompt).round(100)
        laws: list[Law] = []
        tokens = []
        for i in range(MAX_KAPPA):
            law = target_law(rows.draft[prompt, i], params, HISTORY)
            noise = coins.noise(i, law.vocab_size)
            tokens.append(law.race(noise) if coupled else law.draw(coins.draft(i)))
            law.prob(tokens[-1])
            laws.append(law)
        drafts.append(Draft(tuple(tokens), tuple(laws), "bench"))
    return drafts


def verified(
    rows: Rows, drafts: list[Draft], params: SamplingParams, rule: str, batch: int, kappa: int
) -> list[tuple[int, int]]:
    """Verify a batch; return the rows that were reached, as (prompt, position)."""
    reached: list[tuple[int, int]] = []
    for row in range(batch):
        prompt = row % PROMPTS
        draft, logits = drafts[prompt], rows.target[prompt]

        def law_at(j: int, prompt: int = prompt, logits: np.ndarray = logits) -> Law:
            reached.append((prompt, j))
            return target_law(logits[j], params, HISTORY, is_stable=True)

        laws = draft.laws[:kappa] if draft.laws else None
        verify(rule, Draft(draft.token_ids[:kappa], laws), law_at, CoinSource(prompt).round(100))
    return reached


def cpu_ns(call: Callable[[], object]) -> float:
    begin = time.thread_time_ns()
    call()
    return float(time.thread_time_ns() - begin)


def grid(vocabs: tuple[int, ...], repeats: int, spread: float) -> list[dict[str, Any]]:
    """Measure every combination, each beside reading its rows once."""
    cells = []
    for vocab in vocabs:
        rows = made_rows(vocab, spread)
        for policy, params in POLICIES.items():
            sampled = {c: drafts_of(rows, params, coupled=c) for c in (False, True)}
            for rule in RULES:
                drafts = sampled[rule == "coupled"]
                for batch, kappa in SHAPES:
                    args = (rows, drafts, params, rule, batch, kappa)
                    cells.append(
                        {"vocab": vocab, "policy": policy, "rule": rule, "batch": batch,
                         "kappa": kappa, **cell(args, repeats)}
                    )  # fmt: skip
    return cells


def cell(args: tuple[Any, ...], repeats: int) -> dict[str, Any]:
    rows = args[0]
    reached = verified(*args)
    entries = len(reached) * rows.target.shape[-1]

    def read() -> None:
        for prompt, j in reached:
            rows.target[prompt, j].max()

    figures = interleave(
        {"verify": lambda: cpu_ns(lambda: verified(*args)), "read": lambda: cpu_ns(read)},
        repeats=repeats,
    )
    return {
        "rows_reached": len(reached),
        "verify_ns": rounded(summary([t / entries for t in figures["verify"]])),
        "read_ns": rounded(summary([t / entries for t in figures["read"]])),
        "ratio": rounded(ratios(figures["verify"], figures["read"])),
    }


def rounded(stats: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in stats.items()}


def peers(repeats: int) -> list[dict[str, Any]]:
    """Draw one token per row: our laws, and transformers' warpers with multinomial."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.set_num_threads(1)
    ids = torch.zeros((1, 1), dtype=torch.long)
    warpers: dict[str, list[Any]] = {
        "T = 1": [TemperatureLogitsWarper(1.0)],
        "top-k 50": [TopKLogitsWarper(50)],
        "top-p 0.9": [TopPLogitsWarper(0.9)],
    }
    results = []
    for vocab in VOCABS:
        for name, spread in (("peaked", 3.0), ("flat", 0.3)):
            rows = made_rows(vocab, spread).target[:, 0]
            tensor = torch.from_numpy(rows)

            def torch_draw(steps: list[Any], tensor: Any = tensor) -> None:
                scores = tensor
                for step in steps:
                    scores = step(ids, scores)
                torch.multinomial(torch.softmax(scores, dim=-1), 1)

            def our_draw(params: SamplingParams, rows: np.ndarray = rows) -> None:
                coins = CoinSource(1)
                for row in rows:
                    target_law(row, params, HISTORY, is_stable=True).draw(coins.round(0).sample(0))

            def our_race(params: SamplingParams, rows: np.ndarray = rows) -> None:
                coins = CoinSource(1)
                for place, row in enumerate(rows):
                    law = target_law(row, params, HISTORY, is_stable=True)
                    law.race(coins.round(place).noise(0, len(row)))

            for policy, steps in warpers.items():
                params = POLICIES[policy]
                subjects = {
                    "transformers": lambda s=steps, f=torch_draw: cpu_ns(lambda: f(s)),
                    "draw": lambda p=params, f=our_draw: cpu_ns(lambda: f(p)),
                    "race": lambda p=params, f=our_race: cpu_ns(lambda: f(p)),
                    "read": lambda r=rows: cpu_ns(lambda: [row.max() for row in r]),
                }
                figures = interleave(subjects, repeats=repeats)
                per_entry = {
                    subject: rounded(summary([t / rows.size for t in times]))
                    for subject, times in figures.items()
                }
                results.append({"vocab": vocab, "law": name, "policy": policy, **per_entry})
    return results


def share_of_step(repeats: int) -> list[dict[str, Any]]:
    """Verify what a pass of SmolLM2 gave, 4 drafts on 16 rows that are all accepted."""
    from draftproof.build import load_model
    from draftproof.core.types import FlatBatch, Row

    backend, tokenizer = load_model("smollm2")[:2]
    ids = tokenizer.encode(
        "Once upon a time there was a girl who lived in a forest with her old grandmother. "
        "Every morning she went to the river and talked to the fish, who knew all stories."
    )
    handles = [backend.open(()) for _ in range(16)]
    for handle in handles:
        backend.forward(FlatBatch.from_rows([Row(handle, ids, 0, 1)]))
    length = len(ids)
    batch = FlatBatch.from_rows([Row(handle, ids[8:13], length, 5) for handle in handles])
    held: list[np.ndarray] = []

    def forward() -> float:
        begin = time.perf_counter_ns()
        held[:] = [backend.forward(batch)]
        spent = time.perf_counter_ns() - begin
        for handle in handles:
            backend.truncate(handle, length)
        return float(spent)

    def rows_of(params: SamplingParams, rule: str) -> list[VerifyRow]:
        """Return rows whose drafts are all kept: the drafter's law is the target's."""
        rows = []
        for place in range(16):
            coins = CoinSource(place)
            logits = held[0][5 * place : 5 * place + 5]
            laws = [target_law(row.copy(), params, HISTORY) for row in logits[:4]]
            tokens = []
            for offset, law in enumerate(laws):
                law.prob(0)  # the drafter has asked it already
                race = rule == "coupled" and not law.is_one_hot
                noise = coins.round(length).noise(offset, law.vocab_size) if race else None
                tokens.append(law.draw(0.5) if noise is None else law.race(noise))
            draft = Draft(tuple(tokens), tuple(laws))
            first = 5 * place
            coin = coins.round(length)
            rows.append(VerifyRow(str(place), rule, draft, params, HISTORY, coin, None, first))
        return rows

    def judged(params: SamplingParams, rule: str, executor: NumpyExecutor) -> float:
        rows = rows_of(params, rule)
        begin = time.thread_time_ns()  # one thread judges
        verdicts = executor.judge(rows, held[0])
        spent = time.thread_time_ns() - begin
        kept = [len(v.path) for v in verdicts if not isinstance(v, Exception)]
        assert kept == [4] * 16, verdicts
        return float(spent)

    forward()
    subjects: dict[str, Callable[[], float]] = {"forward": forward}
    executor = NumpyExecutor()
    for name, params in POLICIES.items():
        for rule in ("standard", "block", "coupled"):
            subjects[f"{name}, {rule}"] = lambda p=params, r=rule: judged(p, r, executor)
    figures = interleave(subjects, repeats=repeats)
    results = []
    for label, times in figures.items():
        share = ratios(times, figures["forward"])
        ms = summary([t / 1e6 for t in times])
        print(f"{label:40}{ms['median']:10.1f} ms {share['median']:10.3f}")
        results.append({"part": label, "ms": rounded(ms), "share": rounded(share)})
    return results


def print_grid(cells: list[dict[str, Any]]) -> None:
    print(f"{'ns per entry reached (x read)':30}" + "".join(f"{f'V={v}':>20}" for v in VOCABS))
    for policy in POLICIES:
        for rule in RULES:
            line = f"{policy + ', ' + rule:30}"
            for vocab in VOCABS:
                found = [
                    c for c in cells
                    if (c["policy"], c["rule"], c["vocab"]) == (policy, rule, vocab)
                ]  # fmt: skip
                if found:
                    ns = np.median([c["verify_ns"]["median"] for c in found])
                    ratio = np.median([c["ratio"]["median"] for c in found])
                    line += f"{f'{ns:.2f} ({ratio:.1f})':>20}"
            print(line)


def print_peers(results: list[dict[str, Any]]) -> None:
    subjects = ("transformers", "draw", "race", "read")
    print(f"{'ns per entry':32}" + "".join(f"{subject:>14}" for subject in subjects))
    for row in results:
        name = f"V={row['vocab']}, {row['law']}, {row['policy']}"
        print(f"{name:32}" + "".join(f"{row[s]['median']:14.2f}" for s in subjects))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--spread", type=float, default=3.0)
    parser.add_argument("--vocabs", type=int, nargs="+", default=VOCABS)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--step", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.step:
        results = share_of_step(options.repeats)
    elif options.peers:
        results = peers(options.repeats)
        print_peers(results)
    else:
        results = grid(tuple(options.vocabs), options.repeats, options.spread)
        print_grid(results)
    report(
        {
            "benchmark": "law_cost",
            "unit": "ns of CPU time of one thread per entry of a reached row",
            "spread": options.spread,
            "results": results,
        },
        options.output,
    )


if __name__ == "__main__":
    main()
