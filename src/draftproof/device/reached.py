"""What a traced row learns about its drafts, from laws that stay on the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.core.tree import TreeDraft, TreeVerdict
from draftproof.core.types import Draft
from draftproof.device.chains import Chains
from draftproof.device.follow import visited
from draftproof.device.laws import to_device
from draftproof.device.place_laws import PlaceLaws
from draftproof.verify import Reached

__all__ = ["as_words", "chain_probs", "greedy_probs", "keep_chain", "keep_walk", "place_probs"]


def as_words(probs: Tensor) -> Tensor:
    """Return float64 numbers as the int64 words that hold them: one crossing takes both."""
    return probs.contiguous().view(torch.int64)


def chain_probs(laws: PlaceLaws, chains: Chains, accepted: Tensor, tokens: Tensor) -> Tensor:
    """Return the probabilities of drafts, and of the token after the kept ones.

    Parameters
    ----------
    laws : PlaceLaws
        The laws of all places.
    chains : Chains
        R rows with at most K drafts each.
    accepted : Tensor of int64, shape (R,)
        Kept drafts of each row.
    tokens : Tensor of int64, shape (R,)
        The token after them.

    Returns
    -------
    Tensor of float64, shape (R, K + 1)
        Drafts first to last, then the token.
    """
    places = torch.cat([chains.places()[:, :-1], (chains.first + accepted)[:, None]], 1)
    every = torch.cat([chains.tokens, tokens[:, None]], 1)
    return laws.weights_at(places, every) / laws.totals[places]


def keep_chain(
    reached: Reached, kind: str, draft: Draft, num_accepted: int, probs: Sequence[float]
) -> None:
    """Note what `chain_probs` said of one row.

    Parameters
    ----------
    reached : Reached
        Where it is noted.
    kind : {"standard", "block"}
        The rule: it says which places were reached.
    draft : Draft
        The drafts.
    num_accepted : int
        How many were kept.
    probs : sequence of float, length K + 1
        The row's numbers; drafts past the row's own are padding.
    """
    for i in range(len(draft)):
        if kind == "standard" and i > num_accepted:
            break
        reached.probs[i] = probs[i]
        if not probs[i] > 0:
            break
    reached.token_prob = probs[-1]


def place_probs(laws: PlaceLaws, drafts: Sequence[Draft | TreeDraft], tokens: Tensor) -> Tensor:
    """Return the probabilities of drafts and of the target's own tokens.

    Parameters
    ----------
    laws : PlaceLaws
        At least N laws: the places after the committed text and after each draft, row
        by row.
    drafts : sequence of Draft or TreeDraft
        The drafts of the rows.
    tokens : Tensor of int64, shape (at least N,)
        The target's token at each place.

    Returns
    -------
    Tensor of float64, shape (2, N)
        First, at the place of each draft, its probability; the places after committed
        texts hold no draft. Then the probability of each token at its place.
    """
    places: list[int] = []
    wanted: list[int] = []
    for draft in drafts:
        begin = len(places)
        places += [begin, *(begin + 1 + parent for parent in _parents(draft))]
        wanted += [0, *draft.token_ids]
    count = len(places)
    at, ids = to_device(np.array([places, wanted], dtype=np.int64), tokens.device)
    every = torch.arange(count, device=tokens.device)
    where = torch.stack([at, every])
    return laws.weights_at(where, torch.stack([ids, tokens[:count]])) / laws.totals[where]


def greedy_probs(draft: Draft | TreeDraft, tokens: Sequence[int]) -> NDArray[np.float64]:
    """Return what `place_probs` is for one row of a greedy policy: 0 or 1.

    Parameters
    ----------
    draft : Draft or TreeDraft
        K drafts.
    tokens : sequence of int, length K + 1
        The certain token after the committed text and after each draft.

    Returns
    -------
    ndarray of float64, shape (2, K + 1)
        See `place_probs`.
    """
    probs = np.ones((2, len(draft) + 1))
    for node, parent in enumerate(_parents(draft)):
        probs[0, node + 1] = tokens[parent + 1] == draft.token_ids[node]
    return probs


def keep_walk(
    reached: Reached,
    draft: Draft | TreeDraft,
    verdict: TreeVerdict,
    probs: NDArray[np.float64],
) -> None:
    """Note what `place_probs` said of one row, at the places that its walk got to.

    Parameters
    ----------
    reached : Reached
        Where it is noted.
    draft : Draft or TreeDraft
        K drafts.
    verdict : TreeVerdict
        The walk.
    probs : ndarray of float64, shape (2, K + 1)
        The row's numbers.
    """
    nodes = visited(verdict)
    for node, parent in enumerate(_parents(draft)):
        if parent in nodes:
            reached.probs[node] = float(probs[0, node + 1])
    reached.token_prob = float(probs[1, nodes[-1] + 1])


def _parents(draft: Draft | TreeDraft) -> Sequence[int]:
    return draft.parents if isinstance(draft, TreeDraft) else range(-1, len(draft) - 1)
