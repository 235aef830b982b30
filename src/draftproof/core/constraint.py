"""What a grammar is to the engine: a mask per position, and drafts that cost nothing."""

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
        A JSON schema, ``""`` for any JSON object, a regular expression that the whole
        output matches, a JSON list of strings, or a grammar in Lark syntax.

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

    Asking never changes an answer; only ``advance`` does, and only committed tokens are
    given to it. So nothing has to be taken back when drafts are rejected. A mask is a
    function of the tokens before it alone, which makes the masked target a law like any
    other: position ``j`` of a draft, the token after a rejection and the bonus token are
    each judged under the mask of their own prefix.
    """

    def allowed(self, extra: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        """Return which tokens may follow the committed output and ``extra``.

        Parameters
        ----------
        extra : sequence of int
            Drafted tokens after the committed ones: a chain, or the path to a tree node.

        Returns
        -------
        ndarray of bool, shape (V,), or None
            Read only; V is the length of the model's logits rows, padding is False. At
            least one entry is True. End tokens are True where the output matches. Where
            ``extra`` itself breaks the grammar the answer is None: no exact rule gets a
            token from there, because the mask before the breaking token gave it no
            mass. After an end token only end tokens are allowed, so that a draft may run
            over the end; whoever commits drops what follows the end.

        Raises
        ------
        ConfigError
            If the grammar cannot go on there: no token of the vocabulary fits it, or
            the position would cost more work than is granted.
        """
        ...

    def forced(self, limit: int) -> tuple[int, ...]:
        """Return at most ``limit`` tokens that are certain under every policy.

        Each is the only entry of its mask, one after the other, so the law of the target
        gives it probability 1 and it needs no judgement. An end token is never among
        them: where only ends are left, ``is_complete`` says so.
        """
        ...

    def likely(self, limit: int) -> tuple[int, ...]:
        """Return at most ``limit`` tokens worth drafting without a drafter.

        The text that the grammar makes certain, cut into tokens as the tokenizer cuts
        it. It begins with all that ``forced`` returns, up to the limit. The text is
        certain but its cut is not: the mask allows other tokens for the same text, and
        the model may prefer them. So these tokens are deterministic drafts (one-hot laws)
        for the rule to judge like any others; committing them unjudged would change the
        law. Empty where the grammar leaves the text open.
        """
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
