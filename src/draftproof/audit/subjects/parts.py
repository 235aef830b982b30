"""An audit's draws in parts: who draws them may lose, repeat or reorder parts; counts stay right.

A part is a range of draws. What a part gives depends on the range and on nothing else, since
every draw has a seed of its own. So a part may be drawn again, anywhere, and results are
kept under the part that they belong to, never in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import NamedTuple, Protocol

from draftproof.audit.subjects.draws import Draws, Policy, Subject
from draftproof.errors import BackendError, InvariantError

__all__ = ["Crew", "Job", "Part", "Work", "gather", "shares"]

#: Prompt and policy.
Job = tuple[Sequence[int], Policy]

#: How often a part is asked for before the audit gives up.
_ATTEMPTS = 4


class Part(NamedTuple):
    """A range of draws of every prompt.

    Parameters
    ----------
    begin : int
        First draw.
    size : int
        How many, 1 or more.
    """

    begin: int
    size: int


@dataclass(frozen=True, slots=True)
class Work:
    """What is drawn in all, whoever draws it.

    Parameters
    ----------
    jobs : sequence of (prompt, Policy)
        Prompts, each with its policy.
    num : int
        Draws of each prompt.
    first_seed : int
        Draw ``i`` of prompt ``j`` has the seed ``first_seed + j * num + i``.
    """

    jobs: Sequence[Job]
    num: int
    first_seed: int

    def draw(self, subject: Subject, part: Part) -> list[Draws]:
        """Draw one part.

        Parameters
        ----------
        subject : Subject
            The decoder.
        part : Part
            Which draws.

        Returns
        -------
        list of Draws
            One per prompt.

        Raises
        ------
        BackendError
            If the decoder returns another number of draws.
        """
        found = []
        for index, (prompt, policy) in enumerate(self.jobs):
            seed = self.first_seed + index * self.num + part.begin
            draws = subject.draw(prompt, policy, part.size, seed)
            if len(draws) != part.size:
                raise BackendError(f"{len(draws)} draws, {part.size} were asked for")
            found.append(draws)
        return found


def shares(num: int, most: int, begin: int = 0) -> list[Part]:
    """Return disjoint ranges that cover some draws.

    Parameters
    ----------
    num : int
        Draws.
    most : int
        Most ranges.
    begin : int, default 0
        The first draw.

    Returns
    -------
    list of Part
        In order, none empty.
    """
    edges = [num * i // most for i in range(most + 1)]
    return [Part(begin + low, high - low) for low, high in pairwise(edges) if high > low]


class Crew(Protocol):
    """Those who draw parts somewhere else."""

    def run(self, parts: Sequence[Part]) -> Iterable[tuple[Part, list[Draws]]]:
        """Draw parts.

        Parameters
        ----------
        parts : sequence of Part
            Which.

        Yields
        ------
        (Part, list of Draws)
            In any order. A part may come twice, and what was lost does not come at all.
        """
        ...


def gather(crew: Crew, parts: Sequence[Part]) -> list[Draws]:
    """Have parts drawn until each is there once, and join them in order.

    Parameters
    ----------
    crew : Crew
        Who draws.
    parts : sequence of Part
        Disjoint, in order.

    Returns
    -------
    list of Draws
        One per prompt: the draws that one decoder gives for the whole range, none lost and
        none counted twice.

    Raises
    ------
    InvariantError
        If a part comes that nobody asked for.
    BackendError
        If a part is lost again and again.
    """
    asked = frozenset(parts)
    found: dict[Part, list[Draws]] = {}
    for _ in range(_ATTEMPTS):
        missing = [part for part in parts if part not in found]
        if not missing:
            break
        for part, draws in crew.run(missing):
            if part not in asked or any(len(each) != part.size for each in draws):
                raise InvariantError(f"draws of {part} came, which were not asked for")
            found.setdefault(part, draws)
    lost = [part for part in parts if part not in found]
    if lost:
        raise BackendError(
            f"{lost[0].size} draws from {lost[0].begin} on were lost {_ATTEMPTS} times: "
            f"{len(lost)} of {len(parts)} parts are missing, nothing is counted"
        )
    columns = zip(*(found[part] for part in parts), strict=True)
    return [reduce(Draws.merge, column) for column in columns]
