"""``draftproof bench``: what speculation buys here, under load, with intervals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli import bench_options as b
from draftproof.cli import options as o
from draftproof.cli import values as v
from draftproof.cli.bench_setup import Grid, MeasuredSubject, progress_bar, refuse_existing
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.bench.run_record import RunRecord

__all__ = ["app"]

app = typer.Typer(
    help=(
        "What speculation buys here, under load, with intervals. "
        "Exit codes: 0 done, 1 failed, 2 wrong usage."
    ),
    invoke_without_command=True,
)


@app.callback()
def bench(
    ctx: typer.Context,
    model: o.Model = "smollm2",
    backend: o.BackendOf = o.Backend.AUTO,
    precision: o.PrecisionOrNone = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    attention: o.Attention = None,
    linear: o.Linear = None,
    cuda_graphs: o.CudaGraphs = None,
    tensor_parallel: o.TensorParallel = None,
    context_length: o.ContextLength = None,
    kv_cache_mb: o.KvCacheMb = None,
    threads: o.Threads = None,
    draft_model: o.DraftModel = None,
    draft_precision: o.DraftPrecision = None,
    speculative_config: o.SpeculativeConfigJson = None,
    num_speculative_tokens: o.NumberOrAuto = None,
    rule: o.RuleOf = None,
    sweep: b.Sweep = None,
    workload: b.Workload = "copy-edit,chat",
    prompts: b.Prompts = None,
    temperature: b.Temperature = "0",
    concurrency: b.Concurrency = "1",
    rate: b.Rate = None,
    max_tokens: b.MaxTokens = 64,
    requests: b.Requests = 1,
    ignore_eos: b.IgnoreEos = False,
    chat: o.Chat = None,
    rounds: b.Rounds = 6,
    width: b.Width = None,
    minutes: b.Minutes = None,
    confidence: b.Confidence = 0.95,
    seed: b.Seed = 0,
    endpoint: b.Endpoint = None,
    baseline: b.Baseline = None,
    api_key: b.ApiKey = None,
    timeout: b.Timeout = 600.0,
    output: b.Output = None,
    resume: b.Resume = False,
    as_json: o.JsonOutput = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure plain and speculative decoding in turns, and say what it buys and where it stops."""
    given = _given(ctx)
    if ctx.invoked_subcommand is not None:
        if given:
            raise ConfigError(
                f"{_flag(ctx, given[0])} stands before {ctx.invoked_subcommand}; expected it behind"
            )
        return
    if resume and output is None:
        raise ConfigError("--resume needs --output: the file that is to be gone on with")
    if output is not None and not resume:
        # Before anything is loaded; the run itself looks again.
        refuse_existing(output)
    context: CliContext = ctx.obj
    notes = Notes(quiet=quiet)
    grid = Grid(
        workload, prompts, temperature, concurrency, rate, max_tokens, requests, rounds, width,
        minutes, confidence, seed, ignore_eos, chat,
    )  # fmt: skip
    if endpoint is not None:
        engine_only = [name for name in given if name in _ENGINE_ONLY]
        if engine_only:
            raise ConfigError(
                f"{_flag(ctx, engine_only[0])} is for an engine in this process; expected none "
                "with --endpoint"
            )
        from draftproof.cli.bench_endpoint import endpoint_subject

        subject = endpoint_subject(
            endpoint, baseline, model if "model" in given else None, sweep, api_key, timeout,
            is_chat=chat is not False, ignore_eos=ignore_eos,
        )  # fmt: skip
        record = _measure(notes, grid, subject, output, resume, threads=None)
    else:
        if baseline is not None or "api_key" in given or "timeout" in given:
            raise ConfigError("--baseline, --api-key and --timeout need --endpoint")
        from draftproof.cli.bench_engine import EngineWords, open_engine

        words = EngineWords(
            model=model,
            config=v.speculative_config(
                speculative_config,
                draft_model=draft_model,
                num_speculative_tokens=num_speculative_tokens,
                rule=rule and rule.value,
            ),
            sweep=sweep,
            chat=chat,
            ignore_eos=ignore_eos,
            max_rows=max(b.listed("--concurrency", concurrency, int)) if rate is None else 32,
            options={
                "backend": backend.value,
                "precision": precision and precision.value,
                "draft_precision": draft_precision and draft_precision.value,
                "device": device,
                "dtype": dtype,
                "attention": attention,
                "linear": linear,
                "cuda_graphs": cuda_graphs,
                "tensor_parallel": tensor_parallel,
                "context_length": context_length,
                "kv_cache_bytes": None if kv_cache_mb is None else kv_cache_mb * 1_000_000,
                "threads": threads,
            },
        )
        grid.settings((), is_chat=True)  # refuses before a model is loaded
        with open_engine(context, words, notes.say) as subject:
            record = _measure(notes, grid, subject, output, resume, threads=threads)
    _show(context, notes, record, output, as_json=as_json)


@app.command("compare")
def compare(
    ctx: typer.Context,
    before: Annotated[Path, typer.Argument(metavar="A.json", help="A run.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="Another run.")],
    fail_below: Annotated[
        float | None,
        typer.Option(
            "--fail-below",
            metavar="RATIO",
            help="Exit with 1 where the pace of B by A is surely below this, in any cell.",
        ),
    ] = None,
    as_json: o.JsonOutput = False,
) -> None:
    """Compare two runs cell by cell, with intervals."""
    from draftproof.bench.comparing import compare_runs
    from draftproof.bench.run_file import read_run
    from draftproof.bench.tables import comparison_renderables

    found = compare_runs(read_run(before), read_run(after))
    if as_json:
        from dataclasses import asdict

        from draftproof.cli.json_lines import json_line

        write_data(json_line(asdict(found)))
    else:
        console = ctx.obj.stdout_console()
        if not console.is_terminal:
            console.width = max(console.width, 160)
        for part in comparison_renderables(found):
            console.print(part, markup=False, soft_wrap=isinstance(part, str))
    if fail_below is not None and any(
        cell.pace.high is not None and cell.pace.high < fail_below for cell in found.cells
    ):
        raise typer.Exit(1)


#: Options that an engine in this process has and a server has not.
_ENGINE_ONLY = (
    "backend", "precision", "device", "dtype", "attention", "linear", "cuda_graphs",
    "tensor_parallel", "context_length", "kv_cache_mb", "threads", "draft_model", "draft_precision",
    "speculative_config", "num_speculative_tokens", "rule",
)  # fmt: skip


def _given(ctx: typer.Context) -> list[str]:
    """Return the names of the parameters that were typed."""
    found = []
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            found.append(name)
    return found


def _flag(ctx: typer.Context, name: str) -> str:
    return next(each.opts[-1] for each in ctx.command.params if each.name == name)


def _measure(
    notes: Notes,
    grid: Grid,
    measured: MeasuredSubject,
    output: Path | None,
    resume: bool,
    *,
    threads: int | None,
) -> RunRecord:
    from draftproof.bench.environment import describe_environment
    from draftproof.bench.running import Bench, run_bench

    settings = grid.settings(measured.arms, is_chat=measured.is_chat)
    words = b.redacted(["draftproof", *sys.argv[1:]])
    plan = Bench(
        measured.subject,
        settings,
        describe_environment(words, threads),
        grid.source(),
        output,
        resume,
        measured.shares_cache,
        measured.warnings,
        measured.finish,
    )
    for warning in measured.warnings:
        notes.say(f"warning: {warning}")
    with progress_bar(notes) as tell:
        return run_bench(plan, measured.runner, on_progress=tell)


def _show(
    context: CliContext, notes: Notes, record: RunRecord, output: Path | None, *, as_json: bool
) -> None:
    if output is not None:
        notes.say(f"wrote {output}")
    if as_json:
        from draftproof.bench.run_file import dump_run

        write_data(dump_run(record))
        return
    from draftproof.bench.tables import run_renderables

    console = context.stdout_console()
    if not console.is_terminal:
        console.width = max(console.width, 160)  # a file has no edge
    for part in run_renderables(record):
        if isinstance(part, str):
            console.print(part, markup=False, soft_wrap=True)
        else:
            console.print(part)
