"""What happened in one round of one request: the evidence behind the counters.

A `StepRecord` says what a round drafted and kept. A `RoundTrace` also says why: how
probable target and drafter held each draft, the coin that decided, and where the seconds
of the pass went.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.core.types import TokenSource
from draftproof.errors import InvariantError

__all__ = ["RoundTrace"]


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round of one request.

    Drafts are numbered as the drafter drew them: the offset in a chain, the node of a
    tree. K is their number.

    Parameters
    ----------
    step : int
        Number of the engine's step, from 1; the rows of one step share it and its times.
    round : int
        Number of the round within its request, from 0. The first one follows the prompt
        and never drafts.
    start : int
        Absolute position of the first token that the round emits: that of draft 0.
    kappa : int
        Drafts that were asked for, 0 where the row could not draft.
    rule : str
        The rule that judged, ``"none"`` where nothing was drafted.
    drafter : str
        Who drafted, ``"none"`` where nothing was drafted.
    sources : tuple of str, length K
        Who made each draft: a part of a mixed drafter, ``"grammar"``, or ``drafter``.
    draft_ids : tuple of int, length K
        The drafts.
    parents : tuple of int, length K, optional
        Number of each draft's parent, -1 for the committed text. None for a chain.
    p : tuple of float or None, length K
        Probability of each draft under the target's law at its place: under the policy of
        the request, the history of that place and the grammar. None where the rule did
        not get to the place.
    q : tuple of float or None, length K
        Probability of each draft under the law it was drawn from; of a sibling in a tree,
        the law without the siblings that were drawn before it. None where the draft was
        certain.
    coins : tuple of float or None, length K
        The coin in [0, 1) that belongs to the acceptance of each draft that the rule got
        to. None for rules that accept without one (``coupled``, ``sample-match``,
        ``target-only``, ``typical``), and under a greedy policy, where coins decide
        nothing.
    path : tuple of int
        Numbers of the accepted drafts, first to last.
    committed : tuple of int
        Token ids that reached the text; fewer than were emitted where a stop cut them.
    token_id : int
        The token after the path.
    token_source : {"bonus", "recovered", "sampled", "accepted"}
        Where it came from; ``sampled`` where nothing was drafted. ``accepted`` is rare:
        the last accepted draft itself, where the target has no law after it, as behind
        the end of a grammar.
    token_p : float
        Probability of that token under the target's law at its place; of a recovered
        token this is not the residual's. NaN where an executor does not report it.
    batch : int
        Rows of the pass, those that read a prompt included.
    draft_s, target_s, verify_s, other_s : float
        Seconds of the whole step: drafting; the target's passes; laws and rules; stops,
        bookkeeping and caches.
    pass_tokens : int, default 0
        Tokens of the step's passes, over all rows; 0 where nobody counted.

    Raises
    ------
    InvariantError
        If the fields of the drafts differ in length.
    """

    step: int
    round: int
    start: int
    kappa: int
    rule: str
    drafter: str
    sources: tuple[str, ...]
    draft_ids: tuple[int, ...]
    parents: tuple[int, ...] | None
    p: tuple[float | None, ...]
    q: tuple[float | None, ...]
    coins: tuple[float | None, ...]
    path: tuple[int, ...]
    committed: tuple[int, ...]
    token_id: int
    token_source: TokenSource
    token_p: float
    batch: int
    draft_s: float
    target_s: float
    verify_s: float
    other_s: float
    pass_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse fields of another length, and paths to drafts that do not exist."""
        count = len(self.draft_ids)
        for name in ("sources", "parents", "p", "q", "coins"):
            held = getattr(self, name)
            if held is not None and len(held) != count:
                raise InvariantError(f"{count} drafts with {len(held)} {name}")
        if any(not 0 <= node < count for node in self.path):
            raise InvariantError(f"path {self.path} of {count} drafts; expected 0 to {count - 1}")

    @property
    def num_accepted(self) -> int:
        """Drafts that the rule kept."""
        return len(self.path) + (self.token_source == "accepted")

    @property
    def total_s(self) -> float:
        """Seconds of the whole step."""
        return self.draft_s + self.target_s + self.verify_s + self.other_s

    def depth_of(self, node: int) -> int:
        """Return how many drafts lie before one on its path."""
        if self.parents is None:
            return node
        depth = 0
        while (node := self.parents[node]) >= 0:
            depth += 1
        return depth
