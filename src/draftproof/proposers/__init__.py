"""Drafters: what guesses the next tokens, and the law it guessed them from."""

from draftproof.proposers.draft_model import DraftModelProposer
from draftproof.proposers.hybrid import HybridProposer
from draftproof.proposers.ngram import NgramProposer
from draftproof.proposers.none import NoProposer
from draftproof.proposers.prediction import (
    PredictionProposer,
    PredictionUsage,
    prediction_usage,
)
from draftproof.proposers.suffix import SuffixProposer

__all__ = [
    "DraftModelProposer",
    "HybridProposer",
    "NgramProposer",
    "NoProposer",
    "PredictionProposer",
    "PredictionUsage",
    "SuffixProposer",
    "prediction_usage",
]
