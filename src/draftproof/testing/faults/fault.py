"""One entry of the catalogue: what is wrong, where it is planted, what must see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from draftproof.testing.faults.parts import EngineParts
from draftproof.testing.faults.scene import Scene

__all__ = ["CheckName", "EngineFault", "Where", "nothing_wrong"]

#: The part of the engine that is wrong.
Where = Literal[
    "rule", "laws", "coins", "drafter", "cache", "policy", "commit", "tree", "grammar", "report"
]
#: What sees a fault; see `draftproof.testing.faults.checks`.
CheckName = Literal["law", "length", "text", "ends", "seeds", "redraw", "logprobs"]


@dataclass(frozen=True, slots=True, eq=False)
class EngineFault:
    """An engine with one defect.

    Parameters
    ----------
    name : str
        What is wrong, in a few words.
    where : str
        The part that is wrong.
    scene : Scene
        Where it is studied.
    plant : callable of EngineParts
        Returns the parts with the defect.
    description : str
        What the right engine does in its place, and whose fault it was.
    check : str, default "law"
        The check that sees it.
    case : str, default ""
        Its kind in public reports, for example ``"DI-4"``.
    """

    name: str
    where: Where
    scene: Scene
    plant: Callable[[EngineParts], EngineParts]
    description: str
    check: CheckName = "law"
    case: str = ""


def nothing_wrong(parts: EngineParts) -> EngineParts:
    """Return the parts as they are: the right engine.

    Parameters
    ----------
    parts : EngineParts
        The parts.

    Returns
    -------
    EngineParts
        The same.
    """
    return parts
