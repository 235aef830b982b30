"""From a checked body to the engine's requests. Nothing that is accepted is ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from draftproof.build import SpeculativeConfig
from draftproof.build.rules import RULE_OWNERS, rule_from
from draftproof.core.constraint import GrammarSpec
from draftproof.core.rng import fresh_seed
from draftproof.engine import Engine, GenerateRequest, Prompt, reads
from draftproof.errors import ConfigError, PromptError
from draftproof.grammar import grammar_from_response_format, grammar_from_structured_outputs
from draftproof.server.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    RequestSpeculation,
    TextPart,
)
from draftproof.server.settings import ServerConfig

__all__ = ["Speculation", "as_turns", "num_choices", "speculation_of", "to_requests"]

#: Methods whose default length is known without a draft model.
_DRAFTLESS = ("ngram", "suffix", "prediction")


@dataclass(frozen=True, slots=True)
class Speculation:
    """How a request speculates, every choice made.

    Parameters
    ----------
    kappa : int, optional
        Most drafts per round; the engine's choice when None.
    proposer : str, optional
        The drafter; the engine's default when None.
    """

    kappa: int | None
    proposer: str | None


def num_choices(wire: GenerationRequest) -> int:
    """Return how many completions a body asks for.

    Parameters
    ----------
    wire : GenerationRequest
        The body.

    Returns
    -------
    int
        Prompts times ``n``.
    """
    return wire.n * (len(_prompts(wire)) if isinstance(wire, CompletionRequest) else 1)


def to_requests(
    wire: CompletionRequest | ChatRequest, engine: Engine, config: ServerConfig, request_id: str
) -> list[GenerateRequest]:
    """Build the engine's requests; reads prompts, so it belongs off the event loop.

    Parameters
    ----------
    wire : CompletionRequest or ChatRequest
        The body.
    engine : Engine
        Whose tokenizer and drafters are meant.
    config : ServerConfig
        Limits.
    request_id : str
        Ids are made from it.

    Returns
    -------
    list of GenerateRequest
        Completion ``i`` of prompt ``j`` stands at ``j * n + i`` and is what a request for
        it alone gives at the same seed.

    Raises
    ------
    ConfigError
        If something cannot be honoured.
    """
    speculation = speculation_of(wire, engine, config)
    options = _options(wire, speculation, engine)
    requests: list[GenerateRequest] = []
    prompts = _prompts(wire) if isinstance(wire, CompletionRequest) else [as_turns(wire.messages)]
    for prompt in prompts:
        seed = fresh_seed() if wire.seed is None else wire.seed
        first = engine.request(prompt, seed=seed, max_tokens=1, **options)
        first = replace(_with_budget(first, wire, engine, config), trace=wire.return_trace)
        for stream in range(wire.n):
            name = f"{request_id}-{len(requests)}"
            requests.append(replace(first, stream=stream, request_id=name))
    return requests


def speculation_of(wire: GenerationRequest, engine: Engine, config: ServerConfig) -> Speculation:
    """Choose the drafter and the number of drafts.

    Parameters
    ----------
    wire : GenerationRequest
        The body.
    engine : Engine
        Whose drafters are meant.
    config : ServerConfig
        Holds the engine's default number of drafts.

    Returns
    -------
    Speculation
        The choice.

    Raises
    ------
    ConfigError
        If the drafter is unknown, or a prediction would not be read.
    """
    spec = wire.speculative_config or RequestSpeculation()
    asked = spec.num_speculative_tokens
    if spec.method == "none":
        if asked:
            raise ConfigError(
                f"speculative_config.num_speculative_tokens is {asked} and method 'none' drafts "
                "nothing; expected 0 or another method"
            )
        asked = 0
    proposer = None if spec.method in (None, "none") else _named(spec.method or "", engine)
    if wire.prediction is not None:
        proposer = _reader(proposer, asked, engine)
    default = engine.core.default_proposer
    if asked is None and proposer is not None:
        # The engine's number of drafts is that of its default drafter.
        has_length = proposer == default and config.default_kappa
        asked = None if has_length else _length(proposer)
    if asked and proposer is None and default == "none":
        raise ConfigError(
            f"speculative_config.num_speculative_tokens is {asked} and no method drafts; "
            f"expected method {_choices(engine)}"
        )
    return Speculation(asked, proposer)


def as_turns(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Return a chat as templates take it.

    Parameters
    ----------
    messages : sequence of ChatMessage
        The turns.

    Returns
    -------
    list of dict
        Role and text of each turn.
    """
    return [
        {
            "role": "system" if turn.role == "developer" else turn.role,
            "content": _text(turn.content),
        }
        for turn in messages
    ]


def _options(
    wire: CompletionRequest | ChatRequest, speculation: Speculation, engine: Engine
) -> dict[str, Any]:
    spec = wire.speculative_config or RequestSpeculation()
    knobs = {key: getattr(spec, key) for key in RULE_OWNERS if getattr(spec, key) is not None}
    if knobs.get("synthetic_acceptance_rates") is not None:
        knobs["synthetic_acceptance_rates"] = tuple(knobs["synthetic_acceptance_rates"])
    return {
        "temperature": wire.temperature,
        "top_k": wire.top_k,
        "top_p": wire.top_p,
        "min_p": wire.min_p,
        "repetition_penalty": wire.repetition_penalty,
        "presence_penalty": wire.presence_penalty,
        "frequency_penalty": wire.frequency_penalty,
        "logit_bias": _biases(wire.logit_bias or {}),
        "stop": wire.stop or (),
        "stop_token_ids": wire.stop_token_ids,
        "ignore_eos": wire.ignore_eos,
        "logprobs": _logprobs(wire),
        "logprobs_mode": wire.logprobs_mode,
        "grammar": _grammar(wire),
        "prediction": "" if wire.prediction is None else _text(wire.prediction.content),
        "tenant": wire.user if wire.user and _shares(engine) else "",
        "num_speculative_tokens": speculation.kappa,
        "proposer": speculation.proposer,
        "rule": rule_from(spec.rejection_sample_method, knobs, allow_lossy=spec.allow_lossy),
    }


def _with_budget(
    request: GenerateRequest, wire: GenerationRequest, engine: Engine, config: ServerConfig
) -> GenerateRequest:
    """Set how long the output may and must be, now that the prompt's length is known."""
    context = engine.core.target.info.context_length
    room = context - len(request.prompt_ids)
    if room < 1:
        raise PromptError(
            f"the prompt has {len(request.prompt_ids)} tokens; the context is {context} and one "
            "must stay free"
        )
    asked = _budget(wire)
    if asked is not None and config.max_tokens is not None and asked > config.max_tokens:
        raise ConfigError(f"max_tokens is {asked}; expected at most {config.max_tokens}")
    budget = asked if asked is not None else min(room, config.max_tokens or room)
    if wire.min_tokens > min(budget, room):
        raise ConfigError(
            f"min_tokens is {wire.min_tokens}; expected at most {min(budget, room)}, which is "
            "what max_tokens and the context leave"
        )
    params = replace(request.params, min_tokens=wire.min_tokens)
    return replace(request, max_tokens=budget, params=params)


def _budget(wire: GenerationRequest) -> int | None:
    if isinstance(wire, ChatRequest):
        if wire.max_completion_tokens is not None and wire.max_tokens is not None:
            raise ConfigError(
                f"max_tokens is {wire.max_tokens} and max_completion_tokens is "
                f"{wire.max_completion_tokens}; expected one of them"
            )
        return wire.max_completion_tokens or wire.max_tokens
    # OpenAI's default for completions.
    return 16 if wire.max_tokens is None else wire.max_tokens


def _prompts(wire: CompletionRequest) -> list[Prompt]:
    prompt = wire.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [prompt]
    return [*cast("list[str] | list[list[int]]", prompt)]


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _biases(given: dict[str, float]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise ConfigError(f"logit_bias has the key {key[:40]!r}; expected token ids")
        biases[int(key)] = bias
    return biases


def _logprobs(wire: CompletionRequest | ChatRequest) -> int | None:
    if isinstance(wire, CompletionRequest):
        return wire.logprobs
    if wire.top_logprobs is not None and not wire.logprobs:
        raise ConfigError(f"top_logprobs is {wire.top_logprobs}; expected logprobs: true beside it")
    return (wire.top_logprobs or 0) if wire.logprobs else None


def _grammar(wire: GenerationRequest) -> GrammarSpec | None:
    if wire.response_format is not None and wire.structured_outputs is not None:
        raise ConfigError("response_format and structured_outputs are given; expected one of them")
    if wire.response_format is not None:
        return grammar_from_response_format(wire.response_format)
    return grammar_from_structured_outputs(wire.structured_outputs)


def _named(method: str, engine: Engine) -> str:
    """Return the drafter of a method; its name may be spelled as in the configuration."""
    for name in engine.core.proposers:
        if name.replace("-", "_") == method.replace("-", "_"):
            return name
    raise ConfigError(f"speculative_config.method is {method[:64]!r}; expected {_choices(engine)}")


def _reader(proposer: str | None, asked: int | None, engine: Engine) -> str:
    """Return the drafter that will read a prediction, or refuse the prediction."""
    if asked == 0:
        raise ConfigError("prediction has no effect with num_speculative_tokens 0; expected more")
    if proposer is not None:
        if not reads(engine.core.proposers[proposer], "prediction"):
            raise ConfigError(
                f"prediction has no effect with the method {proposer!r}; expected "
                "'prediction', 'hybrid' or a tree of them"
            )
        return proposer
    default = engine.core.default_proposer
    for name in (default, *engine.core.proposers):
        if reads(engine.core.proposers.get(name), "prediction"):
            return name
    raise ConfigError(
        "prediction needs a drafter that reads it, which this server has not; expected it to be "
        'started with --speculative-config \'{"method": "prediction"}\''
    )


def _shares(engine: Engine) -> bool:
    """Say whether a drafter keeps outputs; clients send ``user`` to servers without one too."""
    return any(reads(drafter, "tenant") for drafter in engine.core.proposers.values())


def _length(proposer: str | None) -> int:
    """Return how many drafts a drafter makes when nobody says."""
    if proposer not in _DRAFTLESS:
        return 0
    return SpeculativeConfig.parse({"method": proposer}).kappa


def _choices(engine: Engine) -> str:
    return " or ".join(map(repr, ("none", *engine.core.proposers)))
