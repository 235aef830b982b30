"""Run records as files, and the journal that survives an interruption."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from draftproof.bench.run_record import FORMAT, Measurement, RunRecord
from draftproof.errors import ConfigError

__all__ = ["Journal", "dump_run", "parse_run", "read_run", "same_question", "write_run"]


def dump_run(record: RunRecord) -> str:
    """Return a run as one JSON document.

    Parameters
    ----------
    record : RunRecord
        The run.

    Returns
    -------
    str
        JSON, ending in a line break.
    """
    return TypeAdapter(RunRecord).dump_json(record).decode() + "\n"


def parse_run(text: str | bytes, source: str) -> RunRecord:
    """Read a run from JSON.

    Parameters
    ----------
    text : str or bytes
        The document.
    source : str
        Its name in errors.

    Returns
    -------
    RunRecord
        The run.

    Raises
    ------
    ConfigError
        If it is no run, or of another version.
    """
    try:
        held = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not a run of draftproof bench: {error}") from error
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        found = held.get("format") if isinstance(held, dict) else type(held).__name__
        raise ConfigError(f"{source}: run format {found!r}; expected {FORMAT}")
    record: RunRecord = _validated(RunRecord, text, source)
    return record


def read_run(path: str | Path) -> RunRecord:
    """Read a run from a file.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    RunRecord
        The run.

    Raises
    ------
    ConfigError
        If it cannot be read or is no run.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_run(text, str(path))


def write_run(record: RunRecord, path: Path) -> None:
    """Write a run so that a reader sees the old file or the new one, never half of one.

    Parameters
    ----------
    record : RunRecord
        The run.
    path : Path
        The file.
    """
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(dump_run(record), encoding="utf-8")
    beside.replace(path)


def same_question(left: RunRecord, right: RunRecord) -> str:
    """Say what makes measurements of two runs no answers to the same question.

    How long a run may take, and where, may differ.

    Parameters
    ----------
    left, right : RunRecord
        The runs.

    Returns
    -------
    str
        The name of the first thing that differs; empty when nothing does.
    """
    ours, theirs = (
        replace(run.settings, rounds=0, width=None, minutes=None, confidence=0.0)
        for run in (left, right)
    )
    if left.subject != right.subject:
        return "subject"
    fields = type(ours).__dataclass_fields__
    return next((name for name in fields if getattr(ours, name) != getattr(theirs, name)), "")


class Journal:
    """A file that gets one line per measurement, beside the run's own file.

    The first line is the run without measurements. A line torn by a kill is dropped.

    Parameters
    ----------
    output : Path
        The run's own file.
    """

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(output.name + ".partial")

    def begin(self, head: RunRecord, kept: tuple[Measurement, ...] = ()) -> None:
        """Write the head, and the measurements of an earlier run that go on counting."""
        lines = [_line(RunRecord, replace(head, measurements=()))]
        lines += [_line(Measurement, each) for each in kept]
        beside = self.path.with_name(self.path.name + ".tmp")
        beside.write_bytes(b"".join(lines))
        beside.replace(self.path)

    def add(self, measurement: Measurement) -> None:
        """Append a measurement; it is on its way to the disk when this returns."""
        with self.path.open("ab") as file:
            file.write(_line(Measurement, measurement))
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> RunRecord | None:
        """Return what was measured so far, None where there is no journal.

        Raises
        ------
        ConfigError
            If the file is no journal.
        """
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        head = parse_run(lines[0], str(self.path))
        # What follows the last line break is a torn line, or nothing.
        return replace(head, measurements=tuple(self._measurements(lines[1:-1])))

    def drop(self) -> None:
        """Remove the file; what it holds is in the run's own file by now."""
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _measurements(self, lines: list[bytes]) -> Iterator[Measurement]:
        for number, line in enumerate(lines, start=2):
            yield _validated(Measurement, line, f"{self.path}, line {number}")


def _line(kind: Any, value: Any) -> bytes:
    return bytes(TypeAdapter(kind).dump_json(value)) + b"\n"


def _validated(kind: Any, text: str | bytes, source: str) -> Any:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise ConfigError(f"{source}: damaged at {where}: {first['msg']}") from error
