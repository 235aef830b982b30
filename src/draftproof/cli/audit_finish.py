"""The end of every audit: judge, show, write, exit."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.cli.json_lines import json_line
from draftproof.errors import ConfigError
from draftproof.machine import installed_version

__all__ = ["Outputs", "finish", "show_facts", "versions"]

_COLOURS = {"exact": "bold green", "biased": "bold red"}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a result goes.

    Parameters
    ----------
    as_json : bool
        The certificate on stdout.
    html : Path, optional
        A page.
    save : Path, optional
        The certificate as a file.
    notes : Notes
        Remarks on stderr.
    """

    as_json: bool
    html: Path | None
    save: Path | None
    notes: Notes

    def check(self) -> None:
        """Refuse paths that cannot be written, before anything is drawn.

        Raises
        ------
        ConfigError
            If a file or its folder forbids it, or both results have one path.
        """
        for option, path in (("--output", self.save), ("--html", self.html)):
            if path is None:
                continue
            if path.is_dir():
                raise ConfigError(f"{option} {path}: a folder, expected a file")
            if not path.parent.is_dir():
                raise ConfigError(f"{option} {path}: expected the folder {path.parent} to exist")
            if not os.access(path if path.exists() else path.parent, os.W_OK):
                raise ConfigError(f"{option} {path}: expected a place that can be written")
        if self.save is not None and self.save == self.html:
            raise ConfigError(f"--output and --html {self.html}: expected two files")


def versions(*packages: str) -> str:
    """Return the versions of what took part.

    Parameters
    ----------
    *packages : str
        Names of packages.

    Returns
    -------
    str
        Such as ``"python 3.11.7, numpy 2.1"``; what is not installed is left out.
    """
    found = [f"python {platform.python_version()}"]
    for name in ("draftproof", "numpy", *packages):
        held = installed_version(name)
        if held is not None:
            found.append(f"{name} {held}")
    return ", ".join(found)


def finish(context: CliContext, evidence: Any, outputs: Outputs) -> None:
    """Judge some evidence, show the verdict and exit with its code.

    Parameters
    ----------
    context : CliContext
        The terminal.
    evidence : object
        Evidence of any kind in `draftproof.audit.kinds.KINDS`.
    outputs : Outputs
        Where the result goes.

    Raises
    ------
    typer.Exit
        With the verdict's code: 0 exact, 1 biased, 3 not enough evidence.
    OSError
        Instead, if a result could not be written; the verdict was shown.
    """
    from draftproof.audit.kinds import kind_of

    kind = kind_of(evidence)
    verdict = kind.judge(evidence)
    _deliver(context, kind.stored(evidence, verdict), kind.facts(evidence, verdict), outputs)
    raise typer.Exit(verdict.exit_code)


def _deliver(
    context: CliContext, stored: dict[str, Any], facts: list[tuple[str, str]], outputs: Outputs
) -> None:
    """Show the verdict and write the files; one that fails takes none of the others along."""
    from draftproof.audit.subjects import certificate_page

    text = json_line(stored)
    failed: list[OSError] = []
    try:
        if outputs.as_json:
            write_data(text)
        else:
            show_facts(context, facts)
    except OSError as error:
        failed.append(error)
    pages = [] if outputs.save is None else [(outputs.save, text)]
    if outputs.html is not None:
        title = f"Exactness of {stored['evidence']['subject']}"
        pages.append((outputs.html, certificate_page(facts, stored, title)))
    for path, page in pages:
        try:
            path.write_text(page, encoding="utf-8")
        except OSError as error:
            failed.append(error)
        else:
            outputs.notes.say(f"wrote {path}")
    if failed:
        raise failed[0]


def show_facts(context: CliContext, facts: Sequence[tuple[str, str]]) -> None:
    """Print what a verdict says.

    Parameters
    ----------
    context : CliContext
        The terminal.
    facts : sequence of (str, str)
        Labels and sentences; the verdict first.
    """
    console = context.stdout_console()
    for label, text in facts:
        style = None
        if label == "verdict":
            style = _COLOURS.get(text.partition(":")[0], "bold yellow")
        console.print(f"{label}: {text}", style=style, markup=False, soft_wrap=True)
