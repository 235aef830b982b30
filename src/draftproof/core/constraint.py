"""What a grammar is to the engine: a mask per position, and tokens that are certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError

__all__ = ["Constraint", "ConstraintFactory", "GrammarKind", "GrammarSpec"]

#: Forms in which a grammar may be given.
GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
_KINDS = ("json_schema", "json_object", "regex", "choice", "lark")


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar that the whole output must match.

    Parameters
    ----------
    kind : {"json_schema", "json_object", "regex", "choice", "lark"}
        The form of ``source``.
    source : str
        A JSON schema, ``""`` for any JSON object, a regular expression, a JSON list of
        strings, or a grammar in Lark syntax.

    Raises
    ------
    ConfigError
        If the kind is unknown.
    """

    kind: GrammarKind
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse unknown kinds."""
        if self.kind not in _KINDS:
            raise ConfigError(f"grammar kind {self.kind!r}: expected one of {', '.join(_KINDS)}")


class Constraint(Protocol):
    """The state of a grammar after the committed output of one request.

    Asking never changes the state; only ``advance`` does, and only committed tokens
    are given to it. So nothing has to be taken back when drafts are rejected.
    """

    def allowed(self, extra: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        """Return which tokens may follow the committed output and ``extra``.

        Parameters
        ----------
        extra : sequence of int
            Drafted tokens after the committed ones.

        Returns
        -------
        ndarray of bool, shape (V,), or None
            Read only; V is the length of the model's logits rows, padding is False.
            Where ``extra`` itself breaks the grammar the answer is None: no exact rule
            gets a token from there.
        """
        ...

    def forced(self, limit: int) -> tuple[int, ...]:
        """Return at most ``limit`` tokens that are the only ones allowed, one after the other."""
        ...

    def advance(self, token: int) -> None:
        """Take in a committed token.

        Raises
        ------
        InvariantError
            If the grammar does not allow it.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the output matches and nothing but an end may follow."""
        ...


#: Makes the constraint of a request; raises ConfigError for a grammar it cannot honour.
ConstraintFactory = Callable[[GrammarSpec], Constraint]
