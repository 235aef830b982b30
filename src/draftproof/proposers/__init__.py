"""Drafters: what guesses the next tokens, and the law it guessed them from."""

from draftproof.proposers.draft_model import DraftModelProposer
from draftproof.proposers.ngram import NgramProposer
from draftproof.proposers.none import NoProposer
from draftproof.proposers.suffix import SuffixProposer

__all__ = ["DraftModelProposer", "NgramProposer", "NoProposer", "SuffixProposer"]
