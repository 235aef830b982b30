"""The ``draftproof`` command: its verbs, its exit codes and what it does on errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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
from draftproof.errors import DraftproofError

__all__ = ["app", "main"]

INTERRUPTED = 130
USAGE = 2

#: The parser's error for words it cannot read. Typer exports its subclasses only.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class _Verbs(TyperGroup):
    """A group whose verbs end with one line and an exit code, never a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words before the verb."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            raise _refused_words(error) from error

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; turn the package's errors and Ctrl-C into exit codes."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            raise _refused_words(error) from error
        except DraftproofError as error:
            _complain(f"error: {error}")
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError:
            raise  # the reader has gone: the group ends quietly by itself
        except OSError as error:
            # A full disk or a lost folder is the outside's affair, not a defect.
            _complain(f"error: {error}")
            raise typer.Exit(1) from error
        except MemoryError as error:
            _complain(f"error: not enough memory: {error}")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            _complain("interrupted")
            raise typer.Exit(INTERRUPTED) from error


def _refused_words(error: Any) -> Exception:
    """Say in one line what the parser did not understand; help without words stays help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return error  # type: ignore[no-any-return]
    where = f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""
    _complain(f"error: {error.format_message().rstrip('.')}{where}")
    return typer.Exit(USAGE)


def _complain(message: str) -> None:
    line = " ".join(part.strip() for part in message.splitlines())
    print(line, file=sys.stderr, flush=True)


app = typer.Typer(
    cls=_Verbs,
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
