"""Which rows travel in the next pass.

Decode rows go first, then prefill chunks up to a token budget. Prefill is cut at multiples
of ``prefill_chunk`` counted from position 0, never by what else is in the pass, so that a
request's passes have the same shape alone and in a crowd. When pages run out the youngest
request gives its pages back and starts over later with the tokens it has: nothing it
generated is lost, and the oldest request always moves on.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.core.kappa_policy import RowChoice
from draftproof.core.protocols import ModelBackend
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, TreeDraft
from draftproof.engine.lengths import DraftLengths
from draftproof.engine.session import Session
from draftproof.errors import CapacityError, ConfigError

__all__ = ["RowPlan", "Scheduler", "SchedulerConfig"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a pass.

    Parameters
    ----------
    max_rows : int, default 32
        Most requests that run at once.
    prefill_chunk : int, default 256
        Most prompt tokens of one request in one pass.
    prefill_budget : int, default 512
        Prompt tokens of all requests in one pass; at least one chunk always goes.
    max_pass_tokens : int, optional
        Most tokens of a pass, drafts included; at least one row always goes. Rows that
        do not fit go first in the next pass. None sets no limit.
    max_row_tokens : int, optional
        Most tokens of a row past the prompt, drafts included. With it a row that is
        resumed reads what it had generated in rows of this width, its last token
        alone, and only pages of prompts are shared. None sets no limit.
    """

    max_rows: int = 32
    prefill_chunk: int = 256
    prefill_budget: int = 512
    max_pass_tokens: int | None = None
    max_row_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; expected at least 1")


#: The draft of a row until a drafter is asked.
_NO_DRAFT = Draft()


@dataclass(slots=True)
class RowPlan:
    """One row of the next pass.

    Parameters
    ----------
    session : Session
        Whose row it is.
    sequence_id : int
        Its sequence in the target.
    start : int
        Cached length, the position of the first pending token.
    pending : sequence of int
        Committed tokens the target has not seen yet, or a chunk of them.
    is_final : bool
        Whether the pending tokens reach the end, so that the row emits.
    kappa : int
        Most drafts, with slots reserved for them.
    is_shareable : bool
        Whether the tokens may be published for other requests once they are committed.
    coins : RoundCoins
        The coins of the round; drafter and verifier share the object.
    drafter : str
        Who is asked for drafts.
    draft : Draft or TreeDraft
        Filled in by the step.
    """

    session: Session
    sequence_id: int
    start: int
    pending: Sequence[int]
    is_final: bool
    kappa: int
    is_shareable: bool
    coins: RoundCoins
    drafter: str
    draft: Draft | TreeDraft = _NO_DRAFT


class Scheduler:
    """Waiting and running requests, and the pages they hold.

    Parameters
    ----------
    target : ModelBackend
        Where sequences are opened, reserved and closed.
    config : SchedulerConfig
        Limits of a pass.
    lengths : DraftLengths, optional
        Asks a policy how far rows draft, before anything is reserved.
    """

    def __init__(
        self, target: ModelBackend, config: SchedulerConfig, lengths: DraftLengths | None = None
    ) -> None:
        self._target = target
        self._config = config
        self._lengths = lengths
        self.waiting: list[Session] = []
        self.running: list[Session] = []
        self.num_preemptions = 0
        self._num_plans = 0

    def add(self, session: Session) -> None:
        """Queue a new request."""
        page = self._target.info.page_size
        session.prefix_keys = _prefix_keys(session.tokens, page) if page else ()
        insort(self.waiting, session, key=_arrival)

    def remove(self, session: Session) -> None:
        """Take a request out, wherever it is, and free its pages."""
        if session in self.running:
            self.running.remove(session)
        elif session in self.waiting:
            self.waiting.remove(session)
        self._close(session)

    def plan(self) -> tuple[list[RowPlan], list[tuple[Session, CapacityError]]]:
        """Choose the rows of the next pass and reserve their slots.

        Returns
        -------
        rows : list of RowPlan
            Rows to run, each with ``len(pending) + kappa`` slots reserved.
        failed : list of (Session, CapacityError)
            Requests that can never fit; the caller ends them.
        """
        rows: list[RowPlan] = []
        failed: list[tuple[Session, CapacityError]] = []
        budget = self._config.prefill_budget
        preempted_before = self.num_preemptions
        self._num_plans += 1
        self._choose_lengths()
        for session in sorted(self.running, key=_order):
            if session.sequence_id is None:
                continue  # preempted for a row before it
            row = self._row(session)
            if not self._fits(row, rows) or (len(row.pending) > 1 and budget <= 0):
                continue
            if self._reserve(row, rows, failed):
                budget -= len(row.pending) if len(row.pending) > 1 else 0
                session.last_plan = self._num_plans
                rows.append(row)
        if self.num_preemptions > preempted_before:
            return rows, failed  # pages are short: nobody new enters in this pass
        while budget > 0 and len(self.running) < self._config.max_rows:
            session_or_none = self._next_waiting()
            if session_or_none is None or not self._has_room(session_or_none, rows):
                break
            admitted = self._admit(session_or_none, failed)
            if admitted is None:
                break
            budget -= len(admitted.pending)
            session_or_none.last_plan = self._num_plans
            rows.append(admitted)
        return rows, failed

    def _choose_lengths(self) -> None:
        """Let the policy choose for the rows that decode; the limits stay above it."""
        if self._lengths is None:
            return
        decoding = []
        for session in sorted(self.running, key=_order):
            if session.sequence_id is None or not session.num_generated:
                continue
            cached = self._target.length(session.sequence_id)
            if self._cut(session, cached) == len(session.tokens):
                decoding.append((session, cached))
        self._lengths.choose(decoding)

    def _fits(self, row: RowPlan, planned: Sequence[RowPlan]) -> bool:
        limit = self._config.max_pass_tokens
        if limit is None or not planned:
            return True
        return _num_tokens(planned) + _num_tokens([row]) <= limit

    def _has_room(self, session: Session, planned: Sequence[RowPlan]) -> bool:
        """Whether the next chunk of a waiting request would fit into the pass."""
        limit = self._config.max_pass_tokens
        if limit is None or not planned:
            return True
        longest = self._config.prefill_chunk + session.kappa_for_round()
        return _num_tokens(planned) + longest <= limit

    def _cut(self, session: Session, start: int) -> int:
        """Return where the next chunk ends: a function of the request and the place."""
        chunk = self._config.prefill_chunk
        boundary = (start // chunk + 1) * chunk
        width = self._config.max_row_tokens
        if width is None:
            return min(len(session.tokens), boundary)
        if start < session.num_prompt_tokens:
            return min(session.num_prompt_tokens, boundary)
        return max(start + 1, min(len(session.tokens) - 1, start + width))

    def _row(self, session: Session) -> RowPlan:
        """Cut the next chunk of a running session."""
        assert session.sequence_id is not None  # narrows the type
        start = self._target.length(session.sequence_id)
        end = self._cut(session, start)
        is_final = end == len(session.tokens)
        kappa = session.kappa_for_round() if is_final else 0
        is_prompt = start < session.num_prompt_tokens
        return RowPlan(
            session=session,
            sequence_id=session.sequence_id,
            start=start,
            pending=session.tokens[start:end],
            is_final=is_final,
            kappa=kappa,
            is_shareable=is_prompt or self._config.max_row_tokens is None,
            coins=session.coins.round(len(session.tokens)),
            drafter=session.drafter,
        )

    def _reserve(
        self,
        row: RowPlan,
        planned: list[RowPlan],
        failed: list[tuple[Session, CapacityError]],
    ) -> bool:
        """Reserve a row's slots, taking pages from younger requests if need be."""
        while not self._target.reserve(row.sequence_id, len(row.pending) + row.kappa):
            youngest = max(self.running, key=_arrival)
            if youngest is not row.session:
                self._preempt(youngest)
                planned[:] = [plan for plan in planned if plan.session is not youngest]
            elif len(self.running) > 1:
                self._preempt(youngest)
                return False
            elif row.kappa:
                row.kappa = 0  # alone and short of pages: plain decoding still fits
            else:
                failed.append((row.session, _too_long(row.session)))
                return False
        return True

    def _admit(
        self, session: Session, failed: list[tuple[Session, CapacityError]]
    ) -> RowPlan | None:
        """Open a waiting request if all its tokens and one round of drafts fit.

        With nothing else running its tokens are enough: plain decoding still fits.
        """
        session.sequence_id = self._target.open(session.tokens)
        row = self._row(session)
        room = len(session.tokens) - row.start
        if not self._target.reserve(row.sequence_id, room + session.kappa_for_round()):
            if self.running or not self._target.reserve(row.sequence_id, room):
                self._close(session)
                if not self.running:
                    failed.append((session, _too_long(session)))
                return None
            row.kappa = 0
        self.waiting.remove(session)
        self.running.append(session)
        return row

    def _next_waiting(self) -> Session | None:
        """Return the oldest request that need not wait for a shared prefix.

        While another request computes pages that this one would share, waiting one
        pass is cheaper than computing them twice.
        """
        for session in self.waiting:
            if not session.prefix_keys:
                return session  # nothing of it can be shared
            if not any(self._is_computing_prefix_of(other, session) for other in self.running):
                return session
        return None

    def _is_computing_prefix_of(self, other: Session, session: Session) -> bool:
        if other.sequence_id is None or other.num_generated or not session.prefix_keys:
            return False
        # Keys are chained: where one page agrees, all before it do.
        page = self._target.length(other.sequence_id) // self._target.info.page_size
        key = other.prefix_keys[page : page + 1]
        return bool(key) and key == session.prefix_keys[page : page + 1]

    def _preempt(self, session: Session) -> None:
        self.num_preemptions += 1
        self.running.remove(session)
        session.choice = RowChoice(0)  # of a round that does not come
        self._close(session)
        insort(self.waiting, session, key=_arrival)

    def _close(self, session: Session) -> None:
        if session.sequence_id is not None:
            self._target.close(session.sequence_id)
            session.sequence_id = None


def _arrival(session: Session) -> int:
    return session.arrival


def _order(session: Session) -> tuple[bool, int, int]:
    """Order of planning: decode before prefill, who waited longest, then arrival."""
    return session.num_generated == 0, session.last_plan, session.arrival


def _num_tokens(rows: Sequence[RowPlan]) -> int:
    return sum(len(row.pending) + row.kappa for row in rows)


def _too_long(session: Session) -> CapacityError:
    return CapacityError(
        f"request {session.request_id} needs slots for {len(session.tokens) + 1} tokens; "
        "the KV cache is smaller than that even with nothing else running"
    )


def _prefix_keys(tokens: Sequence[int], page_size: int) -> tuple[int, ...]:
    """Return one chained key per full page of a prompt."""
    keys: list[int] = []
    parent = 0
    for begin in range(0, len(tokens) - page_size, page_size):
        parent = hash((parent, *tokens[begin : begin + page_size]))
        keys.append(parent)
    return tuple(keys)
