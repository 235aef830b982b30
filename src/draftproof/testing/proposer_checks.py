"""The promises of ``Proposer``, one check each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest, Proposer
from draftproof.core.rng import CoinSource, RoundCoins
from draftproof.testing.drafts import (
    AnyDraft,
    certain_paths,
    difference,
    kept_tokens,
    laws_of,
    redrawn,
)
from draftproof.testing.report import ConformanceError, Skipped

__all__ = ["PROPOSER_CHECKS", "ProposerBench", "ProposerCheck", "Script"]

#: Distance of the coins from a step of a law; far above the rounding of a float64 sum.
_EDGE = 1e-9

#: Most steps of one law that are tried.
_NUM_EDGES = 32


@dataclass(slots=True)
class Script:
    """One request that a check drives by hand.

    Parameters
    ----------
    request_id : str
        Name of the request.
    prompt : sequence of int
        Its prompt.
    params : SamplingParams
        Its policy.
    seed : int
        Seed of its coins.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    seed: int
    tokens: list[int] = field(init=False)
    history: History = field(init=False)
    coins: CoinSource = field(init=False)

    def __post_init__(self) -> None:
        """Start with the prompt."""
        self.tokens = list(self.prompt)
        self.history = History(self.prompt)
        self.coins = CoinSource(self.seed)

    def request(self, kappa: int, *, coupled: bool = False) -> ProposalRequest:
        """Return what a drafter is told now."""
        return ProposalRequest(
            self.request_id,
            self.tokens,
            kappa,
            self.params,
            self.history,
            self.coins.round(len(self.tokens)),
            coupled,
        )

    def commit(self, token_ids: Sequence[int]) -> None:
        """Append committed tokens."""
        for token in token_ids:
            self.tokens.append(token)
            self.history.append(token)

    def copy(self, *, seed: int | None = None) -> Script:
        """Return the request as another process would see it: the same, from fresh objects."""
        other = Script(
            self.request_id, self.prompt, self.params, self.seed if seed is None else seed
        )
        other.commit(self.tokens[len(self.prompt) :])
        return other


@dataclass(slots=True)
class ProposerBench:
    """Makes drafters and scripts.

    Parameters
    ----------
    make_proposer : callable
        Returns a fresh drafter each time.
    vocab_size : int
        Size of the target's logits row.
    num_draws : int
        How many sampled drafts are replayed through their laws.
    tolerance : float
        Largest difference of two probabilities that should be equal.
    seed : int
        Seed of tokens and coins.
    policies : tuple of SamplingParams
        Policies to draft under.
    num_drafted : int
        Tokens drafted so far.
    notes : set of str
        Reasons given for drafting nothing.
    """

    make_proposer: Callable[[], Proposer]
    vocab_size: int
    num_draws: int
    tolerance: float
    seed: int
    policies: tuple[SamplingParams, ...]
    num_drafted: int = 0
    notes: set[str] = field(default_factory=set)
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        """Start the stream of tokens."""
        self.rng = np.random.default_rng(self.seed)

    def tokens(self, count: int) -> list[int]:
        """Return tokens with many repeats, so that every kind of drafter finds some."""
        few = self.rng.integers(0, self.vocab_size, max(2, count // 4))
        drawn: list[int] = few[self.rng.integers(0, len(few), count)].tolist()
        return drawn

    def script(self, name: str, count: int, policy: int = 0) -> Script:
        """Return a new request with a random prompt."""
        params = self.policies[policy % len(self.policies)]
        return Script(name, self.tokens(count), params, int(self.rng.integers(2**62)))

    def propose(self, proposer: Proposer, requests: Sequence[ProposalRequest]) -> list[AnyDraft]:
        """Draft, and check what holds for every draft.

        Raises
        ------
        ConformanceError
            If drafts are missing, too long or out of range, or laws do not fit.
        """
        texts = [list(request.token_ids) for request in requests]
        drafts = list(proposer.propose(requests))
        if len(drafts) != len(requests):
            raise ConformanceError(f"{len(drafts)} drafts for {len(requests)} rows")
        for draft, request, text in zip(drafts, requests, texts, strict=True):
            if list(request.token_ids) != text:
                raise ConformanceError("the drafter changed the request's tokens")
            self.num_drafted += len(draft)
            self.notes |= {draft.note} - {""}
            if len(draft) > request.kappa:
                raise ConformanceError(f"{len(draft)} drafts, expected at most {request.kappa}")
            bad = [token for token in draft.token_ids if not 0 <= token < self.vocab_size]
            if bad:
                raise ConformanceError(f"drafted id {bad[0]}, expected 0 to {self.vocab_size - 1}")
            for law in laws_of(draft):
                if law.vocab_size != self.vocab_size:
                    raise ConformanceError(
                        f"law over {law.vocab_size} tokens, expected {self.vocab_size}"
                    )
        return drafts


ProposerCheck = Callable[[ProposerBench], None]


def drafts_fit_their_rows(bench: ProposerBench) -> None:
    """Draft for kappa from 1 to 8, for texts of one token and more, in one call."""
    proposer = bench.make_proposer()
    for policy in range(len(bench.policies)):
        scripts = [bench.script(f"{policy}-{n}", n, policy) for n in (1, 2, 3, 9, 30)]
        for kappa in range(1, 9):
            bench.propose(proposer, [script.request(kappa) for script in scripts])
            for script in scripts:
                script.commit(bench.tokens(1))
    if bench.propose(proposer, []) != []:
        raise ConformanceError("drafts came back for no rows")


def laws_are_those_drawn_from(bench: ProposerBench) -> None:
    """Push the same coins through the recorded laws: every draft comes out again.

    A law that is near the one drawn from, for example the same numbers at another
    precision, is not enough: one mismatch fails.
    """
    num_drawn = num_rounds = 0
    while num_drawn < bench.num_draws and num_rounds < bench.num_draws:
        proposer = bench.make_proposer()
        scripts = [bench.script(str(n), 4 + n, n) for n in range(2 * len(bench.policies))]
        for turn in range(16):
            coupled = turn % 2 == 1
            requests = [script.request(1 + turn % 5, coupled=coupled) for script in scripts]
            for script, request, draft in zip(
                scripts, requests, bench.propose(proposer, requests), strict=True
            ):
                _replay(request, draft)
                num_drawn += len(draft) if laws_of(draft) else 0
                script.commit([*kept_tokens(draft, turn % 4), *bench.tokens(1)])
            num_rounds += len(requests)
        for script in scripts:
            proposer.release(script.request_id)
    if num_drawn == 0:
        raise Skipped("no draft came with laws")


def laws_hold_at_their_edges(bench: ProposerBench) -> None:
    """Draw with coins just below and above the steps of a recorded law.

    Random coins meet a law that is off by 1e-4 once in ten thousand draws. Coins at the
    edges find a difference of 1e-9 in any step they try, so that a law drawn at one
    precision and reported at another does not pass (DI-5).
    """
    num_tried = 0
    for policy in range(len(bench.policies)):
        script, proposer = bench.script(str(policy), 12, policy), bench.make_proposer()
        draft = bench.propose(proposer, [script.request(1)])[0]
        if not laws_of(draft):
            continue
        steps = np.cumsum(laws_of(draft)[0].dense())
        inner = np.unique(steps[(steps > _EDGE) & (steps < 1 - _EDGE)])
        for step in bench.rng.permutation(inner)[:_NUM_EDGES].tolist():
            for coin in (step - _EDGE, step + _EDGE):
                coins = _ChosenCoins(script.coins, len(script.tokens), coin)
                request = replace(script.request(1), coins=coins)
                _replay(request, bench.propose(proposer, [request])[0])
                num_tried += 1
    if num_tried == 0:
        raise Skipped("no draft came with a law that has more than one token")


def drafts_without_laws_are_deterministic(bench: ProposerBench) -> None:
    """Change the coins only: drafts that come without laws must not change."""
    for policy in range(len(bench.policies)):
        script = bench.script("a", 30, policy)
        for turn in range(12):
            first = bench.propose(bench.make_proposer(), [script.copy().request(6)])[0]
            other = script.copy(seed=script.seed + 1 + turn)
            second = bench.propose(bench.make_proposer(), [other.request(6)])[0]
            if certain_paths(first) != certain_paths(second):
                raise ConformanceError(
                    f"drafts {first.token_ids} became {second.token_ids} with other coins, "
                    "where no laws say how they were drawn"
                )
            script.commit(bench.tokens(2))


def rounds_leave_no_trace(bench: ProposerBench) -> None:
    """After accepted, rejected, skipped and resumed rounds, draft as a fresh drafter does."""
    proposer = bench.make_proposer()
    script = bench.script("a", 20)
    for turn, accepted in enumerate((3, 4, 1, 0, 4, 2, 4, 4, 0, 0, 3, 1)):
        draft = bench.propose(proposer, [script.request(4)])[0]
        fresh = bench.propose(bench.make_proposer(), [script.copy().request(4)])[0]
        _expect_same(bench, draft, fresh, f"round {turn}")
        script.commit([*kept_tokens(draft, accepted), *bench.tokens(1)])
        if turn % 5 == 4:  # a stretch of plain decoding
            script.commit(bench.tokens(7))


def batch_equals_solo(bench: ProposerBench) -> None:
    """Draft for rows together, in changing order, and alone."""
    proposer = bench.make_proposer()
    scripts = [bench.script(str(n), 3 + 5 * n, n) for n in range(4)]
    for turn in range(6):
        order = [scripts[(turn + n) % 4] for n in range(4)][: 4 - turn % 2]
        drafts = bench.propose(proposer, [s.request(1 + turn) for s in order])
        for script, draft in zip(order, drafts, strict=True):
            solo = bench.propose(bench.make_proposer(), [script.copy().request(1 + turn)])[0]
            _expect_same(bench, draft, solo, f"row {script.request_id} in round {turn}")
        for script in scripts:
            script.commit(bench.tokens(1 + turn % 3))


def released_requests_leave_nothing(bench: ProposerBench) -> None:
    """Release a long request, then draft for a short one under the same name (NG-1)."""
    proposer = bench.make_proposer()
    long = bench.script("slot", 60)
    for _ in range(4):
        bench.propose(proposer, [long.request(5)])
        long.commit(bench.tokens(3))
    proposer.release("slot")
    short = bench.script("slot", 9)
    for turn in range(4):
        draft = bench.propose(proposer, [short.request(5)])[0]
        fresh = bench.propose(bench.make_proposer(), [short.copy().request(5)])[0]
        _expect_same(bench, draft, fresh, f"round {turn} after another request")
        short.commit(bench.tokens(2))
    proposer.release("slot")
    proposer.release("never heard of")


class _ChosenCoins(RoundCoins):
    """Coins whose draft coin is one given number."""

    __slots__ = ("_coin",)

    def __init__(self, source: CoinSource, start: int, coin: float) -> None:
        super().__init__(source, start)
        self._coin = coin

    def draft(self, i: int) -> float:
        """Return the chosen coin."""
        del i
        return self._coin


def _replay(request: ProposalRequest, draft: AnyDraft) -> None:
    for index, token, again in redrawn(request, draft):
        if again != token:
            raise ConformanceError(
                f"draft {index} is {token}, its law gives {again} for the same coin"
            )


def _expect_same(bench: ProposerBench, found: AnyDraft, expected: AnyDraft, what: str) -> None:
    apart = difference(found, expected)
    if apart:
        raise ConformanceError(f"{what}: {apart} of a fresh drafter")
    for mine, fresh in zip(laws_of(found), laws_of(expected), strict=True):
        gap = float(np.abs(mine.dense() - fresh.dense()).max())
        if not gap <= bench.tolerance:
            raise ConformanceError(
                f"{what}: a law is {gap:.3g} off a fresh drafter's, expected {bench.tolerance:.3g}"
            )


#: The checks of a drafter, in order.
PROPOSER_CHECKS: dict[str, ProposerCheck] = {
    check.__name__: check
    for check in (
        drafts_fit_their_rows,
        laws_are_those_drawn_from,
        laws_hold_at_their_edges,
        drafts_without_laws_are_deterministic,
        rounds_leave_no_trace,
        batch_equals_solo,
        released_requests_leave_nothing,
    )
}
