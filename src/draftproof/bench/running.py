"""A whole run: measure, keep a journal, estimate, say what a reader must know."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from draftproof.bench.campaign import Campaign, Progress, whole_rounds
from draftproof.bench.engine_runner import Runner
from draftproof.bench.environment import finish_environment
from draftproof.bench.measured import Measurement
from draftproof.bench.run_file import Journal, read_run, same_question, write_run
from draftproof.bench.run_record import FORMAT, Environment, RunRecord, Settings, Subject
from draftproof.bench.summary import summarise
from draftproof.errors import ConfigError

__all__ = ["Bench", "PromptSource", "run_bench"]

#: A load per core above which figures are doubtful.
_BUSY = 0.5


class PromptSource(Protocol):
    """Gives prompts by workload and number."""

    def prompt(self, kind: str, number: int) -> tuple[tuple[str, str], ...]:
        """Return the turns of a chat."""
        ...

    @property
    def num_distinct(self) -> int | None:
        """How many prompts differ; None where there is no end of them."""
        ...


@dataclass(frozen=True, slots=True)
class Bench:
    """What to run, and where it goes.

    Parameters
    ----------
    subject : Subject
        What is measured.
    settings : Settings
        The grid.
    environment : Environment
        As it was described before the run.
    prompts : PromptSource
        The prompts.
    output : Path, optional
        The run's file; nothing is written when None.
    resumes : bool, default False
        Whether to go on with what the file or its journal holds.
    shares_cache : bool, default True
        Whether the arms meet one prefix cache.
    warnings : tuple of str
        What is known to be wrong before anything is measured.
    finish : callable
        Returns what is known to be wrong afterwards.
    """

    subject: Subject
    settings: Settings
    environment: Environment
    prompts: PromptSource
    output: Path | None = None
    resumes: bool = False
    shares_cache: bool = True
    warnings: tuple[str, ...] = ()
    finish: Callable[[], tuple[str, ...]] = tuple


def run_bench(
    bench: Bench,
    runner: Runner,
    *,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
) -> RunRecord:
    """Run, or go on.

    Parameters
    ----------
    bench : Bench
        What to run.
    runner : Runner
        Decodes.
    clock : callable
        Seconds, rising.
    on_progress : callable, optional
        Told how far it is.

    Returns
    -------
    RunRecord
        The run, which the file holds as well.

    Raises
    ------
    ConfigError
        If there is a file already and it is not to go on, or it answers another question.
    """
    head = RunRecord(FORMAT, bench.subject, bench.settings, bench.environment)
    earlier: tuple[Measurement, ...] = ()
    journal = None
    if bench.output is not None:
        journal = Journal(bench.output)
        earlier = _earlier(bench, head, journal)
        journal.begin(head, earlier)
    campaign = Campaign(
        bench.settings,
        runner,
        bench.prompts.prompt,
        shares_cache=bench.shares_cache,
        clock=clock,
        on_measured=_ignore if journal is None else journal.add,
        on_progress=on_progress,
    )
    measured = campaign.run(earlier)
    cells, crossings, verdicts = summarise(bench.settings, measured)
    record = replace(
        head,
        environment=finish_environment(bench.environment),
        measurements=measured,
        cells=cells,
        crossings=crossings,
        verdicts=verdicts,
        is_complete=campaign.is_complete,
    )
    record = replace(record, warnings=_warnings(bench, record, resumed=bool(earlier)))
    if bench.output is not None and journal is not None:
        write_run(record, bench.output)
        journal.drop()
    return record


def _ignore(_measurement: Measurement) -> None:
    """Keep no journal."""


def _earlier(bench: Bench, head: RunRecord, journal: Journal) -> tuple[Measurement, ...]:
    """Return what an interrupted run measured; refuse to overwrite or to mix runs."""
    assert bench.output is not None  # narrows the type
    held = journal.read()
    where = journal.path
    if held is None and bench.output.exists():
        held, where = read_run(bench.output), bench.output
    if held is None:
        return ()
    if not bench.resumes:
        raise ConfigError(f"{where} is there already; expected --resume or another --output")
    other = same_question(held, head)
    if other:
        raise ConfigError(
            f"{where} was made with another {other}; expected the same options to go on"
        )
    return whole_rounds(bench.settings, held.measurements)


def _warnings(bench: Bench, record: RunRecord, *, resumed: bool) -> tuple[str, ...]:
    found = list(bench.warnings)
    settings, measured = record.settings, record.measurements
    used = max((each.prompt for run in measured for each in run.requests), default=-1) + 1
    distinct = bench.prompts.num_distinct
    if distinct is not None and used > distinct:
        found.append(
            f"{distinct} distinct prompts served {used} requests per arm: a drafter or a cache "
            "that remembers makes repeated prompts look faster than they are"
        )
    if settings.ignore_eos:
        found.append("texts went on past their end, where they repeat themselves more")
    environment = record.environment
    for when, load in (("before", environment.load_before), ("after", environment.load_after)):
        own = 1.0 if when == "after" else 0.0
        cores = environment.cores or 1
        if load is not None and load[0] - own * cores > _BUSY * cores:
            found.append(
                f"the machine was busy {when} the run: load {load[0]:.2f} on {cores} cores"
            )
    failed = sum(cell.num_failed for cell in record.cells)
    if failed:
        first = next(each.error for run in measured for each in run.requests if each.error)
        found.append(f"{failed} requests failed and are left out of all times: {first}")
    if any(run.token_counts == "text share" for run in measured):
        found.append("how tokens spread over portions was estimated from characters")
    if not record.is_complete:
        found.append("the time ran out before all rounds were run")
    if resumed:
        found.append("the run was interrupted; its environment is that of the last part")
    found += _silent_arms(settings, record)
    found += bench.finish()
    return tuple(found)


def _silent_arms(settings: Settings, record: RunRecord) -> Sequence[str]:
    """Name the arms that were to draft and never did."""
    plain = {arm.name for arm in settings.arms if arm.is_plain}
    drafted = {cell.arm for cell in record.cells if cell.drafted_per_token}
    told = {cell.arm for cell in record.cells if cell.drafted_per_token is not None}
    silent = [
        arm.name
        for arm in settings.arms
        if arm.name in told and arm.name not in drafted and arm.name not in plain
    ]
    return [f"{', '.join(silent)}: nothing was drafted"] if silent else []
