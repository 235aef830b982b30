"""Drafts from a small head that goes on from the target's own hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.core.law import Law, OneHotLaw, SparseLaw
from draftproof.core.policy import SamplingParams, target_law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import Draft
from draftproof.errors import ConfigError, DraftproofError, NonFiniteLogitsError
from draftproof.proposers._feeding import draft_params
from draftproof.proposers._head_states import HeadState, Inputs

__all__ = ["DraftHeadProposer", "HeadRunner", "HeadSize"]

Floats = NDArray[np.float32]

#: What a masked score is lowered by.
_HIDDEN: Final = np.float32(-1e9)
#: Cached positions of a pass are padded to a multiple of this, so that shapes recur.
_STRIDE: Final = 32
#: Tokens that are read at the start of a round, too.
_READ: Final = 4


class HeadSize(Protocol):
    """The numbers of a head that a drafter needs."""

    @property
    def hidden_size(self) -> int:
        """Width E of the features that a target tells."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads K."""
        ...

    @property
    def head_dim(self) -> int:
        """Their width D."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids V of the target."""
        ...

    @property
    def window(self) -> int:
        """Positions that a token sees, its own included."""
        ...


class HeadRunner(Protocol):
    """Whatever computes a head. It keeps nothing between passes."""

    @property
    def shape(self) -> HeadSize:
        """Its numbers."""
        ...

    @property
    def draft_ids(self) -> NDArray[np.intp]:
        """Rising token ids that can be drafted, shape (N,)."""
        ...

    def run(
        self,
        features: Floats,
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        keys: Floats,
        values: Floats,
        mask: Floats,
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Run one pass over B rows of T tokens.

        Parameters
        ----------
        features : ndarray of float32, shape (B, T, E)
            Feature before each token: the target's, or one that was predicted, which may be
            of another width: that of the features that are returned.
        token_ids, positions : ndarray of int64, shape (B, T)
            Tokens and their places.
        keys, values : ndarray of float32, shape (B, K, C, D)
            Of C positions before.
        mask : ndarray of float32, shape (B, T, C + T)
            0 where a token sees a position, a large negative number where not.

        Returns
        -------
        features : ndarray of float32, shape (B, E)
            Predicted after the last token of each row.
        logits : ndarray of float32, shape (B, N)
            Of the tokens that can be drafted, after it.
        keys, values : ndarray of float32, shape (B, K, T, D)
            Of the tokens.
        """
        ...


@dataclass(slots=True)
class _Drafting:
    """One row while it drafts; ``given`` is what another drafter drafted before it."""

    request: ProposalRequest
    params: SamplingParams
    state: HeadState
    inputs: Inputs
    given: Sequence[int] = ()
    token_ids: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    note: str = ""
    is_done: bool = False


class DraftHeadProposer:
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
        if temperature is not None:
            SamplingParams(temperature=temperature)  # refuses what is out of range
        self._runner = runner
        self._temperature = temperature
        self._min_confidence = min_confidence
        self._name = name
        self._states: dict[str, HeadState] = {}

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return self._name

    @property
    def num_requests(self) -> int:
        """How many requests are remembered now."""
        return len(self._states)

    def observe(self, request_id: str, start: int, hidden: Floats) -> None:
        """Take the hidden states of committed tokens.

        Parameters
        ----------
        request_id : str
            The request.
        start : int
            Position of the first of the tokens.
        hidden : ndarray of float32, shape (n, E)
            Their hidden states; kept, not copied.
        """
        state = self._states.get(request_id)
        if state is None:
            state = self._states[request_id] = HeadState(self._runner.shape.window, start)
        state.observe(start, hidden)

    def release(self, request_id: str) -> None:
        """Forget a request.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._states.pop(request_id, None)

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
        state = self._states.get(request.request_id)
        # Before the last token of the prompt a prefix cache may have hidden the states.
        first = len(request.token_ids) - request.history.num_generated
        inputs = None if state is None else state.inputs(request.token_ids, first)
        if state is None or inputs is None:
            return Draft(proposer=self._name, note="the target's hidden state is not known yet")
        params = draft_params(request, self._temperature)
        return _Drafting(request, params, state, inputs, given)

    def _draft(self, rows: Sequence[_Drafting]) -> None:
        """Read what is new, then draw and read on until every row is done."""
        keys, values, lengths = self._cached(rows)
        features, logits, new_keys, new_values = self._read(rows, keys, values, lengths)
        for index, row in enumerate(rows):
            count = len(row.inputs)
            row.state.store(row.inputs, new_keys[index, :, -count:], new_values[index, :, -count:])
        longest = max(row.request.kappa for row in rows)
        if longest > 1:
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

    def _cached(
        self, rows: Sequence[_Drafting], room: int = 0
    ) -> tuple[Floats, Floats, NDArray[np.intp]]:
        """Put what rows remember side by side, with room behind it for drafts."""
        shape = self._runner.shape
        lengths = np.array([len(row.state.fed) for row in rows], dtype=np.intp)
        extent = int(lengths.max()) + room
        extent = -(-extent // _STRIDE) * _STRIDE
        keys = np.zeros((len(rows), shape.num_kv_heads, extent, shape.head_dim), dtype=np.float32)
        values = np.zeros_like(keys)
        for index, row in enumerate(rows):
            if row.state.keys is not None and row.state.values is not None:
                keys[index, :, : lengths[index]] = row.state.keys
                values[index, :, : lengths[index]] = row.state.values
        return keys, values, lengths

    def _read(
        self, rows: Sequence[_Drafting], keys: Floats, values: Floats, lengths: NDArray[np.intp]
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Read the new tokens of all rows; shorter ones are padded in front."""
        shape = self._runner.shape
        width = -(-max(len(row.inputs) for row in rows) // _READ) * _READ
        features = np.zeros((len(rows), width, shape.hidden_size), dtype=np.float32)
        token_ids = np.zeros((len(rows), width), dtype=np.int64)
        positions = np.zeros_like(token_ids)
        mask = np.full((len(rows), width, keys.shape[2] + width), _HIDDEN, dtype=np.float32)
        causal = np.tril(np.ones((width, width), dtype=np.bool_))
        for index, row in enumerate(rows):
            inputs, count, held = row.inputs, len(row.inputs), int(lengths[index])
            features[index, -count:] = inputs.features
            token_ids[index, -count:] = inputs.token_ids
            places = inputs.start + np.arange(count)
            positions[index, -count:] = places
            cached = row.state.fed_end - held + np.arange(held)
            near = places[:, None] - cached[None, :] < shape.window
            mask[index, -count:, :held][near] = 0.0
            mask[index, -count:, -count:][causal[:count, :count]] = 0.0
            # Padding sees itself, so that no row of scores is empty.
            padding = np.arange(width - count)
            mask[index, padding, keys.shape[2] + padding] = 0.0
        return self._runner.run(features, token_ids, positions, keys, values, mask)

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
        window = self._runner.shape.window
        token_ids = np.array([[row.token_ids[-1]] for row in rows], dtype=np.int64)
        positions = np.array([[len(row.request.token_ids) + step] for row in rows], dtype=np.int64)
        slots = np.arange(keys.shape[2])
        ends = (lengths + step)[:, None]
        sees = (slots < ends) & (slots > ends - window)
        mask = np.where(np.append(sees, np.ones((len(rows), 1), np.bool_), axis=1), 0.0, _HIDDEN)
        return self._runner.run(
            features[:, None], token_ids, positions, keys, values, mask[:, None].astype(np.float32)
        )

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
            law = self._law(row, logits)
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

    def _law(self, row: _Drafting, logits: Floats) -> Law:
        """Return the law of a draft under the policy, over the target's vocabulary."""
        vocab_size, ids = self._runner.shape.vocab_size, self._runner.draft_ids
        mask = row.request.mask(row.token_ids)
        if mask is None and row.params.stages == ("temperature",):
            best = int(logits.argmax())
            peak = float(logits[best])
            if not -np.inf < peak < np.inf:
                raise NonFiniteLogitsError(f"largest draft logit {peak}: expected a finite one")
            if row.params.is_greedy:
                return OneHotLaw(int(ids[best]), vocab_size)
            heat = np.float32(row.params.temperature)
            return SparseLaw(ids, np.exp((logits - np.float32(peak)) / heat), vocab_size)
        scores = np.full(vocab_size, -np.inf, dtype=np.float32)
        scores[ids] = logits
        return target_law(
            scores, row.params, row.request.history, row.token_ids, mask, is_stable=True
        )

    def _finished(self, row: _Drafting) -> Draft:
        is_certain = all(law.is_one_hot for law in row.laws)
        laws = None if is_certain else tuple(row.laws)
        return Draft(tuple(row.token_ids[len(row.given) :]), laws, self._name, row.note)


def _confidence(logits: Floats) -> float:
    """Return the largest probability at temperature 1."""
    return 1.0 / float(np.exp(logits - logits.max()).sum())
