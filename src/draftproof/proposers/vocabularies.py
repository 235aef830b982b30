"""In which ids a draft model reads, scores and drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.core.vocabulary_map import VocabularyMap
from draftproof.errors import IncompatibleModelsError
from draftproof.proposers._translation import Bridge, Translations

__all__ = ["DraftVocabulary", "OwnVocabulary", "SameVocabulary", "SharedVocabulary"]


class DraftVocabulary(Protocol):
    """How the ids of a request and those of the drafter's model belong together."""

    @property
    def vocab_size(self) -> int:
        """Number of ids that a law of a draft is over."""
        ...

    def context(
        self, request_id: str, token_ids: Sequence[int]
    ) -> tuple[Sequence[int], int | None]:
        """Return what the model reads, and how much of it stands since the last call.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens.

        Returns
        -------
        ids : sequence of int
            The same text in the model's ids, at least one.
        kept : int or None
            How many of the first are as they were; None where they only grow.
        """
        ...

    def head(self, token_ids: Sequence[int]) -> list[int]:
        """Return the model's ids of tokens that another drafter drafted."""
        ...

    def fed(self, token_id: int) -> int:
        """Return what the model is fed after it drafted a token."""
        ...

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a logits row of the model, shape (D,), as drafts are drawn from, (V,)."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        ...


class SameVocabulary:
    """The drafter has the target's ids, up to padding of its logits row.

    Parameters
    ----------
    vocab_size : int
        Length of the target's logits row. Drafter ids beyond it are cut off; target ids
        that the drafter lacks get minus infinity.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def context(
        self,
        request_id: str,  # noqa: ARG002  every request is read as it is
        token_ids: Sequence[int],
    ) -> tuple[Sequence[int], int | None]:
        """Return the tokens themselves; see `DraftVocabulary.context`."""
        return token_ids, None

    def head(self, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens themselves."""
        return list(token_ids)

    def fed(self, token_id: int) -> int:
        """Return the token itself."""
        return token_id

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cut or pad a row; padding is impossible, not unlikely."""
        missing = self.vocab_size - len(logits)
        if missing <= 0:
            return logits[: self.vocab_size]
        return np.concatenate([logits, np.full(missing, -np.inf, dtype=np.float32)])

    def release(self, request_id: str) -> None:
        """Do nothing: no request is held."""


class _Translated:
    """What the two ways into another vocabulary have in common: the model's context."""

    def __init__(self, bridge: Bridge) -> None:
        self._texts = Translations(bridge)

    def context(
        self, request_id: str, token_ids: Sequence[int]
    ) -> tuple[Sequence[int], int | None]:
        """Return the text in the model's ids; see `DraftVocabulary.context`.

        Raises
        ------
        IncompatibleModelsError
            If there is no text, or the model cannot spell it.
        """
        ids, kept = self._texts.read(request_id, token_ids)
        if not ids:
            raise IncompatibleModelsError("the text has no token of the drafter")
        return ids, kept

    def head(self, token_ids: Sequence[int]) -> list[int]:
        """Return drafted tokens of the target in the model's ids."""
        return self._texts.spell(token_ids)

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        self._texts.release(request_id)


class SharedVocabulary(_Translated):
    """The drafter has other ids, and drafts only what the target has too.

    The model's law, given that the token is shared, is the law of a draft. The model
    reads the text in its own ids.

    Parameters
    ----------
    shared : VocabularyMap
        The shared tokens.
    bridge : Bridge
        Between the two vocabularies.

    Raises
    ------
    IncompatibleModelsError
        If no token is shared.

    References
    ----------
    Timor et al., 2502.05202 (token-level intersection).
    """

    def __init__(self, shared: VocabularyMap, bridge: Bridge) -> None:
        super().__init__(bridge)
        if not shared.num_shared:
            raise IncompatibleModelsError(
                "target and drafter share no token; expected at least one"
            )
        self._shared = shared

    @property
    def vocab_size(self) -> int:
        """Length of the target's logits row."""
        return self._shared.vocab_size

    def fed(self, token_id: int) -> int:
        """Return the model's id of a shared token."""
        return int(self._shared.draft_of[token_id])

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the row in the target's order; see `VocabularyMap.scores`."""
        return self._shared.scores(logits)


class OwnVocabulary(_Translated):
    """The drafter has other ids and drafts in them; somebody else makes text of it.

    Parameters
    ----------
    vocab_size : int
        Length of the drafter's logits row.
    bridge : Bridge
        Between the two vocabularies.
    """

    def __init__(self, vocab_size: int, bridge: Bridge) -> None:
        super().__init__(bridge)
        self.vocab_size = vocab_size

    def fed(self, token_id: int) -> int:
        """Return the token itself."""
        return token_id

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the row itself."""
        return logits
