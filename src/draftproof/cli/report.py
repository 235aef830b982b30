"""``draftproof report``: a page, tables and figures from a trace or a benchmark run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.context import Notes, write_data
from draftproof.cli.options import Quiet
from draftproof.errors import ConfigError, DraftproofError

if TYPE_CHECKING:
    from draftproof.report import Report

__all__ = ["report"]


def report(
    source: Annotated[
        Path, typer.Argument(help="A trace of --trace, or a run of 'draftproof bench'.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.html",
            help="The page; one file, no network. Beside the source by default.",
        ),
    ] = None,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="DIR", help="Every figure as a PNG file.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="DIR", help="Every table as a CSV file.")
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile", metavar="FILE.json",
            help="Compare a trace with what 'draftproof calibrate' measured.",
        ),
    ] = None,
    drafter: Annotated[
        str | None, typer.Option("--drafter", help="Which drafter of the profile ran.")
    ] = None,
    quiet: Quiet = False,
) -> None:  # fmt: skip
    """Turn a trace or a benchmark run into a page, tables and figures."""
    from draftproof.report import report_page, write_csv, write_png

    notes = Notes(quiet=quiet)
    made = _made(source, profile, drafter)
    page = source.with_suffix(".html") if output is None else output
    if page.exists() and source.exists() and page.samefile(source):
        raise ConfigError(f"-o {page} is the source; expected another file")
    written = [page]
    text = report_page(made)
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DraftproofError(f"cannot write -o {page}: {error.strerror}") from error
    if csv is not None:
        written += write_csv(made, csv)
    if png is not None:
        written += write_png(made, png)
    for line in (*made.answer, *(f"warning: {warning}" for warning in made.warnings)):
        notes.say(line)
    write_data("".join(f"{path}\n" for path in written))


def _made(source: Path, profile: Path | None, drafter: str | None) -> Report:
    """Read the source and describe it."""
    from draftproof.bench.trace_file import is_trace_file, read_trace

    if not source.exists():
        raise ConfigError(f"{source}: no such file; expected a trace or a run")
    if is_trace_file(source):
        from draftproof.planner.profile import read_profile
        from draftproof.report import trace_report

        if profile is None and drafter is not None:
            raise ConfigError(f"--drafter {drafter} needs --profile")
        cost = None if profile is None else read_profile(profile).round_cost(drafter)
        name = "" if profile is None else profile.name
        trace = read_trace(source)
        model = trace.runs[0].header.target.get("name", "a model")
        return trace_report(trace, title=f"Trace of {model}", cost=cost, profile=name)
    from draftproof.bench.run_file import read_run
    from draftproof.report import run_report

    for option, value in (("--profile", profile), ("--drafter", drafter)):
        if value is not None:
            raise ConfigError(f"{option} {value} is for traces; {source} is a benchmark run")
    record = read_run(source)
    return run_report(record, title=f"Benchmark of {record.subject.name}")
