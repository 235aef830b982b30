"""OpenAI's API as benchmarks need it: what to ask, and how many tokens came when.

A portion of a stream may hold any number of tokens, so portions are never counted as
tokens. Where a server says nothing per portion, the tokens of its usage are spread over
the portions by characters, which is an estimate and is labelled so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from draftproof.bench.run_record import Arm, Condition
from draftproof.bench.streams import Ask
from draftproof.errors import ConfigError

__all__ = ["Dialect", "TokenCounter"]

#: Portions that come closer together are one: no pass of a model is shorter.
_ONE_PORTION_S = 2e-4


@dataclass(frozen=True, slots=True)
class Dialect:
    """How to talk to a server.

    Parameters
    ----------
    engine : str
        ``"vllm"``, ``"sglang"``, ``"llamacpp"``, ``"draftproof"``, or ``"openai"`` for any
        other server.
    model : str
        What requests call the model.
    is_chat : bool
        Whether prompts go to the chat endpoint.
    ignore_eos : bool, default False
        Whether texts go on past their end.

    Raises
    ------
    ConfigError
        If the engine has no way to ignore the end.
    """

    engine: str
    model: str
    is_chat: bool
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be said."""
        if self.ignore_eos and self.engine == "openai":
            raise ConfigError(
                "--ignore-eos: this server is of no known kind and may pass over it; expected "
                "vLLM, SGLang, llama.cpp or draftproof"
            )

    @property
    def path(self) -> str:
        """Where requests go, below the base address."""
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, ask: Ask, arm: Arm, condition: Condition, max_tokens: int) -> dict[str, Any]:
        """Return the body of a request.

        Parameters
        ----------
        ask : Ask
            The prompt.
        arm : Arm
            How to decode.
        condition : Condition
            Temperature.
        max_tokens : int
            Most tokens.

        Returns
        -------
        dict
            JSON.

        Raises
        ------
        ConfigError
            If the arm asks for drafts of a server that cannot choose them per request.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": condition.temperature,
            "seed": ask.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.is_chat:
            body["messages"] = ask.messages
        else:
            body["prompt"] = ask.text
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.engine in ("vllm", "sglang"):
            body["stream_options"]["continuous_usage_stats"] = True
        elif self.engine == "llamacpp":
            body["timings_per_token"] = True
        elif self.engine == "draftproof":
            body["return_token_ids"] = True
        if arm.kappa is not None:
            if self.engine != "draftproof":
                raise ConfigError(
                    f"{self.engine} cannot choose drafts per request; expected no --sweep, or "
                    "--baseline with a server that does not speculate"
                )
            body["speculative_config"] = {"num_speculative_tokens": arm.kappa}
        return body


@dataclass(slots=True)
class TokenCounter:
    """Reads the events of one stream."""

    finish_reason: str = ""
    num_prompt_tokens: int | None = None
    acceptance_rate: float | None = None
    error: str = ""
    _portions: list[tuple[float, int | None, int]] = field(default_factory=list)
    _told: int = 0
    _total: int | None = None
    _counted_by: str = ""

    def hear(self, at_s: float, event: Mapping[str, Any]) -> None:
        """Take one event.

        Parameters
        ----------
        at_s : float
            When it came.
        event : mapping
            Its JSON.
        """
        if event.get("error"):
            held = event["error"]
            self.error = str(held.get("message", held) if isinstance(held, dict) else held)
            return
        self._hear_metrics(event)
        choices = event.get("choices") or []
        choice = choices[0] if choices else {}
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        count = self._count(event, choice)
        length = len(_text_of(choice))
        if count or (count is None and length):
            self._portions.append((at_s, count, length))

    def portions(self) -> tuple[list[tuple[float, int]], str]:
        """Return when how many tokens came, and what they were counted by.

        Returns
        -------
        portions : list of (float, int)
            Seconds and tokens; none where the server never said how many there were.
        counted_by : str
            ``"ids"``, ``"usage"``, ``"text share"``, or empty.
        """
        if not self._portions:
            return [], ""
        if all(count is not None for _at, count, _length in self._portions):
            found = [(at, count or 0) for at, count, _length in self._portions]
            missing = (self._total or 0) - sum(count for _at, count in found)
            if missing > 0:
                # An end token, which usage counts and no portion shows.
                found[-1] = (found[-1][0], found[-1][1] + missing)
            return _joined(found), self._counted_by
        if not self._total:
            self.error = self.error or "the server says nowhere how many tokens it generated"
            return [], ""
        lengths = _joined([(at, length) for at, _count, length in self._portions])
        return _shares(lengths, self._total), "text share"

    def _count(self, event: Mapping[str, Any], choice: Mapping[str, Any]) -> int | None:
        """Return the tokens that an event brings; None where it does not say."""
        usage = event.get("usage")
        timings = event.get("timings")
        total: int | None = None
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            total = usage["completion_tokens"]
            self._total = total
            self.num_prompt_tokens = usage.get("prompt_tokens", self.num_prompt_tokens)
        if isinstance(choice.get("token_ids"), list):
            self._counted_by = "ids"
            return len(choice["token_ids"])
        if total is None and isinstance(timings, dict):
            held = timings.get("predicted_n")
            total = held if isinstance(held, int) else None
            self._total = total if total is not None else self._total
        if total is None or not choice:
            # The usage of a stream as a whole says nothing about its last event.
            return None if choice else 0
        self._counted_by = "usage"
        new = max(0, total - self._told)
        self._told += new
        return new

    def _hear_metrics(self, event: Mapping[str, Any]) -> None:
        timings = event.get("timings")
        if isinstance(timings, dict) and timings.get("draft_n"):
            self.acceptance_rate = timings.get("draft_n_accepted", 0) / timings["draft_n"]
        metrics = event.get("metrics")
        held = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
        if isinstance(held, dict) and held.get("draft_acceptance_rate") is not None:
            self.acceptance_rate = float(held["draft_acceptance_rate"])


def _text_of(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        parts = (delta.get(key) for key in ("reasoning_content", "reasoning", "content"))
        return "".join(part for part in parts if isinstance(part, str))
    text = choice.get("text")
    return text if isinstance(text, str) else ""


def _joined(portions: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """Join portions that came at once: some servers send an event per token of a round."""
    joined: list[tuple[float, int]] = []
    for at_s, count in portions:
        if joined and at_s - joined[-1][0] < _ONE_PORTION_S:
            joined[-1] = (joined[-1][0], joined[-1][1] + count)
        else:
            joined.append((at_s, count))
    return joined


def _shares(lengths: list[tuple[float, int]], total: int) -> list[tuple[float, int]]:
    """Spread tokens over portions by their characters; every portion has at least one."""
    if total <= len(lengths):
        return [(at, 1) for at, _length in lengths[:total]]
    spare = total - len(lengths)
    characters = sum(length for _at, length in lengths)
    spread, seen, given = [], 0, 0
    for at_s, length in lengths:
        seen += length
        upto = round(spare * seen / characters)
        spread.append((at_s, 1 + upto - given))
        given = upto
    return spread
