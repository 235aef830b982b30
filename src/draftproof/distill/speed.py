"""What a finished head does on this machine: acceptance and time, with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from draftproof.core.protocols import ModelBackend, Tokenizer
from draftproof.core.stats import SpecDecodeStats
from draftproof.distill.corpus import Corpus
from draftproof.distill.held_out import split
from draftproof.distill.record import longest_prompt, seed_prompt
from draftproof.engine import Engine, EngineCore
from draftproof.proposers.draft_head import DraftHeadProposer, HeadRunner

__all__ = ["Speed", "beginnings", "measure_speed"]

#: Seed of the prompts, away from those of a corpus.
_SEED = 90_001
#: Tokens of a held-out piece that are a prompt, at most.
_BEGINNING = 64


@dataclass(frozen=True, slots=True)
class Speed:
    """One row of the last table: batch 1, held-out prompts.

    Parameters
    ----------
    temperature : float
        Of the requests.
    kappa : int
        Drafts per round.
    acceptance : tuple of float
        Per draft position, given that all drafts before it were accepted.
    asked : tuple of int
        Drafts behind each rate.
    tokens_per_round : float
        Tokens committed per pass of the target that had drafts.
    speedup : float
        Median over prompts of plain seconds per token over speculative ones.
    low, high : float
        Smallest and largest of these ratios.
    """

    temperature: float
    kappa: int
    acceptance: tuple[float, ...]
    asked: tuple[int, ...]
    tokens_per_round: float
    speedup: float
    low: float
    high: float


def measure_speed(
    target: ModelBackend,
    tokenizer: Tokenizer,
    runner: HeadRunner,
    *,
    kappas: Sequence[int] = (2, 3, 4),
    temperatures: Sequence[float] = (1.0, 0.0),
    num_prompts: int = 6,
    prompts: Sequence[Sequence[int]] = (),
    max_tokens: int = 96,
) -> list[Speed]:
    """Generate held-out prompts with and without the head, one after the other.

    Parameters
    ----------
    target : ModelBackend
        The model, with hidden states.
    tokenizer : Tokenizer
        Its tokenizer.
    runner : HeadRunner
        The head.
    kappas : sequence of int
        Draft lengths to try.
    temperatures : sequence of float
        Temperatures to try.
    num_prompts : int, default 6
        Built-in prompts, the same ones for every row.
    prompts : sequence of sequence of int, optional
        Token ids of other prompts instead, all of which are used.
    max_tokens : int, default 96
        Longest answer.

    Returns
    -------
    list of Speed
        One per temperature and draft length.
    """
    core = EngineCore(
        target, tokenizer=tokenizer, proposers=[DraftHeadProposer(runner)], kappa=kappas[0]
    )
    engine = Engine(core)
    prompts = prompts or _built_in(target, tokenizer, num_prompts)
    _timed(engine, prompts[0], 0, 0.0, 8)  # warms up
    found: list[Speed] = []
    for temperature in temperatures:
        ratios: dict[int, list[float]] = {kappa: [] for kappa in kappas}
        stats = {kappa: SpecDecodeStats() for kappa in kappas}
        for prompt in prompts:
            # Plain and speculative runs alternate, so that a busy machine slows both.
            plain, _ = _timed(engine, prompt, 0, temperature, max_tokens)
            for kappa in kappas:
                seconds, counts = _timed(engine, prompt, kappa, temperature, max_tokens)
                stats[kappa] = stats[kappa].merge(counts)
                ratios[kappa].append(plain / seconds)
        found += [_row(temperature, kappa, stats[kappa], ratios[kappa]) for kappa in kappas]
    return found


def beginnings(corpus: Corpus, num_prompts: int, context: int) -> list[list[int]]:
    """Return beginnings of held-out pieces of text, as prompts for texts of a user.

    Parameters
    ----------
    corpus : Corpus
        Recorded texts.
    num_prompts : int
        Most prompts; evenly spread over the pieces.
    context : int
        Tokens that the target's context holds.

    Returns
    -------
    list of list of int
        Token ids, fewer prompts where fewer pieces are held out.
    """
    pieces = [
        each.token_ids
        for path in split(corpus)[1]
        for each in corpus.read(path).recordings
        if len(each) > 1
    ]
    count = min(num_prompts, len(pieces))
    length = min(_BEGINNING, context // 2)
    chosen = (pieces[at * len(pieces) // count] for at in range(count))
    return [ids[: min(length, max(len(ids) // 2, 1))].tolist() for ids in chosen]


def _built_in(target: ModelBackend, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    generator = np.random.default_rng(_SEED)
    longest = longest_prompt(target.info.context_length)
    return [seed_prompt(tokenizer, generator, held_out=True, longest=longest) for _ in range(count)]


def _timed(
    engine: Engine, prompt: Sequence[int], kappa: int, temperature: float, max_tokens: int
) -> tuple[float, SpecDecodeStats]:
    """Return seconds per token past the first step, and the counters of the request."""
    request = engine.request(
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=1,
        num_speculative_tokens=kappa,
    )
    core = engine.core
    core.submit(request)
    num_tokens, begin = 0, 0.0
    while core.has_work:
        for output in core.step():
            if output.result is not None:
                if output.result.error is not None:
                    raise output.result.error
                count = max(len(output.result.tokens) - num_tokens, 1)
                return (perf_counter() - begin) / count, output.result.stats
            if not num_tokens:  # the prompt was read in this step
                num_tokens, begin = len(output.tokens), perf_counter()
    raise AssertionError("a request ended without a result")


def _row(temperature: float, kappa: int, stats: SpecDecodeStats, ratios: list[float]) -> Speed:
    return Speed(
        temperature,
        kappa,
        tuple(stats.conditional_rate_per_pos),
        tuple(stats.num_reached_per_pos),
        stats.mean_acceptance_length,
        median(ratios),
        min(ratios),
        max(ratios),
    )
