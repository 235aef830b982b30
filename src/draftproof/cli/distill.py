"""``draftproof distill``: train a draft head on what a model writes and thinks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import options as o
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.distill.run import Distilled
    from draftproof.distill.speed import Speed

__all__ = ["distill"]


def distill(
    ctx: typer.Context,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the head; an earlier run goes on.")
    ],
    model: o.Model = "smollm2",
    text: Annotated[
        Path | None,
        typer.Option("--text", help="Text to learn from: a file, or a folder of .txt and .md."),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="Time for recording and training.")
    ] = 60.0,
    tokens: Annotated[int, typer.Option("--tokens", help="Most tokens to record.")] = 300_000,
    draft_vocab: Annotated[
        int, typer.Option("--draft-vocab", help="Most frequent tokens that can be drafted.")
    ] = 8192,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts, answers and weights.")] = 0,
    rate: Annotated[
        float, typer.Option("--rate", help="Scale of the learning rates; less for noisy text.")
    ] = 1.0,
    start: Annotated[
        str | None,
        typer.Option(
            "--start", help="Trained head to start from: smollm2-head, or a folder of distill."
        ),
    ] = None,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="Held-out prompts of the last table, at most.")
    ] = 6,
    precision: o.PrecisionOrNone = None,
    threads: o.Threads = None,
    as_json: o.JsonOutput = False,
    quiet: o.Quiet = False,
) -> None:
    """Train a draft head on the hidden states of a model's own text, and measure it."""
    context: CliContext = ctx.obj
    notes = Notes(quiet=quiet)
    try:
        import torch

        from draftproof.distill.run import DistillPlan
        from draftproof.distill.run import distill as make
    except ModuleNotFoundError as error:
        raise ConfigError(f"distill needs {error.name}: pip install 'draftproof[torch]'") from error
    from draftproof.build import load_model
    from draftproof.build.heads import load_head
    from draftproof.distill.corpus import Corpus
    from draftproof.distill.speed import beginnings, measure_speed
    from draftproof.distill.start import read_start
    from draftproof.distill.texts import text_files
    from draftproof.distill.work import check_folder

    plan = DistillPlan(
        minutes=minutes,
        texts=text,
        num_tokens=tokens,
        draft_vocab_size=draft_vocab,
        seed=seed,
        rate=rate,
        # Loading takes a while: whatever can be refused before is.
        start=None if start is None else read_start(start),
    )
    check_folder(output)
    if text is not None:
        text_files(text)
    if threads is not None:
        torch.set_num_threads(threads)
    target, tokenizer = load_model(
        model,
        precision=precision and precision.value,
        threads=threads,
        with_hidden=True,
        cache_dir=context.cache_dir,
        progress=notes.say,
    )
    made = make(target, tokenizer, plan, output, progress=notes.say)
    notes.say("measuring: the same prompts with and without the head")
    kept = precision or o.Precision.INT8
    runner = load_head(str(output), target, precision=kept.value, threads=threads)
    asked = f"{prompts} built-in prompts, whose topics no recorded one is about"
    pieces: list[list[int]] = []
    if text is not None:
        corpus = Corpus(output / "work" / "corpus")
        pieces = beginnings(corpus, prompts, target.info.context_length)
        asked = f"beginnings of {len(pieces)} held-out pieces of {text}"
    rows = measure_speed(target, tokenizer, runner, num_prompts=prompts, prompts=pieces)
    if as_json:
        from draftproof.cli.json_lines import json_line

        write_data(json_line(_document(output, made, rows, asked)))
        return
    _show(context, made, rows, asked)
    write_data(f"{output}\n")


def _document(output: Path, made: Distilled, rows: list[Speed], asked: str) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "head": str(output),
        "target": made.head.target,
        "draft_vocab_size": made.head.shape.draft_vocab_size,
        "coverage": made.coverage,
        "notes": dict(made.head.notes),
        "prompts": asked,
        "speed": [{key: _number(value) for key, value in asdict(row).items()} for row in rows],
    }


def _number(value: Any) -> Any:
    """Return a value for JSON, where a rate that has no denominator is null."""
    if isinstance(value, tuple):
        return [_number(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _show(context: CliContext, made: Distilled, rows: list[Speed], asked: str) -> None:
    from rich.table import Table

    from draftproof.core.stats import format_rate

    console = context.stdout_console()
    held = made.trained.held_out
    console.print(
        f"held-out text, {held.counts[0]} tokens: acceptance by position "
        f"{_rates(held.sampled)} at temperature 1, {_rates(held.greedy)} greedy"
    )
    console.print(f"measured on this machine with {asked}:")
    table = Table("temperature", "drafts", "acceptance by position", "tokens per pass", "speedup",
                  box=None, pad_edge=False)  # fmt: skip
    for row in rows:
        table.add_row(
            f"{row.temperature:g}",
            str(row.kappa),
            f"{_rates(row.acceptance)} of {row.asked[0] if row.asked else 0}",
            format_rate(row.tokens_per_round, 2),
            f"{row.speedup:.2f} ({row.low:.2f} to {row.high:.2f})",
        )
    console.print(table)
    console.print("speedup: median over prompts, batch 1, against plain decoding between them")


def _rates(rates: tuple[float, ...]) -> str:
    from draftproof.core.stats import format_rate

    return " ".join(format_rate(rate, 2) for rate in rates)
