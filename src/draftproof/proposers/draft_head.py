"""Drafts from a small head that goes on from the target's own hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.core.law import Law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import Draft
from draftproof.errors import ConfigError, DraftproofError
from draftproof.proposers._head_reading import UNKNOWN, HeadReader, HeadRunner, HeadSize, Reading

__all__ = ["DraftHeadProposer", "HeadRunner", "HeadSize"]

Floats = NDArray[np.float32]


@dataclass(slots=True)
class _Drafting(Reading):
    """One row while it drafts; ``given`` is what another drafter drafted before it."""

    given: Sequence[int] = ()
    token_ids: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    note: str = ""
    is_done: bool = False


class DraftHeadProposer(HeadReader):
    """Drafts token by token: feature and token predict the next feature, which gives a law.

    The engine tells the target's hidden states of what was committed (`observe`). A
    request reads from the last token of its prompt on, at most ``window`` positions
    back: those states are computed for every request, whatever a prefix cache held, so
    that equal requests are drafted alike. Where the state of the last position is not
    known, as after a failure, nothing is drafted until the next pass tells it.

    Tokens outside the draft vocabulary have probability 0 in the law of a draft, which
    costs acceptance and never exactness.

    Parameters
    ----------
    runner : HeadRunner
        Computes the head.
    temperature : float, optional
        Temperature of drafts in requests that sample; the request's own when not
        given. 0 drafts the most likely token. Greedy requests draft greedily always.
    min_confidence : float, default 0.0
        A row stops before it draws when the head's largest probability, at temperature
        1 and before the policy, is below this. In [0, 1].
    name : str, default "draft-head"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    References
    ----------
    Li et al., EAGLE, 2401.15077, section 4.
    """

    def __init__(
        self,
        runner: HeadRunner,
        *,
        temperature: float | None = None,
        min_confidence: float = 0.0,
        name: str = "draft-head",
    ) -> None:
        if not 0.0 <= min_confidence <= 1.0:
            raise ConfigError(f"min_confidence {min_confidence}: expected a number in [0, 1]")
        super().__init__(runner, temperature, name)
        self._min_confidence = min_confidence

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

        What was drafted is read as the head reads its own drafts: with the features that
        it predicts, since the target has computed none there.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft; ``kappa`` counts what is drafted already.
        heads : sequence of sequence of int
            For each row the tokens that are drafted already; each costs a pass.

        Returns
        -------
        list of Draft
            One per row, in order: the tokens behind those, each with the law it was drawn
            from and the coins of its offset in the round.
        """
        started = [self._start(*row) for row in zip(requests, heads, strict=True)]
        rows = [row for row in started if isinstance(row, _Drafting)]
        if rows:
            try:
                self._draft(rows)
            except DraftproofError as error:
                # What was drawn before stays: stopping after a token keeps the law.
                for row in rows:
                    row.note = row.note or f"drafter stopped: {error}"
        return [row if isinstance(row, Draft) else self._finished(row) for row in started]

    def _start(self, request: ProposalRequest, given: Sequence[int]) -> _Drafting | Draft:
        """Say what a row has to read, or why it cannot draft."""
        if len(given) >= request.kappa:
            return Draft(proposer=self._name)
        read = self._reading(request)
        if read is None:
            return Draft(proposer=self._name, note=UNKNOWN)
        return _Drafting(read.request, read.params, read.state, read.inputs, given)

    def _draft(self, rows: Sequence[_Drafting]) -> None:
        """Read what is new, then draw and read on until every row is done."""
        features, logits = self._catch_up(rows)
        longest = max(row.request.kappa for row in rows)
        if longest == 1:
            for row, scores in zip(rows, logits, strict=True):
                self._draw(row, scores)
            return
        keys, values, lengths = self._cached(rows, longest - 1)
        for step in range(longest):
            for index, row in enumerate(rows):
                if not row.is_done:
                    self._draw(row, logits[index])
            going = [index for index, row in enumerate(rows) if not row.is_done]
            if not going:
                return
            if len(going) < len(rows):
                rows = [rows[index] for index in going]
                features, lengths = features[going], lengths[going]
                keys, values = keys[going], values[going]
            features, logits, key, value = self._go_on(rows, features, keys, values, lengths, step)
            places = np.arange(len(rows)), slice(None), lengths + step
            keys[places], values[places] = key[:, :, 0], value[:, :, 0]

    def _go_on(
        self,
        rows: Sequence[_Drafting],
        features: Floats,
        keys: Floats,
        values: Floats,
        lengths: NDArray[np.intp],
        step: int,
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Read the token that was just drafted, with the feature that it was drawn from."""
        last = [(row.token_ids[-1], len(row.request.token_ids) + step) for row in rows]
        return self._read_one(last, features, keys, values, lengths + step)

    def _draw(self, row: _Drafting, logits: Floats) -> None:
        """Draw the next draft of a row and keep its law, unless the draft is given."""
        request, position = row.request, len(row.token_ids)
        if position < len(row.given):
            row.token_ids.append(row.given[position])
            return
        if self._min_confidence > 0 and _confidence(logits) < self._min_confidence:
            row.note, row.is_done = f"confidence below {self._min_confidence}", True
            return
        try:
            law = self._law(row, logits, row.token_ids)
        except DraftproofError as error:
            row.note, row.is_done = f"drafter stopped: {error}", True
            return
        if request.coupled:
            token = law.race(request.coins.noise(position, law.vocab_size))
        else:
            token = law.draw(request.coins.draft(position))
        row.token_ids.append(token)
        row.laws.append(law)
        row.is_done = len(row.token_ids) == request.kappa

    def _finished(self, row: _Drafting) -> Draft:
        is_certain = all(law.is_one_hot for law in row.laws)
        laws = None if is_certain else tuple(row.laws)
        return Draft(tuple(row.token_ids[len(row.given) :]), laws, self._name, row.note)


def _confidence(logits: Floats) -> float:
    """Return the largest probability at temperature 1."""
    return 1.0 / float(np.exp(logits - logits.max()).sum())
