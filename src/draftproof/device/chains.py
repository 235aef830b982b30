"""The drafts and coins of many rows as a few arrays, copied to the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.core.law import Law, OneHotLaw, SparseLaw
from draftproof.core.types import Draft
from draftproof.device.device_law import DeviceLaw
from draftproof.device.laws import to_device
from draftproof.device.places import bucket
from draftproof.device.precision import BLOCK
from draftproof.verify import VerifyRow

__all__ = ["Chains", "has_sound_laws", "pack_chains"]


@dataclass(frozen=True, slots=True)
class Chains:
    """R rows with at most K drafts each; places past a row's own are padding.

    Parameters
    ----------
    first : Tensor of int64, shape (R,)
        Place after the committed text; the place after draft ``i`` is ``first + 1 + i``.
    count : Tensor of int64, shape (R,)
        Number of drafts.
    tokens : Tensor of int64, shape (R, K)
        Drafts; 0, never -1, as padding, so that it may be used as an index.
    draft_probs : Tensor of float64, shape (R, K)
        Probability of each draft under its own law; 1 as padding.
    accept : Tensor of float64, shape (R, K)
        Coins that accept.
    sample : Tensor of float64, shape (R, K + 1)
        Coins that draw.
    sampled : Tensor of int64, shape (S,)
        Rows whose drafts have laws; those of all others are one-hot.
    draft_rows : Tensor of int64, shape (S, K)
        Row of ``draft_weights`` with the law of each draft of those rows.
    draft_weights : Tensor of float32 or float64, shape (Q, padded V)
        The laws of drafts.
    draft_totals : Tensor of float64, shape (Q,)
        Their totals.
    """

    first: Tensor
    count: Tensor
    tokens: Tensor
    draft_probs: Tensor
    accept: Tensor
    sample: Tensor
    sampled: Tensor
    draft_rows: Tensor
    draft_weights: Tensor
    draft_totals: Tensor

    @property
    def kappa(self) -> int:
        """Drafts per row, padding included."""
        return int(self.tokens.shape[1])

    def places(self) -> Tensor:
        """Return the place before each draft and after the last, shape (R, K + 1).

        Padding repeats the last place of its row, never that of a neighbour.
        """
        offsets = torch.arange(self.kappa + 1, device=self.first.device)
        return self.first[:, None] + torch.minimum(offsets, self.count[:, None])

    def is_draft(self) -> Tensor:
        """Return which entries of ``tokens`` are drafts, shape (R, K)."""
        return torch.arange(self.kappa, device=self.first.device) < self.count[:, None]


def has_sound_laws(draft: Draft, vocab_size: int) -> bool:
    """Return whether every draft can be judged without an error.

    Parameters
    ----------
    draft : Draft
        The drafts of a row.
    vocab_size : int
        Number of entries V of a logits row.

    Returns
    -------
    bool
        False where the definition would raise, if it gets there.
    """
    if not all(0 <= token < vocab_size for token in draft.token_ids):
        return False
    if draft.laws is None:
        return True
    return all(
        law.vocab_size == vocab_size and law.prob(token) > 0.0
        for token, law in zip(draft.token_ids, draft.laws, strict=True)
    )


def pack_chains(
    rows: Sequence[VerifyRow],
    drafts: Sequence[Draft],
    first: Sequence[int],
    vocab_size: int,
    device: torch.device,
    *,
    pad: bool,
) -> Chains:
    """Return the drafts and coins of rows as arrays on the device.

    Parameters
    ----------
    rows : sequence of VerifyRow
        Native rows.
    drafts : sequence of Draft
        Their chains.
    first : sequence of int
        First place of each row.
    vocab_size : int
        Number of entries V of a logits row.
    device : torch.device
        Where the logits are.
    pad : bool
        Whether sizes go up to the next bucket.

    Returns
    -------
    Chains
        A padding row has no drafts and the first row's place.
    """
    kappa, size = max(1, *map(len, drafts)), len(rows)
    if pad:
        kappa, size = bucket(kappa), bucket(size)
    whole = np.zeros((size, 2 + kappa), dtype=np.int64)
    whole[:, 0] = first[0]
    reals = np.ones((size, 3 * kappa + 1), dtype=np.float64)
    reals[:, kappa:] = 0.5
    for r, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
        count = len(draft)
        whole[r, :2] = first[r], count
        whole[r, 2 : 2 + count] = draft.token_ids
        if draft.laws is not None:
            pairs = zip(draft.laws, draft.token_ids, strict=True)
            reals[r, :count] = [law.prob(token) for law, token in pairs]
        reals[r, kappa : kappa + count] = [row.coins.accept(i) for i in range(count)]
        reals[r, 2 * kappa : 2 * kappa + count + 1] = [
            row.coins.sample(i) for i in range(count + 1)
        ]
    ints, floats = to_device(whole, device), to_device(reals, device)
    sampled = [r for r, draft in enumerate(drafts) if draft.laws]
    laws = [law for r in sampled for law in drafts[r].laws or ()]
    draft_rows = np.zeros((len(sampled), kappa), dtype=np.int64)
    begin = 0
    for s, r in enumerate(sampled):
        count = len(drafts[r])
        draft_rows[s, :count] = range(begin, begin + count)
        begin += count
    weights, totals = _stack_laws(laws, vocab_size, device)
    return Chains(
        first=ints[:, 0],
        count=ints[:, 1],
        tokens=ints[:, 2:],
        draft_probs=floats[:, :kappa],
        accept=floats[:, kappa : 2 * kappa],
        sample=floats[:, 2 * kappa :],
        sampled=to_device(np.array(sampled, dtype=np.int64), device),
        draft_rows=to_device(draft_rows, device),
        draft_weights=weights,
        draft_totals=totals,
    )


def _stack_laws(
    laws: Sequence[Law], vocab_size: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the weights of laws, shape (Q, padded V), and their totals.

    Laws on the device are float32 and stay there. A host law comes as float64
    probabilities, so that no rounding makes it another law than the draft's own.
    """
    padded = -(-vocab_size // BLOCK) * BLOCK
    all_there = all(isinstance(law, DeviceLaw) for law in laws)
    kind = torch.float32 if all_there else torch.float64
    weights = torch.zeros((len(laws), padded), dtype=kind, device=device)
    totals = np.ones(len(laws))
    rows: list[int] = []
    ids: list[NDArray[np.intp]] = []
    probs: list[NDArray[np.float64]] = []
    for q, law in enumerate(laws):
        if isinstance(law, DeviceLaw):
            weights[q, :vocab_size] = law.weights
            totals[q] = law.total
        elif isinstance(law, SparseLaw | OneHotLaw):
            held = law.ids if isinstance(law, SparseLaw) else np.array([law.token])
            rows += [q] * len(held)
            ids.append(held)
            probs.append(law.probs_at(held))
        else:
            weights[q, :vocab_size] = to_device(law.dense(), device)
    if rows:
        where = np.stack([np.array(rows, dtype=np.int64), np.concatenate(ids)])
        place, token = to_device(where, device)
        weights[place, token] = to_device(np.concatenate(probs), device)
    return weights, to_device(totals, device)
