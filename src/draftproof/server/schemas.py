"""What clients may send. A field that is not here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "GenerationRequest",
    "Prediction",
    "RequestSpeculation",
    "StreamOptions",
    "TextPart",
    "TokenizeRequest",
]

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_MESSAGES = 4096

_StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
_Bias = Annotated[float, Field(ge=-100.0, le=100.0)]
_TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Wire):
    """OpenAI's ``stream_options``.

    Parameters
    ----------
    include_usage : bool
        Send the usage in a last chunk without choices.
    include_obfuscation : bool
        Only False: chunks are not padded.
    """

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextPart(_Wire):
    """A part of a message that is text; there are no others.

    Parameters
    ----------
    type : {"text"}
        Its kind.
    text : str
        The text.
    """

    type: Literal["text"]
    text: str


class ChatMessage(_Wire):
    """A turn of a chat.

    Parameters
    ----------
    role : {"system", "developer", "user", "assistant"}
        Whose turn. ``developer`` is read as ``system``.
    content : str or list of TextPart
        What was said.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]


class Prediction(_Wire):
    """OpenAI's ``prediction``: what the caller expects the answer to be.

    Parameters
    ----------
    type : {"content"}
        Its kind.
    content : str or list of TextPart
        The expected text; it is the draft.
    """

    type: Literal["content"]
    content: str | list[TextPart]


class RequestSpeculation(_Wire):
    """Speculation of one request, in the keys of ``--speculative-config``.

    Parameters
    ----------
    method : str, optional
        One of the server's drafters, or ``"none"``.
    num_speculative_tokens : int, optional
        Most drafts per round; 0 switches speculation off.
    rejection_sample_method : str, optional
        The verification rule.
    allow_lossy : bool
        Allow a rule that changes the law, where the server allows it too.
    lenience, threshold_acc, threshold_single, typical_epsilon, typical_alpha : float, optional
        Knobs of such rules.
    synthetic_acceptance_rates : list of float, optional
        For load tests, the unconditional acceptance per position.
    """

    method: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=64)
    rejection_sample_method: str | None = None
    allow_lossy: bool = False
    lenience: float | None = None
    threshold_acc: float | None = None
    threshold_single: float | None = None
    typical_epsilon: float | None = None
    typical_alpha: float | None = None
    synthetic_acceptance_rates: list[float] | None = Field(default=None, max_length=64)


class GenerationRequest(_Wire):
    """What completions and chats have in common.

    Parameters
    ----------
    model : str
        The served name.
    n : int
        Completions per prompt.
    stream, stream_options : bool and StreamOptions
        Send server-sent events.
    max_tokens : int, optional
        Most tokens to generate.
    temperature, top_p, presence_penalty, frequency_penalty : float
        As in OpenAI's API.
    logit_bias : dict of str to float, optional
        Added to the logits of token ids.
    stop : str or list of str, optional
        Strings that end the text.
    seed : int, optional
        Same seed, same text.
    user : str, optional
        Whose request it is: drafters may share earlier outputs of one user.
    response_format, structured_outputs : dict, optional
        What the whole output must match, as OpenAI and as vLLM write it.
    prediction : Prediction, optional
        What the output is expected to be.
    top_k, min_p, repetition_penalty : int, float, float
        More of the policy; 0, 0 and 1 switch them off.
    min_tokens : int
        No end before this many tokens.
    ignore_eos : bool
        Treat the end token as an ordinary one.
    stop_token_ids : list of int
        Ids that end the text.
    logprobs_mode : {"raw", "processed"}
        Whose log probabilities are reported: the model's, or under the policy.
    speculative_config : RequestSpeculation, optional
        How this request speculates.
    return_token_ids : bool
        Add ``token_ids`` to choices, and ``prompt_token_ids``.
    return_rounds : bool
        Add what each round drafted, kept and emitted.
    return_trace : bool
        Add how each round was decided: probabilities, coins and times.
    timeout_s : float, optional
        Deadline in seconds, waiting included; at most the server's.
    """

    model: str
    n: int = Field(default=1, ge=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    logit_bias: dict[str, _Bias] | None = Field(default=None, max_length=MAX_BIASES)
    stop: _StopText | Annotated[list[_StopText], Field(max_length=MAX_STOPS)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    user: str | None = Field(default=None, max_length=256)
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    prediction: Prediction | None = None
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: list[_TokenId] = Field(default_factory=list, max_length=MAX_BIASES)
    logprobs_mode: Literal["raw", "processed"] = "raw"
    speculative_config: RequestSpeculation | None = None
    return_token_ids: bool = False
    return_rounds: bool = False
    return_trace: bool = False
    timeout_s: float | None = Field(default=None, ge=0.01)


class CompletionRequest(GenerationRequest):
    """A body of ``/v1/completions``.

    Parameters
    ----------
    prompt : str, list of str, list of int, or list of list of int
        One prompt or several, as text or as token ids.
    logprobs : int, optional
        Report log probabilities, and of this many best tokens.
    """

    prompt: str | list[str] | list[_TokenId] | list[list[_TokenId]]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)


class ChatRequest(GenerationRequest):
    """A body of ``/v1/chat/completions``.

    Parameters
    ----------
    messages : list of ChatMessage
        The chat, oldest turn first.
    max_completion_tokens : int, optional
        The newer name of ``max_tokens``.
    logprobs : bool
        Report log probabilities.
    top_logprobs : int, optional
        And of this many best tokens.
    """

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)


class TokenizeRequest(_Wire):
    """A body of ``/tokenize``.

    Parameters
    ----------
    model : str, optional
        The served name.
    prompt : str, optional
        A text; or ``messages``.
    messages : list of ChatMessage, optional
        A chat.
    add_special_tokens : bool
        Begin as the model wants prompts to begin; for a text.
    return_token_strs : bool
        Add the text of each token.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(_Wire):
    """A body of ``/detokenize``.

    Parameters
    ----------
    model : str, optional
        The served name.
    tokens : list of int
        Token ids.
    """

    model: str | None = None
    tokens: list[_TokenId]
