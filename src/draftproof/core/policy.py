"""The only place where logits become a law.

A policy is an ordered pipeline: bias, penalties, allowed tokens, temperature,
top-k, top-p, min-p. The order is data, so that the order of another engine can be
reproduced. Drafts, draft positions, recovered and bonus tokens all go through
`target_law`, each with the history of its own position.

The definitions, where engines differ:

* *Greedy* is a temperature below ``GREEDY_TEMPERATURE``, one threshold for draft
  and target. It gives the largest logit, the lowest id on ties.
* *top-k* keeps the k largest logits, the lowest ids on ties.
* *top-p* keeps the smallest prefix of the tokens, sorted by falling probability
  and rising id, whose mass reaches ``top_p``; never fewer than one. Probabilities
  are the float32 weights of the law: logits too close to differ there are ties.
* *min-p* keeps tokens whose probability is at least ``min_p`` times the largest.
* *repetition penalty* divides positive and multiplies other logits of tokens seen
  in prompt or output (1909.05858, section 4.1). *Presence* and *frequency*
  penalties subtract, and count the output only. Repetition comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.core.history import History
from draftproof.core.lanes import lane_peaks
from draftproof.core.law import DenseLaw, Law, OneHotLaw, SparseLaw
from draftproof.core.nucleus_law import NucleusLaw
from draftproof.core.params import DEFAULT_ORDER, GREEDY_TEMPERATURE, SamplingParams
from draftproof.core.scratch import Scratch
from draftproof.core.softmax import Softmax, soften
from draftproof.core.truncation import Zeroed, at_least, largest, nucleus
from draftproof.core.weights import BLOCK
from draftproof.errors import ConfigError, NonFiniteLogitsError

__all__ = ["DEFAULT_ORDER", "GREEDY_TEMPERATURE", "History", "SamplingParams", "target_law"]

#: Stages of a policy whose law may put off looking for its boundary ...
_NUCLEUS = (("top_p",), ("temperature", "top_p"))
#: ... over vocabularies of at least this size.
_LONG = 4096


def target_law(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: History,
    extra: Sequence[int] = (),
    allowed: NDArray[np.bool_] | None = None,
    *,
    is_stable: bool = False,
    scratch: Scratch | None = None,
) -> Law:
    """Return the law of the next token under a policy.

    Parameters
    ----------
    logits : ndarray of float32, shape (V,)
        Raw logits of the position; -inf masks a token. Never written to.
    params : SamplingParams
        The policy.
    history : History
        Committed tokens.
    extra : sequence of int
        Drafted tokens between the committed ones and this position.
    allowed : ndarray of bool, shape (V,), optional
        What a grammar allows at this position; acts in the stage ``"allowed"``. None
        allows everything.
    is_stable : bool, default False
        Whether the row stays as it is for as long as the law is used. Saves a copy
        where the law puts its exponential off.
    scratch : Scratch, optional
        Where to work, for callers who make many laws; one of its own if None.

    Returns
    -------
    Law
        `OneHotLaw` if one token is certain, `SparseLaw` after a filter that leaves few
        tokens, else `DenseLaw` with float32 weights. For a stable row of a top-p policy
        a law that becomes one of them when it must.

    Raises
    ------
    NonFiniteLogitsError
        If the row holds NaN or +inf, or the policy leaves no token possible.
    ConfigError
        If the policy names a token outside the vocabulary, or the mask has another length.

    Notes
    -----
    With a temperature alone the row is read once, for its maximum; the exponential and
    its sum follow when a probability is asked for, and never when all that is asked for
    is the winner of a race or bounds of a probability. top-k too reads the row once. top-p needs
    the exponential of the row, and sorts only what stands near its boundary.
    """
    row = np.asarray(logits, dtype=np.float32)
    if row.ndim != 1 or row.size == 0:
        raise ConfigError(f"logits of shape {row.shape}: expected (V,) with V > 0")
    stages = params.stages if allowed is None else params.stages_under_a_mask
    if allowed is not None and len(allowed) != len(row):
        raise ConfigError(f"a mask over {len(allowed)} tokens: expected {len(row)}")
    if params.is_greedy and stages == ("temperature",):
        best = int(row.argmax())  # NaN wins an argmax as it wins a max
        _check_peak(row.item(best))
        return OneHotLaw(best, len(row))
    if stages in ((), ("temperature",)):
        if len(row) < BLOCK:  # so short that putting anything off costs more than it saves
            peak = _check_peak(np.maximum.reduce(row).item())
            return DenseLaw._trusted(soften(row, peak, params.temperature))
        # A law that may outlive the row fills in its weights where the copy stands.
        held, scratch = row if is_stable else row.copy(), scratch or Scratch()
        peak = _check_peak(np.maximum.reduce(row).item())
        return DenseLaw._of_softmax(
            Softmax(held, peak, params.temperature, is_owned=not is_stable, scratch=scratch)
        )
    if is_stable and stages in _NUCLEUS and not params.is_greedy and len(row) >= _LONG:
        peak = _check_peak(np.maximum.reduce(row).item())
        softmax = Softmax(
            row, peak, params.temperature, is_owned=False, scratch=scratch or Scratch()
        )
        return NucleusLaw(
            row, softmax, params.top_p, lambda: _piped(row, params, history, extra, allowed, stages)
        )
    return _piped(row, params, history, extra, allowed, stages)


def _piped(
    row: NDArray[np.float32],
    params: SamplingParams,
    history: History,
    extra: Sequence[int],
    allowed: NDArray[np.bool_] | None,
    stages: Sequence[str],
) -> Law:
    """Return the law after all stages, each with its work done."""
    pipeline = _Pipeline(row, params, history, extra, allowed)
    for stage in stages:
        pipeline.apply(stage, is_last=stage == stages[-1])
    return pipeline.law()


class _Pipeline:
    """A row of logits on its way through the stages."""

    __slots__ = (
        "_allowed", "_extra", "_heat", "_history", "_ids", "_lane_peaks", "_logits", "_owned",
        "_params", "_sharp", "_size", "_softmax",
    )  # fmt: skip

    def __init__(
        self,
        row: NDArray[np.float32],
        params: SamplingParams,
        history: History,
        extra: Sequence[int],
        allowed: NDArray[np.bool_] | None,
    ) -> None:
        self._allowed = allowed
        self._params = params
        self._history = history
        self._extra = extra
        self._size = len(row)
        self._ids: NDArray[np.intp] | None = None  # None: all tokens; else rising ids
        self._logits = row
        self._lane_peaks: NDArray[np.float32] | None = lane_peaks(row)  # of _logits, if known
        _check_peak(self._lane_peaks.max())
        self._owned = False
        self._heat = 1.0  # divisor that is still owed to the logits
        self._softmax: NDArray[np.float32] | None = None
        self._sharp = False  # greedy, and the temperature stage is past

    def apply(self, stage: str, *, is_last: bool) -> None:
        """Run one stage."""
        params = self._params
        if stage == "temperature":
            self._softmax = None
            self._heat = params.temperature
            self._sharp = params.is_greedy
        elif stage == "allowed":
            self._mask()
        elif stage == "top_k":
            self._keep(largest(self._logits, params.top_k, self._lane_peaks))
        elif self._sharp:
            # The limit of small temperatures: a finite bias or penalty no longer
            # changes the order, and any other filter leaves the largest logit.
            if stage in ("top_p", "min_p"):
                self._keep(np.array([self._peak_slot()], dtype=np.intp))
        elif stage == "bias":
            bias = params.logit_bias
            ids = self._checked("logit_bias", bias)
            self._shift(ids, np.fromiter(bias.values(), np.float32, len(bias)))
        elif stage == "penalties":
            self._penalise()
        elif stage == "top_p":
            kept = nucleus(self._weights(), params.top_p, self._lane_weights())
            if isinstance(kept, Zeroed):
                self._cut(kept.weights, is_last=is_last)
            else:
                self._keep(kept)
        else:
            weights = self._weights()
            self._keep(at_least(weights, params.min_p, self._lane_weights()))

    def law(self) -> Law:
        """Return the law of what is left."""
        if self._params.is_greedy or len(self._logits) == 1:
            return OneHotLaw(self._token(self._peak_slot()), self._size)
        weights = self._weights()
        if self._ids is None:
            return DenseLaw._trusted(weights)
        return SparseLaw._trusted(self._ids, weights, self._size)

    def _token(self, slot: int) -> int:
        return slot if self._ids is None else int(self._ids.item(slot))

    def _peak_slot(self) -> int:
        self._peak()
        return int(self._logits.argmax())

    def _peak(self) -> float:
        held = self._logits if self._lane_peaks is None else self._lane_peaks
        peak = float(held.max())
        if not -math.inf < peak < math.inf:
            msg = f"largest logit after bias, penalties and masks is {peak}: expected a finite one"
            raise NonFiniteLogitsError(msg)
        return peak

    def _weights(self) -> NDArray[np.float32]:
        if self._softmax is None:
            self._softmax = soften(self._logits, self._peak(), self._heat)
        return self._softmax

    def _lane_weights(self) -> NDArray[np.float32] | None:
        if self._lane_peaks is None:
            return None
        return soften(self._lane_peaks, self._peak(), self._heat)

    def _cut(self, weights: NDArray[np.float32], *, is_last: bool) -> None:
        """Keep many tokens: those that are left out stay, with weight 0."""
        self._softmax = weights
        self._lane_peaks = None
        if not is_last:
            self._logits = np.where(weights > 0.0, self._logits, np.float32(-np.inf))
            self._owned = True

    def _keep(self, slots: NDArray[np.intp] | None) -> None:
        """Keep the given rising slots; None keeps all."""
        if slots is None:
            return
        if len(slots) == 0:
            msg = "no allowed token is left by earlier filters: expected at least one"
            raise NonFiniteLogitsError(msg)
        self._ids = slots if self._ids is None else self._ids[slots]
        self._logits = self._logits[slots]
        self._lane_peaks = None
        self._owned = True
        if self._softmax is not None:
            self._softmax = self._softmax[slots]

    def _mask(self) -> None:
        params = self._params
        if self._allowed is not None:
            held = self._allowed if self._ids is None else self._allowed[self._ids]
            self._keep(np.flatnonzero(held))
        if params.allowed_token_ids is not None:
            wanted = np.unique(self._checked("allowed_token_ids", params.allowed_token_ids))
            self._keep(self._slots_of(wanted)[0])
        banned = list(self._checked("banned_token_ids", params.banned_token_ids))
        if self._history.num_generated + len(self._extra) < params.min_tokens:
            # An end token outside the logits row cannot be emitted anyway.
            banned += [token for token in params.eos_token_ids if token < self._size]
        if banned:
            slots, _ = self._slots_of(np.unique(np.array(banned, dtype=np.intp)))
            self._own()
            self._logits[slots] = -np.inf

    def _slots_of(self, tokens: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the slots of the tokens that are still held, and which those are."""
        if self._ids is None:
            return tokens, np.arange(len(tokens))
        slots = np.minimum(self._ids.searchsorted(tokens), len(self._ids) - 1)
        which = np.flatnonzero(self._ids[slots] == tokens)
        return slots[which], which

    def _own(self) -> None:
        """Bring the logits up to date in an array of our own, before writing to it."""
        if not self._owned:
            self._logits = self._logits.copy()
            self._owned = True
        if self._heat != 1.0 and not self._params.is_greedy:
            self._logits /= np.float32(self._heat)
            self._heat = 1.0
        self._softmax = self._lane_peaks = None

    def _shift(self, tokens: NDArray[np.intp], by: NDArray[np.float32]) -> None:
        slots, which = self._slots_of(tokens)
        self._own()
        self._logits[slots] += by[which]

    def _penalise(self) -> None:
        params = self._params
        tokens, counts = self._history.seen(self._extra)
        inside = tokens < self._size
        slots, which = self._slots_of(tokens[inside])
        counts = counts[inside][which]
        self._own()
        values = self._logits[slots]
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            values = np.where(values > 0.0, values / penalty, values * penalty)
        values -= np.float32(params.presence_penalty) * (counts > 0)
        values -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
        self._logits[slots] = values

    def _checked(self, name: str, tokens: Iterable[int]) -> NDArray[np.intp]:
        ids = np.fromiter(tokens, dtype=np.intp)
        if len(ids) and ids.max() >= self._size:
            raise ConfigError(f"{name} holds {ids.max()}: expected ids in [0, {self._size})")
        return ids


def _check_peak(peak: float) -> float:
    if not -math.inf < peak < math.inf:
        msg = f"largest logit {peak}: expected a finite one, and no NaN or +inf in the row"
        raise NonFiniteLogitsError(msg)
    return float(peak)
