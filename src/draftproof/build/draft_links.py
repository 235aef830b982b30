"""How the ids of a draft model and of its target belong together; early exits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from draftproof.build.methods import DRAWN_TREES
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.protocols import ModelBackend, Tokenizer
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.proposers import DraftVocabulary, SharedVocabulary
from draftproof.text import TextBridge, check_same_vocabulary

__all__ = ["ENOUGH_SHARED", "DraftLink", "early_exit", "link_vocabularies"]

#: Share of the target's tokens, from which on ``"auto"`` drafts the shared ones: below it
#: too much of what the drafter says is lost to the intersection.
ENOUGH_SHARED = 0.5


@dataclass(frozen=True, slots=True)
class DraftLink:
    """A way from the ids of a draft model to those of the target. Both None: the same ids.

    Parameters
    ----------
    vocabulary : DraftVocabulary, optional
        Drafts are drawn from the tokens that both have.
    bridge : TextBridge, optional
        Drafts are what the target's tokenizer makes of the drafter's text.
    """

    vocabulary: DraftVocabulary | None = None
    bridge: TextBridge | None = None


@runtime_checkable
class ExitsEarly(Protocol):
    """A backend that can stop after its first layers."""

    def early_exit(self, num_layers: int) -> ModelBackend:
        """Return the model of the first layers, the final norm and the head."""
        ...


def early_exit(target: ModelBackend, num_layers: int) -> ModelBackend:
    """Return the target's own first layers as a draft model.

    Parameters
    ----------
    target : ModelBackend
        The target.
    num_layers : int
        Layers that stay.

    Returns
    -------
    ModelBackend
        With a cache of its own.

    Raises
    ------
    ConfigError
        If the runtime has no early exit, or the model not that many layers.
    """
    if not isinstance(target, ExitsEarly):
        raise ConfigError(
            f"num_layers {num_layers}: the runtime {target.info.runtime} has no early exit; "
            "expected openvino or torch"
        )
    return target.early_exit(num_layers)


def link_vocabularies(
    config: SpeculativeConfig,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sizes: tuple[int, int],
    say: Callable[[str], None],
) -> DraftLink:
    """Decide how a draft model's ids and the target's belong together.

    Parameters
    ----------
    config : SpeculativeConfig
        Its ``vocab_mapping`` says what is wanted.
    tokenizers : tuple of Tokenizer
        The target's, then the draft model's.
    sizes : tuple of int
        Lengths of the two logits rows, padding included.
    say : callable
        Told in one line how two vocabularies are joined.

    Returns
    -------
    DraftLink
        Empty where the vocabularies are the same.

    Raises
    ------
    IncompatibleModelsError
        If they differ and ``vocab_mapping`` is ``"none"``, or no token is shared.
    """
    try:
        check_same_vocabulary(*tokenizers, *sizes)
    except IncompatibleModelsError as error:
        if config.vocab_mapping == "none":
            raise IncompatibleModelsError(
                f"{error}; vocab_mapping 'none' takes the same vocabulary only"
            ) from error
    else:
        return DraftLink()
    bridge = TextBridge(*tokenizers)
    if config.vocab_mapping == "retokenise":
        say("vocabularies differ: drafts are the target's tokens of the drafter's text")
        return DraftLink(bridge=bridge)
    shared = bridge.shared(*sizes)
    share = shared.num_shared / tokenizers[0].vocab_size
    has = f"the drafter has {shared.num_shared:,} of the target's {tokenizers[0].vocab_size:,}"
    # Only a law can be drawn from without replacement: trees need the intersection.
    is_wanted = config.vocab_mapping == "intersection" or config.method in DRAWN_TREES
    if is_wanted or share >= ENOUGH_SHARED:
        say(f"vocabularies differ: {has} tokens; drafts are drawn from these")
        return DraftLink(vocabulary=SharedVocabulary(shared, bridge))
    say(f"vocabularies differ: {has} tokens; drafts are the target's tokens of the drafter's text")
    return DraftLink(bridge=bridge)
