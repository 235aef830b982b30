"""What a benchmark run writes down: values only, no arithmetic and no files.

Measurements are facts; estimates, crossings and verdicts follow from them and are
stored beside them for readers. An undefined number is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftproof.bench.estimated import CellSummary, CrossingRecord, Estimate, Verdict
from draftproof.bench.measured import Acceptance, Gaps, Measurement, RequestRecord

__all__ = [
    "FORMAT",
    "Acceptance",
    "Arm",
    "CellSummary",
    "Condition",
    "CrossingRecord",
    "Environment",
    "Estimate",
    "Gaps",
    "Measurement",
    "RequestRecord",
    "RunRecord",
    "Settings",
    "Subject",
    "Verdict",
]

#: Version of the file format.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Environment:
    """Where and how a run was made.

    Parameters
    ----------
    cpu : str
        Name of the processor.
    cores : int or None
        Logical cores.
    threads : int or None
        Threads of the model's runtime; None where it chose.
    system : str
        Operating system and architecture.
    python : str
        Version of Python.
    packages : mapping of str to str
        Versions of what may change the figures.
    commit : str or None
        Of the repository, where the package runs from one.
    command : str
        What was typed.
    started, ended : str
        UTC, ISO 8601.
    load_before, load_after : tuple of float, or None
        Load averages over 1, 5 and 15 minutes; None where the system has none.
    """

    cpu: str
    cores: int | None
    threads: int | None
    system: str
    python: str
    packages: Mapping[str, str]
    commit: str | None
    command: str
    started: str
    ended: str | None = None
    load_before: tuple[float, float, float] | None = None
    load_after: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured.

    Parameters
    ----------
    kind : {"engine", "endpoint", "peer"}
        An engine in this process, a server, or another library.
    name : str
        Name of the model for people.
    runtime : str
        What runs it: ``"openvino"``, ``"vllm"``.
    precision : str
        How weights are held; empty where it is not known.
    speculation : mapping of str to Any
        The speculative configuration; empty where it is not known.
    url : str or None
        Of a server.
    baseline_url : str or None
        Of the server that decodes plainly, where that is another one.
    """

    kind: Literal["engine", "endpoint", "peer"]
    name: str
    runtime: str = ""
    precision: str = ""
    speculation: Mapping[str, Any] = field(default_factory=dict)
    url: str | None = None
    baseline_url: str | None = None


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to decode.

    Parameters
    ----------
    name : str
        ``"plain"``, ``"kappa 3"``, ``"auto"``, or ``"served"`` for a server as it is.
    kappa : int or None
        Most drafts per round; None where the engine or the server chooses.
    is_plain : bool
        Whether other arms are divided by this one.
    """

    name: str
    kappa: int | None
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """What the arms are compared under.

    Parameters
    ----------
    workload : str
        Kind of the prompts.
    temperature : float
        0 is greedy.
    concurrency : int or None
        Requests in flight, kept constant; None under arrivals.
    rate : float or None
        Mean arrivals per second of a Poisson process; None in the closed loop.
    """

    workload: str
    temperature: float
    concurrency: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for.

    Parameters
    ----------
    conditions : tuple of Condition
        The grid.
    arms : tuple of Arm
        The ways to decode.
    max_tokens : int
        Most tokens per request.
    requests_per_slot : int
        Counted requests in each measurement, per request in flight; under arrivals
        the whole number of them.
    rounds : int
        Most rounds per condition.
    width : float or None
        An arm is done once its ratio's interval is narrower than this share of the
        median; None runs all rounds.
    minutes : float or None
        Time after which no new round begins.
    confidence : float
        Of every interval.
    seed : int
        Of prompts, orders, arrivals and requests.
    ignore_eos : bool
        Whether texts go on past their end.
    prompts : str
        Where the prompts come from: ``"built-in"`` or a file.
    is_chat : bool
        Whether prompts go through the chat template.
    """

    conditions: tuple[Condition, ...]
    arms: tuple[Arm, ...]
    max_tokens: int
    requests_per_slot: int
    rounds: int
    width: float | None
    minutes: float | None
    confidence: float
    seed: int
    ignore_eos: bool
    prompts: str
    is_chat: bool


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run.

    Parameters
    ----------
    format : int
        Version of the file format.
    subject : Subject
        What was measured.
    settings : Settings
        What was asked for.
    environment : Environment
        Where.
    measurements : tuple of Measurement
        The facts, in the order they were made.
    cells : tuple of CellSummary
        One per condition and arm that has a measurement.
    crossings : tuple of CrossingRecord
        Where speculation stops paying.
    verdicts : tuple of Verdict
        One per condition.
    warnings : tuple of str
        What a reader must know about these figures.
    is_complete : bool
        Whether everything that was asked for was measured.
    """

    format: int
    subject: Subject
    settings: Settings
    environment: Environment
    measurements: tuple[Measurement, ...] = ()
    cells: tuple[CellSummary, ...] = ()
    crossings: tuple[CrossingRecord, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    warnings: tuple[str, ...] = ()
    is_complete: bool = False
