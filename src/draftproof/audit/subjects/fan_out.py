"""Draws shared out over processes, and joined without losing or repeating any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import reduce
from itertools import pairwise
from multiprocessing import get_context

from draftproof.audit.subjects.draws import Draws, Policy, Subject
from draftproof.errors import BackendError, ConfigError

__all__ = ["draw_all", "shares"]

#: Makes the subject where it is called; for several processes it must be picklable.
Recipe = Callable[[], Subject]


def shares(num: int, processes: int) -> list[tuple[int, int]]:
    """Return disjoint ranges that cover some draws.

    Parameters
    ----------
    num : int
        Draws.
    processes : int
        Most ranges.

    Returns
    -------
    list of (int, int)
        First draw and number of draws of each range, none empty.
    """
    edges = [num * i // processes for i in range(processes + 1)]
    return [(low, high - low) for low, high in pairwise(edges) if high > low]


def draw_all(
    recipe: Recipe,
    prompts: Sequence[Sequence[int]],
    policy: Policy,
    num: int,
    *,
    first_seed: int,
    processes: int = 1,
) -> list[Draws]:
    """Draw for several prompts, in this process or in several.

    Parameters
    ----------
    recipe : callable
        Makes the subject, once in every process.
    prompts : sequence of sequence of int
        The prompts.
    policy : Policy
        Policy and length.
    num : int
        Draws of each prompt.
    first_seed : int
        Draw ``i`` of prompt ``j`` has the seed ``first_seed + j * num + i`` whatever the
        number of processes.
    processes : int, default 1
        How many; 1 draws here.

    Returns
    -------
    list of Draws
        One per prompt.

    Raises
    ------
    ConfigError
        If a number is below 1.
    BackendError
        If a worker ends early: nothing of a range that was not finished is counted.
    """
    for name, value in (("draws", num), ("processes", processes)):
        if value < 1:
            raise ConfigError(f"{name} {value}: expected 1 or more")
    if processes == 1:
        parts = [_range(recipe, prompts, policy, num, 0, num, first_seed)]
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            waiting = [
                pool.submit(_range, recipe, prompts, policy, num, low, size, first_seed)
                for low, size in shares(num, processes)
            ]
            try:
                parts = [each.result() for each in waiting]
            except BrokenProcessPool as error:
                raise BackendError(f"a worker of {processes} ended early: {error}") from error
    return [reduce(Draws.merge, same) for same in zip(*parts, strict=True)]


def _range(
    recipe: Recipe,
    prompts: Sequence[Sequence[int]],
    policy: Policy,
    num: int,
    low: int,
    size: int,
    first_seed: int,
) -> list[Draws]:
    """Draw one range of every prompt; runs in a worker."""
    subject = recipe()
    found = []
    for index, prompt in enumerate(prompts):
        draws = subject.draw(prompt, policy, size, first_seed + index * num + low)
        if len(draws) != size:
            raise BackendError(f"{len(draws)} draws, {size} were asked for")
        found.append(draws)
    return found
