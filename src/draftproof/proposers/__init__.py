"""Drafters: what guesses the next tokens, and the law it guessed them from."""

from draftproof.proposers.draft_head import DraftHeadProposer
from draftproof.proposers.draft_model import DraftModelProposer
from draftproof.proposers.hybrid import HybridHeadProposer, HybridProposer
from draftproof.proposers.ngram import NgramProposer
from draftproof.proposers.none import NoProposer
from draftproof.proposers.prediction import (
    PredictionProposer,
    PredictionUsage,
    prediction_usage,
)
from draftproof.proposers.retokenised import RetokenisedProposer
from draftproof.proposers.suffix import SuffixProposer
from draftproof.proposers.tree_draft_head import DraftHeadTreeProposer
from draftproof.proposers.tree_draft_model import DraftModelTreeProposer
from draftproof.proposers.tree_hybrid import HybridTreeHeadProposer, HybridTreeProposer
from draftproof.proposers.tree_ngram import NgramTreeProposer
from draftproof.proposers.tree_prediction import PredictionTreeProposer
from draftproof.proposers.tree_suffix import SuffixTreeProposer
from draftproof.proposers.vocabularies import DraftVocabulary, SharedVocabulary

__all__ = [
    "DraftHeadProposer",
    "DraftHeadTreeProposer",
    "DraftModelProposer",
    "DraftModelTreeProposer",
    "DraftVocabulary",
    "HybridHeadProposer",
    "HybridProposer",
    "HybridTreeHeadProposer",
    "HybridTreeProposer",
    "NgramProposer",
    "NgramTreeProposer",
    "NoProposer",
    "PredictionProposer",
    "PredictionTreeProposer",
    "PredictionUsage",
    "RetokenisedProposer",
    "SharedVocabulary",
    "SuffixProposer",
    "SuffixTreeProposer",
    "prediction_usage",
]
