"""Plain and speculative decoding of one prompt, interleaved and compared.

Runs alternate within one process and change their order from pair to pair, so that
a machine that slows down or warms up weighs on both alike. Ratios are taken within
pairs. A losing ratio is reported like a winning one.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftproof.cli.run import Run, run_request

if TYPE_CHECKING:
    from draftproof.engine import Engine, Prompt

__all__ = ["Agreement", "Comparison", "Spread", "compare", "derive_seed", "spread"]

#: A greedy fork at a smaller gap, in nats, is put down to the kernels' rounding.
NEAR_TIE_NATS = 1e-2


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements; NaN where there are none.

    Parameters
    ----------
    median, low, high : float
        Median, smallest and largest.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether two outputs that should be equal are.

    Parameters
    ----------
    equal : bool
        Whether all token ids are.
    position : int, optional
        Index of the first generated token that differs.
    plain_token, speculative_token : int, optional
        The two tokens there; None where one output has ended.
    gap_nats : float
        By how much plain decoding preferred its token, in log probability. NaN where
        that is not what decided.
    """

    equal: bool
    position: int | None = None
    plain_token: int | None = None
    speculative_token: int | None = None
    gap_nats: float = math.nan

    @property
    def is_near_tie(self) -> bool:
        """Whether a fork is explained by rounding."""
        return self.gap_nats < NEAR_TIE_NATS


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of runs of one prompt.

    Parameters
    ----------
    plain, speculative : tuple of Run
        The runs, pair by pair.
    agreement : Agreement, optional
        Whether outputs agree; None where they need not, as when sampling.
    """

    plain: tuple[Run, ...]
    speculative: tuple[Run, ...]
    agreement: Agreement | None

    @property
    def plain_tokens_per_s(self) -> Spread:
        """Pace of plain decoding."""
        return spread([run.tokens_per_s for run in self.plain])

    @property
    def speculative_tokens_per_s(self) -> Spread:
        """Pace of speculative decoding."""
        return spread([run.tokens_per_s for run in self.speculative])

    @property
    def ratio(self) -> Spread:
        """Speculative pace by plain pace, pair by pair."""
        pairs = zip(self.plain, self.speculative, strict=True)
        return spread([fast.tokens_per_s / slow.tokens_per_s for slow, fast in pairs])


def spread(values: Sequence[float]) -> Spread:
    """Summarise repeated measurements.

    Parameters
    ----------
    values : sequence of float
        The measurements; NaN entries are left out.

    Returns
    -------
    Spread
        Their median and range.
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Spread(math.nan, math.nan, math.nan)
    return Spread(statistics.median(known), min(known), max(known))


def derive_seed(seed: int, name: str) -> int:
    """Return a seed that depends on another seed and a name alone.

    Parameters
    ----------
    seed : int
        The seed of a whole run.
    name : str
        Name of a part of it.

    Returns
    -------
    int
        64 bits.
    """
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def compare(
    engine: Engine,
    prompt: Prompt,
    options: Mapping[str, Any],
    *,
    seed: int,
    repeats: int = 5,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Time plain against speculative decoding.

    Parameters
    ----------
    engine : Engine
        An engine with a drafter, doing nothing else.
    prompt : str, sequence of int or sequence of dict
        The prompt.
    options : mapping
        As for `Engine.request`, without a seed.
    seed : int
        Seed of the first pair; later pairs have seeds derived from it.
    repeats : int, default 5
        Timed pairs, after one pair that warms up.
    progress : callable, optional
        Told in one line what is being done.

    Returns
    -------
    Comparison
        The pairs, and whether outputs agree where they must.
    """
    say = progress or (lambda _line: None)
    modes: tuple[dict[str, Any], dict[str, Any]] = (
        {**options, "num_speculative_tokens": 0, "prediction": ()},
        dict(options),
    )
    say("warming up")
    for mode in modes:
        run_request(engine, prompt, {**mode, "seed": seed})
    runs: tuple[list[Run], list[Run]] = ([], [])
    for repeat in range(repeats):
        say(f"pair {repeat + 1} of {repeats}")
        of_pair = seed if repeat == 0 else derive_seed(seed, f"repeat {repeat}")
        for side in (0, 1) if repeat % 2 == 0 else (1, 0):
            runs[side].append(run_request(engine, prompt, {**modes[side], "seed": of_pair}))
    agreement = None
    if runs[1][0].result.exactness.startswith(("greedy", "seed-identical")):
        agreement = _agreement(engine, prompt, {**modes[0], "seed": seed}, runs)
    return Comparison(tuple(runs[0]), tuple(runs[1]), agreement)


def _agreement(
    engine: Engine,
    prompt: Prompt,
    plain_options: Mapping[str, Any],
    runs: tuple[list[Run], list[Run]],
) -> Agreement:
    """Compare outputs pair by pair; look at the first fork closely."""
    for slow, fast in zip(*runs, strict=True):
        ours, theirs = slow.result.token_ids, fast.result.token_ids
        if ours == theirs:
            continue
        pairs = zip(ours, theirs, strict=False)
        shorter = min(len(ours), len(theirs))
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
        plain = ours[position] if position < len(ours) else None
        other = theirs[position] if position < len(theirs) else None
        gap = _gap(engine, prompt, plain_options, position, plain, other)
        return Agreement(False, position, plain, other, gap)
    return Agreement(True)


def _gap(
    engine: Engine,
    prompt: Prompt,
    options: Mapping[str, Any],
    position: int,
    plain: int | None,
    other: int | None,
) -> float:
    """Return how close the two tokens were where greedy outputs part.

    Raw log probabilities decide only when nothing but the temperature acts.
    """
    request = engine.request(prompt, **options)
    params = request.params
    if params.stages != ("temperature",) or params.min_tokens or plain is None or other is None:
        return math.nan
    asked = {**options, "max_tokens": position + 1, "logprobs": 20}
    tokens = run_request(engine, prompt, asked).result.tokens
    best = dict(tokens[position].top_logprobs or ()) if position < len(tokens) else {}
    if plain not in best:
        return math.nan
    return best[plain] - best.get(other, -math.inf)
