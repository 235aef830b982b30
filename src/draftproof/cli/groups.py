"""Groups of verbs, which end with one line and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from draftproof.errors import DraftproofError

__all__ = ["AuditVerbs", "Verbs"]

INTERRUPTED = 130
USAGE = 2
#: An audit that could not be made: 1 would read as a decoder that is biased.
NOT_MADE = 2

#: The parser's error for words it cannot read. Typer exports its subclasses only.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Verbs(TyperGroup):
    """A group whose errors have the exit codes of `draftproof.errors`."""

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


class AuditVerbs(TyperGroup):
    """A group whose exit codes 0, 1 and 3 are verdicts: what prevents one ends with 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; whatever keeps it from a verdict is one line and exit code 2."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _UsageError):
            raise  # verdicts, and words that the group above refuses
        except BrokenPipeError as error:
            _hush_stdout()
            raise typer.Exit(NOT_MADE) from error
        except (DraftproofError, OSError) as error:
            _complain(f"error: {error}")
            raise typer.Exit(NOT_MADE) from error
        except MemoryError as error:
            _complain(f"error: not enough memory: {error}")
            raise typer.Exit(NOT_MADE) from error
        except SystemExit as error:
            _complain(f"error: the audited code ended the program with exit code {error.code!r}")
            raise typer.Exit(NOT_MADE) from error
        except Exception as error:
            _complain(f"error: unexpected {error!r}{_where(error)}; no audit was made")
            raise typer.Exit(NOT_MADE) from error


def _where(error: Exception) -> str:
    """Name the line that an unexpected error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _hush_stdout() -> None:
    """Keep the interpreter from complaining at its end that nobody reads."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except OSError:
        pass  # stdout is no file of this process


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
