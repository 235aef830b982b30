"""Draws shared out over processes or a cluster, and joined without losing or repeating any.

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
from draftproof.audit.subjects.parts import Job, Part, Work, gather, shares
from draftproof.errors import BackendError, ConfigError, DraftproofError

__all__ = ["draw_all", "draw_in_looks", "look_ends"]

#: Draws of each prompt before the first look, and how much more there are at the next.
_FIRST, _GROWTH = 250, 1.5
#: Seconds a worker gets to end by itself.
_PATIENCE_S = 5.0


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
    ray: str | None = None,
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
    ray : str, optional
        Address of a Ray cluster that draws instead; see
        `draftproof.audit.subjects.ray_crew.ray_crew`.

    Yields
    ------
    list of Draws
        The new draws of each prompt, in order.

    Raises
    ------
    ConfigError
        If a number is below 1.
    BackendError
        If a worker process ends early, or a cluster loses the same draws again and again.
    """
    if processes < 1 or not ends or ends[0] < 1:
        raise ConfigError(f"processes {processes}, looks {list(ends)}: expected 1 or more")
    if ray is not None and processes != 1:
        raise ConfigError(f"{processes} processes and a Ray cluster: expected one of them")
    work = Work(jobs, ends[-1], first_seed)
    portions = pairwise([0, *ends])
    if ray is not None:
        from draftproof.audit.subjects.ray_crew import ray_crew

        with ray_crew(ray, recipe, work) as crew:
            for low, high in portions:
                yield gather(crew, crew.parts(low, high))
        return
    if processes == 1:
        subject = recipe()
        for low, high in portions:
            yield work.draw(subject, Part(low, high - low))
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(recipe, work)) for _ in range(processes)]
        for low, high in portions:
            parts = shares(high - low, processes, low)
            for worker, part in zip(workers, parts, strict=False):
                worker.ask(part)
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

    def ask(self, part: Part) -> None:
        try:
            self._connection.send(part)
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


def _serve(connection: Connection, recipe: Callable[[], Subject], work: Work) -> None:
    """Draw what is asked for until the other side hangs up; runs in a worker."""
    try:
        subject = recipe()
        while True:
            part = connection.recv()
            connection.send(work.draw(subject, part))
    except EOFError:
        return
    except DraftproofError as error:
        connection.send(error)
    except Exception as error:  # noqa: BLE001  the other side raises it
        connection.send(BackendError(f"a worker failed: {error!r}"))
