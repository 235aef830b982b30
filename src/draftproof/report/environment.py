"""Where and how a run was made, as a section."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.bench.run_record import Environment, RunRecord
from draftproof.bench.trace_record import TraceHeader
from draftproof.report.content import Column, Section, Table

__all__ = ["environment_section", "run_environment"]

_COLUMNS = (Column("what", "text"), Column("value", "text"))


def environment_section(headers: Sequence[TraceHeader]) -> Section:
    """Describe how traced runs were made.

    Parameters
    ----------
    headers : sequence of TraceHeader
        Of the runs of a file.

    Returns
    -------
    Section
        The environment, the model and the settings of the first run and of the last.
    """
    numbers = sorted({1, len(headers)})
    tables = [_run_table(headers[number - 1], number) for number in numbers]
    notes = ("The first run and the last.",) if len(headers) > 2 else ()
    return Section("Environment", notes, tables=tuple(tables))


def _run_table(header: TraceHeader, number: int) -> Table:
    rows = _of(header.environment)
    rows += [(f"model: {name}", _text(value)) for name, value in header.target.items()]
    rows += [(name, _text(value)) for name, value in _given(header.settings)]
    return Table(f"environment-{number}", f"Run {number}", _COLUMNS, tuple(rows))


def run_environment(record: RunRecord) -> Section:
    """Describe how a benchmark run was made.

    Parameters
    ----------
    record : RunRecord
        The run.

    Returns
    -------
    Section
        The environment, the subject and the settings.
    """
    subject, settings = record.subject, record.settings
    rows = _of(record.environment)
    rows += [
        ("model", subject.name),
        ("runtime", subject.runtime or "n/a"),
        ("precision", subject.precision or "n/a"),
        ("speculation", _text(dict(subject.speculation)) if subject.speculation else "n/a"),
        ("server", subject.url or "none"),
        ("most tokens per request", str(settings.max_tokens)),
        ("most rounds", str(settings.rounds)),
        ("confidence", f"{settings.confidence:.0%}"),
        ("prompts", settings.prompts),
        ("seed", str(settings.seed)),
    ]
    return Section("Environment", tables=(Table("environment", "Run", _COLUMNS, tuple(rows)),))


def _of(environment: Environment) -> list[tuple[str, str]]:
    load = environment.load_before
    return [
        ("command", environment.command),
        ("processor", environment.cpu),
        ("cores", _text(environment.cores)),
        ("threads of the runtime", _text(environment.threads)),
        ("system", environment.system),
        ("Python", environment.python),
        ("packages", ", ".join(f"{name} {held}" for name, held in environment.packages.items())),
        ("commit", environment.commit or "n/a"),
        ("started", environment.started),
        ("ended", environment.ended or "n/a"),
        ("load before", "n/a" if load is None else ", ".join(f"{each:.2f}" for each in load)),
    ]


def _given(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in settings.items() if value not in (None, {}, [])]


def _text(value: Any) -> str:
    if value is None:
        return "n/a"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
