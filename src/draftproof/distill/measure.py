"""How often drafts of a head would be accepted, on text that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.distill.batches import Batch
from draftproof.distill.network import DraftHead
from draftproof.distill.target_head import TargetHead

__all__ = ["HeldOut", "measure_head"]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Acceptance per draft position, given that all drafts before it were accepted.

    Parameters
    ----------
    sampled : tuple of float
        Mean of ``sum over x of min(p(x), q(x))`` at temperature 1: the acceptance of
        the rule ``standard``.
    greedy : tuple of float
        Share of positions where both have the same best token.
    counts : tuple of int
        Positions behind each entry.
    """

    sampled: tuple[float, ...]
    greedy: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def score(self) -> float:
        """Tokens per round at temperature 1 with as many drafts as positions."""
        total, alive = 1.0, 1.0
        for rate in self.sampled:
            alive *= rate
            total += alive
        return total


def measure_head(
    head: DraftHead, target: TargetHead, batches: Sequence[Batch], steps: int
) -> HeldOut:
    """Measure a head along recorded text.

    Parameters
    ----------
    head : DraftHead
        The head.
    target : TargetHead
        What it borrows.
    batches : sequence of Batch
        Held-out text.
    steps : int
        Draft positions.

    Returns
    -------
    HeldOut
        The rates. A position past the first reads the head's own features along the
        recorded tokens, whether or not it would have drafted those.
    """
    sampled, greedy, counts = [0.0] * steps, [0.0] * steps, [0] * steps
    head.eval()
    with torch.no_grad():
        for batch in batches:
            predicted = head.unroll(batch.features, target.embedding[batch.token_ids], steps)
            for step, features in enumerate(predicted):
                mask = batch.mask(step)
                for wanted, guessed in zip(
                    batch.wanted[mask].split(256), features[mask].split(256), strict=True
                ):
                    law = target.law(wanted)
                    draft = target.draft_log_law(guessed)
                    own = draft.exp()
                    sampled[step] += torch.minimum(law[:, target.draft_ids], own).sum().item()
                    best = target.draft_ids[draft.argmax(-1)]
                    greedy[step] += (law.argmax(-1) == best).sum().item()
                counts[step] += int(mask.sum())
    head.train()
    return HeldOut(
        tuple(total / max(count, 1) for total, count in zip(sampled, counts, strict=True)),
        tuple(total / max(count, 1) for total, count in zip(greedy, counts, strict=True)),
        tuple(counts),
    )
