"""Faults of grammars: the mask of another position, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import EngineParts
from draftproof.testing.faults.scenes import SCENES, SparingGrammar

__all__ = ["GRAMMAR_FAULTS"]

_LENGTH = 4


class _MaskOfTheFirst(SparingGrammar):
    """The mask of the round's first position, at all of them."""

    def allowed(self, extra: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        del extra
        return super().allowed()


class _NoMaskAfterDrafts(SparingGrammar):
    """No mask past the first position of a round."""

    def allowed(self, extra: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        return None if extra else super().allowed()


class _MaskOneLate(SparingGrammar):
    """The mask of the position before."""

    def allowed(self, extra: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        return super().allowed(extra[:-1])


class _FedByDrafts(SparingGrammar):
    """Drafts advance the matcher; rejected ones are never taken back."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._fed: tuple[int, ...] = ()

    def allowed(self, extra: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        mask = super().allowed(extra)
        assert mask is not None  # a text of this grammar can always go on
        mask[2] &= 2 not in self._fed
        self._fed += tuple(extra)
        return mask


def _constrained(make: type[SparingGrammar]) -> Callable[[EngineParts], EngineParts]:
    return lambda parts: replace(parts, constraints=lambda _: make(_LENGTH))


def _fault(
    name: str, make: type[SparingGrammar], description: str, scene: str = "grammar"
) -> EngineFault:
    return EngineFault(name, "grammar", SCENES[scene], _constrained(make), description, case="PR-3")


#: Faults of grammars.
GRAMMAR_FAULTS: tuple[EngineFault, ...] = (
    _fault(
        "mask of the first position",
        _MaskOfTheFirst,
        "all positions of a round are judged under the mask of its first",
    ),
    _fault(
        "no mask after a draft",
        _NoMaskAfterDrafts,
        "positions past the first of a round are not masked",
    ),
    _fault(
        "mask one position late",
        _MaskOneLate,
        "each position past the first has the mask of the one before",
    ),
    _fault(
        "matcher fed by drafts",
        _FedByDrafts,
        "drafts advance the grammar and rejected ones are not taken back",
        "grammar and block",
    ),
)
