"""What a caller asks for and what comes back: requests, tokens, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from draftproof.core.constraint import GrammarSpec
from draftproof.core.policy import SamplingParams
from draftproof.core.stats import SpecDecodeStats
from draftproof.core.trace import RoundTrace
from draftproof.core.types import StepRecord, TokenSource
from draftproof.errors import ConfigError, PromptError
from draftproof.verify import AllowLossy

__all__ = [
    "FinishReason",
    "GenerateRequest",
    "GenerateResult",
    "StepOutput",
    "StopCriterion",
    "TokenEvent",
    "check_whole",
]

#: Why a request ended. ``stop``: an EOS id, a stop id, a stop string or a stop
#: criterion. ``length``: ``max_tokens`` or the context is used up. ``abort``: the
#: owner aborted it. ``error``: it failed; the result carries the error.
FinishReason = Literal["stop", "length", "abort", "error"]

#: A stop rule of the caller: asked after every committed token, in order, with
#: the generated ids so far; True ends the request, from ``min_tokens`` on.
StopCriterion = Callable[[Sequence[int]], bool]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request, validated.

    Parameters
    ----------
    prompt_ids : tuple of int
        Token ids of the prompt; at least one.
    params : SamplingParams
        The sampling policy.
    max_tokens : int, default 128
        Most tokens to generate; at least 1.
    stop : tuple of str
        Strings that end the generation. The text is cut where the earliest of
        them begins; the token ids end with the token that completed it.
    stop_token_ids : tuple of int
        Ids that end the generation and are kept as the last token.
    ignore_eos : bool, default False
        Treat EOS as an ordinary token.
    stop_criterion : callable, optional
        A rule of the caller, asked after every committed token.
    seed : int, optional
        Same seed, same request, same text. None takes a fresh seed that no other
        request of any process gets.
    stream : int, default 0
        Distinguishes several completions of one seed (the index within ``n``).
    kappa : int, optional
        Most drafts per round; 0 is plain decoding. None takes the engine's, which may be
        chosen anew in each round.
    max_kappa : int, optional
        Never more drafts per round than this, whoever chooses.
    proposer : str, optional
        Name of one of the engine's drafters. None takes the engine's default.
    rule : str or AllowLossy, optional
        Verification rule. None takes the engine's. Rules that change the law are
        objects, by explicit opt-in, and an engine refuses them unless it allows them.
    grammar : GrammarSpec, optional
        What the whole output must match.
    prediction : tuple of int
        Token ids that the caller expects the output to be, for a drafter that reads them;
        refused with others.
    tenant : str, default ""
        Whose request this is; see `draftproof.core.protocols.ProposalRequest`. A note
        tells where no drafter minds.
    logprobs : int, optional
        Report log probabilities of each token and of this many best tokens.
    logprobs_mode : {"raw", "processed"}, default "raw"
        The model's own, or under the policy of the position.
    request_id : str, default ""
        Name of the request; the engine gives one when it is empty.
    trace : bool, default False
        Describe every round in full, see `draftproof.core.trace`. Nothing that is drawn
        changes with it.

    Raises
    ------
    ConfigError
        If a value is out of its range.
    PromptError
        If the prompt is empty.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop_criterion: StopCriterion | None = None
    seed: int | None = None
    stream: int = 0
    kappa: int | None = None
    max_kappa: int | None = None
    proposer: str | None = None
    rule: str | AllowLossy | None = None
    grammar: GrammarSpec | None = None
    prediction: tuple[int, ...] = ()
    tenant: str = ""
    logprobs: int | None = None
    logprobs_mode: str = "raw"
    request_id: str = ""
    trace: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        if not self.prompt_ids:
            raise PromptError("the prompt has no tokens; expected at least one")
        for name in ("max_tokens", "stream"):
            if getattr(self, name) is None:
                raise ConfigError(f"{name} is None; expected a whole number")
        check_whole("max_tokens", self.max_tokens, 1)
        check_whole("stream", self.stream, 0)
        _check_kinds(self)
        check_whole("num_speculative_tokens", self.kappa, 0)
        check_whole("max_speculative_tokens", self.max_kappa, 0)
        check_whole("logprobs", self.logprobs, 0, 100)
        check_whole("seed", self.seed)
        if self.params.min_tokens > self.max_tokens:
            raise ConfigError(
                f"min_tokens is {self.params.min_tokens}; expected at most max_tokens, "
                f"{self.max_tokens}"
            )
        if self.logprobs_mode not in ("raw", "processed"):
            raise ConfigError(
                f"logprobs_mode is {self.logprobs_mode!r}; expected 'raw' or 'processed'"
            )
        for text in self.stop:
            if not text:
                raise ConfigError("a stop string is empty; expected at least one character")


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One committed token.

    Parameters
    ----------
    token_id : int
        The token.
    source : {"accepted", "recovered", "bonus", "sampled"}
        Where it came from.
    text : str
        Text that became printable with it. Empty while a character or a possible
        stop string is incomplete.
    logprob : float, optional
        Log probability (natural log) where it was asked for: the model's own, or
        under the policy, as the request's ``logprobs_mode`` says.
    top_logprobs : tuple of (int, float), optional
        Best tokens by the same, best first.
    """

    token_id: int
    source: TokenSource
    text: str = ""
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step gave one request.

    Parameters
    ----------
    request_id : str
        The request.
    tokens : tuple of TokenEvent
        Tokens committed by the step.
    text : str
        Text to append to what was streamed before.
    record : StepRecord, optional
        The round, None where no round was run (an abort, an error).
    finish_reason : str, optional
        Set on the last output of a request.
    stop_reason : int or str, optional
        The id or the string that ended it.
    error : Exception, optional
        Why the request failed.
    result : GenerateResult, optional
        The whole request, on its last output.
    trace : RoundTrace, optional
        The round in full, where the request asked for traces.
    """

    request_id: str
    tokens: tuple[TokenEvent, ...] = ()
    text: str = ""
    record: StepRecord | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: Exception | None = None
    result: GenerateResult | None = None
    trace: RoundTrace | None = None


@dataclass(slots=True)
class GenerateResult:
    """A finished request.

    Parameters
    ----------
    request_id : str
        The request.
    prompt_ids : tuple of int
        Its prompt.
    seed : int
        The seed that was used; giving it again gives the same text.
    exactness : str
        ``exact-in-law``, ``seed-identical``, ``greedy``, or the label of a rule that
        changes the law.
    rule : str
        The verification rule that ran: the request's, or those that were chosen for
        its drafts, joined by ``+``; ``"none"`` when no rule was asked for and nothing
        was drafted.
    tokens : list of TokenEvent
        Every generated token.
    text : str
        The generated text, cut at a stop string.
    finish_reason : str
        Why it ended.
    stop_reason : int or str, optional
        The id or the string that ended it.
    error : Exception, optional
        Why it failed.
    records : list of StepRecord
        One per round.
    stats : SpecDecodeStats
        Counters folded from the records.
    notes : list of str
        What a user should know, such as a drafter that never drafted.
    traces : list of RoundTrace
        One per round, where the request asked for traces.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    seed: int
    exactness: str
    rule: str
    tokens: list[TokenEvent] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason = "length"
    stop_reason: int | str | None = None
    error: Exception | None = None
    records: list[StepRecord] = field(default_factory=list)
    stats: SpecDecodeStats = field(default_factory=SpecDecodeStats)
    notes: list[str] = field(default_factory=list)
    traces: list[RoundTrace] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """Ids of the generated tokens."""
        return [token.token_id for token in self.tokens]


def check_whole(
    name: str, value: object, least: int | None = None, most: int | None = None
) -> None:
    """Refuse what is neither None nor a whole number in its range."""
    if value is None:
        return
    expected = "a whole number"
    if isinstance(value, int) and not isinstance(value, bool):
        is_low = least is not None and value < least
        is_high = most is not None and value > most
        if not is_low and not is_high:
            return
        expected = f"at least {least}" if most is None else f"{least} to {most}"
    raise ConfigError(f"{name} is {value!r}; expected {expected}")


def _check_kinds(request: GenerateRequest) -> None:
    """Refuse values of another kind, which would be misread or fail without a name."""
    for name in ("tenant", "request_id", "proposer", "logprobs_mode"):
        value = getattr(request, name)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{name} is {value!r}; expected a string")
    for name in ("ignore_eos", "trace"):
        value = getattr(request, name)
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; expected True or False")
    if request.rule is not None and not isinstance(request.rule, str | AllowLossy):
        raise ConfigError(f"rule is {request.rule!r}; expected a name or AllowLossy")
    if request.grammar is not None and not isinstance(request.grammar, GrammarSpec):
        raise ConfigError(f"grammar is {request.grammar!r}; expected a GrammarSpec")
    if request.stop_criterion is not None and not callable(request.stop_criterion):
        raise ConfigError(f"stop_criterion is {request.stop_criterion!r}; expected a function")
    for text in request.stop:
        if not isinstance(text, str):
            raise ConfigError(f"stop holds {text!r}; expected strings")
    for name in ("stop_token_ids", "prediction"):
        for token in getattr(request, name):
            if not isinstance(token, int) or isinstance(token, bool):
                raise ConfigError(f"{name} holds {token!r}; expected token ids")
