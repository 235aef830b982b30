"""What a verb is given from outside: the loader, the environment, the terminal.

The environment is read here, once, and nowhere else in the package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

    from draftproof.engine import Engine

__all__ = ["CliContext", "Loader", "Notes", "write_data"]


class Loader(Protocol):
    """Whatever turns a model's name into an engine; `draftproof.build.load` by default."""

    def __call__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | None,
        cache_dir: Path | None,
        progress: Callable[[str], None],
        **options: Any,
    ) -> Engine:
        """Load a model and, if the configuration names one, its drafter."""
        ...


def _load(model: str, **options: Any) -> Engine:
    # Imported late: this brings the model runtime, which no other verb needs.
    from draftproof.build import load

    return load(model, **options)


@dataclass(frozen=True, slots=True)
class CliContext:
    """The outside of a verb.

    Parameters
    ----------
    load : Loader
        Makes the engine.
    cache_dir : Path, optional
        Where downloads and prepared models are kept; the user's cache when None.
    force_terminal : bool, optional
        Treat stdout as a terminal, or not as one; looked up when None.
    """

    load: Loader = field(default=_load)
    cache_dir: Path | None = None
    force_terminal: bool | None = None

    @classmethod
    def from_environment(cls) -> CliContext:
        """Read the environment."""
        cache = os.environ.get("DRAFTPROOF_CACHE")
        return cls(cache_dir=Path(cache).expanduser() if cache else None)

    def stdout_console(self) -> Console:
        """Return what knows whether stdout is a terminal and has colours."""
        from rich.console import Console

        return Console(force_terminal=self.force_terminal, highlight=False)


class Notes:
    """Progress and remarks for people, on stderr.

    Parameters
    ----------
    quiet : bool, default False
        Say nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console

        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False)

    def say(self, line: str) -> None:
        """Write one line.

        Parameters
        ----------
        line : str
            What to say; taken literally.
        """
        if not self.quiet:
            self.console.print(line, style="dim", markup=False, soft_wrap=True)

    def legend(self, line: str) -> None:
        """Write one line that holds its own terminal codes.

        Parameters
        ----------
        line : str
            The line.
        """
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def show(self, renderable: Any) -> None:
        """Write a table or another renderable.

        Parameters
        ----------
        renderable : object
            Anything rich can print.
        """
        if not self.quiet:
            self.console.print(renderable)


def write_data(text: str) -> None:
    """Write data to stdout at once.

    Parameters
    ----------
    text : str
        The data, written as it is.
    """
    sys.stdout.write(text)
    sys.stdout.flush()
