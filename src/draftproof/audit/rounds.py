"""Rounds of a decoder over tables of laws, and the joint law of what they emit.

A round is a function of the tables, the committed context, the number of drafts and
coins. Coins that branch (`draftproof.testing.branching`) turn it into its exact law;
coins of `draftproof.core.rng` turn the same round into draws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from draftproof.audit.table_law import items_of, most_probable
from draftproof.core.law import Law
from draftproof.core.types import Draft
from draftproof.errors import ConfigError
from draftproof.testing.branching import BranchingCoins, outcomes
from draftproof.verify import AllowLossy, verify

__all__ = [
    "Prefix",
    "Round",
    "RoundFunction",
    "RoundLaws",
    "Tables",
    "argmax_draft",
    "close",
    "decode_law",
    "one_round",
    "plain_law",
    "raced_draft",
    "round_laws",
    "sampled_draft",
    "shipped",
    "shipped_round",
]

Prefix = tuple[int, ...]
JointTable = dict[Prefix, Any]


@dataclass(frozen=True)
class Tables:
    """Target and drafter as functions of the text after the prompt.

    Parameters
    ----------
    name : str
        Name shown to people.
    vocab_size : int
        Number of token ids.
    target : callable of tuple of int
        The law that plain decoding draws from after a prefix. Memoised by the maker
        where that is worth it.
    draft : callable of tuple of int
        The law that drafts are drawn from; one-hot for a deterministic drafter.
    eos_token_ids : frozenset of int
        Tokens that end the text.
    """

    name: str
    vocab_size: int
    target: Callable[[Prefix], Law]
    draft: Callable[[Prefix], Law]
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Round:
    """What a round emitted, and the context that the next one will condition on.

    Parameters
    ----------
    emitted : tuple of int
        New tokens.
    context : tuple of int
        All tokens that the model sees next; a right round appends what it emitted.
    num_accepted : int
        Drafts that were kept.
    """

    emitted: Prefix
    context: Prefix
    num_accepted: int


#: (tables, context, kappa, coins) -> Round
RoundFunction = Callable[[Tables, Prefix, int, Any], Round]


def sampled_draft(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Draft:
    """Draw each draft from the drafter's law with its own coin."""
    tokens: Prefix = ()
    laws = []
    for i in range(kappa):
        laws.append(tables.draft(context + tokens))
        tokens += (laws[-1].draw(coins.draft(i)),)
    return Draft(tokens, tuple(laws), "sampled")


def raced_draft(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Draft:
    """Draw each draft by a race over the noise of its position."""
    tokens: Prefix = ()
    laws = []
    for i in range(kappa):
        laws.append(tables.draft(context + tokens))
        tokens += (laws[-1].race(coins.noise(i, tables.vocab_size)),)
    return Draft(tokens, tuple(laws), "raced")


def argmax_draft(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Draft:  # noqa: ARG001
    """Take the drafter's most probable tokens: deterministic, so no laws are given."""
    tokens: Prefix = ()
    for _ in range(kappa):
        tokens += (most_probable(tables.draft(context + tokens))[0],)
    return Draft(tokens, None, "argmax")


def close(context: Prefix, tokens: Prefix, num_accepted: int, last: int) -> Round:
    """Return the round that keeps some drafts and adds one token."""
    emitted = (*tokens[:num_accepted], last)
    return Round(emitted, context + emitted, num_accepted)


def shipped_round(
    rule: str | AllowLossy,
    propose: Callable[..., Draft],
    tables: Tables,
    context: Prefix,
    kappa: int,
    coins: Any,
) -> Round:
    """Play one round of a shipped rule; see `shipped`."""
    draft = propose(tables, context, kappa, coins)
    verdict = verify(rule, draft, lambda j: tables.target(context + draft.token_ids[:j]), coins)
    return close(context, draft.token_ids, verdict.num_accepted, verdict.token_id)


def shipped(rule: str | AllowLossy, propose: Callable[..., Draft] = sampled_draft) -> RoundFunction:
    """Return the round of a rule as the engine runs it.

    Parameters
    ----------
    rule : str or AllowLossy
        A name of ``draftproof.verify.RULES``, or a lossy rule.
    propose : callable, default sampled_draft
        The drafter.

    Returns
    -------
    RoundFunction
        The round.
    """
    return partial(shipped_round, rule, propose)


def one_round(
    tables: Tables, play: RoundFunction, context: Prefix, kappa: int
) -> list[tuple[Any, Round]]:
    """Return every path of one round with fresh coins and its probability."""
    return outcomes(
        lambda brancher: play(tables, context, kappa, BranchingCoins(brancher).round(len(context)))
    )


@dataclass(frozen=True)
class RoundLaws:
    """What one round does, without the tokens.

    Parameters
    ----------
    accepted : dict of int to float
        Law of the number of kept drafts.
    emitted : dict of int to float
        Law of the number of tokens that the round commits.
    """

    accepted: dict[int, float]
    emitted: dict[int, float]

    @property
    def mean_accepted(self) -> float:
        """Mean number of kept drafts."""
        return sum(count * prob for count, prob in self.accepted.items())

    @property
    def mean_emitted(self) -> float:
        """Mean number of committed tokens: tokens per pass."""
        return sum(count * prob for count, prob in self.emitted.items())


def round_laws(tables: Tables, play: RoundFunction, kappa: int, context: Prefix = ()) -> RoundLaws:
    """Return how many drafts a round keeps and how many tokens it commits.

    Parameters
    ----------
    tables : Tables
        Target and drafter.
    play : RoundFunction
        The round.
    kappa : int
        Drafts of the round.
    context : tuple of int
        Text before it.

    Returns
    -------
    RoundLaws
        Before any stop cuts the round.
    """
    accepted: defaultdict[int, float] = defaultdict(float)
    emitted: defaultdict[int, float] = defaultdict(float)
    for prob, played in one_round(tables, play, context, kappa):
        accepted[played.num_accepted] += float(prob)
        emitted[len(played.emitted)] += float(prob)
    return RoundLaws(dict(accepted), dict(emitted))


def decode_law(
    tables: Tables,
    play: RoundFunction,
    kappa: int,
    horizon: int,
    *,
    max_speculative_rounds: int | None = None,
    tail: Callable[[Law], Law] = lambda law: law,
    whole_blocks: bool = False,
) -> JointTable:
    """Return the joint law of the first tokens of a decoder.

    Parameters
    ----------
    tables : Tables
        Target and drafter.
    play : RoundFunction
        The round that it plays.
    kappa : int
        Most drafts of a round; never more than the tokens that are left, less one.
    horizon : int
        Tokens of the text.
    max_speculative_rounds : int, optional
        Rounds that draft; later tokens are plain. None for all.
    tail : callable of Law
        What plain tokens are drawn from, given the target's law.
    whole_blocks : bool, default False
        Whether a round drafts ``kappa`` tokens even where fewer are left, and is cut.

    Returns
    -------
    dict of tuple of int to number
        Probability of each text, cut at end tokens.

    Notes
    -----
    Coins are keyed by the round, so rounds are independent given their context, and
    states are pooled by (text, context).
    """
    if kappa < 0 or horizon < 1:
        raise ConfigError(f"kappa {kappa}, horizon {horizon}: expected 0 or more, 1 or more")
    ends = tables.eos_token_ids

    @cache
    def paths(context: Prefix, width: int) -> list[tuple[Any, Prefix, Prefix]]:
        pooled: defaultdict[tuple[Prefix, Prefix], Any] = defaultdict(int)
        for prob, played in one_round(tables, play, context, width):
            pooled[played.emitted, played.context] += prob
        return [(prob, emitted, after) for (emitted, after), prob in pooled.items()]

    def plain(context: Prefix) -> list[tuple[Any, Prefix, Prefix]]:
        drawn = items_of(tail(tables.target(context)))
        return [(prob, (token,), (*context, token)) for token, prob in drawn if prob > 0]

    done: defaultdict[Prefix, Any] = defaultdict(int)
    open_states: list[defaultdict[tuple[Prefix, Prefix, int], Any]]
    open_states = [defaultdict(int) for _ in range(horizon)]
    open_states[0][(), (), 0] = 1
    for length in range(horizon):
        while open_states[length]:
            (text, context, rounds), mass = open_states[length].popitem()
            width = kappa if whole_blocks else min(kappa, horizon - length - 1)
            if max_speculative_rounds is not None and rounds >= max_speculative_rounds:
                width = 0
            for prob, emitted, after in paths(context, width) if width else plain(context):
                longer = _cut((*text, *emitted)[:horizon], ends)
                if len(longer) == horizon or (longer and longer[-1] in ends):
                    done[longer] += mass * prob
                else:
                    open_states[len(longer)][longer, after, rounds + (width > 0)] += mass * prob
    return dict(done)


def plain_law(tables: Tables, horizon: int) -> JointTable:
    """Return the joint law of the first tokens without speculation."""
    return decode_law(tables, shipped("standard"), 0, horizon)


def _cut(text: Prefix, ends: frozenset[int]) -> Prefix:
    for place, token in enumerate(text):
        if token in ends:
            return text[: place + 1]
    return text
