"""What speculation buys on text that copies and on free text, at temperatures 0 and 1.

Plain decoding and every kappa run interleaved in one process, on distinct prompts, so
that nothing is replayed from an earlier run. The pace is generated tokens by seconds
from the first token on (decoding only); the ratio is taken within each round.

    python benchmarks/speculation.py --precision int8 --output benchmarks/results/…
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from measure import environment, interleave, peak_memory_bytes, ratios, report, shown, summary

from draftproof.build import load
from draftproof.core.stats import SpecDecodeStats, format_rate
from draftproof.engine import Engine, Prompt

NAMES = ("Anna", "Peter", "Lucia", "Karim", "Ingrid", "Tomas", "Mei", "Oskar", "Nadia", "Hugo")
GOODS = ("apples", "pears", "bread", "cheese", "honey", "paper", "candles", "rope", "salt", "tea")
PLACES = ("the bridge", "the mill", "the school", "the harbour", "the old gate", "the library")


def record(index: int, name: str) -> str:
    """Write a short report about somebody's day; every index gives another one."""
    goods = [GOODS[(index + step) % 10] for step in range(6)]
    place, other_place = PLACES[index % 6], PLACES[(index + 2) % 6]
    return (
        f"{name} left the house at {6 + index % 4} in the morning and walked to {place}. "
        f"There {name} bought {goods[0]}, {goods[1]} and {goods[2]}. On the way back {name} "
        f"stopped at {other_place}, gave the {goods[1]} to a neighbour and received {goods[3]} "
        f"and {goods[4]} in return. In the evening {name} wrote down what had been bought and "
        f"given: {goods[0]}, {goods[1]}, {goods[2]}, {goods[3]}, {goods[4]}, and also some "
        f"{goods[5]}. The next day {name} went back to {place}, because the {goods[2]} had been "
        f"left there, and found it at once."
    )


def copying_prompt(index: int) -> str:
    """Give a text, then the text with one name changed, twice, and its start once more."""
    name, other = NAMES[index % 10], NAMES[(index + 3) % 10]
    edited = record(index, other)
    start = edited[: edited.index(".") + 1]
    return "\n\n".join([record(index, name), edited, edited, start])


FREE = (
    "Explain why the sky is blue.",
    "Write a short story about a lighthouse keeper.",
    "What should one consider when buying a used bicycle?",
    "Describe how bread is made, step by step.",
    "Why do leaves change colour in autumn?",
    "Give advice to someone who starts a new job.",
    "Tell me about the history of the printing press.",
    "How does a refrigerator work?",
)


def free_prompt(index: int) -> list[dict[str, str]]:
    """Ask something whose answer copies nothing."""
    return [{"role": "user", "content": FREE[index % len(FREE)]}]


def pace(engine: Engine, prompt: Prompt, options: dict) -> tuple[float, object]:
    """Tokens per second from the first token on, and the result."""
    begin, result = None, None
    for output in engine.stream(prompt, **options):
        # The first token comes with the prompt; the pace is that of the others.
        begin = begin if begin is not None else time.perf_counter()
        result = output.result
    return (len(result.tokens) - 1) / (time.perf_counter() - begin), result


def sweep(engine: Engine, workload: str, temperature: float, options) -> dict:
    """Measure every kappa against plain decoding on one workload."""
    make = copying_prompt if workload == "copying" else free_prompt
    turn = {"n": 0}
    stats = {kappa: SpecDecodeStats() for kappa in options.kappas}

    def subject(kappa: int):
        def run() -> float:
            # One prompt per round: all subjects of a round see the same one.
            prompt = make(turn["n"] // len(options.kappas))
            turn["n"] += 1
            speed, result = pace(
                engine,
                prompt,
                {
                    "max_tokens": options.max_tokens,
                    "temperature": temperature,
                    "seed": 11,
                    "num_speculative_tokens": kappa,
                },
            )
            stats[kappa] = stats[kappa].merge(result.stats)
            return speed

        return run

    runs = interleave(
        {f"{kappa}": subject(kappa) for kappa in options.kappas}, repeats=options.repeats
    )
    print(f"\n{workload}, temperature {temperature}")
    table = {}
    for kappa in options.kappas:
        speed, over = summary(runs[f"{kappa}"]), ratios(runs[f"{kappa}"], runs["0"])
        length = stats[kappa].mean_acceptance_length
        rate = stats[kappa].acceptance_rate
        print(
            f"  kappa {kappa:2}: {shown(speed, 1)} tok/s, x {shown(over)}, mean acceptance "
            f"length {format_rate(length)}, accepted {format_rate(rate)} of "
            f"{stats[kappa].num_draft_tokens} drafted for {stats[kappa].num_emitted_tokens} tokens"
        )
        table[str(kappa)] = {
            "tokens_per_s": speed,
            "ratio": over,
            "mean_acceptance_length": None if length != length else length,
            "acceptance_rate": None if rate != rate else rate,
            "num_draft_tokens": stats[kappa].num_draft_tokens,
            "num_accepted_tokens_per_pos": stats[kappa].num_accepted_tokens_per_pos,
            "num_drafted_per_pos": stats[kappa].num_drafted_per_pos,
        }
    return table


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--kappas", type=int, nargs="+", default=[0, 3, 5, 7, 11, 15])
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    engine = load(
        options.model,
        precision=options.precision,
        speculative_config={"method": "ngram", "num_speculative_tokens": max(options.kappas)},
    )
    print(environment()["cpu"])
    figures = {
        f"{workload}, T={temperature}": sweep(engine, workload, temperature, options)
        for workload in ("copying", "free")
        for temperature in (0.0, 1.0)
    }
    memory = peak_memory_bytes()
    print(f"\npeak memory {memory / 2**20:.0f} MiB")
    report(
        {
            "benchmark": "speculation",
            "precision": options.precision,
            "figures": figures,
            "peak_memory_bytes": memory,
        },
        options.output,
    )


if __name__ == "__main__":
    main()
