"""Stop rules, asked after every committed token, in order.

A block may hold an end anywhere inside it. Whoever commits asks `Stopper.push` for
one token at a time and drops the rest of the block when it says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.core.protocols import Tokenizer
from draftproof.engine.request import FinishReason, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.text import StopMatcher, TextStream

__all__ = ["StopDecision", "Stopper"]


@dataclass(frozen=True, slots=True)
class StopDecision:
    """What a committed token led to.

    Parameters
    ----------
    text : str
        Text that may be shown now; never part of a stop string.
    finish_reason : str, optional
        Set when the request ends with this token.
    stop_reason : int or str, optional
        The id or string that ended it.
    """

    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


#: What most tokens of a model without text lead to.
_GO_ON = StopDecision()


class Stopper:
    """The stop rules of one request.

    Before ``min_tokens`` nothing ends the request but its length, and stop strings are
    looked for only in text that comes later.

    Parameters
    ----------
    request : GenerateRequest
        The request.
    tokenizer : Tokenizer, optional
        Needed for text and stop strings; models without text have none.
    eos_token_ids : frozenset of int
        Ids that end a generation unless ``ignore_eos`` is set.
    max_total_tokens : int
        Longest prompt plus output.

    Raises
    ------
    ConfigError
        If stop strings are asked for and there is no tokenizer.
    """

    def __init__(
        self,
        request: GenerateRequest,
        tokenizer: Tokenizer | None,
        eos_token_ids: frozenset[int],
        max_total_tokens: int,
    ) -> None:
        if request.stop and tokenizer is None:
            raise ConfigError(f"stop={list(request.stop)!r} needs a tokenizer; this model has none")
        self._stop_ids = frozenset(request.stop_token_ids)
        if not request.ignore_eos:
            self._stop_ids |= eos_token_ids
        self._min_tokens = request.params.min_tokens
        self._criterion = request.stop_criterion
        self._max_generated = max_total_tokens - len(request.prompt_ids)
        self._num_generated = 0
        self._generated: list[int] = []
        self._stream = TextStream(tokenizer) if tokenizer is not None else None
        self._matcher = StopMatcher(request.stop) if request.stop else None

    def push(self, token_id: int, *, is_complete: bool = False) -> StopDecision:
        """Take the next committed token.

        Parameters
        ----------
        token_id : int
            The token.
        is_complete : bool, default False
            Whether a grammar lets nothing follow it; this ends the request even before
            ``min_tokens``.

        Returns
        -------
        StopDecision
            Text to show and, at the end, why it ended.
        """
        self._num_generated += 1
        asked_to_stop = False
        if self._criterion is not None:
            self._generated.append(token_id)
            asked_to_stop = bool(self._criterion(self._generated))
        text = self._stream.push(token_id) if self._stream is not None else ""
        may_stop = self._num_generated >= self._min_tokens
        if self._matcher is not None and may_stop:
            update = self._matcher.push(text)
            if update.stop is not None:
                return StopDecision(update.text, "stop", update.stop)
            text = update.text
        if may_stop and token_id in self._stop_ids:
            return StopDecision(text + self._flush(), "stop", token_id)
        if is_complete or (may_stop and asked_to_stop):
            return StopDecision(text + self._flush(), "stop", None)
        if self._num_generated >= self._max_generated:
            return StopDecision(text + self._flush(), "length", None)
        return StopDecision(text) if text else _GO_ON

    def _flush(self) -> str:
        """Return the text that was held back; nothing more can complete it."""
        if self._stream is None:
            return ""
        tail = self._stream.flush()
        if self._matcher is None:
            return tail
        # An unfinished character becomes U+FFFD here, which no stop string is asked for.
        return self._matcher.flush() + tail
