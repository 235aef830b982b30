"""What drafters without a model cost, and what they win on three kinds of text.

First the cost of a step over texts of 1,000 to 100,000 tokens, with no model. Then SmolLM2
at temperature 0: plain decoding and every drafter on the same prompts. Rewriting a text,
editing code, and free text; the prediction is the text before the edit, and for free text
the answer to another question, which is a wrong one. Passes are counted, not timed.

    python benchmarks/draftless.py --output benchmarks/results/draftless.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import report

from draftproof.build import load_model
from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest, Proposer
from draftproof.core.rng import CoinSource
from draftproof.core.stats import SpecDecodeStats, format_rate
from draftproof.engine import EngineCore, GenerateRequest, GenerateResult
from draftproof.proposers import (
    NgramProposer,
    PredictionProposer,
    SuffixProposer,
    prediction_usage,
)

LENGTHS = (1_000, 10_000, 100_000)
ROUNDS = 100
SEED = 0
GREEDY = SamplingParams(temperature=0.0)

STORIES = (
    "Anna lives in a small house by the sea. Every morning she walks along the beach with her "
    "dog and looks for shells. In the afternoon Anna paints the boats in the harbour, and in "
    "the evening she reads a book by the fire.",
    "Peter left the house at seven in the morning and walked to the mill. There Peter bought "
    "bread, cheese and honey. On the way back he stopped at the school, gave the cheese to a "
    "neighbour and received candles and rope in return.",
    "The library opens at nine. Visitors may borrow five books for three weeks. Karim checks "
    "every book that comes back and puts it on its shelf. On Fridays Karim reads aloud to the "
    "children, and on Saturdays the library is closed.",
    "Mei has a garden behind the old gate. In spring she plants beans, peas and carrots. In "
    "summer Mei waters them every evening, and in autumn she sells what she does not need at "
    "the market, where her brother Oskar helps her.",
)
NAMES = (("Anna", "Maria"), ("Peter", "Simon"), ("Karim", "Hugo"), ("Mei", "Lucia"))
CODES = (
    "def total(items):\n    result = 0\n    for item in items:\n        if item > 0:\n"
    "            result = result + item\n    return result\n\n\nprint(total([1, -2, 3]))\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n"
    "    def push(self, item):\n        self.items.append(item)\n\n"
    "    def pop(self):\n        return self.items.pop()\n\n"
    "    def size(self):\n        return len(self.items)\n",
    "def read_numbers(path):\n    numbers = []\n    with open(path) as file:\n"
    "        for line in file:\n            line = line.strip()\n            if line:\n"
    "                numbers.append(float(line))\n    return numbers\n",
    "def is_prime(n):\n    if n < 2:\n        return False\n    i = 2\n"
    "    while i * i <= n:\n        if n % i == 0:\n            return False\n"
    "        i = i + 1\n    return True\n\n\nprint(is_prime(17))\n",
)
RENAMES = (("result", "amount"), ("items", "values"), ("numbers", "data"), ("is_prime", "prime"))
FREE = (
    "Explain why the sky is blue.",
    "Write a short story about a lighthouse keeper.",
    "What should one consider when buying a used bicycle?",
    "Describe how bread is made, step by step.",
)


# -- cost --------------------------------------------------------------------------------


def texts(length: int) -> Iterator[tuple[str, list[int]]]:
    """Ordinary and hostile texts: word-like, one symbol, runs, Fibonacci."""
    rng = np.random.default_rng(SEED)
    yield "zipf", np.minimum(rng.zipf(1.2, length), 49_000).tolist()
    yield "constant", [7] * length
    runs: list[int] = []
    while len(runs) < length:
        runs += [7] * 100 + [int(rng.integers(8, 1000))]
    yield "runs of 100", runs[: length - 50] + [7] * 50
    older, word = [0], [0, 1]
    while len(word) < length:
        older, word = word, word + older
    yield "fibonacci", word[:length]


def step_cost(proposer: Proposer, text: list[int], prediction: tuple[int, ...]) -> list[float]:
    """Return the first call, which reads the text, and median and worst of later ones, in us."""
    # With a prediction the text is what is predicted, and the output has its first half.
    tokens = list(text) if not prediction else [1, *text[: len(text) // 2]]
    history, coins = History(tokens[:1] if prediction else tokens), CoinSource(1).round(0)
    history.num_generated = len(tokens) - 1 if prediction else 0

    def call() -> float:
        request = ProposalRequest("a", tokens, 8, GREEDY, history, coins, False, prediction)
        begin = time.perf_counter()
        proposer.propose([request])
        return 1e6 * (time.perf_counter() - begin)

    first, later = call(), []
    for turn in range(ROUNDS):
        # Two tokens that follow and one that does not: each step searches anew.
        begin = len(tokens)
        tokens += [*text[begin % len(text) :][:2], 50_000 + turn % 3]
        history.num_generated += len(tokens) - begin
        later.append(call())
    return [first, statistics.median(later), max(later)]


def cost() -> list[list[object]]:
    """Measure all texts, lengths and drafters."""
    rows: list[list[object]] = []
    print(f"{'text':12} {'tokens':>7} {'drafter':11} {'first us/token':>14} {'then us':>8} worst")
    for length in LENGTHS:
        for name, text in texts(length):
            for drafter, proposer in (
                ("ngram", NgramProposer()),
                ("suffix", SuffixProposer()),
                ("prediction", PredictionProposer()),
            ):
                prediction = tuple(text) if drafter == "prediction" else ()
                first, then, worst = step_cost(proposer, text, prediction)
                rows.append([name, length, drafter, round(first), round(then), round(worst)])
                head = f"{name:12} {length:7} {drafter:11}"
                print(f"{head} {first / length:14.2f} {then:8.0f} {worst:6.0f}")
    return rows


# -- acceptance --------------------------------------------------------------------------


def workloads() -> dict[str, list[tuple[str, str]]]:
    """Return (what is asked, what is predicted) by kind of text."""
    rewriting = [
        (
            f"Rewrite this text. Change the name {old} to {new} and keep every other word.\n\n"
            f"Text: {story}",
            story,
        )
        for story, (old, new) in zip(STORIES, NAMES, strict=True)
    ]
    editing = [
        (
            f"Rename {old} to {new} in this Python code. Answer with the whole code only.\n\n"
            f"```python\n{text}```",
            f"```python\n{text}```",
        )
        for text, (old, new) in zip(CODES, RENAMES, strict=True)
    ]
    return {
        "rewriting": rewriting,
        "code": editing,
        "free": [(question, "") for question in FREE],
    }


def acceptance(options: argparse.Namespace) -> dict[str, object]:
    """Run every drafter and plain decoding on every prompt, the prompts of a kind at once."""
    target, tokenizer = load_model(options.model, precision=options.precision)
    drafters = [NgramProposer(), SuffixProposer(), PredictionProposer()]
    core = EngineCore(target, tokenizer=tokenizer, proposers=drafters)

    def run(
        prompts: list[tuple[str, str]], name: str, predictions: list[list[int]]
    ) -> list[GenerateResult]:
        names = []
        for (question, _), prediction in zip(prompts, predictions, strict=True):
            request = GenerateRequest(
                tuple(tokenizer.encode_chat([{"role": "user", "content": question}])),
                GREEDY,
                max_tokens=options.max_tokens,
                kappa=0 if name == "plain" else options.kappa,
                proposer=None if name == "plain" else name,
                prediction=tuple(prediction) if name == "prediction" else (),
            )
            names.append(core.submit(request))
        results = core.run()
        return [results[name] for name in names]

    figures: dict[str, object] = {}
    for kind, prompts in workloads().items():
        plain = run(prompts, "plain", [[]] * len(prompts))
        answers = [result.token_ids for result in plain]
        predictions = [tokenizer.encode(text, add_special=False) for _, text in prompts]
        if kind == "free":
            predictions = [*answers[1:], answers[0]]
        print(f"\n{kind}: {len(prompts)} prompts, {sum(map(len, answers))} tokens")
        described = {"plain": describe("plain", plain, answers)}
        for drafter in drafters:
            results = run(prompts, drafter.name, predictions)
            described[drafter.name] = describe(drafter.name, results, answers)
        figures[kind] = described
    return figures


def describe(
    name: str, results: list[GenerateResult], answers: list[list[int]]
) -> dict[str, object]:
    """Print and return the figures of one drafter on one kind of text."""
    stats = SpecDecodeStats()
    for result in results:
        stats = stats.merge(result.stats)
    usage = prediction_usage(record for result in results for record in result.records)
    # The first token of a request comes from the pass that reads the prompt.
    num_tokens = stats.num_emitted_tokens - len(results)
    per_pass = num_tokens / (stats.num_rounds - len(results))
    forks = sum(result.token_ids != answer for result, answer in zip(results, answers, strict=True))
    reached = zip(stats.num_accepted_tokens_per_pos, stats.num_reached_per_pos, strict=True)
    print(
        f"  {name:11} {per_pass:5.2f} tokens/pass, {stats.num_draft_tokens:4} drafted, accepted "
        f"{format_rate(stats.acceptance_rate)}; forks {forks}; by position "
        + " ".join(f"{accepted}/{of}" for accepted, of in reached)
    )
    return {
        "tokens_per_pass": per_pass,
        "num_tokens": num_tokens,
        "num_rounds": stats.num_rounds,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens_per_pos": stats.num_accepted_tokens_per_pos,
        "num_reached_per_pos": stats.num_reached_per_pos,
        "num_drafted_per_pos": stats.num_drafted_per_pos,
        "accepted_prediction_tokens": usage.accepted_prediction_tokens,
        "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        "num_outputs_that_fork_from_plain": forks,
    }


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--kappa", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--only", choices=["cost", "acceptance"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    figures: dict[str, object] = {"benchmark": "draftless", "seed": SEED}
    if options.only != "acceptance":
        figures["cost_columns"] = ["text", "tokens", "drafter", "first_us", "median_us", "max_us"]
        figures["cost"] = cost()
    if options.only != "cost":
        figures["acceptance"] = acceptance(options)
    report(figures, options.output)


if __name__ == "__main__":
    main()
