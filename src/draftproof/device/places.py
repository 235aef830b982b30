"""The policies of many positions as a few flat arrays, made on the host.

A *place* is one position that needs a law: a row of the logits, a policy, and the
history at that position. `pack_places` turns places into arrays whose sizes depend on
the batch only through buckets, so that the same kernels run for similar batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.core.history import History
from draftproof.core.params import DEFAULT_ORDER, SamplingParams

__all__ = ["Edits", "Place", "Places", "bucket", "is_native", "pack_places"]

_SCALE_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_EDITING = frozenset({"bias", "penalties", "allowed"})


@dataclass(frozen=True, slots=True)
class Place:
    """One position that needs a law.

    Parameters
    ----------
    row : int
        Row of the logits.
    params : SamplingParams
        The policy.
    history : History
        Committed tokens.
    extra : tuple of int
        Drafted tokens between the committed ones and this position.
    allowed : ndarray of bool, shape (V,), optional
        What a grammar allows here.
    """

    row: int
    params: SamplingParams
    history: History
    extra: tuple[int, ...] = ()
    allowed: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of single logits before the temperature, in the order of the fields.

    Parameters
    ----------
    bias_at : ndarray of int64, shape (2, E)
        Place and token of each bias.
    bias : ndarray of float32, shape (E,)
        What is added.
    seen_at : ndarray of int64, shape (2, S)
        Place and token of each token that the penalties concern.
    seen : ndarray of float32, shape (4, S)
        Repetition penalty, presence penalty, frequency penalty, and the count.
    masked : ndarray of int64, shape (G,)
        Places under a mask.
    masks : ndarray of bool, shape (G, V)
        Tokens that those places allow.
    banned_at : ndarray of int64, shape (2, F)
        Place and token of each ban.
    """

    bias_at: NDArray[np.int64]
    bias: NDArray[np.float32]
    seen_at: NDArray[np.int64]
    seen: NDArray[np.float32]
    masked: NDArray[np.int64]
    masks: NDArray[np.bool_]
    banned_at: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Places:
    """The policies of N places.

    Parameters
    ----------
    rows : ndarray of int64, shape (N,)
        Rows of the logits.
    inverse_temperature : ndarray of float32, shape (N,)
        Factor of the logits; 1 for greedy places.
    top_k : ndarray of int64, shape (N,)
        How many tokens stay, 0 for all.
    top_p : ndarray of float64, shape (N,)
        Mass that stays, 1 for all.
    min_p : ndarray of float32, shape (N,)
        Least weight relative to the largest, 0 for none.
    edits : Edits, optional
        None when no place changes a logit.
    """

    rows: NDArray[np.int64]
    inverse_temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float32]
    edits: Edits | None

    def __len__(self) -> int:
        """Return the number of places N."""
        return len(self.rows)

    @property
    def is_plain(self) -> bool:
        """Whether all places have a temperature and nothing else."""
        no_filter = not self.top_k.any() and (self.top_p == 1).all() and not self.min_p.any()
        return self.edits is None and bool(no_filter)


def bucket(count: int) -> int:
    """Return the least bucket that holds ``count``; at most half of it is padding."""
    for size in _SCALE_STEPS:
        if count <= size:
            return size
    return -(-count // 128) * 128


def is_native(place: Place, vocab_size: int) -> bool:
    """Return whether the stages of a place can run batched, and will not be refused.

    Parameters
    ----------
    place : Place
        The place.
    vocab_size : int
        Number of entries V of a logits row.

    Returns
    -------
    bool
        False for stages in an unusual order, and for ids or masks that do not fit the
        vocabulary: the definition honours or refuses those.
    """
    params = place.params
    stages = params.stages if place.allowed is None else params.stages_under_a_mask
    if list(stages) != sorted(stages, key=DEFAULT_ORDER.index):
        return False
    if place.allowed is not None and (
        "allowed" not in stages or place.allowed.shape != (vocab_size,)
    ):
        return False
    ids = [*params.logit_bias, *(params.allowed_token_ids or ()), *params.banned_token_ids]
    return not ids or max(ids) < vocab_size


def pack_places(places: Sequence[Place], vocab_size: int, size: int) -> Places:
    """Return the policies of places as arrays, padded to ``size`` places.

    Parameters
    ----------
    places : sequence of Place
        Native places, at least one.
    vocab_size : int
        Number of entries V of a logits row.
    size : int
        Number of places after padding. A padding place reads the first place's row
        under no filter, and its result is never used.

    Returns
    -------
    Places
        The arrays.
    """
    rows = np.full(size, places[0].row, dtype=np.int64)
    inverse = np.ones(size, dtype=np.float32)
    top_k = np.zeros(size, dtype=np.int64)
    top_p = np.ones(size, dtype=np.float64)
    min_p = np.zeros(size, dtype=np.float32)
    for i, place in enumerate(places):
        params = place.params
        rows[i] = place.row
        if not params.is_greedy:
            inverse[i] = 1.0 / params.temperature
            top_k[i] = params.top_k if params.top_k < vocab_size else 0
            top_p[i] = params.top_p
            min_p[i] = params.min_p
    return Places(rows, inverse, top_k, top_p, min_p, _pack_edits(places, vocab_size))


def _pack_edits(places: Sequence[Place], vocab_size: int) -> Edits | None:
    if not any(
        place.allowed is not None or _EDITING.intersection(place.params.stages) for place in places
    ):
        return None
    bias_at: list[tuple[int, int]] = []
    bias: list[float] = []
    seen_at: list[NDArray[np.int64]] = []
    seen: list[NDArray[np.float32]] = []
    masked: list[int] = []
    masks: list[NDArray[np.bool_]] = []
    banned_at: list[tuple[int, int]] = []
    for i, place in enumerate(places):
        params = place.params
        bias_at += [(i, token) for token in params.logit_bias]
        bias += params.logit_bias.values()
        if params.has_penalties:
            at, what = _seen(i, place, vocab_size)
            seen_at.append(at)
            seen.append(what)
        mask = _mask(place, vocab_size)
        if mask is not None:
            masked.append(i)
            masks.append(mask)
        banned_at += [(i, token) for token in _banned(place, vocab_size)]
    with np.errstate(over="ignore"):
        added = np.array(bias, dtype=np.float64).astype(np.float32)
    return Edits(
        np.array(bias_at, dtype=np.int64).reshape(-1, 2).T,
        added,
        np.concatenate(seen_at, axis=1) if seen_at else np.zeros((2, 0), dtype=np.int64),
        np.concatenate(seen, axis=1) if seen else np.zeros((4, 0), dtype=np.float32),
        np.array(masked, dtype=np.int64),
        np.array(masks, dtype=np.bool_).reshape(len(masks), vocab_size),
        np.array(banned_at, dtype=np.int64).reshape(-1, 2).T,
    )


def _seen(i: int, place: Place, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    params = place.params
    tokens, counts = place.history.seen(place.extra)
    inside = tokens < vocab_size
    tokens, counts = tokens[inside], counts[inside]
    what = np.empty((4, len(tokens)), dtype=np.float32)
    with np.errstate(over="ignore"):
        what[0] = params.repetition_penalty
        what[1] = params.presence_penalty
        what[2] = params.frequency_penalty
    what[3] = counts
    return np.stack([np.full_like(tokens, i), tokens]).astype(np.int64), what


def _mask(place: Place, vocab_size: int) -> NDArray[np.bool_] | None:
    wanted = place.params.allowed_token_ids
    if wanted is None:
        return place.allowed
    mask = np.zeros(vocab_size, dtype=np.bool_)
    mask[list(wanted)] = True
    return mask if place.allowed is None else mask & place.allowed


def _banned(place: Place, vocab_size: int) -> set[int]:
    params = place.params
    banned = set(params.banned_token_ids)
    if place.history.num_generated + len(place.extra) < params.min_tokens:
        banned.update(token for token in params.eos_token_ids if token < vocab_size)
    return banned
