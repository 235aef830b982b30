"""The options that verbs share: their help, and the values they turn into."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.errors import ConfigError

__all__ = [
    "Precision",
    "Rule",
    "bias_option",
    "check_request",
    "has_drafter",
    "json_object",
    "speculative_config",
    "token_bias",
]

MODEL = "Model"
SPECULATION = "Speculation"
SAMPLING = "Sampling"
ENDING = "Ending"
PROMPT = "Prompt"
OUTPUT = "Output"
MANY = "Many prompts"


class Precision(StrEnum):
    """How weights are held."""

    F32 = "f32"
    F16 = "f16"
    INT8 = "int8"


class Rule(StrEnum):
    """Verification rules, all of them exact."""

    STANDARD = "standard"
    BLOCK = "block"
    COUPLED = "coupled"
    SAMPLE_MATCH = "sample-match"


def _option(panel: str, *names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


Model = Annotated[
    str,
    _option(MODEL, "-m", "--model", help="A catalogue name, a .gguf file or an OpenVINO folder."),
]
PrecisionOf = Annotated[Precision, _option(MODEL, "--precision", help="How weights are held.")]
Threads = Annotated[
    int | None, _option(MODEL, "--threads", help="Threads of the runtime; all cores by default.")
]
ContextLength = Annotated[
    int | None, _option(MODEL, "--context-length", help="Use less context than the model has.")
]
KvCacheMb = Annotated[
    int | None, _option(MODEL, "--kv-cache-mb", help="Size of the KV cache in MB (10^6 bytes).")
]
Deterministic = Annotated[
    bool,
    _option(
        MODEL,
        "--deterministic",
        help="Keep greedy and seed-identical text to the bit; smaller passes.",
    ),
]
MaxRows = Annotated[int, _option(MODEL, "--max-rows", help="Most requests that run at once.")]

DraftModel = Annotated[
    str | None,
    _option(
        SPECULATION,
        "-md",
        "--draft-model",
        help="Draft with this model; its vocabulary must match.",
    ),
]
DraftPrecision = Annotated[
    Precision | None,
    _option(SPECULATION, "--draft-precision", help="Weights of the draft model; as the target's."),
]
SpeculativeConfigJson = Annotated[
    str | None,
    _option(
        SPECULATION,
        "--speculative-config",
        metavar="JSON",
        help='For example \'{"method": "ngram", "num_speculative_tokens": 5}\'.',
    ),
]
NumSpeculativeTokens = Annotated[
    int | None,
    _option(SPECULATION, "-k", "--num-speculative-tokens", help="Most drafts per round."),
]
RuleOf = Annotated[
    Rule | None,
    _option(SPECULATION, "--rule", help="Verification rule; the best exact one by default."),
]

Temperature = Annotated[float, _option(SAMPLING, "--temperature", help="0 is greedy.")]
TopK = Annotated[int, _option(SAMPLING, "--top-k", help="Keep the k best tokens; 0 is off.")]
TopP = Annotated[float, _option(SAMPLING, "--top-p", help="Keep this much mass; 1 is off.")]
MinP = Annotated[
    float, _option(SAMPLING, "--min-p", help="Keep tokens of this share of the best; 0 is off.")
]
RepetitionPenalty = Annotated[float, _option(SAMPLING, "--repetition-penalty", help="1 is off.")]
PresencePenalty = Annotated[float, _option(SAMPLING, "--presence-penalty", help="0 is off.")]
FrequencyPenalty = Annotated[float, _option(SAMPLING, "--frequency-penalty", help="0 is off.")]
LogitBias = Annotated[
    str | None,
    _option(
        SAMPLING, "--logit-bias", metavar="JSON", help="Added to logits, such as '{\"50\": -2.5}'."
    ),
]
Seed = Annotated[
    int | None, _option(SAMPLING, "--seed", help="Same seed, same text; a fresh one by default.")
]

MaxTokens = Annotated[int, _option(ENDING, "--max-tokens", help="Most tokens to generate.")]
MinTokens = Annotated[int, _option(ENDING, "--min-tokens", help="No end before this many.")]
IgnoreEos = Annotated[
    bool, _option(ENDING, "--ignore-eos", help="Treat the end token as an ordinary one.")
]
Stop = Annotated[
    list[str] | None,
    _option(ENDING, "--stop", help="End before this text; may be given several times."),
]

Chat = Annotated[
    bool | None,
    _option(
        PROMPT,
        "--chat/--raw",
        help="Put the prompt through the model's chat template, or give it as it is (default).",
    ),
]
System = Annotated[str | None, _option(PROMPT, "--system", help="System message; implies --chat.")]

Logprobs = Annotated[
    int | None,
    _option(
        OUTPUT,
        "--logprobs",
        metavar="N",
        help="With --json or --prompts: raw log probabilities, also of the N best tokens.",
    ),
]
JsonOutput = Annotated[bool, _option(OUTPUT, "--json", help="One JSON object on stdout.")]
ShowSources = Annotated[
    bool | None,
    _option(
        OUTPUT,
        "--show-sources/--no-show-sources",
        help="Tell accepted, recovered and bonus tokens apart; the default on a terminal.",
    ),
]
Compare = Annotated[
    bool,
    _option(OUTPUT, "--compare", help="Time plain and speculative decoding, interleaved."),
]
Repeats = Annotated[
    int, _option(OUTPUT, "--repeats", help="Pairs of runs that --compare times.", metavar="N")
]
Quiet = Annotated[bool, _option(OUTPUT, "-q", "--quiet", help="Only data and errors.")]

Prompts = Annotated[
    Path | None,
    _option(MANY, "--prompts", metavar="FILE.jsonl", help="One JSON object per line; - is stdin."),
]
Output = Annotated[
    Path | None,
    _option(
        MANY,
        "--output",
        metavar="OUT.jsonl",
        help="Where results go; the same command goes on after an interruption.",
    ),
]


def json_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Parameters
    ----------
    text : str
        The JSON.
    what : str
        Its name in errors.

    Returns
    -------
    dict
        The object.

    Raises
    ------
    ConfigError
        If it is not one.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} is {text!r}; expected JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is {text!r}; expected a JSON object")
    return value


def token_bias(bias: Mapping[str, Any], what: str) -> dict[int, float]:
    """Turn the string keys of a JSON object into token ids.

    Parameters
    ----------
    bias : mapping
        Biases by token id.
    what : str
        Its name in errors.

    Returns
    -------
    dict of int to float
        The biases.

    Raises
    ------
    ConfigError
        If a key is no token id or a value no number.
    """
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not key.isascii() or not key.isdecimal():
            raise ConfigError(f"{what} has the key {key!r}; expected a token id")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{what} of token {key} is {value!r}; expected a number")
        result[int(key)] = float(value)
    return result


def bias_option(text: str | None) -> dict[int, float] | None:
    """Read ``--logit-bias``.

    Parameters
    ----------
    text : str, optional
        The JSON.

    Returns
    -------
    dict of int to float, optional
        Biases by token id.

    Raises
    ------
    ConfigError
        If it is not an object of numbers by token id.
    """
    return None if text is None else token_bias(json_object(text, "--logit-bias"), "--logit-bias")


def speculative_config(
    text: str | None,
    *,
    draft_model: str | None,
    num_speculative_tokens: int | None,
    rule: str | None,
) -> dict[str, Any]:
    """Join the JSON of ``--speculative-config`` with its shorthands.

    Parameters
    ----------
    text : str, optional
        The JSON.
    draft_model : str, optional
        Stands for ``method`` and ``model``.
    num_speculative_tokens : int, optional
        Stands for the key of the same name.
    rule : str, optional
        Stands for ``rejection_sample_method``.

    Returns
    -------
    dict
        The configuration, not checked further.

    Raises
    ------
    ConfigError
        If an option contradicts the JSON, or drafts are asked for without a drafter.
    """
    config = {} if text is None else json_object(text, "--speculative-config")
    shorthands = {
        "method": ("--draft-model", None if draft_model is None else "draft_model"),
        "model": ("--draft-model", draft_model),
        "num_speculative_tokens": ("--num-speculative-tokens", num_speculative_tokens),
        "rejection_sample_method": ("--rule", rule),
    }
    for key, (option, value) in shorthands.items():
        if value is None:
            continue
        if config.setdefault(key, value) != value:
            raise ConfigError(
                f"--speculative-config has {key} {config[key]!r} and {option} says {value!r}; "
                "expected one of them"
            )
    if num_speculative_tokens and not has_drafter(config):
        raise ConfigError(
            f"num_speculative_tokens is {num_speculative_tokens} and there is no drafter; "
            'expected --draft-model or --speculative-config \'{"method": "ngram"}\''
        )
    return config


def has_drafter(config: Mapping[str, Any]) -> bool:
    """Whether a configuration names a drafter.

    Parameters
    ----------
    config : mapping
        From `speculative_config`.

    Returns
    -------
    bool
        False for plain decoding.
    """
    return config.get("method", "none") != "none" or config.get("model") is not None


def check_request(options: Mapping[str, Any]) -> None:
    """Refuse options out of range now, before a model is loaded.

    Parameters
    ----------
    options : mapping
        Keyword arguments of `Engine.request`.

    Raises
    ------
    ConfigError
        If a value cannot be honoured by any model.
    """
    from draftproof.core.policy import SamplingParams
    from draftproof.engine import GenerateRequest

    given = {key: value for key, value in options.items() if value is not None}
    policy = {field.name for field in dataclasses.fields(SamplingParams) if field.init}
    SamplingParams(**{key: value for key, value in given.items() if key in policy})
    GenerateRequest(
        prompt_ids=(0,),
        max_tokens=given["max_tokens"],
        stop=tuple(given.get("stop", ())),
        kappa=given.get("num_speculative_tokens"),
        logprobs=given.get("logprobs"),
    )
