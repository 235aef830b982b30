"""Every drafter on six kinds of prompts, two temperatures and several batches.

Drafters and plain decoding take turns on the same prompts, in random order within each
round, and new prompts in each round. Counted are acceptance per position with its
denominators, tokens per pass of a row, what a drafted token costs in passes of plain
decoding, and the share of drafting in the time. The pace is that of all rows together while
all of them run: from the step after which each has its first token to the one that ends a
row. Under load another request would take that row's place; ``whole_over_plain`` is the pace
until the last row ends, where fast rows leave slow ones behind in ever smaller passes.
``auto`` is the hybrid drafter under the controller, with the costs of a profile.

    draftproof calibrate -m smollm2 -md smollm2-head -o profile.json
    python drafter_grid.py --profile profile.json --output results/drafter_grid.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from measure import interleave, ratios, report, shown, summary

from draftproof.bench.workloads import Workloads
from draftproof.build.drafters import make_proposers
from draftproof.build.heads import load_head
from draftproof.build.lengths import make_policy
from draftproof.build.runtimes import load_model
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import Proposer
from draftproof.core.stats import SpecDecodeStats, format_rate
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.proposers import DraftModelProposer

KINDS = ("copy-edit", "code-edit", "extract", "summarise", "chat", "story")
#: Name, configuration without the head, and drafts per round.
ARMS: dict[str, tuple[str, int]] = {
    "plain": ("none", 0),
    "ngram": ("ngram", 7),
    "suffix": ("suffix", 7),
    "draft_head": ("draft_head", 3),
    "hybrid": ("hybrid", 7),
    "early_exit": ("early_exit", 3),
    "suffix_tree": ("suffix_tree", 7),
    "draft_head_tree": ("draft_head_tree", 3),
    "hybrid_tree": ("hybrid_tree", 7),
    "auto": ("hybrid", 7),
}


@dataclass
class Counted:
    """What one arm of one cell adds up."""

    stats: SpecDecodeStats = field(default_factory=SpecDecodeStats)
    draft_s: float = 0.0
    target_s: float = 0.0
    total_s: float = 0.0
    num_steps: int = 0
    #: Tokens per second until the last row ends, one for each run.
    whole: list[float] = field(default_factory=list)


def cores(options: argparse.Namespace, names: Sequence[str]) -> dict[str, EngineCore]:
    """Return one engine per arm over the same weights."""
    with_head = ("draft_head", "hybrid", "draft_head_tree", "hybrid_tree")
    needs_head = {*with_head, "auto"} & set(names)
    target, tokenizer = load_model(
        options.model, precision=options.precision, with_hidden=bool(needs_head)
    )
    made = {}
    for name in names:
        method, kappa = ARMS[name]
        settings: dict[str, Any] = {"method": method}
        policy = None
        if method == "early_exit":
            exit_ = target.early_exit(options.layers)  # type: ignore[attr-defined]
            proposers: list[Proposer] = [DraftModelProposer(exit_)]
        else:
            if method in with_head:
                settings["model"] = options.head
            if name == "auto":
                settings |= {"num_speculative_tokens": "auto", "profile": str(options.profile)}
            config = SpeculativeConfig.parse(settings)
            head = (
                load_head(options.head, target, precision=options.precision)
                if "model" in settings
                else None
            )
            proposers = make_proposers(config, target.info.vocab_size, head=head)
            if name == "auto":
                policy, _note = make_policy(config, target.info, proposers[0].name)
        made[name] = EngineCore(
            target, tokenizer=tokenizer, proposers=proposers, kappa=kappa, kappa_policy=policy
        )
    return made


def timed(
    core: EngineCore,
    prompts: Sequence[list[int]],
    temperature: float,
    counted: Counted,
    length: int,
) -> float:
    """Decode prompts together; return tokens per second while all of them run."""
    names = [
        core.submit(
            GenerateRequest(
                tuple(prompt),
                SamplingParams(temperature=temperature),
                max_tokens=length,
                ignore_eos=True,
                seed=index,
            )
        )
        for index, prompt in enumerate(prompts)
    ]
    tokens = dict.fromkeys(names, 0)
    begin, before, first = 0.0, (0.0, 0.0, 0), 0
    pace = 0.0
    num_steps = 0
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += len(output.tokens)
            if output.result is not None:
                if output.result.error is not None:
                    raise output.result.error
                counted.stats = counted.stats.merge(output.result.stats)
        num_steps += 1
        if begin and not pace and max(tokens.values()) >= length:
            pace = (sum(tokens.values()) - first) / (perf_counter() - begin)
        if not begin and all(tokens.values()):
            begin, first = perf_counter(), sum(tokens.values())
            before = (core.clock.draft_s, core.clock.target_s, num_steps)
    seconds = perf_counter() - begin
    counted.draft_s += core.clock.draft_s - before[0]
    counted.target_s += core.clock.target_s - before[1]
    counted.num_steps += num_steps - before[2]
    counted.total_s += seconds
    counted.whole.append((sum(tokens.values()) - first) / seconds)
    return pace


def cell(
    engines: dict[str, EngineCore],
    prompts: list[list[int]],
    temperature: float,
    batch: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Measure all arms on one kind, temperature and batch."""
    counted = {name: Counted() for name in engines}
    turns = dict.fromkeys(engines, 0)

    def subject(name: str) -> Callable[[], float]:
        def run() -> float:
            at = turns[name] * batch
            turns[name] += 1
            chosen = [prompts[(at + row) % len(prompts)] for row in range(batch)]
            return timed(engines[name], chosen, temperature, counted[name], options.max_tokens)

        return run

    runs = interleave(
        {name: subject(name) for name in engines}, repeats=options.repeats, warm_up=False
    )
    plain_pass = counted["plain"].target_s / max(counted["plain"].num_steps, 1)
    table = {}
    for name in engines:
        held, stats = counted[name], counted[name].stats
        drafted = stats.num_draft_tokens
        # Rows draft together: what one position of all rows costs, in plain passes of them.
        positions = drafted / batch
        table[name] = {
            "tokens_per_s": summary(runs[name]),
            "over_plain": ratios(runs[name], runs["plain"]),
            "whole_over_plain": ratios(held.whole, counted["plain"].whole),
            "accepted_per_pos": [
                [kept, reached]
                for kept, reached in zip(
                    stats.num_accepted_tokens_per_pos, stats.num_reached_per_pos, strict=True
                )
            ],
            "accepted_per_drafter": [
                stats.num_accepted_tokens_per_drafter,
                stats.num_draft_tokens_per_drafter,
            ],
            "tokens_per_pass": stats.num_emitted_tokens / max(stats.num_rounds, 1),
            "draft_cost": held.draft_s / positions / plain_pass if positions else None,
            "draft_share": held.draft_s / held.total_s,
        }
    return table


def show(title: str, table: dict[str, Any]) -> None:
    """Print one cell."""
    print(f"\n{title}")
    for name, row in table.items():
        kept = " ".join(
            format_rate(kept / reached) for kept, reached in row["accepted_per_pos"][:4] if reached
        )
        of = row["accepted_per_pos"][0][1] if row["accepted_per_pos"] else 0
        cost = "n/a" if row["draft_cost"] is None else f"{row['draft_cost']:.3f}"
        print(
            f"  {name:11} x {shown(row['over_plain'])}, {row['whole_over_plain']['median']:.2f} "
            f"to the last row, {row['tokens_per_pass']:.2f} tokens a "
            f"pass, c {cost}, drafting {row['draft_share']:.0%}, kept {kept or 'n/a'} of {of}",
            flush=True,
        )


def main() -> None:
    """Run all cells and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--head", default="smollm2-head", help="a draft head's name or folder")
    parser.add_argument("--profile", type=Path, help="of calibrate, with the head; for auto")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--arms", default="plain,ngram,suffix,draft_head,hybrid,early_exit,auto")
    parser.add_argument("--layers", type=int, default=8, help="of the early exit")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--max-tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    names = list(dict.fromkeys(["plain", *options.arms.split(",")]))
    if unknown := [name for name in names if name not in ARMS]:
        parser.error(f"--arms has {unknown}; expected some of {', '.join(ARMS)}")
    if "auto" in names and options.profile is None:
        parser.error("auto needs --profile")
    engines = cores(options, names)
    tokenizer = engines["plain"].tokenizer
    assert tokenizer is not None
    for core in engines.values():  # warms up
        timed(core, [tokenizer.encode("Once upon a time")], 1.0, Counted(), 16)
    figures: dict[str, Any] = {}
    for kind in options.kinds.split(","):
        prompts = [
            tokenizer.encode_chat(
                [{"role": role, "content": text} for role, text in Workloads().prompt(kind, n)]
            )
            for n in range(options.repeats * max(options.batches))
        ]
        for temperature in options.temperatures:
            for batch in options.batches:
                title = f"{kind}, temperature {temperature:g}, batch {batch}"
                figures[title] = cell(engines, prompts, temperature, batch, options)
                show(title, figures[title])
    settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
    report({"benchmark": "drafter_grid", "settings": settings, "figures": figures}, options.output)


if __name__ == "__main__":
    main()
