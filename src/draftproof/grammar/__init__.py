"""Grammars: JSON schemas, regular expressions, choices and Lark, as masks of tokens.

This room turns what a request asks into the masks that `draftproof.core.target_law`
takes. It knows tokens and bytes; it runs no model and draws nothing. Parsing is done by
llguidance, an optional dependency that is imported only when a grammar is built.
"""

from __future__ import annotations

from draftproof.core.constraint import ConstraintFactory, GrammarSpec
from draftproof.core.protocols import Tokenizer
from draftproof.errors import ConfigError
from draftproof.grammar.requests import (
    grammar_from_response_format,
    grammar_from_structured_outputs,
)

__all__ = [
    "GrammarSpec",
    "grammar_from_response_format",
    "grammar_from_structured_outputs",
    "make_constraints",
]


def make_constraints(tokenizer: Tokenizer, vocab_size: int) -> ConstraintFactory:
    """Return what makes the constraints of one model's requests.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer of the model.
    vocab_size : int
        Length V of the model's logits rows; ids past the tokenizer's are never allowed.

    Returns
    -------
    ConstraintFactory
        Called with the `GrammarSpec` of a request. It raises ConfigError for a grammar
        that is malformed, too large, or that no token of the model can begin. May be
        called from several threads.

    Raises
    ------
    ConfigError
        If llguidance is not installed, or the model has no end token.

    Notes
    -----
    Make it once per model: sorting 49,152 tokens into a trie took 0.3 s, and a grammar
    that was compiled once is copied for the next request with the same one.
    """
    try:
        from draftproof.grammar.factory import GrammarFactory
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "llguidance":
            raise
        raise ConfigError(
            "grammars need llguidance, which is not installed: pip install 'draftproof[grammar]'"
        ) from None
    return GrammarFactory(tokenizer, vocab_size)
