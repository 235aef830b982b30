"""Ask a policy how far each row drafts, and let nothing of it harm a request.

What a policy learns is what finished rounds committed. Coins that two requests share
would tell it, through the one that is ahead, what the other is about to draw: a choice
that follows the drafts it decides about bends the law. So a request whose lengths are
chosen has coins of its own.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from draftproof.core.kappa_policy import KappaPolicy, RowChoice, RowState
from draftproof.core.rng import seed_beside
from draftproof.core.types import StepRecord
from draftproof.engine.session import Session
from draftproof.errors import InvariantError

if TYPE_CHECKING:
    from draftproof.engine.step import Clock

__all__ = ["DraftLengths"]

#: Stands before the number of a request where tokens would stand; no token is negative.
_CHOSEN = -1


class DraftLengths:
    """The engine's side of a `KappaPolicy`.

    Parameters
    ----------
    policy : KappaPolicy
        Chooses and learns.
    clock : Clock
        Where its time is added.
    """

    def __init__(self, policy: KappaPolicy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._asked: set[str] = set()
        self._failed: set[str] = set()
        self._seeds: Counter[tuple[int, int]] = Counter()

    def own_seed(self, seed: int, stream: int) -> int:
        """Return a seed of coins that no other request has while anything is remembered.

        Parameters
        ----------
        seed, stream : int
            What the request asked for; several may ask for the same.

        Returns
        -------
        int
            The n-th request of a seed always gets the same one.
        """
        key = (seed % 2**64, stream)
        number = self._seeds[key]
        self._seeds[key] += 1
        return seed_beside(seed, (_CHOSEN, number))

    def choose(self, decoding: Sequence[tuple[Session, int]]) -> None:
        """Fix the choices of the next pass, before slots are reserved or drafts drawn.

        Parameters
        ----------
        decoding : sequence of (Session, int)
            Rows that decode, with their cached tokens. Those with a length of their own
            are told to the policy as rows that may not draft.
        """
        self._asked.clear()
        followers = [session for session, _cached in decoding if session.follows_policy]
        for session in followers:
            session.choice = RowChoice(0)
        if not followers:
            return
        rows = [_state(session, cached) for session, cached in decoding]
        with self._guarded(followers):
            choices = self._policy.choose(rows)
            _check(choices, rows)
            for (session, _cached), choice in zip(decoding, choices, strict=True):
                session.choice = choice
            self._asked.update(row.request_id for row in rows)

    def observe(self, session: Session, record: StepRecord) -> None:
        """Report a finished round of a row that the policy was asked about."""
        if record.request_id in self._asked:
            self._asked.remove(record.request_id)
            with self._guarded([session]):
                self._policy.observe(record)

    def release(self, session: Session, *, is_last: bool) -> None:
        """Forget a request that ended; after the last one everything, as between calls."""
        with self._guarded([session]):
            self._policy.release(session.request_id)
        self._failed.discard(session.request_id)
        if is_last:
            with self._guarded([session]):
                self._policy.reset()
            self._seeds.clear()
            self._failed.clear()

    @contextmanager
    def _guarded(self, sessions: Sequence[Session]) -> Iterator[None]:
        """Add the time; turn a failure into a note on each request that it concerns."""
        begin = perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001  a policy may fail; decoding goes on
            for session in sessions:
                if session.request_id not in self._failed:
                    self._failed.add(session.request_id)
                    session.add_note(
                        f"the policy of draft lengths failed: {error!r}; rounds that it does "
                        "not choose for draft nothing"
                    )
        finally:
            self._clock.policy_s += perf_counter() - begin


def _state(session: Session, cached: int) -> RowState:
    if not session.follows_policy:
        return RowState(session.request_id, cached, 0)
    most = max(session.most_for_round(), 0)
    return RowState(session.request_id, cached, most, session.choosable)


def _check(choices: Sequence[RowChoice], rows: Sequence[RowState]) -> None:
    """Refuse an answer that is no choice for these rows."""
    if len(choices) != len(rows):
        raise InvariantError(f"{len(choices)} choices, expected {len(rows)}")
    for choice, row in zip(choices, rows, strict=True):
        if operator.index(choice.kappa) > row.max_kappa:
            raise InvariantError(f"{choice.kappa} drafts chosen, expected at most {row.max_kappa}")
        if choice.kappa and choice.proposer not in row.proposers:
            raise InvariantError(
                f"drafter {choice.proposer!r} chosen, expected one of {row.proposers}"
            )
