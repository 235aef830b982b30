"""From a speculative configuration to drafters."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.build.draft_links import DraftLink
from draftproof.build.methods import DRAWN_TREES
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.protocols import ModelBackend, Proposer
from draftproof.errors import ConfigError
from draftproof.proposers import (
    DraftHeadTreeProposer,
    DraftModelProposer,
    DraftModelTreeProposer,
    HybridHeadProposer,
    HybridProposer,
    HybridTreeHeadProposer,
    HybridTreeProposer,
    NgramProposer,
    NgramTreeProposer,
    PredictionProposer,
    PredictionTreeProposer,
    RetokenisedProposer,
    SuffixProposer,
    SuffixTreeProposer,
)
from draftproof.proposers.draft_head import DraftHeadProposer, HeadRunner
from draftproof.proposers.hybrid import DraftlessProposer
from draftproof.proposers.tree_hybrid import CopyingProposer

__all__ = ["DRAFTLESS", "enough_copied", "make_more_proposers", "make_proposers", "tree_acceptance"]

#: Methods that draft without a model: they cost nothing until a request uses them.
DRAFTLESS = ("ngram", "suffix", "prediction")

#: Where suffix drafts end unless the user says. In front of a model they end earlier: it
#: goes on from there, and what it adds counts only where all before it is accepted.
_SUFFIX_SCORE, _SUFFIX_SCORE_OF_HYBRID = 0.1, 0.3
#: What trees are shaped for unless the user says: a copy is kept or not as a whole.
_TREE_ACCEPTANCE, _MODEL_TREE_ACCEPTANCE = 0.7, 0.6


def make_proposers(
    config: SpeculativeConfig,
    vocab_size: int,
    draft: ModelBackend | None = None,
    *,
    link: DraftLink | None = None,
    head: HeadRunner | None = None,
) -> list[Proposer]:
    """Make the drafters that a configuration names.

    Parameters
    ----------
    config : SpeculativeConfig
        The configuration.
    vocab_size : int
        Size of the target's logits row.
    draft : ModelBackend, optional
        The loaded draft model, for the methods that have one.
    link : DraftLink, optional
        How its ids and the target's belong together; the same ids when None.
    head : HeadRunner, optional
        The loaded draft head, for ``"draft_head"``, ``"draft_head_tree"``, and without ``draft``
        for ``"hybrid"`` and ``"hybrid_tree"``.

    Returns
    -------
    list of Proposer
        Empty for plain decoding.

    Raises
    ------
    ConfigError
        If the method needs a draft model or a head and none is given.
    """
    match config.method:
        case "none":
            return []
        case "ngram":
            return [NgramProposer(min_n=config.prompt_lookup_min, max_n=config.prompt_lookup_max)]
        case "suffix":
            return [_suffix(config, _SUFFIX_SCORE)]
        case "prediction":
            return [_prediction(config)]
        case "draft_model":
            return [_draft_model(config, vocab_size, draft, link)]
        case "early_exit":
            return [_draft_model(config, vocab_size, draft, None)]
        case "draft_head" | "draft_head_tree":
            if head is None:
                raise ConfigError(f"method {config.method!r} needs a draft head; none was loaded")
            is_tree = config.method == "draft_head_tree"
            return [_draft_head_tree(config, head) if is_tree else _draft_head(config, head)]
        case "ngram_tree":
            return [
                NgramTreeProposer(
                    config.prompt_lookup_min,
                    config.prompt_lookup_max,
                    max_paths=config.tree_max_paths,
                    acceptance=tree_acceptance(config),
                )
            ]
        case "suffix_tree":
            return [_suffix_tree(config, _SUFFIX_SCORE)]
        case "prediction_tree":
            return [_prediction_tree(config)]
        case "draft_model_tree":
            return [_draft_model_tree(config, vocab_size, draft, link)]
        case "hybrid":
            return [_hybrid(config, vocab_size, draft, link, head)]
        case "hybrid_tree":
            return [_hybrid_tree(config, vocab_size, draft, link, head)]


def enough_copied(config: SpeculativeConfig) -> int:
    """Return from how many copied tokens on a hybrid does not ask its model.

    Parameters
    ----------
    config : SpeculativeConfig
        The configuration.

    Returns
    -------
    int
        What the user says, else 4 with a model, which reads a copy in one pass, and 1 with a
        head, which reads it token by token for drafts that count only where it is kept.
    """
    return config.hybrid_enough or (1 if config.has_head else 4)


def tree_acceptance(config: SpeculativeConfig) -> float:
    """Return the acceptance that trees are shaped for.

    Parameters
    ----------
    config : SpeculativeConfig
        The configuration.

    Returns
    -------
    float
        What the user says, else 0.6 for a model and 0.7 for copies.
    """
    is_model = config.method in DRAWN_TREES
    return config.tree_acceptance or (_MODEL_TREE_ACCEPTANCE if is_model else _TREE_ACCEPTANCE)


def make_more_proposers(methods: Sequence[str], config: SpeculativeConfig) -> list[Proposer]:
    """Make drafters that requests may choose beside the configured one.

    Parameters
    ----------
    methods : sequence of str
        Which, of `DRAFTLESS`; each with its defaults.
    config : SpeculativeConfig
        The configuration; its own method is not made twice.

    Returns
    -------
    list of Proposer
        In the order of ``methods``.

    Raises
    ------
    ConfigError
        If a method is unknown or needs a model.
    """
    made: list[Proposer] = []
    for method in dict.fromkeys(methods):
        if method not in DRAFTLESS:
            raise ConfigError(f"also has {method!r}; expected {', '.join(map(repr, DRAFTLESS))}")
        if method != config.method:
            made += make_proposers(SpeculativeConfig.parse({"method": method}), vocab_size=0)
    return made


def _suffix(config: SpeculativeConfig, min_score: float) -> SuffixProposer:
    return SuffixProposer(
        min_match=config.suffix_min_match,
        max_match=config.suffix_max_match,
        min_score=config.suffix_min_score or min_score,
        window=config.suffix_window,
        tenant_tokens=config.suffix_tenant_tokens,
    )


def _suffix_tree(config: SpeculativeConfig, min_score: float) -> SuffixTreeProposer:
    return SuffixTreeProposer(
        min_match=config.suffix_min_match,
        max_match=config.suffix_max_match,
        min_score=config.suffix_min_score or min_score,
        window=config.suffix_window,
        tenant_tokens=config.suffix_tenant_tokens,
    )


def _prediction(config: SpeculativeConfig) -> PredictionProposer:
    return PredictionProposer(
        min_context=config.prediction_min_context, min_score=config.prediction_min_score
    )


def _prediction_tree(config: SpeculativeConfig) -> PredictionTreeProposer:
    return PredictionTreeProposer(
        min_context=config.prediction_min_context, min_score=config.prediction_min_score
    )


def _draft_head(config: SpeculativeConfig, head: HeadRunner) -> DraftHeadProposer:
    return DraftHeadProposer(
        head,
        temperature=_draft_temperature(config),
        min_confidence=config.min_confidence or 0.0,
    )


def _draft_head_tree(config: SpeculativeConfig, head: HeadRunner) -> DraftHeadTreeProposer:
    return DraftHeadTreeProposer(
        head,
        widths=config.tree_widths,
        acceptance=tree_acceptance(config),
        temperature=_draft_temperature(config),
    )


def _draft_model(
    config: SpeculativeConfig,
    vocab_size: int,
    draft: ModelBackend | None,
    link: DraftLink | None,
) -> DraftModelProposer | RetokenisedProposer:
    name = "early-exit" if config.num_layers is not None else "draft-model"
    temperature, confidence = _draft_temperature(config), config.min_confidence or 0.0
    if link is not None and link.bridge is not None:
        # A candidate without a law is kept with the target's probability of it alone.
        is_said = config.model_fields_set & {"draft_sample_method", "draft_temperature"}
        return RetokenisedProposer(
            _needed(config, draft),
            link.bridge,
            temperature=temperature if is_said else 0.0,
            min_confidence=confidence,
            name=name,
        )
    vocabulary = None if link is None else link.vocabulary
    return DraftModelProposer(
        _needed(config, draft),
        target_vocab_size=vocab_size if vocabulary is None else None,
        vocabulary=vocabulary,
        temperature=temperature,
        min_confidence=confidence,
        name=name,
    )


def _hybrid(
    config: SpeculativeConfig,
    vocab_size: int,
    draft: ModelBackend | None,
    link: DraftLink | None,
    head: HeadRunner | None,
) -> HybridProposer:
    draftless: list[DraftlessProposer] = [
        _prediction(config),
        _suffix(config, _SUFFIX_SCORE_OF_HYBRID),
    ]
    most, enough = config.hybrid_model_tokens, enough_copied(config)
    if head is not None and draft is None:
        reader = _draft_head(config, head)
        return HybridHeadProposer(draftless, reader, max_model_tokens=most, enough=enough)
    model = _draft_model(config, vocab_size, draft, link)
    return HybridProposer(draftless, model, max_model_tokens=most, enough=enough)


def _draft_model_tree(
    config: SpeculativeConfig,
    vocab_size: int,
    draft: ModelBackend | None,
    link: DraftLink | None,
) -> DraftModelTreeProposer:
    return DraftModelTreeProposer(
        _needed(config, draft),
        widths=config.tree_widths,
        acceptance=tree_acceptance(config),
        target_vocab_size=None if link and link.vocabulary else vocab_size,
        vocabulary=None if link is None else link.vocabulary,
        temperature=_draft_temperature(config),
    )


def _hybrid_tree(
    config: SpeculativeConfig,
    vocab_size: int,
    draft: ModelBackend | None,
    link: DraftLink | None,
    head: HeadRunner | None,
) -> HybridTreeProposer:
    copying: list[CopyingProposer] = [
        _prediction_tree(config),
        _suffix_tree(config, _SUFFIX_SCORE),
    ]
    most, enough = config.hybrid_model_tokens, enough_copied(config)
    if head is not None and draft is None:
        reader = _draft_head_tree(config, head)
        return HybridTreeHeadProposer(copying, reader, max_model_tokens=most, enough=enough)
    model = _draft_model_tree(config, vocab_size, draft, link)
    return HybridTreeProposer(copying, model, max_model_tokens=most, enough=enough)


def _needed(config: SpeculativeConfig, draft: ModelBackend | None) -> ModelBackend:
    if draft is None:
        raise ConfigError(f"method {config.method!r} needs a draft model; none was loaded")
    return draft


def _draft_temperature(config: SpeculativeConfig) -> float | None:
    return 0.0 if config.draft_sample_method == "greedy" else config.draft_temperature
