"""Drafts of a model with another vocabulary, by way of the text that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ModelBackend, ProposalRequest
from draftproof.core.types import Draft
from draftproof.proposers._translation import LOOK_BACK, Bridge, word_start
from draftproof.proposers.draft_model import DraftModelProposer, failure_note
from draftproof.proposers.vocabularies import OwnVocabulary

__all__ = ["RetokenisedProposer"]


class RetokenisedProposer:
    """Lets a model write in its own tokens, and drafts what the target makes of the text.

    The model goes on with the text of each request. What it writes is encoded by the
    target's tokenizer, as the target would write it behind the tokens that stand. These
    tokens are candidates without a law: every rule judges them by the target's law
    alone. They may have been drawn, with the ``draft`` coins of the round, which no
    judgement of such candidates ever looks at; so the law is kept.

    Parameters
    ----------
    backend : ModelBackend
        The drafter's model.
    bridge : Bridge
        Between the two vocabularies.
    temperature : float, optional
        Temperature at which it writes. 0, the default, is best: a candidate is kept with
        the target's probability of it, however it was found. None takes the request's,
        with its top-k, top-p and min-p. What a request says about tokens (penalties,
        biases, bans) is about the target's and does not reach the model.
    min_confidence : float, default 0.0
        As in `draftproof.proposers.DraftModelProposer`.
    max_tokens_per_pass : int, default 256
        The same.
    name : str, default "draft-model"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    The model writes as many of its tokens as may be drafted. A draft ends where the
    model ends the text, and where the grammar of a request does not allow it to go on.

    References
    ----------
    Timor et al., 2502.05202 (string-level exact match).
    """

    def __init__(
        self,
        backend: ModelBackend,
        bridge: Bridge,
        *,
        temperature: float | None = 0.0,
        min_confidence: float = 0.0,
        max_tokens_per_pass: int = 256,
        name: str = "draft-model",
    ) -> None:
        self._bridge = bridge
        self._writer = DraftModelProposer(
            backend,
            vocabulary=OwnVocabulary(backend.info.vocab_size, bridge),
            temperature=temperature,
            min_confidence=min_confidence,
            max_tokens_per_pass=max_tokens_per_pass,
            name=name,
        )

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return self._writer.name

    @property
    def num_requests(self) -> int:
        """How many requests hold a sequence now."""
        return self._writer.num_requests

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One per row, in order, without laws.
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
            For each row the tokens that are drafted already.

        Returns
        -------
        list of Draft
            One per row, in order: the tokens after the head, without laws.
        """
        asked = [_without_token_policy(request) for request in requests]
        written = self._writer.propose_after(asked, heads)
        return [
            self._redraft(request, head, draft)
            for request, head, draft in zip(requests, heads, written, strict=True)
        ]

    def release(self, request_id: str) -> None:
        """Close the request's sequence.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._writer.release(request_id)

    def _redraft(self, request: ProposalRequest, head: Sequence[int], written: Draft) -> Draft:
        """Return the tokens that the target makes of a written text."""
        try:
            tokens = self._tokens(request, head, written)
        except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
            return Draft(proposer=self.name, note=failure_note(error))
        note = written.note
        if written.token_ids and not tokens:
            note = note or "what the drafter wrote is no token of the target"
        return Draft(tuple(tokens), None, self.name, note)

    def _tokens(
        self, request: ProposalRequest, head: Sequence[int], written: Draft
    ) -> Sequence[int]:
        data = bytearray()
        for token in written.token_ids:
            spelled = self._bridge.draft_bytes(token)
            if not spelled:
                break  # the model ends the text, or leaves it
            data += spelled
        tokens = self._bridge.to_target(self._before(request, head), bytes(data))
        tokens = tokens[: request.kappa - len(head)]
        for index, token in enumerate(tokens):
            mask = request.mask((*head, *tokens[:index]))
            if mask is not None and not mask[token]:
                return tokens[:index]
        return tokens

    def _before(self, request: ProposalRequest, head: Sequence[int]) -> bytes:
        """Return the end of the text, from the beginning of a word on where there is one."""
        tokens = [*request.token_ids[-LOOK_BACK:], *head]
        spelled = [self._bridge.target_bytes(token) for token in tokens]
        # Behind a control token a text begins anew.
        begin = max((i + 1 for i, data in enumerate(spelled) if not data), default=0)
        spelled = spelled[begin:]
        return b"".join(spelled[word_start(spelled) :])


def _without_token_policy(request: ProposalRequest) -> ProposalRequest:
    """Return a request whose policy names no token of the target."""
    params = request.params
    kept = SamplingParams(
        temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p
    )
    return replace(request, params=kept, history=History(), coupled=False, constraint=None)
