"""Ask a policy how far each row drafts, and let nothing of it harm a request.

What a policy learns is what finished rounds committed. Coins that two requests share
would tell it, through the one that is ahead, what the other is about to draw: a choice
that follows the drafts it decides about bends the law. So a request whose lengths are
chosen has coins of its own.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from draftproof.core.kappa_policy import KappaPolicy, RowChoice, RowState
from draftproof.core.protocols import Foreteller, Proposer
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
        Where its time is added; that of drafters that are asked beforehand is drafting.
    proposers : mapping of str to Proposer
        Drafters by name. Those that can tell beforehand how well they could draft are asked.
    """

    def __init__(
        self, policy: KappaPolicy, clock: Clock, proposers: Mapping[str, Proposer]
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._tellers = {
            name: held for name, held in proposers.items() if isinstance(held, Foreteller)
        }
        self._asked: set[str] = set()
        self._failed: set[str] = set()
        self._seeds: Counter[tuple[int, int]] = Counter()

    @classmethod
    def of(
        cls, policy: KappaPolicy | None, clock: Clock, proposers: Mapping[str, Proposer]
    ) -> DraftLengths | None:
        """Return the side of a policy; None where there is no policy."""
        return None if policy is None else cls(policy, clock, proposers)

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
        rows = [self._state(session, cached) for session, cached in decoding]
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

    def _state(self, session: Session, cached: int) -> RowState:
        if not session.follows_policy:
            return RowState(session.request_id, cached, 0, remaining=session.num_remaining)
        most = max(session.most_for_round(), 0)
        # A grammar drafts by itself, which the silence of a drafter must not prevent.
        is_told = most and self._tellers and session.constraint is None
        signs = self._signs(session) if is_told else ()
        left = session.num_remaining
        return RowState(session.request_id, cached, most, session.choosable, signs, left)

    def _signs(self, session: Session) -> tuple[int, ...]:
        """Ask drafters how well they could draft; one that fails tells nothing."""
        begin = perf_counter()
        signs = []
        for name in session.choosable:
            teller = self._tellers.get(name)
            try:
                signs.append(-1 if teller is None else _sign_of(teller, session))
            except Exception:  # noqa: BLE001  it may fail; drafting then leaves the note
                signs.append(-1)
        self._clock.draft_s += perf_counter() - begin
        return tuple(signs)

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


def _sign_of(teller: Foreteller, session: Session) -> int:
    sign = operator.index(teller.foretell(session.request_id, session.tokens))
    if not -1 <= sign <= 3:
        raise InvariantError(f"a sign of {sign}, expected -1 to 3")
    return sign


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
