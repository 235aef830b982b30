"""How often drafts of a head would be accepted, on text that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import torch

from draftproof.distill.batches import Batch
from draftproof.distill.network import DraftHead
from draftproof.distill.target_head import TargetHead

__all__ = ["HeldOut", "Scored", "measure_head", "score", "text_hash"]

Tensor = Any
#: Positions whose laws are held at once.
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Held-out text, and what of the target's laws is the same at every measurement.

    Parameters
    ----------
    batch : Batch
        The text.
    log_total : torch.Tensor of float32, shape (B, T)
        Logarithm of the sum of exponentials of the target's logits, over all tokens.
    best : torch.Tensor of int64, shape (B, T)
        The target's most likely token.
    """

    batch: Batch
    log_total: Tensor
    best: Tensor


def score(target: TargetHead, batches: Sequence[Batch]) -> list[Scored]:
    """Score held-out text once.

    Parameters
    ----------
    target : TargetHead
        The target's output layer.
    batches : sequence of Batch
        The text.

    Returns
    -------
    list of Scored
        One per batch.
    """
    found = []
    with torch.no_grad():
        for batch in batches:
            rows = batch.wanted.flatten(0, 1).split(_AT_ONCE)
            logits = [part @ target.output.T for part in rows]
            shape = batch.token_ids.shape
            totals = torch.cat([part.logsumexp(-1) for part in logits]).view(shape)
            found.append(
                Scored(batch, totals, torch.cat([p.argmax(-1) for p in logits]).view(shape))
            )
    return found


def text_hash(target: TargetHead, text: Sequence[Scored]) -> str:
    """Return a name of what is measured on: equal where scores can be compared.

    Parameters
    ----------
    target : TargetHead
        Says which tokens can be drafted.
    text : sequence of Scored
        Held-out text.

    Returns
    -------
    str
        SHA-256, in hexadecimal, of tokens, hidden states and draft vocabulary.
    """
    found = sha256(target.draft_ids.numpy().tobytes())
    for each in text:
        for part in (each.batch.token_ids, each.batch.wanted, each.batch.lengths):
            found.update(part.numpy().tobytes())
    return found.hexdigest()


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
    head: DraftHead, target: TargetHead, text: Sequence[Scored], steps: int
) -> HeldOut:
    """Measure a head along recorded text.

    Parameters
    ----------
    head : DraftHead
        The head.
    target : TargetHead
        What it borrows.
    text : sequence of Scored
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
        for scored in text:
            batch = scored.batch
            predicted = head.unroll(batch.features, target.embedding[batch.token_ids], steps)
            for step, features in enumerate(predicted):
                mask = batch.mask(step)
                parts = (batch.wanted, features, scored.log_total, scored.best)
                pieces = (part[mask].split(_AT_ONCE) for part in parts)
                for wanted, guessed, log_total, best in zip(*pieces, strict=True):
                    law = (wanted @ target.drafted.T - log_total[:, None]).exp()
                    draft = target.draft_log_law(guessed)
                    sampled[step] += torch.minimum(law, draft.exp()).sum().item()
                    greedy[step] += (target.draft_ids[draft.argmax(-1)] == best).sum().item()
                counts[step] += int(mask.sum())
    head.train()
    return HeldOut(
        tuple(total / max(count, 1) for total, count in zip(sampled, counts, strict=True)),
        tuple(total / max(count, 1) for total, count in zip(greedy, counts, strict=True)),
        tuple(counts),
    )
