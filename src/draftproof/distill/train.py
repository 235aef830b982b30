"""Train a draft head for a while, measure it as it goes, and survive interruptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.distill.batches import Batch, held_out_batches, training_batches
from draftproof.distill.corpus import Corpus
from draftproof.distill.held_out import settle, split
from draftproof.distill.linear_start import linear_start
from draftproof.distill.measure import HeldOut, Scored, measure_head, score, text_hash
from draftproof.distill.network import DraftHead
from draftproof.distill.progress import CHECKPOINT, State
from draftproof.distill.shortlist import Shortlister, draft_loss
from draftproof.distill.target_head import TargetHead
from draftproof.distill.vocabulary import observed_counts
from draftproof.errors import ConfigError

__all__ = ["CHECKPOINT", "Trained", "TrainingPlan", "train"]

#: Positions that the linear start is solved from, and that are measured on the way.
_LINEAR_POSITIONS, _MEASURED = 20_000, 3_000
_MEASURED_AT_ONCE: Final = 1024

#: Updates over which the rate rises from 0.
_WARM: Final = 50
#: Of the shortlist: likeliest tokens per position, most frequent ones, and drawn ones.
_NEAR, _FREQUENT, _DRAWN = 32, 512, 512

Progress = Callable[[str], None]
Tensor = Any


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a head is trained.

    Parameters
    ----------
    seconds : float
        Time for this run.
    steps : int, default 2
        Draft positions that are unrolled.
    measured_steps : int, default 3
        Draft positions whose acceptance is measured.
    batch_tokens : int, default 256
        Positions per update, about.
    rate : float, default 1.0
        Scale of all learning rates.
    feature_weight : float, default 0.3
        Weight of the relative squared error of features beside the cross entropy.
    overlap_weight : float, default 1.0
        Weight of the share of drafts that would be rejected beside the cross entropy.
    later_weight : float, default 0.8
        Weight of each step, as a factor of the one before.
    patience : int, default 8
        Measurements without a gain after which training ends.
    measure_every_s : float, default 120.0
        Seconds between measurements and checkpoints.
    seed : int, default 0
        Of weights and order.
    """

    seconds: float
    steps: int = 2
    measured_steps: int = 3
    batch_tokens: int = 256
    rate: float = 1.0
    feature_weight: float = 0.3
    overlap_weight: float = 1.0
    later_weight: float = 0.8
    patience: int = 8
    measure_every_s: float = 120.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in (
            "seconds", "steps", "measured_steps", "batch_tokens", "rate", "patience",
            "measure_every_s",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number above 0")


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training ended with.

    Parameters
    ----------
    weights : dict of str to ndarray of float32
        The best head, by the names of `HeadShape.tensors`.
    held_out : HeldOut
        Its measurement on the way.
    num_updates, num_positions : int
        Updates, and positions seen in them, over all runs.
    seconds : float
        Time over all runs.
    reason : str
        Why it ended.
    """

    weights: dict[str, Any]
    held_out: HeldOut
    num_updates: int
    num_positions: int
    seconds: float
    reason: str


def train(
    head: DraftHead,
    target: TargetHead,
    corpus: Corpus,
    plan: TrainingPlan,
    *,
    folder: Path,
    progress: Progress,
    start: Mapping[str, NDArray[np.float32]] | None = None,
    clock: Callable[[], float] = monotonic,
) -> Trained:
    """Train until the time is over or measurements stop getting better.

    Parameters
    ----------
    head : DraftHead
        A fresh head; goes on from the folder's checkpoint where there is one.
    target : TargetHead
        What it borrows from its target.
    corpus : Corpus
        Text with hidden states.
    plan : TrainingPlan
        How.
    folder : Path
        Where checkpoints are kept.
    progress : callable
        Told one line per measurement.
    start : mapping of str to ndarray of float32, optional
        Weights of a trained head, by the names of `HeadShape.tensors`, for a fresh head to
        start from; the linear guess when None.
    clock : callable
        Seconds, from anywhere.

    Returns
    -------
    Trained
        The best head that was measured.

    Raises
    ------
    ConfigError
        If the corpus is too small to hold some of it out.
    ModelFileError
        If the checkpoint belongs to another training.
    """
    settle(corpus, progress)
    state = State(head, plan.rate)
    checkpoint = folder / CHECKPOINT
    is_fresh = not checkpoint.is_file()
    if not is_fresh:
        state.load(checkpoint)
        progress(f"going on after {state.num_updates} updates")
    order = np.random.default_rng([plan.seed, state.num_updates])
    batches = training_batches(corpus, plan.batch_tokens, order)
    if is_fresh and start is not None:
        head.load_state_dict({name: torch.from_numpy(each) for name, each in start.items()})
    elif is_fresh:
        most = min(_LINEAR_POSITIONS, corpus.num_tokens(split(corpus)[0]) // 2)
        linear_start(head, target, _first(batches, most))
    held_out = score(target, held_out_batches(corpus, _MEASURED, _MEASURED_AT_ONCE))
    shortlister = _shortlister(target, corpus)
    _measure_best_again(state, target, held_out, plan, progress)

    def measure() -> HeldOut:
        return _measured(state, target, held_out, plan, progress)

    measure()
    # Where a run starts is not what it has reached, and whoever gives more time wants it used.
    state.num_vain, state.run_score = 0, 0.0
    try:
        reason = _descend(state, target, shortlister, batches, plan, clock, measure, checkpoint)
    except KeyboardInterrupt:
        state.save(checkpoint)
        raise
    found = measure()
    state.save(checkpoint)
    if found.score < state.best_score:
        head.load_state_dict(state.best)
        found = measure_head(head, target, held_out, plan.measured_steps)
    return Trained(
        {name: value.numpy().copy() for name, value in state.best.items()},
        found,
        state.num_updates,
        state.num_positions,
        state.seconds,
        reason,
    )


def _descend(
    state: State,
    target: TargetHead,
    shortlister: Shortlister,
    batches: Iterator[Batch],
    plan: TrainingPlan,
    clock: Callable[[], float],
    measure: Callable[[], HeldOut],
    checkpoint: Path,
) -> str:
    """Update until the time is over or nothing is gained; return which of them it was."""
    before = state.seconds
    start = last = clock()
    for batch in batches:
        state.seconds = before + clock() - start
        left = 1.0 - (state.seconds - before) / plan.seconds
        if left <= 0:
            break
        _update(state, target, shortlister, batch, plan, left)
        if clock() - last >= plan.measure_every_s:
            last = clock()
            measure()
            state.save(checkpoint)
            if state.num_vain >= plan.patience:
                return f"no gain in {plan.patience} measurements"
    return "the time is over"


def _first(batches: Iterator[Batch], num_positions: int) -> list[Batch]:
    """Return as many batches as have that many positions; they may repeat."""
    found: list[Batch] = []
    total = 0
    while total < num_positions:
        found.append(next(batches))
        total += int(found[-1].lengths.sum())
    return found


def _shortlister(target: TargetHead, corpus: Corpus) -> Shortlister:
    """Count which tokens are always on the shortlist."""
    counts = torch.from_numpy(observed_counts(corpus, len(target.output)))[target.draft_ids]
    frequent = counts.argsort(descending=True, stable=True)[:_FREQUENT]
    return Shortlister(target, frequent, num_near=_NEAR, num_drawn=_DRAWN)


def _update(
    state: State,
    target: TargetHead,
    shortlister: Shortlister,
    batch: Batch,
    plan: TrainingPlan,
    left: float,
) -> None:
    """Take one step downhill."""
    head = state.head
    predicted = head.unroll(batch.features, target.embedding[batch.token_ids], plan.steps)
    first = batch.mask(0)
    wanted = batch.wanted[first]
    shortlist, size = shortlister.draw(wanted), wanted.pow(2).mean()
    rows = torch.full(first.shape, -1)
    rows[first] = torch.arange(len(wanted))
    total = torch.zeros(())
    for step, features in enumerate(predicted):
        mask = batch.mask(step)
        guessed, chosen = features[mask], rows[mask]
        loss = draft_loss(shortlist.at(chosen), guessed, plan.overlap_weight)
        error = (guessed - wanted[chosen]).pow(2).mean() / size
        total = total + plan.later_weight**step * (loss + plan.feature_weight * error)
    head.zero_grad(set_to_none=True)
    torch.autograd.backward(total)
    warm = min(1.0, (state.num_updates + 1) / _WARM)
    state.optimiser.step(warm * max(left, 0.02))
    state.num_updates += 1
    state.num_positions += int(batch.lengths.sum())


def _measure_best_again(
    state: State,
    target: TargetHead,
    held_out: list[Scored],
    plan: TrainingPlan,
    progress: Progress,
) -> None:
    """Let the best score so far be of this held-out text: others cannot be compared with it."""
    place = text_hash(target, held_out)
    if state.best and state.best_on != place:
        now = {name: each.clone() for name, each in state.head.state_dict().items()}
        state.head.load_state_dict(state.best)
        state.best_score = measure_head(state.head, target, held_out, plan.measured_steps).score
        state.head.load_state_dict(now)
        progress("other text is held out than before: the best head so far is measured again")
    state.best_on = place


def _measured(
    state: State,
    target: TargetHead,
    held_out: list[Scored],
    plan: TrainingPlan,
    progress: Progress,
) -> HeldOut:
    """Measure, keep the head if it is the best, and tell."""
    found = measure_head(state.head, target, held_out, plan.measured_steps)
    if not state.best or found.score > state.best_score + 1e-4:
        state.best_score = found.score
        state.best = {name: each.clone() for name, each in state.head.state_dict().items()}
    if found.score > state.run_score + 1e-4:
        state.run_score, state.num_vain = found.score, 0
    else:
        state.num_vain += 1
    rates = " ".join(f"{rate:.3f}" for rate in found.sampled)
    greedy = " ".join(f"{rate:.3f}" for rate in found.greedy)
    progress(
        f"{state.seconds / 60:.1f} min, {state.num_updates} updates: acceptance {rates} at "
        f"temperature 1, {greedy} greedy, by position, of {found.counts[0]} held-out tokens"
    )
    return found
