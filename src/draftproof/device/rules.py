"""The rules of `draftproof.verify` over many rows at once, decided where the laws are.

Each function decides what its namesake decides, row by row, on the same coins. None of
them asks a question of the host: what a row does not reach is computed and not used.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.device.chains import Chains
from draftproof.device.draws import draw, without
from draftproof.device.place_laws import Cut, PlaceLaws
from draftproof.device.precision import BLOCK, ROUNDING, TINY, WEIGHT_ERROR

__all__ = ["Decision", "judge_block", "judge_standard"]

#: A factor below this is taken as 0, as in `draftproof.core.base_law`.
_LEAST_SCALE = 1e-200


class Decision(NamedTuple):
    """What was decided for R rows.

    Parameters
    ----------
    accepted : Tensor of int64, shape (R,)
        Number of surviving drafts.
    tokens : Tensor of int64, shape (R,)
        The token after them.
    is_near : Tensor of bool, shape (R,)
        Rows that met a coin so near to an edge that the definition may decide otherwise.
    is_bad : Tensor of bool, shape (R,)
        Rows that reached a place without a law.
    """

    accepted: Tensor
    tokens: Tensor
    is_near: Tensor
    is_bad: Tensor


class _Scores(NamedTuple):
    """Drafts under the target, shape (R, K) each."""

    places: Tensor  # (R, K + 1)
    probs: Tensor
    errors: Tensor


def _score(laws: PlaceLaws, chains: Chains) -> _Scores:
    places = chains.places()
    before = places[:, :-1]
    probs = laws.weights_at(before, chains.tokens) / laws.totals[before]
    rounding = laws.sums.shape[1] * BLOCK * ROUNDING
    errors = (2 * WEIGHT_ERROR * (1 - probs).clamp(min=0) + rounding) * probs
    return _Scores(places, probs, errors + laws.slack[before])


def _spread(laws: PlaceLaws, places: Tensor) -> Tensor:
    """Return how far all probabilities of a place may be off together.

    The largest weight is 1 without error, so a law that is nearly certain is nearly
    exact: the others have the share ``1 - 1 / total``, and err by ``2 d`` of it.
    """
    rounding = laws.sums.shape[1] * BLOCK * ROUNDING
    return 2 * WEIGHT_ERROR * (1 - 1 / laws.totals[places]).clamp(min=0) + rounding


def _flushed(laws: PlaceLaws, scores: _Scores, floor: Tensor) -> Tensor:
    """Return where a weight that may have been flushed to 0 could decide."""
    least = TINY / laws.totals[scores.places[:, :-1]]
    return (scores.probs < least) & (floor < least)


def judge_standard(laws: PlaceLaws, chains: Chains) -> Decision:
    """Accept drafts one by one; see `draftproof.verify.standard`.

    Parameters
    ----------
    laws : PlaceLaws
        The laws of all places.
    chains : Chains
        The drafts.

    Returns
    -------
    Decision
        As `verify_standard` decides each row.
    """
    scores = _score(laws, chains)
    claimed = chains.accept * chains.draft_probs
    keeps = (scores.probs >= chains.draft_probs) | (claimed < scores.probs)
    keeps &= chains.is_draft()
    accepted = keeps.cumprod(1).sum(1)
    is_near = ((claimed - scores.probs).abs() <= scores.errors) & (scores.errors > 0)
    is_near |= _flushed(laws, scores, claimed)
    numbers = torch.arange(chains.kappa + 1, device=accepted.device)
    reached = numbers <= accepted[:, None]
    near = (is_near & reached[:, :-1] & chains.is_draft()).any(1)
    bad = (laws.is_bad[scores.places] & reached).any(1)
    tokens, near_draw = _draw_after(laws, chains, accepted, torch.ones_like(laws.totals[:1]))
    return Decision(accepted, tokens, near | near_draw, bad)


def judge_block(laws: PlaceLaws, chains: Chains) -> Decision:
    """Keep the longest prefix whose own coin says yes; see `draftproof.verify.block`.

    Parameters
    ----------
    laws : PlaceLaws
        The laws of all places.
    chains : Chains
        The drafts.

    Returns
    -------
    Decision
        As `verify_block` decides each row.
    """
    scores = _score(laws, chains)
    is_draft = chains.is_draft()
    weight = torch.ones_like(chains.accept[:, 0])
    error = torch.zeros_like(weight)
    weights, errors = [weight], [error]
    for i in range(chains.kappa):
        ratio = scores.probs[:, i] / chains.draft_probs[:, i]
        product = weight * ratio
        error = error * ratio + weight * scores.errors[:, i] / chains.draft_probs[:, i]
        over = product - error > 1  # 1 in the definition too
        weight = torch.where((product > 0) & is_draft[:, i], product.clamp(max=1), 0)
        error = torch.where(over | ~is_draft[:, i], 0, error)
        weights.append(weight)
        errors.append(error)
    held, spread = torch.stack(weights, 1), torch.stack(errors, 1)
    masses = _excess_masses(laws, chains, scores, held)
    gaps = masses + (1 - held[:, 1:])
    numbers = torch.arange(1, chains.kappa + 1, device=held.device)
    is_last = numbers == chains.count[:, None]
    bounds = torch.where(is_last, held[:, 1:], masses / gaps)
    wins = (held[:, 1:] >= 1) | ((chains.accept < bounds) & (chains.accept < held[:, 1:]))
    wins &= is_draft & (held[:, 1:] > 0)
    accepted = (wins * numbers).amax(1)

    # R and P are off by at most `unsure`; h = R / (R + 1 - P) by that over its divisor.
    following = scores.places[:, 1:]
    unsure = spread[:, 1:] + 2 * (_spread(laws, following) * held[:, 1:] + laws.slack[following])
    unsure = torch.where(is_last, spread[:, 1:], unsure / gaps)
    # 0 / 0, where target and draft are equal to the bit: rounding alone decides.
    is_near = ((chains.accept - bounds).abs() <= unsure) | unsure.isnan() | bounds.isnan()
    is_near &= ((held[:, 1:] > 0) & (held[:, 1:] < 1)) | (spread[:, 1:] > 0)
    asked = (numbers >= accepted[:, None]) & is_draft
    near = (is_near & asked).any(1)
    near |= (_flushed(laws, scores, chains.accept * chains.draft_probs) & is_draft).any(1)

    alive = (held > 0).sum(1)  # places 0 .. alive - 1 were scored, and one more than survives
    reached = torch.arange(chains.kappa + 1, device=held.device) < alive[:, None]
    reached[:, 1:] &= ~is_last | (accepted == chains.count)[:, None]
    bad = (laws.is_bad[scores.places] & reached).any(1)

    scale = held.gather(1, accepted[:, None])[:, 0]
    relative = spread.gather(1, accepted[:, None])[:, 0] / scale
    tokens, near_draw = _draw_after(laws, chains, accepted, scale, relative)
    return Decision(accepted, tokens, near | near_draw, bad)


def _excess_masses(laws: PlaceLaws, chains: Chains, scores: _Scores, held: Tensor) -> Tensor:
    """Return ``sum (P_i p - q)+`` for prefixes 1 .. K; the last of a row is not used."""
    following = scores.places[:, 1:]
    scale = held[:, 1:]
    # Of a one-hot law only the next draft is taken away.
    following_probs = torch.cat([scores.probs[:, 1:], torch.zeros_like(scale[:, :1])], 1)
    masses = scale * (1 - following_probs).clamp(min=0)
    if len(chains.sampled) and chains.kappa > 1:
        places = following[chains.sampled, :-1].reshape(-1)
        rows = chains.draft_rows[:, 1:].reshape(-1)
        kept = scale[chains.sampled, :-1].reshape(-1)
        totals = laws.totals[places]
        unit = totals / kept / chains.draft_totals[rows]
        unit = torch.where(kept > _LEAST_SCALE, unit, torch.inf)
        sums = laws.excess_sums(places, unit, chains.draft_weights, rows).sum(1)
        sums = kept * (sums / totals)
        sums = torch.where(kept > _LEAST_SCALE, sums, 0)
        masses[chains.sampled, :-1] = sums.view(len(chains.sampled), -1)
    return masses


def _draw_after(
    laws: PlaceLaws,
    chains: Chains,
    accepted: Tensor,
    scale: Tensor,
    relative: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw from the target after all drafts, else from ``(scale * p - q)+``.

    Returns the tokens, and whether the coin lies near an edge. ``relative`` bounds the
    relative error of ``scale``.
    """
    places = chains.first + accepted
    is_full = accepted == chains.count
    slot = accepted.clamp(max=chains.kappa - 1)[:, None]
    coins = chains.sample.gather(1, accepted[:, None])[:, 0]
    totals = laws.totals[places]
    sums = laws.sums[places].clone()
    error = laws.slack[places] * totals

    # One-hot drafts: the token that was refused leaves the law; one block changes.
    dropped = chains.tokens.gather(1, slot)[:, 0]
    is_one_hot = torch.ones_like(is_full)
    is_one_hot[chains.sampled] = False
    dropped = torch.where(is_full | ~is_one_hot, -1, dropped)
    home = dropped.clamp(min=0) // BLOCK
    unit = torch.zeros_like(totals)
    draft_row = torch.zeros_like(places)
    alone = Cut(dropped, unit, chains.draft_weights[:0], draft_row)
    rest = without(laws.block(places, home), home, alone).sum(1)
    lost = dropped >= 0
    every = torch.arange(len(places), device=places.device)
    sums[every, home] = torch.where(lost, rest, sums[every, home])

    if len(chains.sampled):
        sampled = chains.sampled
        draft_row[sampled] = chains.draft_rows.gather(1, slot[sampled])[:, 0]
        usable = ~is_full & (scale.expand_as(totals) > _LEAST_SCALE)
        unit[sampled] = torch.where(usable, totals / scale / chains.draft_totals[draft_row], 0)[
            sampled
        ]
        taken = laws.excess_sums(
            places[sampled], unit[sampled], chains.draft_weights, draft_row[sampled]
        )
        sums[sampled] = torch.where(unit[sampled][:, None] > 0, taken, sums[sampled])
    spread = 0 if relative is None else relative
    excess_error = 2 * (_spread(laws, places) + spread + laws.slack[places]) * totals
    error = torch.where(unit > 0, excess_error, error)

    mass = sums.sum(1)
    is_empty = ~(mass > 0)  # rounding can refuse a draft although p equals q: then p
    near_empty = (unit > 0) & (mass <= error) | (lost & is_empty)
    sums = torch.where(is_empty[:, None], laws.sums[places], sums)
    unit = torch.where(is_empty, 0, unit)
    dropped = torch.where(is_empty, -1, dropped)

    cut = Cut(dropped, unit, chains.draft_weights, draft_row)
    drawn = draw(laws, places, sums, coins, error, cut)
    return drawn.tokens, drawn.is_near | near_empty
