"""What a benchmark run writes down: values only, no arithmetic and no files.

Measurements are facts; estimates, crossings and verdicts follow from them and are
stored beside them for readers. An undefined number is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
class RequestRecord:
    """One request, in seconds since its measurement began.

    Parameters
    ----------
    prompt : int
        Number of the prompt within its workload.
    scheduled_s : float
        When it should have been sent; every latency counts from here.
    sent_s : float
        When it was.
    first_s : float or None
        When the first tokens came.
    last_s : float or None
        When the last ones did.
    num_tokens : int
        Generated tokens.
    num_first_tokens : int
        Tokens that came at ``first_s``.
    num_prompt_tokens : int or None
        Tokens of the prompt.
    num_chunks : int
        In how many portions the tokens came.
    finish_reason : str
        Why it ended.
    acceptance_rate : float or None
        Of this request alone; None where nothing was drafted or it is not known.
    error : str
        Why it failed; empty when it did not.
    """

    prompt: int
    scheduled_s: float
    sent_s: float
    first_s: float | None
    last_s: float | None
    num_tokens: int
    num_first_tokens: int
    num_prompt_tokens: int | None
    num_chunks: int
    finish_reason: str = ""
    acceptance_rate: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counters of one measurement, or rates where an engine tells no counters.

    Parameters
    ----------
    num_drafts : int
        Rounds that verified drafts.
    num_draft_tokens : int
        Drafted tokens.
    num_accepted_tokens : int
        Those that were kept.
    num_accepted_tokens_per_pos : tuple of int
        Kept tokens by offset.
    num_drafted_per_pos : tuple of int
        Drafts that reached so far; empty where an engine does not tell.
    source : str
        Whose counters: ``"engine"``, or the address of a metrics page.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    num_drafted_per_pos: tuple[int, ...] = ()
    source: str = "engine"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Pauses between portions of a stream, in seconds; portions may hold many tokens.

    Parameters
    ----------
    count : int
        Pauses.
    p50_s, p90_s, p99_s, max_s : float or None
        Quantiles over all of them; None without any.
    """

    count: int
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One arm in one round of one condition.

    Parameters
    ----------
    condition : int
        Index into ``Settings.conditions``.
    arm : str
        Name of the arm.
    round : int
        Number of the round, from 0.
    order : int
        Place of the arm within the round.
    begun_s : float
        Seconds since the run began.
    wall_s : float
        Seconds that it took, fillers included.
    requests : tuple of RequestRecord
        The counted requests.
    gaps : Gaps
        Pauses of their streams.
    acceptance : Acceptance or None
        None where it is not known. Fillers count here.
    prompts_digest : str
        Of the texts of the counted prompts: equal digests, equal prompts.
    token_counts : str
        What tokens were counted by: ``"engine"``, ``"ids"``, ``"usage"``, or
        ``"text share"`` where the split over portions was estimated from characters.
    """

    condition: int
    arm: str
    round: int
    order: int
    begun_s: float
    wall_s: float
    requests: tuple[RequestRecord, ...]
    gaps: Gaps
    acceptance: Acceptance | None
    prompts_digest: str
    token_counts: str = "engine"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over rounds and its order-statistic interval.

    Parameters
    ----------
    value : float or None
        The median; None without a round.
    low, high : float or None
        Ends of the interval; None where rounds are too few for the confidence.
    n : int
        Rounds.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One arm under one condition.

    Parameters
    ----------
    condition : int
        Index into ``Settings.conditions``.
    arm : str
        Name of the arm.
    tokens_per_s : Estimate
        Decoded tokens per second of all requests in flight.
    tpot_s : Estimate
        Seconds per token after the first ones, pooled within a round.
    ttft_s : Estimate
        Median over a round's requests of the seconds to the first token.
    latency_s : Estimate
        Median over a round's requests of the seconds to the last token.
    speedup : Estimate
        Plain seconds per token by this arm's, within rounds.
    speedup_pooled : float or None
        The same from the sums over all rounds.
    latency_ratio : Estimate
        Plain seconds per token from the schedule to the last token by this arm's.
    acceptance_rate, mean_acceptance_length : float or None
        Pooled over all rounds; None where nothing was drafted.
    acceptance_rate_per_pos : tuple of (float or None)
        Kept over drafted at each offset, pooled.
    acceptance_rate_per_request : float or None
        Mean over requests that drafted; short ones weigh as much as long ones.
    drafted_per_token : float or None
        Drafted tokens by generated tokens: the volume behind the rate.
    tokens_per_chunk : float or None
        Generated tokens by portions.
    gap_p50_s, gap_p99_s : float or None
        Medians over rounds of the pauses' quantiles.
    num_requests, num_failed : int
        Counted requests, and those of them that failed.
    is_settled : bool
        Whether the interval reached the width that was asked for.
    """

    condition: int
    arm: str
    tokens_per_s: Estimate
    tpot_s: Estimate
    ttft_s: Estimate
    latency_s: Estimate
    speedup: Estimate
    speedup_pooled: float | None
    latency_ratio: Estimate
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    acceptance_rate_per_pos: tuple[float | None, ...]
    acceptance_rate_per_request: float | None
    drafted_per_token: float | None
    tokens_per_chunk: float | None
    gap_p50_s: float | None
    gap_p99_s: float | None
    num_requests: int
    num_failed: int
    is_settled: bool


@dataclass(frozen=True, slots=True)
class CrossingRecord:
    """Where the speedup of an arm crosses 1 as concurrency, or the rate, grows.

    Parameters
    ----------
    workload : str
        Kind of the prompts.
    temperature : float
        Of the condition.
    arm : str or None
        The arm; None for whichever arm is best at each load.
    by : {"concurrency", "rate"}
        What grows.
    pays_up_to : float or None
        Largest load up to which every interval lies above 1.
    loses_from : float or None
        Smallest load from which on every interval lies below 1. The crossing lies
        between the two at the run's confidence, if the speedup falls as the load grows.
    estimate : float or None
        Where the medians cross, interpolated on logarithmic axes; None where they do not.
    says : str
        The same in one sentence.
    """

    workload: str
    temperature: float
    arm: str | None
    by: Literal["concurrency", "rate"]
    pays_up_to: float | None
    loses_from: float | None
    estimate: float | None
    says: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do under one condition.

    Parameters
    ----------
    condition : int
        Index into ``Settings.conditions``.
    decision : {"speculate", "do not speculate", "undecided", "unknown"}
        Unknown where there was no plain arm or too few rounds.
    arm : str or None
        The arm with the best median, where the decision is to speculate.
    says : str
        The reason in one sentence.
    """

    condition: int
    decision: Literal["speculate", "do not speculate", "undecided", "unknown"]
    arm: str | None
    says: str


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
