"""Grammars for a model, made when the first request asks for one."""

from __future__ import annotations

import threading

from draftproof.core.constraint import Constraint, ConstraintFactory, GrammarSpec
from draftproof.core.protocols import Tokenizer
from draftproof.grammar import make_constraints

__all__ = ["lazy_constraints"]


def lazy_constraints(tokenizer: Tokenizer, vocab_size: int) -> ConstraintFactory:
    """Return a factory that reads the vocabulary once, at the first grammar.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer of the model.
    vocab_size : int
        Length of its logits rows.

    Returns
    -------
    ConstraintFactory
        May be called from several threads. It raises ConfigError where llguidance is
        not installed.
    """
    lock = threading.Lock()
    made: list[ConstraintFactory] = []

    def constraints(spec: GrammarSpec) -> Constraint:
        with lock:
            if not made:
                made.append(make_constraints(tokenizer, vocab_size))
        return made[0](spec)

    return constraints
