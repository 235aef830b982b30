"""Draws shared out over processes, and joined without losing or repeating any.

They come in portions, for audits that may stop after any of them; one portion is the
usual case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import reduce
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from draftproof.audit.subjects.draws import Draws, Policy, Subject
from draftproof.errors import BackendError, ConfigError, DraftproofError

__all__ = ["Job", "draw_all", "draw_in_looks", "look_ends", "shares"]

#: Prompt and policy.
Job = tuple[Sequence[int], Policy]

#: Draws of each prompt before the first look, and how much more there are at the next.
_FIRST, _GROWTH = 250, 1.5
#: Seconds a worker gets to end by itself.
_PATIENCE_S = 5.0


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


def look_ends(budget: int) -> list[int]:
    """Return after how many draws of each prompt the evidence is looked at.

    Parameters
    ----------
    budget : int
        Draws of the last look.

    Returns
    -------
    list of int
        Rising; each about half more than the one before.
    """
    ends, size = [], float(_FIRST)
    while size < budget:
        ends.append(int(size))
        size *= _GROWTH
    return [*ends, budget]


def draw_in_looks(
    recipe: Callable[[], Subject],
    jobs: Sequence[Job],
    ends: Sequence[int],
    *,
    first_seed: int,
    processes: int = 1,
) -> Iterator[list[Draws]]:
    """Draw for several prompts, portion by portion, until nobody asks on.

    Parameters
    ----------
    recipe : callable
        Makes the subject, once in every process; picklable for several.
    jobs : sequence of (prompt, Policy)
        Prompts, each with its policy.
    ends : sequence of int
        Draws of each prompt after each portion, rising.
    first_seed : int
        Draw ``i`` of prompt ``j`` has the seed ``first_seed + j * ends[-1] + i`` whatever
        the number of processes and portions.
    processes : int, default 1
        How many; 1 draws here.

    Yields
    ------
    list of Draws
        The new draws of each prompt, in order.

    Raises
    ------
    ConfigError
        If a number is below 1.
    BackendError
        If a worker ends early.
    """
    if processes < 1 or not ends or ends[0] < 1:
        raise ConfigError(f"processes {processes}, looks {list(ends)}: expected 1 or more")
    num = ends[-1]
    portions = pairwise([0, *ends])
    if processes == 1:
        subject = recipe()
        for low, high in portions:
            yield _draw(subject, jobs, num, first_seed, low, high - low)
        return
    with ExitStack() as stack:
        workers = [
            stack.enter_context(_Worker(recipe, jobs, num, first_seed)) for _ in range(processes)
        ]
        for low, high in portions:
            parts = shares(high - low, processes)
            for worker, (begin, size) in zip(workers, parts, strict=False):
                worker.ask(low + begin, size)
            found = [worker.answer() for worker, _ in zip(workers, parts, strict=False)]
            yield [reduce(Draws.merge, same) for same in zip(*found, strict=True)]


def draw_all(
    recipe: Callable[[], Subject],
    prompts: Sequence[Sequence[int]],
    policy: Policy,
    num: int,
    *,
    first_seed: int,
    processes: int = 1,
) -> list[Draws]:
    """Draw for several prompts of one policy, in this process or in several.

    Parameters
    ----------
    recipe : callable
        Makes the subject, once in every process; picklable for several.
    prompts : sequence of sequence of int
        The prompts.
    policy : Policy
        Policy and length.
    num : int
        Draws of each prompt.
    first_seed : int
        See `draw_in_looks`.
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
    if num < 1:
        raise ConfigError(f"draws {num}: expected 1 or more")
    jobs = [(prompt, policy) for prompt in prompts]
    (found,) = draw_in_looks(recipe, jobs, [num], first_seed=first_seed, processes=processes)
    return found


class _Worker:
    """A process that holds a subject and draws ranges of every prompt."""

    def __init__(self, *told: Any) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *told), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()

    def ask(self, low: int, size: int) -> None:
        try:
            self._connection.send((low, size))
        except OSError as error:
            raise BackendError(f"a worker ended early: {error}") from error

    def answer(self) -> list[Draws]:
        try:
            found = self._connection.recv()
        except (EOFError, OSError) as error:
            raise BackendError(f"a worker ended early: {error!r}") from error
        if isinstance(found, Exception):
            raise found
        answer: list[Draws] = found
        return answer


def _serve(
    connection: Connection,
    recipe: Callable[[], Subject],
    jobs: Sequence[Job],
    num: int,
    first_seed: int,
) -> None:
    """Draw what is asked for until the other side hangs up; runs in a worker."""
    try:
        subject = recipe()
        while True:
            low, size = connection.recv()
            connection.send(_draw(subject, jobs, num, first_seed, low, size))
    except EOFError:
        return
    except DraftproofError as error:
        connection.send(error)
    except Exception as error:  # noqa: BLE001  the other side raises it
        connection.send(BackendError(f"a worker failed: {error!r}"))


def _draw(
    subject: Subject, jobs: Sequence[Job], num: int, first_seed: int, low: int, size: int
) -> list[Draws]:
    found = []
    for index, (prompt, policy) in enumerate(jobs):
        draws = subject.draw(prompt, policy, size, first_seed + index * num + low)
        if len(draws) != size:
            raise BackendError(f"{len(draws)} draws, {size} were asked for")
        found.append(draws)
    return found
