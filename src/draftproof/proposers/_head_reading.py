"""What drafters with a head share: what was observed, reading it, and laws of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.core.law import Law, OneHotLaw, SparseLaw
from draftproof.core.policy import SamplingParams, target_law
from draftproof.core.protocols import ProposalRequest
from draftproof.errors import NonFiniteLogitsError
from draftproof.proposers._feeding import draft_params
from draftproof.proposers._head_states import HeadState, Inputs

__all__ = ["UNKNOWN", "HeadReader", "HeadRunner", "HeadSize", "Reading"]

Floats = NDArray[np.float32]

#: Why a row whose state is missing drafts nothing.
UNKNOWN: Final = "the target's hidden state is not known yet"
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
class Reading:
    """One row, and what it has to read before it drafts.

    Parameters
    ----------
    request : ProposalRequest
        The row.
    params : SamplingParams
        The policy of its drafts.
    state : HeadState
        What is remembered of the request.
    inputs : Inputs
        What is new.
    """

    request: ProposalRequest
    params: SamplingParams
    state: HeadState
    inputs: Inputs


class HeadReader:
    """Remembers what the target told of each request, and reads it with a head.

    Parameters
    ----------
    runner : HeadRunner
        Computes the head.
    temperature : float, optional
        Temperature of drafts in requests that sample; the request's own when None.
    name : str
        Name used in records.

    Raises
    ------
    ConfigError
        If the temperature is out of range.
    """

    def __init__(self, runner: HeadRunner, temperature: float | None, name: str) -> None:
        if temperature is not None:
            SamplingParams(temperature=temperature)  # refuses what is out of range
        self._runner = runner
        self._temperature = temperature
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

    def _reading(self, request: ProposalRequest) -> Reading | None:
        """Return what a row has to read; None where the target's state is not known."""
        state = self._states.get(request.request_id)
        # Before the last token of the prompt a prefix cache may have hidden the states.
        first = len(request.token_ids) - request.history.num_generated
        inputs = None if state is None else state.inputs(request.token_ids, first)
        if state is None or inputs is None:
            return None
        return Reading(request, draft_params(request, self._temperature), state, inputs)

    def _catch_up(self, rows: Sequence[Reading]) -> tuple[Floats, Floats]:
        """Read what is new and remember it; return features and logits after it."""
        keys, values, lengths = self._cached(rows)
        features, logits, new_keys, new_values = self._read(rows, keys, values, lengths)
        for index, row in enumerate(rows):
            count = len(row.inputs)
            row.state.store(row.inputs, new_keys[index, :, -count:], new_values[index, :, -count:])
        return features, logits

    def _cached(
        self, rows: Sequence[Reading], room: int = 0
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
        self, rows: Sequence[Reading], keys: Floats, values: Floats, lengths: NDArray[np.intp]
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

    def _read_one(
        self,
        tokens: Sequence[tuple[int, int]],
        features: Floats,
        keys: Floats,
        values: Floats,
        lengths: NDArray[np.intp],
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Read one drafted token and its place per row, behind so many cached positions."""
        window = self._runner.shape.window
        read = np.array(tokens, dtype=np.int64)
        slots, ends = np.arange(keys.shape[2]), lengths[:, None]
        sees = (slots < ends) & (slots > ends - window)
        mask = np.where(np.append(sees, np.ones((len(read), 1), np.bool_), axis=1), 0.0, _HIDDEN)
        return self._runner.run(
            features[:, None], read[:, :1], read[:, 1:], keys, values,
            mask[:, None].astype(np.float32),
        )  # fmt: skip

    def _law(
        self,
        row: Reading,
        logits: Floats,
        drafted: Sequence[int],
        params: SamplingParams | None = None,
    ) -> Law:
        """Return the law after drafted tokens under the policy, over the target's vocabulary."""
        params = params or row.params
        vocab_size, ids = self._runner.shape.vocab_size, self._runner.draft_ids
        mask = row.request.mask(drafted)
        if mask is None and params.stages == ("temperature",):
            best = int(logits.argmax())
            peak = float(logits[best])
            if not -np.inf < peak < np.inf:
                raise NonFiniteLogitsError(f"largest draft logit {peak}: expected a finite one")
            if params.is_greedy:
                return OneHotLaw(int(ids[best]), vocab_size)
            heat = np.float32(params.temperature)
            return SparseLaw(ids, np.exp((logits - np.float32(peak)) / heat), vocab_size)
        scores = np.full(vocab_size, -np.inf, dtype=np.float32)
        scores[ids] = logits
        return target_law(scores, params, row.request.history, drafted, mask, is_stable=True)
