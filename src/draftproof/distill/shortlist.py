"""The loss of training: how far drafts are from the target's law, on a shortlist of tokens.

A softmax over thousands of tokens costs more than the head itself. The target's likeliest
tokens of each position and the most frequent ones of all are counted as they are; a random
draw of the others stands for the rest, each with the weight of those it stands for. The
sums over the draft vocabulary are then right on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from draftproof.distill.target_head import TargetHead

__all__ = ["Shortlist", "Shortlister", "draft_loss"]

Tensor = Any
#: Weight of a column that is counted elsewhere, as a logarithm.
_NONE: Final = -1e9


@dataclass(frozen=True, slots=True, eq=False)
class Shortlist:
    """The target's law at n positions on the tokens that stand for all D.

    Parameters
    ----------
    near : torch.Tensor, shape (n, K, E)
        Rows of the output layer of each position's likeliest tokens.
    near_law : torch.Tensor, shape (n, K)
        Their probabilities.
    shared : torch.Tensor, shape (S, E)
        Rows of the output layer of the tokens that all positions share.
    shared_law : torch.Tensor, shape (n, S)
        Their probabilities.
    log_weight : torch.Tensor, shape (n, S)
        Logarithm of how many tokens each of them stands for; about minus infinity where
        it is one of the likeliest too.
    """

    near: Tensor
    near_law: Tensor
    shared: Tensor
    shared_law: Tensor
    log_weight: Tensor

    def at(self, rows: Tensor) -> Shortlist:
        """Return the shortlist of some positions."""
        return Shortlist(
            self.near[rows],
            self.near_law[rows],
            self.shared,
            self.shared_law[rows],
            self.log_weight[rows],
        )


class Shortlister:
    """Makes shortlists.

    Parameters
    ----------
    target : TargetHead
        The target's output layer, cut to D tokens.
    frequent : torch.Tensor of int64, shape (F,)
        Indices into the D tokens of those that are always counted.
    num_near : int
        Likeliest tokens of each position, K.
    num_drawn : int
        Tokens drawn for the rest; all of them when there are fewer.
    """

    def __init__(
        self, target: TargetHead, frequent: Tensor, *, num_near: int, num_drawn: int
    ) -> None:
        self._target = target
        self._frequent = frequent
        self._num_near = min(num_near, len(target.drafted))
        rare = torch.ones(len(target.drafted), dtype=torch.bool)
        rare[frequent] = False
        self._rare = rare.nonzero().flatten()
        self._num_drawn = min(num_drawn, len(self._rare))

    def draw(self, wanted: Tensor) -> Shortlist:
        """Return the law at some positions.

        Parameters
        ----------
        wanted : torch.Tensor, shape (n, E)
            The target's features there.

        Returns
        -------
        Shortlist
            With a fresh draw, of which all positions have the same.
        """
        drafted = self._target.drafted
        with torch.no_grad():
            logits = wanted @ drafted.T
            laws = logits.log_softmax(-1)
            top = laws.topk(self._num_near, -1)
            drawn = self._rare[torch.randperm(len(self._rare))[: self._num_drawn]]
            columns = torch.cat([self._frequent, drawn])
            weight = torch.zeros(len(columns))
            if self._num_drawn:
                weight[len(self._frequent) :] = len(self._rare) / self._num_drawn
                weight[len(self._frequent) :].log_()
            # One more column takes what is on no shared one.
            place = torch.full((len(drafted),), len(columns))
            place[columns] = torch.arange(len(columns))
            known = torch.zeros(len(wanted), len(columns) + 1, dtype=torch.bool)
            known.scatter_(1, place[top.indices], True)
            return Shortlist(
                drafted[top.indices],
                top.values.exp(),
                drafted[columns],
                laws[:, columns].exp(),
                weight.expand(len(wanted), -1).masked_fill(known[:, :-1], _NONE),
            )


def draft_loss(shortlist: Shortlist, features: Tensor, overlap_weight: float) -> Tensor:
    """Return the mean distance of drafts from the target's law.

    Parameters
    ----------
    shortlist : Shortlist
        The law at n positions.
    features : torch.Tensor, shape (n, E)
        What the head predicts there.
    overlap_weight : float
        Weight of ``1 - sum over x of min(p(x), q(x))``, the share of drafts that the rule
        ``standard`` would reject, beside the cross entropy.

    Returns
    -------
    torch.Tensor
        A number with a gradient. The normaliser is an estimate whose sum is unbiased; with
        as many columns as tokens it is the true one.
    """
    near = torch.bmm(shortlist.near, features.unsqueeze(-1)).squeeze(-1)
    shared = features @ shortlist.shared.T
    total = torch.logsumexp(torch.cat([near, shared + shortlist.log_weight], -1), -1, keepdim=True)
    near, shared = near - total, shared - total
    weight = shortlist.log_weight.exp()
    entropy = -(shortlist.near_law * near).sum(-1) - (weight * shortlist.shared_law * shared).sum(
        -1
    )
    kept = torch.minimum(shortlist.near_law, near.exp()).sum(-1)
    kept = kept + (weight * torch.minimum(shortlist.shared_law, shared.exp())).sum(-1)
    return (entropy + overlap_weight * (1.0 - kept)).mean()
