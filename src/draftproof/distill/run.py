"""The whole way: text, vocabulary, training, files. Each part goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Final

import torch

from draftproof.backends.borrowed import Borrowed, borrow
from draftproof.backends.fingerprint import TARGET_FINGERPRINT, fingerprint
from draftproof.core.protocols import ModelBackend, Tokenizer
from draftproof.distill.corpus import Corpus
from draftproof.distill.draft_ids import DRAFT_IDS, chosen_ids
from draftproof.distill.held_out import mark
from draftproof.distill.network import DraftHead
from draftproof.distill.origin import Origin, write_origin
from draftproof.distill.record import Recorder, Wanted, record_answers
from draftproof.distill.start import StartHead
from draftproof.distill.target_head import TargetHead
from draftproof.distill.texts import record_texts, text_files
from draftproof.distill.train import Trained, TrainingPlan, train
from draftproof.distill.work import ORIGIN, USERS_TEXT, asked_origin, check_folder, open_work
from draftproof.engine import Engine, EngineCore, SchedulerConfig
from draftproof.errors import ConfigError
from draftproof.models.head_files import HeadShape, HeadWeights, write_head

__all__ = ["DistillPlan", "Distilled", "distill"]

Progress = Callable[[str], None]

#: Share of the time that recording may take.
_RECORDING: Final = 0.35
#: Head width that rotation and vector units like.
_HEAD_DIM: Final = 64


@dataclass(frozen=True, slots=True)
class DistillPlan:
    """What a user asks for.

    Parameters
    ----------
    minutes : float
        Time for recording and training.
    texts : Path, optional
        A text file or a folder of them; the target writes its own text when None.
    num_tokens : int, default 300_000
        Most hidden states to record.
    draft_vocab_size : int, default 8192
        Tokens that can be drafted, the most frequent ones.
    rows : int, default 48
        Answers that the target writes side by side.
    seed : int, default 0
        Of prompts, answers, weights and order.
    rate : float, default 1.0
        Scale of the learning rates.
    start : StartHead, optional
        A trained head to start from; the linear guess when None.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    minutes: float
    texts: Path | None = None
    num_tokens: int = 300_000
    draft_vocab_size: int = 8192
    rows: int = 48
    seed: int = 0
    rate: float = 1.0
    start: StartHead | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, least in (
            ("num_tokens", 500), ("draft_vocab_size", 16), ("rows", 1), ("seed", 0),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected {least} or more")
        for name in ("minutes", "rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number above 0")


@dataclass(frozen=True, slots=True)
class Distilled:
    """What was made.

    Parameters
    ----------
    head : HeadWeights
        The head, as it was written.
    trained : Trained
        How its training went.
    num_recorded : int
        Hidden states that it learned from.
    coverage : float
        Probability of the tokens that can be drafted, under the target's laws on average.
    """

    head: HeadWeights
    trained: Trained
    num_recorded: int
    coverage: float


def distill(
    target: ModelBackend,
    tokenizer: Tokenizer,
    plan: DistillPlan,
    folder: Path,
    *,
    progress: Progress,
) -> Distilled:
    """Train a draft head for a target and write it.

    Parameters
    ----------
    target : ModelBackend
        A backend with hidden states.
    tokenizer : Tokenizer
        Its tokenizer.
    plan : DistillPlan
        How much.
    folder : Path
        Where the head is written. Its folder ``work`` keeps the recorded text and the
        checkpoint: the same call goes on from there.
    progress : callable
        Told one line now and then.

    Returns
    -------
    Distilled
        What was made.

    Raises
    ------
    ConfigError
        If the target's width is no multiple of 64, nothing can be recorded, or the folder was
        made from another model, other texts, or for another number of tokens.
    IncompatibleModelsError
        If the target gives no hidden states, or none that explain its logits, or the head to
        start from is of another target.
    ModelFileError
        If what an earlier run left does not fit.
    """
    start = monotonic()
    check_folder(folder)
    if plan.texts is not None:
        text_files(plan.texts)
    borrowed = borrow(target)
    shape = _shape(borrowed, 1)
    if plan.start is not None:
        plan.start.check(shape, target.info.name, fingerprint(borrowed.embedding))
    asked = asked_origin(
        target.info,
        borrowed,
        plan.draft_vocab_size,
        has_texts=plan.texts is not None,
        start=plan.start.name if plan.start else "",
    )
    origin = open_work(folder, asked, target.info.hidden_size, progress)
    work = folder / "work"
    corpus = Corpus(work / "corpus")
    mark(corpus)
    recorded = _record(target, tokenizer, plan, corpus, origin, work / ORIGIN, start, progress)
    ids, coverage = chosen_ids(work / DRAFT_IDS, corpus, borrowed.output, plan.draft_vocab_size)
    progress(
        f"{recorded} tokens recorded; {len(ids)} can be drafted, {coverage:.1%} of the probability"
    )
    shape = replace(shape, draft_vocab_size=len(ids))
    torch.manual_seed(plan.seed)
    head = DraftHead(shape)
    left = max(plan.minutes * 60 - (monotonic() - start), 1.0)
    trained = train(
        head,
        TargetHead.of(borrowed.embedding, borrowed.output, ids),
        corpus,
        TrainingPlan(left, rate=plan.rate, seed=plan.seed),
        folder=work,
        progress=progress,
        start=plan.start.head.tensors if plan.start else None,
    )
    progress(f"training ended: {trained.reason}")
    notes = _notes(plan, trained, recorded) | {TARGET_FINGERPRINT: fingerprint(borrowed.embedding)}
    made = HeadWeights(shape, trained.weights, ids, target.info.name, notes)
    write_head(folder, made)
    return Distilled(made, trained, recorded, coverage)


def _record(
    target: ModelBackend,
    tokenizer: Tokenizer,
    plan: DistillPlan,
    corpus: Corpus,
    origin: Origin,
    ledger: Path,
    start: float,
    progress: Progress,
) -> int:
    """Record until there is enough text, or the share of the time is spent."""
    limit = start + plan.minutes * 60 * _RECORDING
    if origin.is_closed:
        held = corpus.num_tokens()
    elif plan.texts is not None:
        held = record_texts(
            target,
            tokenizer,
            plan.texts,
            corpus,
            origin,
            plan.num_tokens,
            save=lambda now: write_origin(ledger, now),
            is_over=lambda: monotonic() > limit,
            progress=progress,
        )
    else:
        recorder = Recorder()
        core = EngineCore(
            target,
            tokenizer=tokenizer,
            proposers=[recorder],
            scheduler=SchedulerConfig(max_rows=plan.rows),
        )
        held = record_answers(
            Engine(core),
            recorder,
            corpus,
            Wanted(plan.num_tokens, plan.seed, min(2 * plan.rows, 1 + plan.num_tokens // 100)),
            is_over=lambda: monotonic() > limit,
            progress=progress,
        )
    if held < 2:
        raise ConfigError("no text was recorded; expected at least some sentences")
    return held


def _shape(borrowed: Borrowed, draft_vocab_size: int) -> HeadShape:
    """Return a layer of the target's width."""
    vocab_size, width = borrowed.embedding.shape
    if width % _HEAD_DIM:
        raise ConfigError(f"hidden states of width {width}; expected a multiple of {_HEAD_DIM}")
    heads = width // _HEAD_DIM
    groups = next(size for size in (3, 4, 2, 1) if heads % size == 0)
    return HeadShape(
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=heads // groups,
        head_dim=_HEAD_DIM,
        ffn_size=width * 8 // 3 // _HEAD_DIM * _HEAD_DIM,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
    )


def _notes(plan: DistillPlan, trained: Trained, recorded: int) -> dict[str, object]:
    start = {"start": plan.start.name} if plan.start else {}
    return start | {
        "recorded_tokens": recorded,
        "text": USERS_TEXT if plan.texts is not None else "the target's own answers",
        "seed": plan.seed,
        "rate": plan.rate,
        "updates": trained.num_updates,
        "trained_positions": trained.num_positions,
        "training_minutes": round(trained.seconds / 60, 1),
        "held_out": asdict(trained.held_out),
    }
