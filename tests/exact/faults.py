"""Wrong rules that engines have shipped, each as a round of its own.

Every fault differs from a right round in one place; the rounds are those of the
auditor's catalogue. The tests ask two things: that the checks which the shipped rules
pass go red on each of them, and by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from enumeration import RoundFunction, argmax_draft

from draftproof.audit.wrong_rounds import (
    block_round,
    favourite_zeroed,
    filtered,
    filtered_draft,
    kept_tail_round,
    no_bonus_round,
    noisy_residual_round,
    other_coin_draft,
    phantom_round,
    power,
    timid_round,
    token_round,
    unclamped,
)
from draftproof.core.law import Law

__all__ = ["FAULTS", "Fault", "block_round", "phantom_round", "power", "token_round", "top_half"]


@dataclass(frozen=True)
class Fault:
    """A wrong round, the rule it stands for and the tables it can be seen on.

    ``min_kappa`` is the shortest draft that can show it; ``rounds`` says whether one
    round shows it or whole texts are needed; ``shows`` what goes wrong: the ``law``,
    or only the ``length``.
    """

    name: str
    rule: str
    play: RoundFunction
    min_kappa: int = 1
    whole_texts: bool = False
    shows: str = "law"


def top_half(law: Law) -> Law:
    return filtered(law, (law.vocab_size + 1) // 2)


FAULTS = [
    Fault("target drawn again on reject", "standard", token_round(residual=lambda p, q, token: p)),
    Fault("residual not clamped", "standard", token_round(residual=unclamped)),
    Fault("residual masks the favourite", "standard", token_round(residual=favourite_zeroed)),
    Fault("q at another temperature", "standard", token_round(scored=lambda q: power(q, 2))),
    Fault("p at another temperature", "standard", token_round(judged=lambda p: power(p, 2))),
    Fault("argmax scored as sampled", "standard", token_round(propose=argmax_draft)),
    Fault(
        "filter missing from the reported q",
        "standard",
        token_round(propose=filtered_draft(top_half)),
    ),
    Fault("lenience 9/10", "standard", token_round(lenience=Fraction(9, 10))),
    Fault("row of the position before", "standard", token_round(row=lambda j: max(j - 1, 0))),
    Fault("first draft unchecked", "standard", token_round(first_checked=1)),
    Fault(
        "one coin drafts and accepts",
        "standard",
        token_round(accept_coin=lambda coins, i: coins.draft(i)),
    ),
    Fault(
        "one coin accepts and recovers",
        "standard",
        token_round(residual_coin=lambda coins, i: coins.accept(i)),
    ),
    Fault(
        "one coin drafts and recovers",
        "standard",
        token_round(propose=other_coin_draft("sample")),
    ),
    Fault("draft noise races the residual", "standard", noisy_residual_round),
    Fault("tail kept after a rejection", "standard", kept_tail_round, 2),
    Fault("rejected token stays in the history", "standard", phantom_round, whole_texts=True),
    Fault("bonus missing", "standard", no_bonus_round, shows="length"),
    Fault("matching in place of the ratio", "standard", timid_round, shows="length"),
    Fault("block stops at the first failure", "block", block_round(stop_at_failure=True), 2),
    Fault("block draws the token residual", "block", block_round(token_residual=True), 2),
    Fault("block takes P for h", "block", block_round(weight_as_bar=True), 2),
    Fault("block counts padding", "block", block_round(padded=True)),
    Fault(
        "block shares one coin", "block", block_round(coin=lambda coins, _: coins.accept(0)), 3
    ),
]  # fmt: skip
