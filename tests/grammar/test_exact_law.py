"""Speculation under a grammar emits the law of the plain masked decoder.

The plain decoder masks with the definition of the regular expression, not with the
parser. The speculative one asks a constraint, under every branch of every coin. Drafts
come from a law that knows no grammar, so they break it, run over the end, and name
control tokens and padding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np
import pytest
from enumeration import TableModel, argmax_draft, raced_draft, sampled_draft, total_variation
from grammar_kit import CONTROL, Definition, Pieces, after, factory, ids

from draftproof.core.constraint import Constraint, GrammarSpec
from draftproof.core.law import DenseLaw
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.types import Draft
from draftproof.testing.branching import BranchingCoins, outcomes
from draftproof.verify import verify

pytestmark = pytest.mark.exact

Prefix = tuple[int, ...]
PIECES = Pieces([b"<end>", b"a", b"b", b"ab", CONTROL, b"</s>"], ends=(0, 5))
MAKE = factory(PIECES, padding=1)
SIZE = PIECES.vocab_size + 1
PATTERN = "aab|b(b|ab)?a?"
SPEC = GrammarSpec("regex", PATTERN)
DEFINITION = Definition(PATTERN, "ab", 6)
HORIZON = 4
#: Texts of two rounds, enough for every fault.
SHORT = 3
#: Float32 weights: the sums of a few thousand branches agree to this.
SAME = 1e-6
#: Every fault moves more than this.
SEEN = 1e-3
POLICIES = {
    "temperature": SamplingParams(temperature=0.8),
    "filters": SamplingParams(temperature=1.3, top_k=3, min_p=0.05, frequency_penalty=0.4),
}
PROPOSERS = {
    "standard": sampled_draft,
    "block": sampled_draft,
    "sample-match": sampled_draft,
    "coupled": raced_draft,
}


@cache
def logits(kind: str, prefix: Prefix) -> Any:
    rng = Random(f"{kind} {prefix}")
    return np.array([rng.uniform(-1.5, 1.5) for _ in range(SIZE)], dtype=np.float32)


@cache
def drafter(prefix: Prefix) -> DenseLaw:
    return DenseLaw(np.exp(logits("draft", prefix)))


MODEL = TableModel("grammar", SIZE, drafter, drafter)


def target(text: Prefix, extra: Prefix, params: SamplingParams, mask: Any) -> Any:
    history = History()
    for token in text:
        history.append(token)
    return target_law(logits("target", text + extra), params, history, extra, mask)


def ended(text: Prefix) -> bool:
    return bool(text) and text[-1] in PIECES.eos_token_ids


def cut(tokens: Prefix) -> Prefix:
    """Drop what follows the first end, as whoever commits does."""
    for place, token in enumerate(tokens):
        if token in PIECES.eos_token_ids:
            return tokens[: place + 1]
    return tokens


def plain_law(params: SamplingParams, horizon: int = HORIZON) -> dict[Prefix, float]:
    law: dict[Prefix, float] = {}
    open_texts = [((), 1.0)]
    while open_texts:
        text, mass = open_texts.pop()
        if ended(text) or len(text) == horizon:
            law[text] = mass
            continue
        mask = np.zeros(SIZE, dtype=np.bool_)
        mask[DEFINITION.allowed(PIECES, text, SIZE) or []] = True
        probs = target(text, (), params, mask).dense()
        open_texts += [((*text, t), mass * float(probs[t])) for t in np.flatnonzero(probs)]
    return law


@dataclass(frozen=True)
class Engine:
    """How masks are asked for and the grammar is advanced; faults exchange one of them.

    ``mask(constraint, extra, kappa)`` is the mask of a position. ``commit(taken, drafts,
    emitted)`` is what the grammar has taken in after a round. ``horizon`` is
    the shortest text that shows a fault.
    """

    mask: Callable[[Constraint, Prefix, int], Any] = lambda c, extra, _: c.allowed(extra)
    commit: Callable[[Prefix, Draft, Prefix], Prefix] = lambda taken, _, emitted: taken + emitted
    propose: Callable[..., Draft] | None = None
    judged: bool = True
    horizon: int = SHORT


def taken_in(tokens: Prefix) -> Prefix:
    """Return what a grammar takes in of the tokens; only faults hand in more."""
    taken: Prefix = ()
    for token in tokens:
        if DEFINITION.allowed(PIECES, (*taken, token), SIZE) is not None:
            taken += (token,)
    return taken


def speculative_law(
    rule: str,
    params: SamplingParams,
    engine: Engine = Engine(),
    kappa: int = 2,
    horizon: int = HORIZON,
) -> dict[Prefix, float]:
    done: dict[Prefix, float] = defaultdict(float)
    states: dict[tuple[Prefix, Prefix], float] = {((), ()): 1.0}
    while states:
        text, taken = min(states, key=lambda state: len(state[0]))
        mass = states.pop((text, taken))
        constraint = after(MAKE, SPEC, taken)  # one object for all branches of the round
        play = partial(one_round, rule, params, engine, text, constraint, kappa)
        for weight, (drafts, emitted) in outcomes(partial(with_coins, play, len(text))):
            longer = cut(text + emitted)
            if ended(longer) or len(longer) >= horizon:
                done[longer[:horizon]] += float(mass * weight)
                continue
            after_round = (longer, taken_in(engine.commit(taken, drafts, emitted)))
            states[after_round] = states.get(after_round, 0.0) + float(mass * weight)
    return dict(done)


def with_coins(play: Callable[..., Any], start: int, brancher: Any) -> Any:
    return play(BranchingCoins(brancher).round(start))


def one_round(
    rule: str, params: SamplingParams, engine: Engine, text: Prefix, constraint: Constraint,
    kappa: int, coins: Any,
) -> tuple[Draft, Prefix]:  # fmt: skip
    propose = engine.propose or PROPOSERS[rule]
    if propose is from_grammar:
        draft = Draft(constraint.likely(kappa), None, "grammar")
    elif propose is cut_at_the_first_illegal:
        draft = propose(constraint, text, kappa, coins)
    else:
        draft = propose(MODEL, text, kappa, coins)
    if not engine.judged and draft.token_ids:
        return draft, draft.token_ids

    def law_at(j: int) -> Any:
        extra = draft.token_ids[:j]
        mask = engine.mask(constraint, extra, len(draft))
        if engine.mask is Engine.mask:
            assert mask is not None, "no exact rule gets a token from behind an illegal draft"
        return target(text, extra, params, mask)

    verdict = verify(rule, draft, law_at, coins)
    return draft, (*draft.token_ids[: verdict.num_accepted], verdict.token_id)


def from_grammar(*_: Any) -> Draft:
    raise NotImplementedError


def cut_at_the_first_illegal(constraint: Any, text: Prefix, kappa: int, coins: Any) -> Draft:
    draft = sampled_draft(MODEL, text, kappa, coins)
    legal = next(
        (n for n in range(len(draft)) if constraint.allowed(draft.token_ids[: n + 1]) is None),
        len(draft),
    )
    return Draft(draft.token_ids[:legal], (draft.laws or ())[:legal], "cut")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rule", PROPOSERS)
def test_the_law_is_that_of_plain_masked_decoding(rule: str, policy: str) -> None:
    params = POLICIES[policy]
    law = speculative_law(rule, params)
    assert total_variation(law, plain_law(params)) < SAME


@pytest.mark.parametrize("rule", PROPOSERS)
@pytest.mark.parametrize("propose", [argmax_draft, from_grammar], ids=["argmax", "grammar"])
def test_deterministic_drafts_keep_the_law(rule: str, propose: Any) -> None:
    params = POLICIES["temperature"]
    law = speculative_law(rule, params, Engine(propose=propose), kappa=3)
    assert total_variation(law, plain_law(params)) < SAME


def test_the_plain_law_has_texts_of_every_kind() -> None:
    law = plain_law(POLICIES["temperature"])
    assert sum(law.values()) == pytest.approx(1.0)
    assert {len(text) for text in law} == {2, 3, 4}
    assert {text[-1] for text in law if ended(text)} == PIECES.eos_token_ids
    assert all(PIECES.written(text) in DEFINITION.words for text in law if ended(text))


# --- planted faults ---------------------------------------------------------------


def first_mask(constraint: Constraint, _: Prefix, __: int) -> Any:
    return constraint.allowed()


def no_mask_on_the_bonus(constraint: Constraint, extra: Prefix, kappa: int) -> Any:
    return None if len(extra) == kappa else constraint.allowed(extra)


def mask_of_the_position_before(constraint: Constraint, extra: Prefix, _: int) -> Any:
    return constraint.allowed(extra[:-1])


def no_mask_on_drafts(constraint: Constraint, extra: Prefix, kappa: int) -> Any:
    return constraint.allowed(extra) if len(extra) == kappa else None


def rejected_drafts_stay(taken: Prefix, draft: Draft, emitted: Prefix) -> Prefix:
    return taken + draft.token_ids + emitted[-1:]


def bonus_taken_twice(taken: Prefix, _: Draft, emitted: Prefix) -> Prefix:
    return taken + emitted + emitted[-1:]


def bonus_forgotten(taken: Prefix, _: Draft, emitted: Prefix) -> Prefix:
    return taken + emitted[:-1]


FAULTS = {
    "mask of position 0 everywhere": Engine(mask=first_mask),
    "bonus unmasked": Engine(mask=no_mask_on_the_bonus),
    "mask of the position before": Engine(mask=mask_of_the_position_before),
    "drafts unmasked": Engine(mask=no_mask_on_drafts, horizon=2),
    "rejected drafts are not rolled back": Engine(commit=rejected_drafts_stay),
    "bonus taken in twice": Engine(commit=bonus_taken_twice),
    "bonus not taken in": Engine(commit=bonus_forgotten),
}


@pytest.mark.parametrize("rule", PROPOSERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_under_each_rule(fault: str, rule: str) -> None:
    params = POLICIES["temperature"]
    engine = FAULTS[fault]
    law = speculative_law(rule, params, engine, horizon=engine.horizon)
    assert total_variation(law, plain_law(params, engine.horizon)) > SEEN


def test_the_grammar_has_certain_text_that_can_be_cut_in_two_ways() -> None:
    constraint = after(MAKE, SPEC, [1])
    assert constraint.likely(4) == (3,)
    assert ids(constraint.allowed()) == [1, 3]


def test_certain_text_committed_unjudged_is_another_law() -> None:
    params = POLICIES["temperature"]
    engine = Engine(propose=from_grammar, judged=False)
    law = speculative_law("standard", params, engine)
    assert total_variation(law, plain_law(params)) > SEEN


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_sampled_drafts_may_not_be_cut_where_the_grammar_refuses_them(rule: str) -> None:
    """Whether a draft is there would depend on its token: another law than the declared one."""
    params = POLICIES["temperature"]
    law = speculative_law(rule, params, Engine(propose=cut_at_the_first_illegal), horizon=SHORT)
    assert total_variation(law, plain_law(params, SHORT)) > SEEN


def test_the_constraint_of_a_round_is_unchanged_by_all_its_branches() -> None:
    constraint = after(MAKE, SPEC, [2])
    before = [constraint.allowed(path) for path in ((), (2,), (3,), (1, 1))]
    params = POLICIES["temperature"]
    play = partial(one_round, "block", params, Engine(), (2,), constraint, 2)
    speculative = outcomes(partial(with_coins, play, 1))
    assert len(speculative) > 50
    fresh = after(MAKE, SPEC, [2])
    for path, seen in zip(((), (2,), (3,), (1, 1)), before, strict=True):
        for again in (constraint.allowed(path), fresh.allowed(path)):
            assert (again is None) == (seen is None)
            assert seen is None or again.tolist() == seen.tolist()
