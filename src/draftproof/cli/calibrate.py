"""``draftproof calibrate``: measure what passes, drafts and steps cost on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import options as o
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.engine import Engine
    from draftproof.planner.calibrate_rounds import RoundSample
    from draftproof.planner.profile import Profile

__all__ = ["calibrate"]

#: Texts that drafts are measured on; cut to a few dozen tokens each.
_SEED_TEXT = (
    "Speculative decoding drafts several tokens and verifies them in one pass. "
    "The numbers one, two, three, four, five follow each other, and then again "
    "one, two, three, four, five, six. "
)


def calibrate(
    ctx: typer.Context,
    model: o.Model = "smollm2",
    draft_model: o.DraftModel = None,
    drafts: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            metavar="METHOD:VALUE",
            help="Price 'early-exit:8', 'draft-head:HEAD', 'draft-model:MODEL' too, or a tree: "
            "'draft-head-tree:HEAD', 'suffix-tree'; repeatable.",
        ),
    ] = None,
    backend: o.BackendOf = o.Backend.AUTO,
    precision: o.PrecisionOrNone = None,
    draft_precision: o.DraftPrecision = None,
    threads: o.Threads = None,
    batches: Annotated[
        str, typer.Option("--batches", help="Rows to measure, rising, by commas.")
    ] = "1,2,4,8,16",
    widths: Annotated[
        str, typer.Option("--widths", help="Tokens per row to measure.")
    ] = "1,2,3,4,5,6,9",
    contexts: Annotated[
        str, typer.Option("--contexts", help="Cached tokens per row to measure.")
    ] = "32,384",
    budget: Annotated[
        float, typer.Option("--budget", help="Seconds to spend on passes of the target.")
    ] = 40.0,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The profile; in the user's cache by default."),
    ] = None,
    as_json: o.JsonOutput = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure what passes, drafts and steps cost here, and keep it as a profile."""
    from draftproof.planner.calibrate import (
        CalibrationGrid,
        machine_rates,
        measure_change,
        measure_passes,
    )
    from draftproof.planner.calibrate_rounds import draft_table, fit_overheads
    from draftproof.planner.machine import describe_machine, profile_path
    from draftproof.planner.profile import Profile, write_profile

    context: CliContext = ctx.obj
    notes = Notes(quiet=quiet)
    configs = _drafters(draft_model, drafts or [])
    if draft_precision is not None and not any("model" in each for each in configs.values()):
        raise ConfigError(f"--draft-precision {draft_precision} needs --draft-model")
    grid = CalibrationGrid(
        numbers("--batches", batches),
        numbers("--widths", widths),
        numbers("--contexts", contexts),
        budget_s=budget,
    )

    def load(config: dict[str, Any]) -> Engine:
        return context.load(
            model,
            speculative_config=config,
            backend=backend.value,
            precision=precision and precision.value,
            draft_precision=draft_precision and draft_precision.value,
            threads=threads,
            max_rows=max(grid.batches),
            cache_dir=context.cache_dir,
            progress=notes.say,
        )

    notes.say("measuring memory and arithmetic")
    rates = machine_rates()
    engine = load({"method": "ngram"})
    try:
        tokenizer, target = engine.tokenizer, engine.core.target
        info = target.info
        change_s = measure_change(target) if info.rewindable else 0.0
        cells = measure_passes(target, grid, vocab_size=tokenizer.vocab_size, progress=notes.say)
        samples = {"ngram": _rounds(engine, "ngram", grid.batches, notes)}
    finally:
        engine.close()
    for name, config in configs.items():
        engine = load(config)
        try:
            samples[name] = _rounds(engine, engine.core.default_proposer, grid.batches, notes)
        finally:
            engine.close()
    # Of n-grams alone: what a round with a model takes beyond it is the price of its drafts.
    beside = replace(fit_overheads(samples["ngram"]), change_s=change_s)
    profile = Profile(
        model=info.name,
        runtime=info.runtime,
        precision=info.precision,
        machine=describe_machine(threads),
        cells=tuple(cells),
        drafters={
            name: draft_table(held, None if name == "ngram" else beside)
            for name, held in samples.items()
        },
        overheads=beside,
        rates=rates,
    )
    path = output or profile_path(context.cache_dir, info.name, info.runtime, info.precision)
    write_profile(profile, path)
    if as_json:
        from draftproof.cli.json_lines import json_line

        write_data(json_line(profile.document() | {"path": str(path)}))
    else:
        _show(context, profile)
        write_data(f"{path}\n")


def _drafters(draft_model: str | None, drafts: list[str]) -> dict[str, dict[str, Any]]:
    """Return the configurations of drafters to measure, by the name that prices them."""
    from draftproof.build.lengths import drafter_key, tree_key
    from draftproof.build.methods import TREES
    from draftproof.build.speculative import SpeculativeConfig
    from draftproof.cli.values import speculative_config

    words: list[tuple[str, str | None, str | None]] = []
    if draft_model is not None:
        words.append((f"--draft-model {draft_model}", draft_model, None))
    words += [(f"--draft {draft}", None, draft) for draft in drafts]
    found: dict[str, dict[str, Any]] = {}
    for option, model, draft in words:
        config = speculative_config(
            None, draft_model=model, num_speculative_tokens=None, rule=None, draft=draft
        )
        parsed = SpeculativeConfig.parse(config)
        is_tree = parsed.method in TREES
        name = tree_key(parsed) if is_tree else drafter_key(parsed)
        if not name:
            raise ConfigError(
                f"{option}: what it takes depends on what it copies; it is priced by its model, or "
                "as a lookup"
            )
        if not is_tree and parsed.method not in ("draft_model", "draft_head", "early_exit"):
            raise ConfigError(
                f"{option}: expected early-exit:LAYERS, draft-head:HEAD, draft-model:MODEL or a "
                "tree; lookups are always measured"
            )
        if name in found:
            raise ConfigError(f"{option}: a profile holds one {name}, and two are given")
        found[name] = config
    return found


def numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers by commas.

    Parameters
    ----------
    option : str
        Name of the option, for the error.
    text : str
        What was typed.

    Returns
    -------
    tuple of int
        The numbers.

    Raises
    ------
    ConfigError
        If a part is no whole number above 0.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} {text!r}: expected whole numbers by commas, such as 1,2,4")
    return tuple(int(part) for part in parts)


def _rounds(
    engine: Engine, proposer: str, batches: tuple[int, ...], notes: Notes
) -> list[RoundSample]:
    from draftproof.planner.calibrate_rounds import measure_rounds

    chosen = sorted({batches[0], batches[len(batches) // 2], batches[-1]})
    tokens = engine.tokenizer.encode(_SEED_TEXT)
    prompts = [
        [*tokens[shift % len(tokens) :], *tokens[: shift % len(tokens)], *tokens[:8]]
        for shift in range(max(chosen))
    ]
    return measure_rounds(engine.core, proposer, prompts, batches=chosen, progress=notes.say)


def _show(context: CliContext, profile: Profile) -> None:
    from rich.table import Table

    console = context.stdout_console()
    contexts = sorted({cell.context for cell in profile.cells})
    widths = sorted({cell.width for cell in profile.cells})
    for held in contexts:
        table = Table(
            "rows",
            *(f"{width}" for width in widths),
            box=None,
            pad_edge=False,
        )
        console.print(f"ms per pass (median) by tokens per row, {held} cached tokens per row")
        for batch in sorted({cell.batch for cell in profile.cells}):
            mine = {
                cell.width: cell
                for cell in profile.cells
                if cell.batch == batch and cell.context == held
            }
            table.add_row(
                str(batch),
                *(f"{mine[w].median_s * 1e3:.1f}" if w in mine else "n/a" for w in widths),
            )
        console.print(table)
    spreads = sorted(cell.spread for cell in profile.cells)
    console.print(
        f"times spread by {spreads[len(spreads) // 2]:.0%} of the median (half the distance of "
        "the quartiles); a busy machine makes plans uncertain"
    )
    report = profile.report()
    console.print(
        f"a straight law fits with a median error of {report.median_error:.1%} (90th percentile "
        f"{report.p90_error:.1%}); the table is used, the law only outside it"
    )
    for cell, error in report.bad[:5]:
        console.print(
            f"  bad fit: {cell.batch} rows x {cell.width} tokens at {cell.context}: "
            f"{error:+.0%}, spread {cell.spread:.0%}"
        )
    for left, right in report.dips[:5]:
        console.print(
            f"  dip: {right.batch} rows x {right.width} tokens at {right.context} took less "
            f"time than x {left.width}"
        )
    for name, draft in profile.drafters.items():
        first, last = draft.seconds[0, 0] * 1e3, draft.seconds[0, -1] * 1e3
        console.print(
            f"drafts by {name}: {first:.2f} ms for one row and one token, {last:.2f} ms for "
            f"{draft.kappas[-1]}"
        )
    over = profile.overheads
    console.print(
        f"beside the pass: {over.step_s * 1e3:.2f} ms per step, {over.token_s * 1e6:.0f} µs per "
        f"token, {over.speculative_s * 1e3:.2f} ms more when drafting; a pass behind one of "
        f"another shape {over.change_s * 1e3:.2f} ms more"
    )
    rates = profile.rates
    console.print(
        f"memory {rates.bytes_per_s / 1e9:.1f} GB/s (one thread), arithmetic "
        f"{rates.flops_per_s / 1e9:.0f} GFLOP/s in float32"
    )
