"""The documents of the two endpoints: whole, and as chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from draftproof.core.protocols import Tokenizer
from draftproof.engine import GenerateRequest, GenerateResult, StepOutput, TokenEvent
from draftproof.server.record import (
    round_record,
    spec_decode_metrics,
    speculation_record,
    trace_record,
    usage,
)
from draftproof.server.schemas import ChatRequest, CompletionRequest
from draftproof.server.spelling import Speller, chat_logprobs, completion_logprobs

__all__ = ["Answer", "Head"]


@dataclass(frozen=True, slots=True)
class Head:
    """What every document of a response begins with.

    Parameters
    ----------
    response_id : str
        Its id.
    created : int
        Seconds since 1970.
    model : str
        The served name.
    fingerprint : str
        Which weights and runtime answered.
    """

    response_id: str
    created: int
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Form:
    """Where the two endpoints differ."""

    whole: str
    chunk: str
    text: Callable[[str], dict[str, Any]]
    delta: Callable[[str], dict[str, Any]]
    logprobs: Callable[[Sequence[TokenEvent], Speller], dict[str, Any]]


_FORMS: Mapping[type, _Form] = MappingProxyType(
    {
        CompletionRequest: _Form(
            "text_completion",
            "text_completion",
            lambda text: {"text": text},
            lambda text: {"text": text},
            completion_logprobs,
        ),
        ChatRequest: _Form(
            "chat.completion",
            "chat.completion.chunk",
            lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
            lambda text: {"delta": {"content": text} if text else {}},
            chat_logprobs,
        ),
    }
)


class Answer:
    """Writes the answer to one request.

    Parameters
    ----------
    wire : CompletionRequest or ChatRequest
        What was asked.
    head : Head
        What documents begin with.
    requests : sequence of GenerateRequest
        The completions.
    tokenizer : Tokenizer
        Spells tokens.
    default_kappa : int
        Most drafts per round of requests that do not say.
    """

    def __init__(
        self,
        wire: CompletionRequest | ChatRequest,
        head: Head,
        requests: Sequence[GenerateRequest],
        tokenizer: Tokenizer,
        default_kappa: int,
    ) -> None:
        self._wire = wire
        self._default_kappa = default_kappa
        self._head = head
        self._requests = requests
        self._tokenizer = tokenizer
        self._form = _FORMS[type(wire)]
        self._spellers = [Speller(tokenizer) for _ in requests]
        self._traces: list[list[dict[str, Any]]] = [[] for _ in requests]
        self._asks_usage = wire.stream_options is not None and wire.stream_options.include_usage

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompts, each counted once."""
        return sum(len(request.prompt_ids) for request in self._requests[:: self._wire.n])

    def keep(self, index: int, output: StepOutput) -> None:
        """Keep of a step what `whole` needs and a result does not hold: its trace.

        Parameters
        ----------
        index : int
            Which completion.
        output : StepOutput
            What it got.
        """
        if output.trace is not None:
            speller = self._spellers[index]
            self._traces[index].append(trace_record(output.trace, output.tokens, speller))

    def whole(self, results: Sequence[GenerateResult]) -> dict[str, Any]:
        """Return the answer in one document.

        Parameters
        ----------
        results : sequence of GenerateResult
            All completions, in order.

        Returns
        -------
        dict
            A ``text_completion`` or a ``chat.completion``.
        """
        return self._document(
            self._form.whole, list(map(self._choice, range(len(results)), results))
        ) | {
            "usage": usage(results, self._wire.n),
            "metrics": self._metrics(results),
        }

    def opening(self) -> list[dict[str, Any]]:
        """Return the chunks that come before the first token."""
        if not isinstance(self._wire, ChatRequest):
            return []
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [
            self._chunk([{"index": index, **delta, "logprobs": None, "finish_reason": None}])
            for index in range(len(self._requests))
        ]

    def step(self, index: int, output: StepOutput) -> dict[str, Any] | None:
        """Return the chunk of one step of one completion.

        Parameters
        ----------
        index : int
            Which completion.
        output : StepOutput
            What it got; all of its tokens, in order.

        Returns
        -------
        dict or None
            None where there is nothing to show yet: a character or a possible stop string
            is incomplete.
        """
        wire = self._wire
        reports = self._requests[index].logprobs is not None or wire.return_token_ids
        reports = reports or wire.return_rounds or wire.return_trace
        if not (output.text or output.finish_reason or reports):
            return None
        speller = self._spellers[index]
        choice: dict[str, Any] = {"index": index, **self._form.delta(output.text)}
        choice["logprobs"] = self._logprobs(index, output.tokens, speller)
        choice["finish_reason"] = output.finish_reason
        if wire.return_token_ids:
            choice["token_ids"] = [token.token_id for token in output.tokens]
        if wire.return_rounds and output.record is not None:
            choice["round"] = round_record(output.record, speller)
        if output.trace is not None:
            choice["trace"] = trace_record(output.trace, output.tokens, speller)
        if output.result is not None:
            choice |= self._ending(index, output.result)
        return self._chunk([choice])

    def closing(self, results: Sequence[GenerateResult]) -> list[dict[str, Any]]:
        """Return the chunks that come after the last token: the usage, if it was asked for."""
        if not self._asks_usage:
            return []
        chunk = self._chunk([])
        return [chunk | {"usage": usage(results, self._wire.n), "metrics": self._metrics(results)}]

    def _choice(self, index: int, result: GenerateResult) -> dict[str, Any]:
        wire, speller = self._wire, Speller(self._tokenizer)
        choice: dict[str, Any] = {"index": index, **self._form.text(result.text)}
        choice["logprobs"] = self._logprobs(index, result.tokens, speller)
        choice["finish_reason"] = result.finish_reason
        if wire.return_token_ids:
            choice["token_ids"] = result.token_ids
        if wire.return_rounds:
            choice["rounds"] = [round_record(record, speller) for record in result.records]
        if wire.return_trace:
            choice["traces"] = self._traces[index]
        return choice | self._ending(index, result)

    def _ending(self, index: int, result: GenerateResult) -> dict[str, Any]:
        """Return what a choice says once it has ended."""
        ending: dict[str, Any] = {"stop_reason": result.stop_reason}
        if self._wire.return_token_ids:
            ending["prompt_token_ids"] = list(result.prompt_ids)
        return ending | {"speculation": speculation_record(result, self._kappa(index))}

    def _metrics(self, results: Sequence[GenerateResult]) -> dict[str, Any]:
        """Return the acceptance of a lone completion; of several, choices have their own."""
        if len(results) != 1 or not self._kappa(0):
            return {"speculative_decoding": None}
        return {"speculative_decoding": spec_decode_metrics(results[0], self._kappa(0))}

    def _kappa(self, index: int) -> int:
        asked = self._requests[index].kappa
        return self._default_kappa if asked is None else asked

    def _logprobs(
        self, index: int, tokens: Sequence[TokenEvent], speller: Speller
    ) -> dict[str, Any] | None:
        if self._requests[index].logprobs is None:
            return None
        return self._form.logprobs(tokens, speller)

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.response_id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "choices": choices,
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = self._document(self._form.chunk, choices)
        return chunk | {"usage": None} if self._asks_usage else chunk
