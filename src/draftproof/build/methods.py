"""What each drafting method takes: its default lengths and the keys that act on it."""

from __future__ import annotations

from typing import Final

__all__ = [
    "AUTO_KAPPA",
    "DEFAULT_KAPPA",
    "DRAWN_TREES",
    "HEADS",
    "LAWFUL",
    "OWNERS",
    "PREDICTED",
    "TREES",
]

#: Drafts per round where the user gives none: n-grams cost nothing, a model's do. Suffix
#: drafts end by themselves where they are not worth it.
DEFAULT_KAPPA: Final = {
    "ngram": 5,
    "suffix": 8,
    "prediction": 12,
    "draft_model": 3,
    "early_exit": 3,
    "draft_head": 3,
    "hybrid": 8,
    "ngram_tree": 8,
    "suffix_tree": 8,
    "prediction_tree": 12,
    "draft_model_tree": 10,
    "draft_head_tree": 10,
    "hybrid_tree": 10,
    "none": 0,
}

#: Most drafts per round where lengths are chosen. A copy may be long; a draft model pays
#: for each draft. No more than the deterministic mode allows.
AUTO_KAPPA: Final = {
    "ngram": 15,
    "suffix": 15,
    "prediction": 15,
    "draft_model": 8,
    "early_exit": 8,
    "draft_head": 8,
    "hybrid": 12,
}

_HYBRID: Final = ("hybrid", "hybrid_tree")
_MODEL: Final = ("draft_model", *_HYBRID, "draft_model_tree")
#: Methods that draft with a head alone.
HEADS: Final = ("draft_head", "draft_head_tree")
LAWFUL: Final = (*_MODEL, *HEADS)
#: Methods that may take the target's first layers for a draft model.
_EXITS: Final = ("early_exit", *_HYBRID, "draft_model_tree")
_NGRAM: Final = ("ngram", "ngram_tree")
TREES: Final = (
    "ngram_tree",
    "suffix_tree",
    "prediction_tree",
    "draft_model_tree",
    "draft_head_tree",
    "hybrid_tree",
)
#: Trees that a model or a head draws, or some of whose nodes.
DRAWN_TREES: Final = ("draft_model_tree", "draft_head_tree", "hybrid_tree")
_SHAPED: Final = ("ngram_tree", *DRAWN_TREES)
_SUFFIX: Final = ("suffix", "suffix_tree", *_HYBRID)
#: Methods that read a prediction.
PREDICTED: Final = ("prediction", "prediction_tree", *_HYBRID)
#: Which methods a key acts on, for every key that does not act on all of them.
OWNERS: Final = {
    "model": LAWFUL,
    "num_layers": _EXITS,
    "vocab_mapping": _MODEL,
    "draft_sample_method": (*LAWFUL, "early_exit"),
    "draft_temperature": (*LAWFUL, "early_exit"),
    "min_confidence": ("draft_model", "early_exit", "draft_head", "hybrid"),
    "prompt_lookup_min": _NGRAM,
    "prompt_lookup_max": _NGRAM,
    "tree_max_paths": ("ngram_tree",),
    "tree_widths": DRAWN_TREES,
    "tree_acceptance": _SHAPED,
    "suffix_min_match": _SUFFIX,
    "suffix_max_match": _SUFFIX,
    "suffix_min_score": _SUFFIX,
    "suffix_window": _SUFFIX,
    "suffix_tenant_tokens": _SUFFIX,
    "prediction_min_context": PREDICTED,
    "prediction_min_score": PREDICTED,
    "hybrid_model_tokens": _HYBRID,
    "hybrid_enough": _HYBRID,
    "num_speculative_tokens_per_batch_size": tuple(m for m in DEFAULT_KAPPA if m != "none"),
    "profile": (*AUTO_KAPPA, *TREES),
}
