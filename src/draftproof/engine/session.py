"""The state of one request between steps.

A session owns the committed tokens and everything derived from them. It is the
only mutable state of a request; rooms get values read from it, never the session.
"""

from __future__ import annotations

from draftproof.core.constraint import Constraint
from draftproof.core.kappa_policy import RowChoice
from draftproof.core.policy import History
from draftproof.core.rng import CoinSource
from draftproof.core.stats import SpecDecodeStats
from draftproof.core.types import Draft, TreeDraft
from draftproof.engine.request import GenerateRequest
from draftproof.engine.stopping import Stopper

__all__ = ["Session"]

#: A drafter that words its reason anew in every round must not fill the memory.
_MOST_REASONS = 8
#: What a policy has chosen before it is asked.
_NO_CHOICE = RowChoice(0)


class Session:
    """One request on its way through the engine.

    Invariant between steps: while the session runs and has generated a token, the
    target holds exactly ``len(tokens) - 1`` tokens of it; the last one is pending.

    Parameters
    ----------
    request : GenerateRequest
        The request, with its id and seed filled in.
    seed : int
        The seed in use.
    arrival : int
        Order of submission; a smaller number goes first.
    stopper : Stopper
        Its stop rules.
    kappa : int
        Most drafts per round, 0 for plain decoding.
    max_total_tokens : int
        Longest prompt plus output, from ``max_tokens`` and the context length.
    coins : CoinSource
        Its random numbers.
    constraint : Constraint, optional
        The state of its grammar.
    choosable : tuple of str
        Drafters among which a policy chooses in each round, with how far they draft, up
        to ``kappa``. Empty where the request's own drafter drafts ``kappa`` tokens.
    """

    def __init__(
        self,
        request: GenerateRequest,
        *,
        seed: int,
        arrival: int,
        stopper: Stopper,
        kappa: int,
        max_total_tokens: int,
        coins: CoinSource,
        constraint: Constraint | None = None,
        choosable: tuple[str, ...] = (),
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.params = request.params
        self.seed = seed
        self.arrival = arrival
        self.stopper = stopper
        self.kappa = kappa
        self.max_total_tokens = max_total_tokens
        self.tokens: list[int] = list(request.prompt_ids)
        self.history = History(request.prompt_ids)
        self.coins = coins
        self.constraint = constraint
        self.choosable = choosable
        #: What the policy chose for the next round; nothing until it is asked.
        self.choice = _NO_CHOICE
        self.stats = SpecDecodeStats()
        self.notes: list[str] = []
        #: Rules that judged a draft so far.
        self.rules: set[str] = set()
        self.sequence_id: int | None = None
        self.prefix_keys: tuple[int, ...] = ()
        #: Number of the last pass that had a row of this request.
        self.last_plan = 0
        self._num_asked = 0
        self._reasons: dict[str, int] = {}

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def num_generated(self) -> int:
        """Number of committed output tokens."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def num_remaining(self) -> int:
        """How many tokens may still be generated."""
        return self.max_total_tokens - len(self.tokens)

    @property
    def follows_policy(self) -> bool:
        """Whether a policy chooses the drafts of each round."""
        return bool(self.choosable)

    def most_for_round(self) -> int:
        """Return the most drafts that the limits leave to the next round.

        The smallest of the request's limit and the token budget less one: a round
        emits at most one token more than it drafts. The first round after a prompt
        drafts nothing, so that a cached prefix, which shortens the prefill, cannot
        change what is drafted.
        """
        if self.num_generated == 0:
            return 0
        return min(self.kappa, self.num_remaining - 1)

    def kappa_for_round(self) -> int:
        """Return the most drafts the next round may verify: limits and the policy's choice."""
        most = self.most_for_round()
        return min(most, self.choice.kappa) if self.follows_policy else most

    @property
    def drafter(self) -> str:
        """Name of the drafter of the next round."""
        return self.choice.proposer if self.follows_policy else self.request.proposer or "none"

    def add_note(self, note: str) -> None:
        """Keep a message for the user once."""
        if note not in self.notes:
            self.notes.append(note)

    def count_draft(self, draft: Draft | TreeDraft) -> None:
        """Count a round that asked the drafter, and its reason for drafting less."""
        self._num_asked += 1
        if draft.note and (draft.note in self._reasons or len(self._reasons) < _MOST_REASONS):
            self._reasons[draft.note] = self._reasons.get(draft.note, 0) + 1

    def close_notes(self) -> None:
        """Add what is known at the end: how often a drafter was silent, and why."""
        rounds = f"{self._num_asked} round{'s' * (self._num_asked != 1)}"
        if self._num_asked and not self.stats.num_drafts:
            self.add_note(f"drafter {self.request.proposer} never drafted in {rounds}")
        for reason, times in self._reasons.items():
            self.add_note(f"{reason} (in {times} of {rounds})")
