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
  and rising id, whose mass reaches ``top_p``; never fewer than one.
* *min-p* keeps tokens whose probability is at least ``min_p`` times the largest.
* *repetition penalty* divides positive and multiplies other logits of tokens seen
  in prompt or output (1909.05858, section 4.1). *Presence* and *frequency*
  penalties subtract, and count the output only. Repetition comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.core.law import DenseLaw, Law, OneHotLaw, SparseLaw
from draftproof.core.truncation import at_least, largest, nucleus
from draftproof.errors import ConfigError, NonFiniteLogitsError

__all__ = ["DEFAULT_ORDER", "GREEDY_TEMPERATURE", "History", "SamplingParams", "target_law"]

#: Below this temperature a policy is greedy, on the draft side and the target side.
GREEDY_TEMPERATURE = 1e-5

#: The stages in the order in which most engines apply them.
DEFAULT_ORDER = ("bias", "penalties", "allowed", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The policy of one request.

    Parameters
    ----------
    temperature : float
        Divisor of the logits, at least 0; below ``GREEDY_TEMPERATURE`` greedy.
    top_k : int
        How many tokens stay; 0 for all.
    top_p : float
        Mass that stays, in (0, 1].
    min_p : float
        Least probability relative to the largest, in [0, 1].
    repetition_penalty : float
        Above 0; 1 for none.
    presence_penalty : float
        Subtracted from the logit of every token of the output.
    frequency_penalty : float
        Subtracted once per occurrence in the output.
    logit_bias : mapping of int to float
        Added to the logits of single tokens.
    allowed_token_ids : tuple of int, optional
        The only tokens that may be emitted; None for all.
    banned_token_ids : tuple of int
        Tokens that may not be emitted.
    min_tokens : int
        End tokens are masked until that many tokens were generated.
    eos_token_ids : frozenset of int
        The tokens that ``min_tokens`` masks.
    order : tuple of str
        Stage names, each at most once. A stage that is left out must be idle.

    Raises
    ------
    ConfigError
        If a value lies outside its range, or the order leaves out an active stage.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    order: tuple[str, ...] = DEFAULT_ORDER
    _stages: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured and note which stages have work."""
        _check_range("temperature", self.temperature, 0.0, math.inf)
        _check_whole("top_k", self.top_k)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        _check_range("presence_penalty", self.presence_penalty, -math.inf, math.inf)
        _check_range("frequency_penalty", self.frequency_penalty, -math.inf, math.inf)
        _check_whole("min_tokens", self.min_tokens)
        for name, ids in (
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("banned_token_ids", self.banned_token_ids),
            ("eos_token_ids", self.eos_token_ids),
        ):
            _check_ids(name, ids)
        for token, bias in self.logit_bias.items():
            _check_range(f"logit_bias[{token}]", bias, -math.inf, math.inf)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ConfigError("allowed_token_ids (): expected at least one token id, or None")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        object.__setattr__(self, "_stages", self._working_stages())

    @property
    def is_greedy(self) -> bool:
        """Whether the policy takes the largest logit."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether the law depends on which tokens came before."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def _working_stages(self) -> tuple[str, ...]:
        unknown = [name for name in self.order if name not in DEFAULT_ORDER]
        if unknown or len(set(self.order)) != len(self.order):
            msg = f"order {self.order}: expected each of {DEFAULT_ORDER} at most once"
            raise ConfigError(msg)
        working = {
            "bias": bool(self.logit_bias),
            "penalties": self.has_penalties,
            "allowed": self.allowed_token_ids is not None
            or bool(self.banned_token_ids)
            or bool(self.min_tokens and self.eos_token_ids),
            "temperature": self.temperature != 1.0,
            "top_k": self.top_k > 0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0.0,
        }
        lost = [name for name, works in working.items() if works and name not in self.order]
        if lost:
            raise ConfigError(f"order {self.order}: expected {lost}, which the request sets")
        return tuple(name for name in self.order if working[name])


class History:
    """Which tokens a request holds, and how often its output repeated them.

    Parameters
    ----------
    prompt_ids : sequence of int
        Tokens of the prompt.

    Notes
    -----
    Only committed tokens are appended. Drafts reach `target_law` as ``extra``, so
    a rejected draft leaves no trace here.
    """

    __slots__ = ("_counts", "_ids", "_slots", "num_generated")

    def __init__(self, prompt_ids: Sequence[int] = ()) -> None:
        self.num_generated = 0
        self._slots: dict[int, int] = {}
        for token in prompt_ids:
            self._slots.setdefault(token, len(self._slots))
        room = max(64, 2 * len(self._slots))
        self._ids = np.zeros(room, dtype=np.intp)
        self._counts = np.zeros(room, dtype=np.int64)
        self._ids[: len(self._slots)] = list(self._slots)

    def append(self, token: int) -> None:
        """Add one committed token of the output."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        self._counts[slot] += 1
        self.num_generated += 1

    def seen(self, extra: Sequence[int] = ()) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the tokens seen so far and their counts in the output.

        Parameters
        ----------
        extra : sequence of int
            Drafted tokens after the committed ones; counted as output.

        Returns
        -------
        token_ids : ndarray of int, shape (S,)
            Distinct tokens of prompt and output, in order of first appearance.
        counts : ndarray of int64, shape (S,)
            Occurrences in the output; 0 for tokens of the prompt alone.
        """
        used = len(self._slots)
        ids, counts = self._ids[:used], self._counts[:used]
        if not extra:
            return ids.copy(), counts.copy()
        fresh = [token for token in dict.fromkeys(extra) if token not in self._slots]
        slots = {token: used + i for i, token in enumerate(fresh)}
        ids = np.concatenate([ids, np.array(fresh, dtype=np.intp)])
        counts = np.concatenate([counts, np.zeros(len(fresh), dtype=np.int64)])
        for token in extra:
            slot = self._slots.get(token)
            counts[slots[token] if slot is None else slot] += 1
        return ids, counts


def target_law(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: History,
    extra: Sequence[int] = (),
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

    Returns
    -------
    Law
        `OneHotLaw` if one token is certain, `SparseLaw` after a filter, else
        `DenseLaw` with float32 weights.

    Raises
    ------
    NonFiniteLogitsError
        If the row holds NaN or +inf, or the policy leaves no token possible.
    ConfigError
        If the policy names a token outside the vocabulary.

    Notes
    -----
    With a temperature alone the cost is one pass for the maximum, one for the
    scaled differences, one exponential and one sum. Filters never sort V entries:
    a partition finds the few that are sorted.
    """
    row = np.asarray(logits, dtype=np.float32)
    if row.ndim != 1 or row.size == 0:
        raise ConfigError(f"logits of shape {row.shape}: expected (V,) with V > 0")
    peak = float(row.max())
    if not -math.inf < peak < math.inf:
        msg = f"largest logit {peak}: expected a finite one, and no NaN or +inf in the row"
        raise NonFiniteLogitsError(msg)
    stages = params._stages
    if params.is_greedy and stages == ("temperature",):
        return OneHotLaw(int(row.argmax()), len(row))
    if stages in ((), ("temperature",)):
        return DenseLaw._trusted(_weights(row, peak, params.temperature))
    pipeline = _Pipeline(row, params, history, extra)
    for stage in stages:
        pipeline.apply(stage)
    return pipeline.law()


class _Pipeline:
    """A row of logits on its way through the stages."""

    __slots__ = (
        "_extra", "_heat", "_history", "_ids", "_logits", "_owned", "_params", "_sharp", "_size",
        "_softmax",
    )  # fmt: skip

    def __init__(
        self,
        row: NDArray[np.float32],
        params: SamplingParams,
        history: History,
        extra: Sequence[int],
    ) -> None:
        self._params = params
        self._history = history
        self._extra = extra
        self._size = len(row)
        self._ids: NDArray[np.intp] | None = None  # None: all tokens; else rising ids
        self._logits = row
        self._owned = False
        self._heat = 1.0  # divisor that is still owed to the logits
        self._softmax: NDArray[np.float32] | None = None
        self._sharp = False  # greedy, and the temperature stage is past

    def apply(self, stage: str) -> None:
        """Run one stage."""
        params = self._params
        if stage == "temperature":
            self._softmax = None
            self._heat = params.temperature
            self._sharp = params.is_greedy
        elif stage == "allowed":
            self._mask()
        elif stage == "top_k":
            self._keep(largest(self._logits, params.top_k))
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
            self._keep(nucleus(self._weights(), params.top_p))
        else:
            self._keep(at_least(self._weights(), params.min_p))

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
        peak = float(self._logits.max()) if len(self._logits) else -math.inf
        if not -math.inf < peak < math.inf:
            msg = f"largest logit after bias, penalties and masks is {peak}: expected a finite one"
            raise NonFiniteLogitsError(msg)
        return peak

    def _weights(self) -> NDArray[np.float32]:
        if self._softmax is None:
            self._softmax = _weights(self._logits, self._peak(), self._heat)
        return self._softmax

    def _keep(self, slots: NDArray[np.intp] | None) -> None:
        """Keep the given rising slots; None keeps all."""
        if slots is None:
            return
        self._ids = slots if self._ids is None else self._ids[slots]
        self._logits = self._logits[slots]
        self._owned = True
        if self._softmax is not None:
            self._softmax = self._softmax[slots]

    def _mask(self) -> None:
        params = self._params
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
        self._softmax = None

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


def _weights(logits: NDArray[np.float32], peak: float, temperature: float) -> NDArray[np.float32]:
    # Differences may overflow to -inf for logits near the float32 limits: weight 0.
    with np.errstate(over="ignore", under="ignore"):
        weights: NDArray[np.float32] = logits - np.float32(peak)
        if temperature != 1.0:
            weights *= np.float32(1.0 / temperature)
        np.exp(weights, out=weights)
    return weights


def _check_range(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside or math.isnan(value) or math.isinf(value):
        bracket = "(" if open_low else "["
        raise ConfigError(f"{name} {value}: expected a finite number in {bracket}{low}, {high}]")


def _check_whole(name: str, value: int) -> None:
    if not _is_whole(value):
        raise ConfigError(f"{name} {value!r}: expected a whole number, 0 or more")


def _check_ids(name: str, ids: Iterable[int]) -> None:
    for token in ids:
        if not _is_whole(token):
            raise ConfigError(f"{name} holds {token!r}: expected token ids, 0 or more")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0
