"""The sequences of a drafter: what its model has cached of each request.

A sequence is compared with the committed tokens before each round and rolled back
to what they share. Full acceptance, a round without drafts, a withheld draft and a
resumed request are therefore one case: the sequence catches up from where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.core.protocols import ModelBackend
from draftproof.errors import BackendError, CapacityError, RollbackError

__all__ = ["DraftSequence", "DraftSequences"]


@dataclass(slots=True)
class DraftSequence:
    """One request's sequence in the drafter's model.

    Parameters
    ----------
    sequence_id : int
        The model's handle.
    cached : list of int
        The tokens that the model holds.
    source : sequence of int
        The request's token list, as last seen.
    num_agreed : int
        How many cached tokens are known to equal the tokens of ``source``.
    branches : list of DraftSequence
        Forks that went on with other drafts, where drafts branch. They live until the
        request drafts again and one of them, or the sequence itself, is gone on with.
    """

    sequence_id: int
    cached: list[int]
    source: Sequence[int]
    num_agreed: int = 0
    branches: list[DraftSequence] = field(default_factory=list)


@dataclass(slots=True)
class DraftSequences:
    """All sequences of one drafter, least recently used first.

    Parameters
    ----------
    backend : ModelBackend
        The drafter's model.
    """

    backend: ModelBackend
    _held: dict[str, DraftSequence] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return how many requests hold a sequence."""
        return len(self._held)

    def rewind(self, request_id: str, token_ids: Sequence[int]) -> DraftSequence:
        """Return the request's sequence, rolled back to what is committed.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens, at least one.

        Returns
        -------
        DraftSequence
            Holds a proper prefix of the tokens, so that at least one is left to feed.
        """
        held = self._held.pop(request_id, None)
        if held is not None and held.branches:
            held = self._nearest(held, token_ids)
        if held is not None and not self._roll_back(held, token_ids):
            self._close(held)
            held = None
        if held is None:
            sequence_id = self.backend.open(token_ids)
            restored = self.backend.length(sequence_id)
            held = DraftSequence(sequence_id, list(token_ids[:restored]), token_ids, restored)
        self._held[request_id] = held
        return held

    def changed(self, request_id: str, length: int) -> None:
        """Learn that a request's token list has changed behind its first tokens.

        A list that comes back is trusted to have grown at its end alone. One that was
        changed in other places is not, if this is called before it is given again.

        Parameters
        ----------
        request_id : str
            The request; unknown names are ignored.
        length : int
            How many of the first tokens are as they were.
        """
        held = self._held.get(request_id)
        if held is not None:
            held.num_agreed = min(held.num_agreed, length)

    def fork(self, owner: DraftSequence, source: DraftSequence) -> DraftSequence:
        """Start a sequence that goes on from where another is, for a draft that branches.

        Parameters
        ----------
        owner : DraftSequence
            The request's sequence, which keeps the new one as a branch.
        source : DraftSequence
            The sequence to go on from: the owner or one of its branches.

        Returns
        -------
        DraftSequence
            Closed together with the owner.
        """
        sequence_id = self.backend.fork(source.sequence_id)
        branch = DraftSequence(sequence_id, list(source.cached), source.source, source.num_agreed)
        owner.branches.append(branch)
        return branch

    def prune(self, owner: DraftSequence, branch: DraftSequence) -> None:
        """Close a branch that is not needed.

        Parameters
        ----------
        owner : DraftSequence
            The request's sequence.
        branch : DraftSequence
            One of its branches.
        """
        owner.branches.remove(branch)
        self._close(branch)

    def reserve(self, request_id: str, num_tokens: int, in_use: Sequence[str]) -> None:
        """Make room, taking it from requests that are not drafting now.

        Parameters
        ----------
        request_id : str
            The request.
        num_tokens : int
            Tokens counted from its cached length.
        in_use : sequence of str
            Requests that may not be disturbed.

        Raises
        ------
        CapacityError
            If there is no room even so.
        """
        sequence_id = self._held[request_id].sequence_id
        while not self.backend.reserve(sequence_id, num_tokens):
            idle = next((name for name in self._held if name not in in_use), None)
            if idle is None:
                raise CapacityError(f"the drafter has no room for {num_tokens} tokens")
            self.drop(idle)

    def reserve_draft(
        self, request_id: str, num_pending: int, num_drafts: int, in_use: Sequence[str]
    ) -> int:
        """Reserve slots for a round, for one draft where there is no room for all.

        Parameters
        ----------
        request_id : str
            The request.
        num_pending : int
            Tokens that it feeds before it drafts.
        num_drafts : int
            Drafts one after the other; the last is never fed.
        in_use : sequence of str
            Requests whose sequences must stay.

        Returns
        -------
        int
            How many drafts fit: all, or 1.

        Raises
        ------
        CapacityError
            If not even one fits.
        """
        try:
            self.reserve(request_id, num_pending + num_drafts - 1, in_use)
        except CapacityError:
            if num_drafts == 1:
                raise
            return self.reserve_draft(request_id, num_pending, 1, in_use)
        return num_drafts

    def drop(self, request_id: str) -> None:
        """Close a request's sequence; unknown names are ignored.

        Parameters
        ----------
        request_id : str
            The request.
        """
        held = self._held.pop(request_id, None)
        if held is not None:
            self._close(held)

    def _nearest(self, held: DraftSequence, token_ids: Sequence[int]) -> DraftSequence:
        """Return the one of a request's sequences that shares most with the text.

        The others are closed: all drafts but the kept ones are dropped.
        """
        branches, held.branches = held.branches, []
        sequences = [held, *branches]
        known = held.num_agreed if token_ids is held.source else 0
        shared = [
            _common_prefix(sequence.cached, token_ids, min(known, sequence.num_agreed))
            for sequence in sequences
        ]
        best = shared.index(max(shared))
        for index, sequence in enumerate(sequences):
            if index != best:
                self._close(sequence)
        return sequences[best]

    def _roll_back(self, held: DraftSequence, token_ids: Sequence[int]) -> bool:
        """Roll back to the common prefix; False when the sequence cannot be used."""
        if self.backend.length(held.sequence_id) != len(held.cached):
            return False  # a pass died halfway: what is cached is unknown
        known = held.num_agreed if token_ids is held.source else 0
        agreed = min(_common_prefix(held.cached, token_ids, known), len(token_ids) - 1)
        if agreed < len(held.cached):
            try:
                self.backend.truncate(held.sequence_id, agreed)
            except RollbackError:
                return False  # read it again from the start
            del held.cached[agreed:]
        held.source, held.num_agreed = token_ids, agreed
        return True

    def _close(self, held: DraftSequence) -> None:
        for branch in held.branches:
            self._close(branch)
        try:
            self.backend.close(held.sequence_id)
        except BackendError:
            # The runtime is failing already; the handle is forgotten either way.
            return


def _common_prefix(left: Sequence[int], right: Sequence[int], known: int) -> int:
    """Return the length of the common prefix, of which ``known`` tokens are given."""
    end = min(len(left), len(right))
    known = min(known, end)
    for index in range(known, end):
        if left[index] != right[index]:
            return index
    return end
