"""Constraints of one model: grammars compiled once, copied per request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial

import llguidance

from draftproof.core.constraint import Constraint, GrammarSpec
from draftproof.core.protocols import Tokenizer
from draftproof.errors import ConfigError
from draftproof.grammar.bridge import VocabularyBridge
from draftproof.grammar.compiling import compile_grammar
from draftproof.grammar.matcher import GrammarConstraint

__all__ = ["GrammarFactory"]

#: Compiled grammars that are kept; the least recently asked for goes first.
_KEPT = 32


class GrammarFactory:
    """A `draftproof.core.constraint.ConstraintFactory`.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer of the model.
    vocab_size : int
        Length V of the logits rows.

    Raises
    ------
    ConfigError
        If the model has no end token.
    """

    __slots__ = ("_bridge", "_compiled", "_lock")

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._bridge = VocabularyBridge(tokenizer, vocab_size)
        self._compiled: OrderedDict[GrammarSpec, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, spec: GrammarSpec) -> Constraint:
        """Return the constraint of a request, at the start of its output.

        Parameters
        ----------
        spec : GrammarSpec
            The grammar.

        Returns
        -------
        Constraint
            Its state, owned by the caller.

        Raises
        ------
        ConfigError
            If the grammar cannot be honoured.
        """
        with self._lock:
            start = self._compiled.get(spec)
            if start is None:
                start = compile_grammar(spec, self._bridge.parser_tokens)
                self._compiled[spec] = start
                if len(self._compiled) > _KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(spec)
        constraint = GrammarConstraint(start, self._bridge, partial(self._compile_anew, spec))
        try:
            constraint.allowed()
        except ConfigError as error:
            raise ConfigError(f"{spec.kind} grammar: {error}") from None
        return constraint

    def _compile_anew(self, spec: GrammarSpec) -> llguidance.LLMatcher:
        # The kept one has run into a limit: later requests get another, too.
        with self._lock:
            self._compiled.pop(spec, None)
        return compile_grammar(spec, self._bridge.parser_tokens)
