"""Drafters: what guesses the next tokens, and the law it guessed them from."""

from draftproof.proposers.ngram import NgramProposer
from draftproof.proposers.none import NoProposer

__all__ = ["NgramProposer", "NoProposer"]
