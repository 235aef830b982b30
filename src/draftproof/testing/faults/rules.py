"""Faults of the rules for chains: the token rule, block verification, the races."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from draftproof.core.law import Law, OneHotLaw
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, TreeVerdict, Verdict
from draftproof.testing.faults.bent import best_only, law_of, unclamped, without
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import (
    ChainRule,
    EngineParts,
    LawAt,
    PiecewiseExecutor,
    law_of_row,
)
from draftproof.testing.faults.scenes import SCENES
from draftproof.verify import VerifyRow
from draftproof.verify.allow_lossy import AllowLossy
from draftproof.verify.dispatch import plain_token, verify
from draftproof.verify.draft_laws import draft_law

__all__ = ["RULE_FAULTS", "block_rule", "judged_by", "token_rule"]

_LawMap = Callable[[Law], Law]


def judged_by(chain: ChainRule) -> Callable[[EngineParts], EngineParts]:
    """Return the defect that puts another rule in the place of the right one.

    Parameters
    ----------
    chain : callable
        As `draftproof.verify.dispatch.verify`.

    Returns
    -------
    callable of EngineParts
        The defect.
    """
    return lambda parts: replace(parts, executor=PiecewiseExecutor(chain=chain))


def token_rule(
    *,
    scored: _LawMap = lambda q: q,
    judged: _LawMap = lambda p: p,
    bonus: _LawMap = lambda p: p,
    residual: Callable[[Law, Law, int], Law] = lambda p, q, _token: p.residual(q),
    row: Callable[[int], int] = lambda j: j,
    bonus_row: Callable[[int], int] = lambda j: j,
    first_checked: int = 0,
    lenience: float = 1.0,
    accepts: Callable[[Any, float, float], bool] = lambda u, q, p: u * q < p,
    residual_draw: Callable[[Law, RoundCoins, int], int] = lambda law, c, i: law.draw(c.sample(i)),
) -> ChainRule:
    """Return the token rule with one piece exchanged.

    Parameters
    ----------
    scored, judged, bonus : callable of Law
        What the draft law is taken for; the target law, in ratio and residual; and the
        target law of the token after full acceptance.
    residual : callable of (Law, Law, int)
        The law after a rejection, from p, q and the rejected token.
    row, bonus_row : callable of int
        Which row of logits is read for a draft, and for the bonus.
    first_checked : int, default 0
        Drafts before it are kept unseen.
    lenience : float, default 1
        Factor of q in the ratio.
    accepts : callable of (coin, q, p)
        The comparison.
    residual_draw : callable
        How the residual is drawn.

    Returns
    -------
    callable
        The rule.
    """

    def rule(_: str | AllowLossy, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
        if not draft.token_ids:
            return Verdict(0, plain_token("standard", law_at(0), coins), "sampled")
        last = len(draft)
        for i in range(first_checked, last):
            token = draft.token_ids[i]
            p = judged(law_at(row(i)))
            q = scored(draft_law(draft, i, p.vocab_size))
            if accepts(coins.accept(i), lenience * q.prob(token), p.prob(token)):
                continue
            return Verdict(i, residual_draw(residual(p, q, token), coins, i), "recovered")
        drawn = bonus(law_at(bonus_row(last))).draw(coins.sample(last))
        return Verdict(last, drawn, "bonus")

    return rule


def _favourite_zeroed(p: Law, q: Law, token: int) -> Law:
    del token
    return without(p, int(q.dense().argmax()))


def _matches_anywhere(_: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
    """Count all drafts that pass their own coin, not the leading run of them."""
    if not draft.token_ids:
        return Verdict(0, plain_token("standard", law_at(0), coins), "sampled")
    passed, first = 0, len(draft)
    for i, token in enumerate(draft.token_ids):
        p = law_at(i)
        is_kept = coins.accept(i) * draft_law(draft, i, p.vocab_size).prob(token) < p.prob(token)
        passed += is_kept
        first = first if is_kept else min(first, i)
    if first == len(draft):
        return Verdict(first, law_at(first).draw(coins.sample(first)), "bonus")
    p, kept = law_at(passed), passed
    law = p.residual(draft_law(draft, kept, p.vocab_size)) if kept < len(draft) else p
    return Verdict(kept, law.draw(coins.sample(kept)), "recovered")


def _without_bonus(rule: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
    verdict = verify(rule, draft, law_at, coins)
    if verdict.source != "bonus":
        return verdict
    return Verdict(verdict.num_accepted - 1, draft.token_ids[-1], "recovered")


def _one_draft_only(rule: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
    laws = None if draft.laws is None else draft.laws[:1]
    return verify(rule, replace(draft, token_ids=draft.token_ids[:1], laws=laws), law_at, coins)


def _by_matching(_: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
    return verify("sample-match", draft, law_at, coins)


def _greedily(_: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
    return verify("standard", replace(draft, laws=None), lambda j: best_only(law_at(j)), coins)


class _KeepsTail(PiecewiseExecutor):
    """Replaces the rejected draft and emits the drafts after it unseen."""

    def __init__(self) -> None:
        super().__init__()
        self._tails: dict[str, list[int]] = {}

    def judge_one(self, row: VerifyRow, logits: Any) -> TreeVerdict:
        tail = self._tails.setdefault(row.request_id, [])
        if tail:
            return TreeVerdict((), tail.pop(0), "recovered")
        verdict = super().judge_one(row, logits)
        tail.extend(row.draft.token_ids[len(verdict.path) + 1 :])
        return verdict


def block_rule(
    *,
    stops: bool = False,
    token_residual: bool = False,
    weight_as_bar: bool = False,
    coin: Callable[[RoundCoins, int], Any] = lambda coins, i: coins.accept(i),
) -> ChainRule:
    """Return block verification, prefix by prefix from the shortest, with a piece exchanged.

    Parameters
    ----------
    stops : bool, default False
        Keep what stands before the first failure, not up to the last success.
    token_residual : bool, default False
        Draw from ``(p - q)+``, not from ``(P p - q)+``.
    weight_as_bar : bool, default False
        Take ``P_i`` for ``h_i``.
    coin : callable of (coins, int)
        The coin of a prefix.

    Returns
    -------
    callable
        The rule.
    """

    def rule(_: str | AllowLossy, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
        if not draft.token_ids:
            return Verdict(0, plain_token("block", law_at(0), coins), "sampled")
        last = len(draft)
        weights = [1.0]
        for i, token in enumerate(draft.token_ids):
            p = law_at(i)
            ratio = p.prob(token) / draft_law(draft, i, p.vocab_size).prob(token)
            weights.append(min(1.0, weights[-1] * ratio))
        kept = 0
        for i in range(1, last + 1):
            bar = weights[i]
            if i < last and not weight_as_bar:
                p = law_at(i)
                mass = p.residual_mass(draft_law(draft, i, p.vocab_size), bar)
                bar = mass / (mass + 1 - bar) if mass + 1 - bar else 1.0
            if coin(coins, i - 1) < bar:
                kept = i
            elif stops:
                break
        p = law_at(kept)
        if kept == last:
            return Verdict(kept, p.draw(coins.sample(kept)), "bonus")
        scale = 1.0 if token_residual else weights[kept]
        law = p.residual(draft_law(draft, kept, p.vocab_size), scale)
        return Verdict(kept, law.draw(coins.sample(kept)), "recovered")

    return rule


class _ReadsPadding(PiecewiseExecutor):
    """Pads short rows with -1 up to the longest; the id then indexes the last token."""

    def judge(self, rows: Any, logits: Any) -> list[TreeVerdict | Exception]:
        longest = max(len(row.draft) for row in rows)

        def rule(name: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
            if len(draft) == longest:
                return verify(name, draft, law_at, coins)
            cut = token_rule(bonus=lambda p: without(p, p.vocab_size - 1))
            if draft.token_ids:
                return cut(name, draft, law_at, coins)
            law = without(law_at(0), law_at(0).vocab_size - 1)
            return Verdict(0, law.draw(coins.sample(0)), "sampled")

        executor = PiecewiseExecutor(chain=rule)
        return [executor.judge_one(row, logits) for row in rows]


def _last_maximum(row: VerifyRow, logits: Any, node: int) -> Law:
    """Break ties of drafts the other way round than plain decoding does."""
    if not row.draft.token_ids:
        return law_of_row(row, logits, node)
    scores = logits[row.first_row + 1 + node]
    return OneHotLaw(len(scores) - 1 - int(scores[::-1].argmax()), len(scores))


def _unguarded(p: Law, q: Law, token: int) -> Law:
    """Take the first token where nothing is left, as an argmax over NaN does."""
    del token
    return law_of(np.maximum(p.dense() - q.dense(), 0.0), OneHotLaw(0, p.vocab_size))


def _uniform_residual(p: Law, q: Law, token: int) -> Law:
    del token
    return law_of((p.dense() > q.dense()).astype(np.float64), p)


_TOKEN, _CERTAIN, _BLOCK = SCENES["token rule"], SCENES["certain drafts"], SCENES["block"]


def _rule_fault(
    name: str, chain: ChainRule, description: str, case: str = "", **options: Any
) -> EngineFault:
    scene, where = options.pop("scene", _TOKEN), options.pop("where", "rule")
    return EngineFault(name, where, scene, judged_by(chain), description, case=case, **options)


#: Faults of the rules for chains.
RULE_FAULTS: tuple[EngineFault, ...] = (
    _rule_fault(
        "target drawn again on reject", token_rule(residual=lambda p, _q, _token: p),
        "the residual step is skipped: a rejected draft is replaced by a draw from p", "DI-4",
    ),
    _rule_fault(
        "residual not clamped", token_rule(residual=unclamped),
        "the replacement comes from |p - q| in place of its positive part",
    ),
    _rule_fault(
        "residual zeroes the favourite", token_rule(residual=_favourite_zeroed),
        "a sampled draft gets the residual of a deterministic one",
    ),
    _rule_fault(
        "residual zeroes the rejected draft", token_rule(residual=lambda p, _q, t: without(p, t)),
        "p without the rejected token, right for deterministic drafts only",
    ),
    _rule_fault(
        "residual not weighted", token_rule(residual=_uniform_residual),
        "all tokens that gained are drawn alike",
    ),
    _rule_fault(
        "lenience 0.9", token_rule(lenience=0.9),
        "drafts are accepted with probability p / 0.9 q and nobody is told",
    ),
    _rule_fault(
        "accepted by p alone", token_rule(scored=lambda q: best_only(q)),
        "the ratio divides by a one-hot q although the draft was sampled",
    ),
    _rule_fault(
        "first draft unchecked", token_rule(first_checked=1),
        "verification starts at the second draft", "NG-3",
    ),
    _rule_fault(
        "row of the position before", token_rule(row=lambda j: max(j - 1, 0)),
        "off by one: draft j is judged by the logits before draft j - 1", where="laws",
    ),
    _rule_fault(
        "bonus from the row before", token_rule(bonus_row=lambda j: j - 1),
        "the bonus token is drawn from the row that judged the last draft", where="laws",
    ),
    _rule_fault(
        "matches after a rejection counted", _matches_anywhere,
        "the accept mask is summed without a cumulative product", "ME-1",
    ),
    EngineFault(
        "tail kept after a rejection", "rule", _TOKEN,
        lambda parts: replace(parts, executor=_KeepsTail()),
        "the rejected draft is replaced, the drafts after it stay",
    ),
    _rule_fault(
        "greedy verification of samples", _greedily,
        "a fallback takes argmax at a temperature above 0", "DI-6",
    ),
    _rule_fault(
        "certain drafts drawn from p again", token_rule(residual=lambda p, _q, _token: p),
        "after a deterministic draft was rejected its token may come back",
        scene=_CERTAIN,
    ),
    EngineFault(
        "-1 used as an index", "rule", SCENES["in company"],
        lambda parts: replace(parts, executor=_ReadsPadding()),
        "rows are padded with -1, which reads and masks the last token", case="RB-1",
    ),
    _rule_fault(
        "block stops at the first failure", block_rule(stops=True),
        "prefixes after the first that fails are not asked", scene=_BLOCK,
    ),
    _rule_fault(
        "block draws the token residual", block_rule(token_residual=True),
        "the excess is (p - q)+ in place of (P p - q)+", scene=_BLOCK,
    ),
    _rule_fault(
        "block takes P for h", block_rule(weight_as_bar=True),
        "a prefix survives with the probability of its weight", scene=_BLOCK,
    ),
    _rule_fault(
        "block shares one coin", block_rule(coin=lambda coins, _i: coins.accept(0)),
        "all prefixes are judged by one coin", scene=SCENES["long block"],
    ),
    _rule_fault(
        "bonus missing", _without_bonus,
        "right law, one token short after full acceptance", check="length",
    ),
    _rule_fault(
        "matching in place of the ratio", _by_matching,
        "right law: drafts are kept only where a fresh draw equals them", "DI-7", check="length",
    ),
    _rule_fault(
        "one draft verified", _one_draft_only,
        "right law: drafts after the first are never looked at", check="length",
    ),
    EngineFault(
        "ties broken the other way", "rule", SCENES["greedy ties"],
        lambda parts: replace(parts, executor=PiecewiseExecutor(law=_last_maximum)),
        "verification takes the last of equal maxima, plain decoding the first", "text", "GR-2",
    ),
    _rule_fault(
        "residual of equal laws", token_rule(
            accepts=lambda u, q, p: float(np.float32(u)) * q < p, residual=_unguarded
        ),
        "a coin rounded to 1 rejects although p equals q; the empty residual gives token 0",
        "NU-1", scene=SCENES["twins"], check="ends",
    ),
)  # fmt: skip
