"""One wrong rule: its round, its parameter, and the law that it emits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from draftproof.audit.rounds import (
    JointTable,
    RoundFunction,
    RoundLaws,
    Tables,
    decode_law,
    round_laws,
)
from draftproof.core.law import Law

__all__ = ["Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong rule.

    Parameters
    ----------
    name : str
        What is wrong, in a few words.
    rule : str
        The rule it is a fault of: ``"standard"``, ``"block"`` or ``"tree"``.
    make : callable of float
        Returns its round; the argument is the parameter, ignored where there is none.
    parameter : str, default ""
        Name of the parameter; empty where the fault has none.
    default : float, default 0
        The parameter's usual value.
    grid : tuple of float, default ()
        Values that a diagnosis tries.
    is_continuous : bool, default True
        Whether values between those of the grid make sense.
    min_kappa : int, default 1
        The shortest draft that can show it.
    shows : str, default "law"
        Where it shows: in the ``"law"``; in ``"texts"`` of several rounds only; or in
        the ``"length"``, the number of tokens of a pass, while the law is right.
    tail : callable of (float, Law), optional
        What plain tokens are drawn from, where that is wrong too.
    """

    name: str
    rule: str
    make: Callable[[float], RoundFunction]
    parameter: str = ""
    default: float = 0.0
    grid: tuple[float, ...] = ()
    is_continuous: bool = True
    min_kappa: int = 1
    shows: str = "law"
    tail: Callable[[float, Law], Law] | None = None

    def joint_law(
        self,
        tables: Tables,
        kappa: int,
        horizon: int,
        parameter: float | None = None,
        *,
        max_speculative_rounds: int | None = None,
    ) -> JointTable:
        """Return the law of the text that a decoder with this fault emits.

        Parameters
        ----------
        tables : Tables
            Target and drafter.
        kappa : int
            Most drafts of a round.
        horizon : int
            Tokens of the text.
        parameter : float, optional
            The default where not given.
        max_speculative_rounds : int, optional
            See `draftproof.audit.rounds.decode_law`.

        Returns
        -------
        dict of tuple of int to float
            Probabilities by text.
        """
        value = self.default if parameter is None else parameter
        return decode_law(
            tables,
            self.make(value),
            kappa,
            horizon,
            max_speculative_rounds=max_speculative_rounds,
            tail=(lambda law: law) if self.tail is None else partial(self.tail, value),
        )

    def round_laws(self, tables: Tables, kappa: int, parameter: float | None = None) -> RoundLaws:
        """Return how many drafts its first round keeps and how many tokens it commits."""
        value = self.default if parameter is None else parameter
        return round_laws(tables, self.make(value), kappa)
