"""The ``draftproof`` command and its verbs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated

import typer

from draftproof.cli import (
    audit,
    bench,
    calibrate,
    demo,
    distill,
    generate,
    models,
    plan,
    report,
    serve,
    watch,
)
from draftproof.cli.context import CliContext
from draftproof.cli.groups import Verbs

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Verbs,
    name="draftproof",
    help="Speculative decoding of language models, fast and exact.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from draftproof import __version__

        print(f"draftproof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Speculative decoding of language models, fast and exact."""
    if ctx.obj is None:
        ctx.obj = CliContext.from_environment()


app.command("generate")(generate.generate)
app.command("demo")(demo.demo)
app.command("calibrate")(calibrate.calibrate)
app.command("plan")(plan.plan)
app.command("distill")(distill.distill)
app.command("serve")(serve.serve)
app.command("report")(report.report)
app.command("watch")(watch.watch)
app.add_typer(models.app, name="models")
app.add_typer(audit.app, name="audit")
app.add_typer(bench.app, name="bench")


def main(arguments: Sequence[str] | None = None, context: CliContext | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after the command's name; those of this process when None.
    context : CliContext, optional
        The outside of the verbs; the real one when None.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Models speak every script; an old code page must not end a run.
            stream.reconfigure(encoding="utf-8", errors="replace")
    words = None if arguments is None else list(arguments)
    app(args=words, prog_name="draftproof", obj=context)
