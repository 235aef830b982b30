"""How rooms meet: the contracts of models, drafters and tokenizers.

An implementation needs no base class. ``draftproof.testing`` holds the kits that
prove one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftproof.core.types import Draft, FlatBatch, ModelInfo, TreeDraft

if TYPE_CHECKING:
    from draftproof.core.constraint import Constraint
    from draftproof.core.policy import History, SamplingParams
    from draftproof.core.rng import RoundCoins

__all__ = [
    "Foreteller",
    "HiddenReader",
    "HiddenStates",
    "ModelBackend",
    "OptionReader",
    "ProposalRequest",
    "Proposer",
    "Tokenizer",
]


class ModelBackend(Protocol):
    """A causal language model with rewindable, ragged sequences.

    A sequence is a handle with a cached length. ``forward`` appends tokens to
    several sequences at once; ``truncate`` takes some back. Nothing a neighbour
    does may change the law of a row.
    """

    @property
    def info(self) -> ModelInfo:
        """Facts of the model."""
        ...

    def open(self, token_ids: Sequence[int] = ()) -> int:
        """Start a sequence and return its handle.

        Parameters
        ----------
        token_ids : sequence of int
            Tokens that will follow. The backend may restore a cached prefix of
            at most ``len(token_ids) - 1`` of them; ``length`` then says how many.

        Returns
        -------
        int
            The handle, never reused while the sequence is open.
        """
        ...

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that shares all cached tokens of another."""
        ...

    def length(self, sequence_id: int) -> int:
        """Return the number of cached tokens of a sequence."""
        ...

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` more tokens; False when there is none.

        A refused reservation changes nothing. ``forward`` must not fail for lack
        of room after a granted one. It lasts until ``truncate`` or ``close``.
        """
        ...

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        """Append the batch to its sequences and score the wanted positions.

        Parameters
        ----------
        batch : FlatBatch
            Each row starts at the cached length of its sequence. Where ``parents`` is
            set, a token sees the tokens before its row and its own ancestors in the
            row, at positions that are depths, and takes a slot of its own; only
            models whose ``info.trees`` is true are given such a batch. Until the next
            ``truncate`` the length of its sequence counts slots.

        Returns
        -------
        ndarray of float32, shape (M, V)
            Raw logits in the order of ``batch.logits_rows``. A view that is valid
            until the next call; readers must not write to it.

        Raises
        ------
        ContextOverflowError
            If a token would land past the context length; nothing is appended.
        CapacityError
            If there is no room; nothing is appended.
        InvariantError
            If a row does not start at the cached length of its sequence.
        BackendError
            If the runtime failed; nothing is appended.
        """
        ...

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop the cached tokens from position ``length`` on.

        Ends the reservation. Committed tokens may be dropped too.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        length : int
            How many tokens stay.
        keep : sequence of int
            After a row that branched: rising slots, all at ``length`` or later, of one
            path of it that stays as well, in this order. A slot is the place in which
            a token was appended: ``length`` before the row plus the index in the row.
            The sequence then has ``length + len(keep)`` tokens.

        Raises
        ------
        RollbackError
            If the cache of this model cannot be rewound, or not so far behind a commit: a
            sliding window lets what it has left behind be given up.
        """
        ...

    def commit(self, sequence_id: int) -> None:
        """Declare all cached tokens of a sequence final.

        Called after the pass that wrote them, and after ``truncate`` of what was
        rejected. Only final tokens may be shared through a prefix cache.
        """
        ...

    def close(self, sequence_id: int) -> None:
        """Free everything the sequence holds alone."""
        ...


@runtime_checkable
class HiddenStates(Protocol):
    """What a backend has besides when its ``info.hidden_size`` E is not 0."""

    def hidden(self) -> NDArray[np.float32]:
        """Return what the output layer reads, of the last pass that succeeded.

        Returns
        -------
        ndarray of float32, shape (N, E)
            One row per token of the batch, in its order, wanted or not. Never written
            to again: a reader may keep rows of it.
        """
        ...

    def matrices(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what turns tokens into vectors, and hidden states into logits.

        Returns
        -------
        embedding : ndarray of float32, shape (V, E)
            One row per token.
        output : ndarray of float32, shape (V, E)
            One row per logit; the same object where the model has one matrix for both.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """What a drafter is told about one row.

    Parameters
    ----------
    request_id : str
        Stable name of the request; drafter state is kept under it.
    token_ids : sequence of int
        All committed tokens, prompt first. Read only; the same list object may
        have grown when the request comes back.
    kappa : int
        How many tokens, or nodes of a tree, may be drafted at most; at least 1.
    params : SamplingParams
        The policy of the request.
    history : History
        Token counts of the committed tokens, for penalties.
    coins : RoundCoins
        The coins of this round; sampled drafts use ``coins.draft(i)``.
    coupled : bool, default False
        Whether the rule couples draft and target through shared noise; sampled
        drafts then use ``law.race(coins.noise(i, V))``.
    prediction : sequence of int, default ()
        Token ids that the caller expects the output to be, from its first token on.
        Empty when there is no prediction. Read only.
    tenant : str, default ""
        Whose request this is. A drafter that learns from earlier outputs may use those
        of the same tenant only, and nothing at all when this is empty.
    constraint : Constraint, optional
        The grammar of the request. A drafter with a law of its own draws under the mask
        of each position, so that it wastes no draft; the law it reports is the masked one.
    """

    request_id: str
    token_ids: Sequence[int]
    kappa: int
    params: SamplingParams
    history: History
    coins: RoundCoins
    coupled: bool = False
    prediction: Sequence[int] = ()
    tenant: str = ""
    constraint: Constraint | None = None

    def mask(self, drafted: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        """Return what the grammar allows after some drafted tokens, shape (V,); None for all."""
        return None if self.constraint is None else self.constraint.allowed(drafted)


class Proposer(Protocol):
    """A drafter."""

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        ...

    def propose(self, requests: Sequence[ProposalRequest]) -> Sequence[Draft | TreeDraft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        sequence of Draft or TreeDraft
            One per row, in order, each of at most ``kappa`` tokens or nodes, possibly
            empty.

        Notes
        -----
        All requests wait for the call. One that raises, returns no draft, or takes many times
        a plain pass costs drafts only; after a few such rounds running the engine stops
        asking for a while, see `draftproof.engine.patience`. A call that never returns
        cannot be ended.
        """
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        ...


@runtime_checkable
class Foreteller(Protocol):
    """What a drafter has besides when it knows before drafting how well it could."""

    def foretell(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Tell how well the committed tokens back a draft.

        Asked before a policy chooses draft lengths, hence before anything of the round is
        drawn. The answer is a function of the committed tokens.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens.

        Returns
        -------
        int
            0 where nothing would be drafted; 1, 2 or 3 from barely to firmly; -1 where the
            committed tokens do not tell, as where a model would draft.
        """
        ...


@runtime_checkable
class OptionReader(Protocol):
    """What a drafter has besides when it reads options of a request that most ignore."""

    @property
    def reads(self) -> frozenset[str]:
        """Those options of a `ProposalRequest`: ``"prediction"``, ``"tenant"``.

        An engine refuses a prediction that the drafter of a request does not read, and tells
        of a tenant that has no effect.
        """
        ...


@runtime_checkable
class HiddenReader(Protocol):
    """What a drafter has besides when it drafts from the target's hidden states."""

    def observe(self, request_id: str, start: int, hidden: NDArray[np.float32]) -> None:
        """Take the hidden states of committed tokens.

        Called after each pass for each of its rows that goes on, whoever drafted it,
        with the pending tokens and the accepted path; what was rejected never comes.
        Tokens that the target's prefix cache held were not computed and are missing.
        The last committed token comes with the next pass.

        Parameters
        ----------
        request_id : str
            The request.
        start : int
            Position of the first of the tokens.
        hidden : ndarray of float32, shape (n, E)
            Their hidden states, in the order of the text.
        """
        ...


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids that have a string."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a generation."""
        ...

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of a text.

        Special tokens written in the text are parsed only by ``encode_chat``.
        ``add_special`` adds the begin-of-text token where the model wants one.
        """
        ...

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the token ids of a chat, ready for the assistant's turn."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds; empty for control tokens."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD."""
        ...
