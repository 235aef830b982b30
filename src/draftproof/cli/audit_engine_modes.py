"""The other questions of ``draftproof audit engine``: streams, greedy texts, state, parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli import values as v
from draftproof.cli.audit_finish import versions
from draftproof.cli.given_options import refuse
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit.subjects import EngineSubject
    from draftproof.engine import EngineCore

__all__ = [
    "POLICY",
    "Greedy",
    "Matrix",
    "Mode",
    "Question",
    "State",
    "Stream",
    "Tokens",
    "chosen_mode",
    "refuse_idle",
    "run_mode",
]

QUESTION = "Question"

Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Audit long texts over the full vocabulary; may stop at any text.",
        rich_help_panel=QUESTION,
    ),
]
Greedy = Annotated[
    bool,
    typer.Option(
        "--greedy",
        help="Audit greedy texts: is a difference from plain decoding rounding or a defect.",
        rich_help_panel=QUESTION,
    ),
]
State = Annotated[
    bool,
    typer.Option(
        "--state",
        help="Audit caches and drafters: does anything rejected or skipped leave a trace.",
        rich_help_panel=QUESTION,
    ),
]
Matrix = Annotated[
    bool,
    typer.Option(
        "--matrix",
        help="Audit every sampling parameter, alone and in pairs: honoured, ignored, refused.",
        rich_help_panel=QUESTION,
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens",
        help="With --stream: tokens in all. With --greedy and --state: tokens of a text.",
        rich_help_panel=QUESTION,
    ),
]

#: Tokens of one text of a stream.
_TEXT_TOKENS = 128
#: Options of the policy.
POLICY = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty",
           "presence_penalty", "frequency_penalty")  # fmt: skip


class Mode(StrEnum):
    """A question, and the tokens that answer it where nobody says."""

    LAW = "law"
    STREAM = "stream"
    GREEDY = "greedy"
    STATE = "state"
    MATRIX = "matrix"

    @property
    def default_tokens(self) -> int:
        """Tokens in all for a stream, of a text for others."""
        return {"stream": 8192, "greedy": 96, "state": 384}[self.value]


#: Options that a question has no use for.
_FOREIGN = {
    Mode.LAW: ("tokens",),
    Mode.STREAM: (
        "top_k", "top_p", "min_p", "horizon", "draws", "processes", "ray", "calibration_samples",
        "sequential", "drafts", "prediction",
    ),
    Mode.GREEDY: (
        *POLICY, "horizon", "draws", "processes", "ray", "calibration_samples", "sequential", "tv",
        "alpha", "power", "seed", "num_speculative_tokens", "drafts",
    ),
    Mode.STATE: (
        *POLICY, "horizon", "draws", "processes", "ray", "calibration_samples", "sequential",
        "drafts", "prediction",
    ),
    Mode.MATRIX: (*POLICY, "processes", "ray", "sequential", "tokens"),
}  # fmt: skip


def chosen_mode(ctx: typer.Context, *, is_table: bool, **flags: bool) -> Mode:
    """Return the question that was asked.

    Parameters
    ----------
    ctx : typer.Context
        The command's context.
    is_table : bool
        Whether the engine runs over tables.
    **flags : bool
        ``stream``, ``greedy``, ``state`` and ``matrix``.

    Returns
    -------
    Mode
        `Mode.LAW` where no flag is set.

    Raises
    ------
    ConfigError
        If there are two, or an option has no use in it.
    """
    asked = [name for name, is_set in flags.items() if is_set]
    if len(asked) > 1:
        raise ConfigError(f"--{' and --'.join(asked)}: expected one question at a time")
    mode = Mode(asked[0]) if asked else Mode.LAW
    if is_table and mode is not Mode.LAW:
        raise ConfigError(f"--{mode.value}: expected a model, not --table")
    if mode is Mode.LAW:
        refuse(ctx, _FOREIGN[mode], "expected --stream, --greedy or --state beside it")
    else:
        refuse(ctx, _FOREIGN[mode], f"of no use with --{mode.value}")
    return mode


#: Keys of ``--speculative-config`` that say how many tokens are drafted.
_LENGTHS = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "profile")


def refuse_idle(ctx: typer.Context, mode: Mode, config: Mapping[str, Any]) -> None:
    """Refuse what a question has no use for because of how the engine drafts.

    Parameters
    ----------
    ctx : typer.Context
        The command's context.
    mode : Mode
        The question.
    config : mapping of str to object
        The speculation, with the shorthands in it.

    Raises
    ------
    ConfigError
        If a greedy audit is told how much to draft, or acceptance is planned without drafts.
    """
    lengths = [key for key in _LENGTHS if key in config]
    if mode is Mode.GREEDY and lengths:
        raise ConfigError(
            f"--speculative-config {', '.join(lengths)}: of no use with --greedy, which writes "
            "with 1, 2, 4 and 7 drafts a round"
        )
    if mode is Mode.STATE and not v.has_drafter(config):
        idle = ("tokens", "tv", "alpha", "power", "rule")
        refuse(ctx, idle, "of no use with --state without a drafter, which examines caches alone")


@dataclass(frozen=True, slots=True)
class Question:
    """What the modes have in common.

    Parameters
    ----------
    core : EngineCore
        The engine.
    subject : str
        What it is called in the certificate.
    prompts : list of Prompt
        Prompts with their ids.
    size : AuditSize
        Rates and seed.
    tokens : int, optional
        Tokens, where somebody said.
    say : callable of str
        For remarks.
    prediction : sequence of int
        Tokens that outputs are expected to be.
    decoder : EngineSubject
        The engine as a decoder of short texts.
    """

    core: EngineCore
    subject: str
    prompts: list[a.Prompt]
    size: a.AuditSize
    tokens: int | None
    say: Callable[[str], None]
    prediction: Sequence[int]
    decoder: EngineSubject


def run_mode(mode: Mode, question: Question, knobs: dict[str, Any], horizon: int) -> Any:
    """Answer a question other than the law of short texts.

    Parameters
    ----------
    mode : Mode
        Which.
    question : Question
        Engine, prompts and rates.
    knobs : dict of str to object
        Fields of `SamplingParams`.
    horizon : int
        Tokens of a continuation, for the matrix.

    Returns
    -------
    object
        Evidence of its kind, with notes.

    Raises
    ------
    ConfigError
        If the question is about drafts and the engine makes none.
    """
    if mode in (Mode.GREEDY, Mode.STREAM) and not question.core.proposers:
        raise ConfigError(
            f"--{mode.value} without a drafter: expected --draft-model or --speculative-config"
        )
    first = question.size.first_seed()
    named = [(prompt.name, prompt.ids) for prompt in question.prompts]
    tokens = question.tokens
    if tokens is None and mode is not Mode.MATRIX:
        tokens = mode.default_tokens
    notes = {"seeds": f"from {first}", "versions": versions("openvino")}
    if mode is Mode.GREEDY:
        from draftproof.audit.greedy_run import greedy_evidence

        del notes["seeds"]
        evidence: Any = greedy_evidence(
            question.core,
            question.subject,
            named,
            num_tokens=tokens or 0,
            prediction=question.prediction,
            say=question.say,
        )
    elif mode is Mode.STATE:
        from draftproof.audit.state_run import state_evidence

        evidence = state_evidence(
            question.core,
            question.subject,
            named,
            num_tokens=tokens or 0,
            first_seed=first,
            alpha=question.size.alpha,
            power=question.size.power,
            decay=question.size.tv,
            say=question.say,
        )
    elif mode is Mode.STREAM:
        evidence = _stream(question, named, knobs, tokens or 0, first)
    else:
        evidence = _matrix(question, horizon, first)
    return replace(evidence, notes=notes | dict(evidence.notes))


def _stream(
    question: Question,
    named: list[tuple[str, tuple[int, ...]]],
    knobs: dict[str, Any],
    tokens: int,
    first: int,
) -> Any:
    from draftproof.audit.stream_run import watch_stream
    from draftproof.core.params import SamplingParams

    # The filters that keep a joint law small have no place here.
    params: SamplingParams = SamplingParams(**knobs | {"top_k": 0, "top_p": 1.0, "min_p": 0.0})
    return watch_stream(
        question.core,
        question.subject,
        named,
        params,
        question.size.plan(),
        budget=tokens,
        text_tokens=min(_TEXT_TOKENS, tokens),
        first_seed=first,
        say=question.say,
    )


def _matrix(question: Question, horizon: int, first: int) -> Any:
    from draftproof.audit.matrix_run import groups_of, run_matrix
    from draftproof.audit.matrix_subjects import DrawnMatrix, best_next_tokens

    core, prompt = question.core, question.prompts[0]
    if len(question.prompts) > 1:
        raise ConfigError(f"{len(question.prompts)} prompts with --matrix: expected one")
    subject = DrawnMatrix(question.decoder, core.target, prompt.ids)
    groups = groups_of(subject, best_next_tokens(core.target, prompt.ids), horizon)
    evidence = run_matrix(
        subject,
        question.subject,
        question.size.plan(),
        groups,
        horizon=horizon,
        first_seed=first,
        draws=question.size.draws,
        expects_speculation=bool(core.proposers),
        say=question.say,
    )
    return replace(evidence, notes={"prompt": prompt.name})
