"""The catalogue of wrong rules, each as a law that can be enumerated.

Every entry is something that engines have shipped. It names a rule with one piece
exchanged (`draftproof.audit.wrong_rounds`), a parameter where the fault has a size,
and the grid that a diagnosis tries. Rounding alone (drafts drawn in bfloat16 and
scored in float32) is missing: its bias of 5e-4 needs 3e7 draws, so no law tells it;
compare the drafter's draws with its reported law on the same coins instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from draftproof.audit.fault import Fault
from draftproof.audit.rounds import RoundFunction, argmax_draft, shipped
from draftproof.audit.table_law import bend, most_probable
from draftproof.audit.wrong_rounds import (
    block_round,
    dropping_draft,
    favourite_zeroed,
    filtered,
    filtered_draft,
    greedy_round,
    kept_tail_round,
    no_bonus_round,
    noisy_residual_round,
    other_coin_draft,
    phantom_round,
    power,
    timid_round,
    token_round,
    top_mass,
    unclamped,
)
from draftproof.audit.wrong_siblings import by_confidence, sibling_round, walk_round
from draftproof.core.law import Law
from draftproof.errors import ConfigError
from draftproof.verify import AcceptThreshold, AllowLossy, TypicalAcceptance

__all__ = ["EXACT", "FAULTS", "fault_named"]

_TEMPERATURES = (0.5, 0.7, 0.85, 1.2, 1.5, 2.0)
_MASSES = (0.5, 0.7, 0.8, 0.9, 0.95)
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)


def _fixed(play: RoundFunction) -> Callable[[float], RoundFunction]:
    return lambda _: play


def _cool(temperature: float, law: Law) -> Law:
    return power(law, 1 / temperature)


def _zero_rejected(p: Law, q: Law, token: int) -> Law:  # noqa: ARG001
    return bend(p, lambda other, prob: 0 if other == token else prob)


def _target_again(p: Law, q: Law, token: int) -> Law:  # noqa: ARG001
    return p


def _only_best(_: float, law: Law) -> Law:
    return filtered(law, 1)


#: The rule with nothing exchanged.
EXACT = Fault("exact", "standard", _fixed(shipped("standard")))

#: All known faults.
FAULTS: tuple[Fault, ...] = (
    # Ratio and residual.
    Fault("target drawn again on reject", "standard", _fixed(token_round(residual=_target_again))),
    Fault("residual not clamped", "standard", _fixed(token_round(residual=unclamped))),
    Fault(
        "residual zeroes the drafter's favourite",
        "standard",
        _fixed(token_round(residual=favourite_zeroed)),
    ),
    Fault(
        "residual zeroes only the rejected draft",
        "standard",
        _fixed(token_round(residual=_zero_rejected)),
    ),
    Fault(
        "lenience",
        "standard",
        lambda share: token_round(lenience=share),
        "lenience",
        0.9,
        _SHARES,
    ),
    Fault(
        "lenience, target drawn again on reject",
        "standard",
        lambda share: token_round(lenience=share, residual=_target_again),
        "lenience",
        0.9,
        _SHARES,
    ),
    Fault("first draft unchecked", "standard", _fixed(token_round(first_checked=1))),
    Fault("greedy verification", "standard", _fixed(greedy_round), tail=_only_best),
    Fault(
        "accepted above a threshold of p",
        "standard",
        lambda bar: shipped(AllowLossy(AcceptThreshold(single=bar))),
        "threshold",
        0.4,
        (0.2, 0.3, 0.4, 0.5, 0.6, 0.8),
        is_continuous=False,
    ),
    Fault(
        "accepted by p over a threshold",
        "standard",
        lambda share: shipped(AllowLossy(AcceptThreshold(acc=share))),
        "threshold",
        0.8,
        _SHARES,
    ),
    Fault(
        "typical acceptance",
        "standard",
        lambda epsilon: shipped(AllowLossy(TypicalAcceptance(epsilon=epsilon))),
        "epsilon",
        0.3,
        (0.05, 0.1, 0.3, 0.5),
        is_continuous=False,
    ),
    # The wrong law on one side.
    Fault(
        "q scored at another temperature",
        "standard",
        lambda t: token_round(scored=partial(_cool, t)),
        "temperature",
        0.5,
        _TEMPERATURES,
    ),
    Fault(
        "p judged at another temperature",
        "standard",
        lambda t: token_round(judged=partial(_cool, t)),
        "temperature",
        0.5,
        _TEMPERATURES,
    ),
    Fault(
        "target at another temperature throughout",
        "standard",
        lambda t: token_round(judged=partial(_cool, t), bonus=partial(_cool, t)),
        "temperature",
        0.5,
        _TEMPERATURES,
        tail=_cool,
    ),
    Fault(
        "bonus at another temperature",
        "standard",
        lambda t: token_round(bonus=partial(_cool, t)),
        "temperature",
        0.5,
        _TEMPERATURES,
    ),
    Fault(
        "draft cut by top-k, scored whole",
        "standard",
        lambda count: token_round(propose=filtered_draft(lambda q: filtered(q, int(count)))),
        "top_k",
        2,
        (2, 3, 4),
        is_continuous=False,
    ),
    Fault(
        "draft cut by top-p, scored whole",
        "standard",
        lambda mass: token_round(propose=filtered_draft(lambda q: top_mass(q, mass))),
        "top_p",
        0.8,
        _MASSES,
        is_continuous=False,
    ),
    Fault(
        "draft drawn whole, scored cut by top-p",
        "standard",
        lambda mass: token_round(scored=lambda q: top_mass(q, mass)),
        "top_p",
        0.8,
        _MASSES,
        is_continuous=False,
    ),
    Fault(
        "target cut by top-p in verification only",
        "standard",
        lambda mass: token_round(judged=lambda p: top_mass(p, mass)),
        "top_p",
        0.8,
        _MASSES,
        is_continuous=False,
    ),
    Fault("argmax scored as sampled", "standard", _fixed(token_round(propose=argmax_draft))),
    Fault(
        "unlikely drafts dropped after the draw",
        "standard",
        lambda bar: token_round(propose=dropping_draft(bar)),
        "bar",
        0.3,
        (0.1, 0.2, 0.3, 0.4, 0.5),
        is_continuous=False,
    ),
    # Rows, texts, lengths.
    Fault(
        "row of the position before",
        "standard",
        _fixed(token_round(row=lambda j: max(j - 1, 0))),
        min_kappa=1,
    ),
    Fault(
        "bonus from the row before",
        "standard",
        _fixed(token_round(bonus_row=lambda j: max(j - 1, 0))),
    ),
    Fault("tail kept after a rejection", "standard", _fixed(kept_tail_round), min_kappa=2),
    Fault("rejected token stays in the history", "standard", _fixed(phantom_round), shows="texts"),
    Fault("bonus missing", "standard", _fixed(no_bonus_round), shows="length"),
    Fault("matching in place of the ratio", "standard", _fixed(timid_round), shows="length"),
    # One coin for two things.
    Fault(
        "one coin drafts and accepts",
        "standard",
        _fixed(token_round(accept_coin=lambda coins, i: coins.draft(i))),
    ),
    Fault(
        "one coin accepts and recovers",
        "standard",
        _fixed(token_round(residual_coin=lambda coins, i: coins.accept(i))),
    ),
    Fault(
        "one coin drafts and recovers",
        "standard",
        _fixed(token_round(propose=other_coin_draft("sample"))),
    ),
    Fault("draft noise races the residual", "standard", _fixed(noisy_residual_round)),
    # Block verification.
    Fault(
        "block stops at the first failure",
        "block",
        _fixed(block_round(stop_at_failure=True)),
        min_kappa=2,
    ),
    Fault(
        "block draws the token residual",
        "block",
        _fixed(block_round(token_residual=True)),
        min_kappa=2,
    ),
    Fault("block takes P for h", "block", _fixed(block_round(weight_as_bar=True)), min_kappa=2),
    Fault("block counts padding", "block", _fixed(block_round(padded=True))),
    Fault(
        "block shares one coin",
        "block",
        _fixed(block_round(coin=lambda coins, i: coins.accept(0))),  # noqa: ARG005
        min_kappa=3,
    ),
    # Siblings.
    Fault("q zeroed before the residual", "tree", _fixed(sibling_round(2, drop="before"))),
    Fault("siblings sorted by q", "tree", _fixed(sibling_round(2, arrange=by_confidence))),
    Fault(
        "siblings judged as drawn with replacement",
        "tree",
        _fixed(sibling_round(3, drop="never")),
    ),
    Fault(
        "sampled siblings pruned by confidence",
        "tree",
        _fixed(sibling_round(2, arrange=lambda tokens, q: by_confidence(tokens, q)[:1])),
    ),
    Fault(
        "walk over a candidate listed twice",
        "tree",
        _fixed(walk_round(lambda q, coins: most_probable(q) * 2)),  # noqa: ARG005
    ),
    Fault(
        "walk over candidates drawn twice",
        "tree",
        _fixed(walk_round(lambda q, coins: [q.draw(coins.draft(0)), q.draw(coins.draft(1))])),
    ),
)


def fault_named(name: str, faults: Collection[Fault] = FAULTS) -> Fault:
    """Return a fault of the catalogue.

    Parameters
    ----------
    name : str
        Its name, or ``"exact"``.
    faults : collection of Fault, optional
        Where to look.

    Returns
    -------
    Fault
        The entry.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    for fault in (EXACT, *faults):
        if fault.name == name:
            return fault
    known = ", ".join(fault.name for fault in faults)
    raise ConfigError(f"fault {name!r}: expected one of {known}")
