"""Drafts from a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.core.law import Law
from draftproof.core.policy import SamplingParams, target_law
from draftproof.core.protocols import ModelBackend, ProposalRequest
from draftproof.core.types import Draft, FlatBatch, Row
from draftproof.errors import (
    ConfigError,
    ContextOverflowError,
    DraftproofError,
    IncompatibleModelsError,
)
from draftproof.proposers._feeding import draft_params, groups, is_behind, piece
from draftproof.proposers._sequences import DraftSequence, DraftSequences
from draftproof.proposers.vocabularies import DraftVocabulary, SameVocabulary

__all__ = ["DraftModelProposer"]


@dataclass(slots=True)
class _Drafting:
    """One row while it drafts."""

    request: ProposalRequest
    params: SamplingParams
    sequence: DraftSequence
    kappa: int
    #: Length of the committed text in the model's ids.
    num_committed: int
    #: Tokens to feed in the next pass.
    pending: list[int]
    #: Drafts of the round, those of another drafter first.
    token_ids: list[int]
    #: Laws of the row's own drafts.
    laws: list[Law] = field(default_factory=list)
    note: str = ""
    is_done: bool = False


class DraftModelProposer:
    """Drafts sampled from a model, all rows in step, one pass per draft position.

    Each request has its own sequence in the drafter's model. It catches up with the
    committed tokens from its own cached length, whatever happened since it was asked
    last. Every draft carries the very law object that it was drawn with.

    A row stops early when its context is full, when there is no room, when its law
    cannot be computed or when a pass fails. The drafts it has by then are kept, with
    the reason as a note: stopping after a token keeps the law, withholding a token
    because of what it led to would not. A sequence whose pass failed is read again
    from the start in the next round.

    Parameters
    ----------
    backend : ModelBackend
        The drafter's model.
    target_vocab_size : int, optional
        Size of a target's logits row; the drafter's own when not given. Drafter ids
        beyond it are masked before anything is drawn; target ids that the drafter
        lacks have probability 0.
    vocabulary : DraftVocabulary, optional
        How its ids and the request's belong together, in place of ``target_vocab_size``;
        the same ids when not given.
    temperature : float, optional
        Temperature of drafts in requests that sample; the request's own when not
        given. 0 drafts the most likely token. Greedy requests draft greedily always.
    min_confidence : float, default 0.0
        A row stops before it draws when the drafter's largest probability, at
        temperature 1 and before the policy, is below this. In [0, 1].
    max_tokens_per_pass : int, default 256
        Longest piece in which a sequence catches up, and the size of a pass.
    name : str, default "draft-model"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    References
    ----------
    Leviathan et al., 2211.17192, algorithm 1; Chen et al., 2302.01318.
    """

    def __init__(
        self,
        backend: ModelBackend,
        *,
        target_vocab_size: int | None = None,
        vocabulary: DraftVocabulary | None = None,
        temperature: float | None = None,
        min_confidence: float = 0.0,
        max_tokens_per_pass: int = 256,
        name: str = "draft-model",
    ) -> None:
        if not 0.0 <= min_confidence <= 1.0:
            raise ConfigError(f"min_confidence {min_confidence}: expected a number in [0, 1]")
        if max_tokens_per_pass < 1:
            raise ConfigError(f"max_tokens_per_pass {max_tokens_per_pass}: expected 1 or more")
        if temperature is not None:
            SamplingParams(temperature=temperature)  # refuses what is out of range
        if target_vocab_size is not None and target_vocab_size < 1:
            raise ConfigError(f"target_vocab_size {target_vocab_size}: expected 1 or more")
        if target_vocab_size is not None and vocabulary is not None:
            raise ConfigError(
                f"target_vocab_size {target_vocab_size} beside a vocabulary: expected one of them"
            )
        self._backend = backend
        self._vocabulary: DraftVocabulary = vocabulary or SameVocabulary(
            target_vocab_size or backend.info.vocab_size
        )
        self._temperature = temperature
        self._min_confidence = min_confidence
        self._max_tokens = max_tokens_per_pass
        self._name = name
        self._sequences = DraftSequences(backend)

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return self._name

    @property
    def num_requests(self) -> int:
        """How many requests hold a sequence now."""
        return len(self._sequences)

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One per row, in order, with the laws they were drawn from; None in their
            place when every one of them is certain.
        """
        return self.propose_after(requests, [()] * len(requests))

    def propose_after(
        self, requests: Sequence[ProposalRequest], heads: Sequence[Sequence[int]]
    ) -> list[Draft]:
        """Go on where another drafter stopped, in the same round.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft; ``kappa`` counts the head.
        heads : sequence of sequence of int
            For each row the tokens that are drafted already. They are read as text, but
            never offered to the drafter's prefix cache.

        Returns
        -------
        list of Draft
            One per row, in order: the tokens after the head. The first of them is draft
            ``len(head)`` of the round and uses that draft's coin.
        """
        names = [request.request_id for request in requests]
        started = [
            self._start(request, head, names) for request, head in zip(requests, heads, strict=True)
        ]
        rows = [row for row in started if isinstance(row, _Drafting)]
        while behind := [
            row for row in rows if not row.is_done and is_behind(row, self._max_tokens)
        ]:
            for group in groups(behind, self._max_tokens):
                self._run(group, is_last=False)
        while running := [row for row in rows if not row.is_done]:
            for group in groups(running, self._max_tokens):
                self._run(group, is_last=True)
        return [row if isinstance(row, Draft) else self._finished(row) for row in started]

    def release(self, request_id: str) -> None:
        """Close the request's sequence.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._sequences.drop(request_id)
        self._vocabulary.release(request_id)

    def _start(
        self, request: ProposalRequest, head: Sequence[int], names: Sequence[str]
    ) -> _Drafting | Draft:
        """Roll the row's sequence back and reserve its slots, or say why it cannot draft."""
        name, limit = request.request_id, self._backend.info.context_length
        try:
            tokens, kept = self._vocabulary.context(name, request.token_ids)
            drafted = self._vocabulary.head(head)
            # The last draft is never fed, so that a full context still drafts one token.
            room = limit - len(tokens) - len(drafted) + 1
            num_own = min(request.kappa - len(head), room)
            if num_own <= 0:
                raise ContextOverflowError(f"past the drafter's context of {limit} tokens")
            if kept is not None:
                self._sequences.changed(name, kept)
            sequence = self._sequences.rewind(name, tokens)
            pending = [*tokens[len(sequence.cached) :], *drafted]
            if max(pending) >= self._backend.info.vocab_size:
                raise IncompatibleModelsError(f"the drafter lacks token {max(pending)}")
            num_own = self._sequences.reserve_draft(name, len(pending), num_own, names)
        except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
            self._sequences.drop(name)
            return Draft(proposer=self._name, note=failure_note(error))
        kappa = len(head) + num_own
        params = draft_params(request, self._temperature)
        row = _Drafting(request, params, sequence, kappa, len(tokens), pending, list(head))
        if kappa < request.kappa:
            row.note = f"no room in the drafter for more than {kappa} of {request.kappa} drafts"
        return row

    def _run(self, group: Sequence[_Drafting], *, is_last: bool) -> None:
        """Feed one piece of each row; draw a draft from the last piece's logits."""
        pieces = [piece(row, self._max_tokens) for row in group]
        batch = FlatBatch.from_rows(
            [
                Row(row.sequence.sequence_id, part, len(row.sequence.cached), int(is_last))
                for row, part in zip(group, pieces, strict=True)
            ]
        )
        try:
            logits = self._backend.forward(batch)
        except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
            if len(group) == 1:
                self._fail(group[0], error)
                return
            for row in group:  # alone, only the rows at fault fail again
                self._run([row], is_last=is_last)
            return
        for index, (row, part) in enumerate(zip(group, pieces, strict=True)):
            row.sequence.cached.extend(part)
            del row.pending[: len(part)]
            num_cached = len(row.sequence.cached)
            row.sequence.num_agreed = min(num_cached, row.num_committed)
            if num_cached <= row.num_committed:
                self._backend.commit(row.sequence.sequence_id)
            if is_last:
                self._draw(row, logits[index])

    def _draw(self, row: _Drafting, logits: NDArray[np.float32]) -> None:
        """Draw the next draft of a row and keep the law it was drawn with."""
        request, position = row.request, len(row.token_ids)
        try:
            scores = self._vocabulary.scores(logits)
            mask = request.mask(row.token_ids)
            law = target_law(scores, row.params, request.history, row.token_ids, mask)
        except DraftproofError as error:
            row.note, row.is_done = failure_note(error), True
            return
        if self._min_confidence > 0 and _confidence(scores) < self._min_confidence:
            row.note, row.is_done = f"confidence below {self._min_confidence}", True
            return
        if request.coupled:
            token = law.race(request.coins.noise(position, self._vocabulary.vocab_size))
        else:
            token = law.draw(request.coins.draft(position))
        row.token_ids.append(token)
        row.laws.append(law)
        row.pending.append(self._vocabulary.fed(token))
        row.is_done = len(row.token_ids) == row.kappa

    def _fail(self, row: _Drafting, error: Exception) -> None:
        """End a row whose pass failed; what its sequence holds is not known."""
        self._sequences.drop(row.request.request_id)
        row.note, row.is_done = failure_note(error), True

    def _finished(self, row: _Drafting) -> Draft:
        is_certain = all(law.is_one_hot for law in row.laws)
        laws = None if is_certain else tuple(row.laws)
        own = row.token_ids[len(row.token_ids) - len(row.laws) :]
        return Draft(tuple(own), laws, self._name, row.note)


def failure_note(error: Exception) -> str:
    if isinstance(error, DraftproofError):
        return f"drafter stopped: {error}"
    return f"drafter failed: {error!r}"


def _confidence(logits: NDArray[np.float32]) -> float:
    """Return the largest probability at temperature 1."""
    return 1.0 / float(np.exp(logits - logits.max()).sum())
