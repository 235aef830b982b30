"""Known faults at the end of structured output: drafts that run over it (PR-3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grammar_kit import after, byte_pieces, factory, ids

from draftproof.core.constraint import GrammarSpec
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft
from draftproof.errors import ConfigError
from draftproof.verify import RULES, verify

PIECES = byte_pieces(b'{"', b'":', b'"a"', b"1}", b"1")
MAKE = factory(PIECES, padding=2)
SIZE = PIECES.vocab_size + 2
TEXT = '{"a":1}'
SPEC = GrammarSpec("lark", 'start: "{" "\\"a\\"" ":" "1" "}"')
END = 0


def oracle(written: list[int], kappa: int) -> tuple[int, ...]:
    rest = TEXT[len(PIECES.written(written)) :]
    return (*PIECES.encode(rest), END)[:kappa]


def junk(written: list[int], kappa: int) -> tuple[int, ...]:
    return tuple((7 * len(written) + 31 * i) % SIZE for i in range(kappa))


def end_then_junk(written: list[int], kappa: int) -> tuple[int, ...]:
    return (END, *junk(written, kappa))[:kappa]


def right_then_junk(written: list[int], kappa: int) -> tuple[int, ...]:
    return (*oracle(written, 2), END, END, *junk(written, kappa))[:kappa]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kappa", range(1, 9))
@pytest.mark.parametrize("drafter", [oracle, junk, end_then_junk, right_then_junk])
def test_drafts_may_run_over_the_end(drafter: Any, kappa: int, rule: str) -> None:
    rng = np.random.default_rng(kappa)
    coins, constraint, written = CoinSource(kappa), MAKE(SPEC), []
    while END not in written:
        draft = Draft(drafter(written, kappa), None, "planted")
        asked: list[int] = []

        def law_at(j: int, draft=draft, asked=asked, written=tuple(written)) -> Any:
            asked.append(j)
            mask = constraint.allowed(draft.token_ids[:j])
            assert mask is not None
            logits = rng.normal(size=SIZE).astype(np.float32)
            return target_law(logits, SamplingParams(), History(), (), mask)

        verdict = verify(rule, draft, law_at, coins.round(len(written)))
        broken = [
            j for j in range(kappa) if replay(written).allowed(draft.token_ids[: j + 1]) is None
        ]
        assert verdict.num_accepted <= min([*broken, kappa])
        for token in (*draft.token_ids[: verdict.num_accepted], verdict.token_id):
            constraint.advance(token)
            written.append(token)
            if token == END:
                break
        replayed = replay(written)
        assert ids(constraint.allowed()) == ids(replayed.allowed())
        assert constraint.is_complete == replayed.is_complete
    assert PIECES.decode(written) == TEXT


def replay(tokens: list[int]) -> Any:
    return after(MAKE, SPEC, tokens)


def test_a_place_with_no_way_on_is_an_error_and_not_an_end() -> None:
    """llguidance's mask then reads as if the text might end there."""
    tokenizer = factory(byte_pieces())
    spec = GrammarSpec("lark", 'start: "a" x | "c"\nx: x "b"')
    constraint = tokenizer(spec)
    a, c = 2 + ord("a"), 2 + ord("c")
    assert ids(constraint.allowed()) == [a, c]
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot go on after 1 tokens of output"):
            constraint.allowed((a,))
        # The question left the committed state as it was.
        assert ids(constraint.allowed((c,))) == [0]
    constraint.advance(c)
    assert constraint.is_complete


def test_a_draft_that_costs_too_much_is_an_error_and_spoils_nothing() -> None:
    """Copies of a parser share a lexer: one that ran full may not answer for the others."""
    spec = GrammarSpec("lark", "start: A\nA: /a*/ | /[xy]*x[xy]{400}z/ & /[xy]*y[xy]{390}z/")
    make = factory(byte_pieces())
    a, x, y = (2 + ord(char) for char in "axy")
    older, constraint = make(spec), make(spec)
    hostile = [(x, y)[(i * i // 3) % 2] for i in range(60)]
    with pytest.raises(ConfigError, match=r"too complex after 5\d tokens of output"):
        constraint.allowed(hostile)
    for one in (constraint, older, make(spec)):
        assert ids(one.allowed((a,))) == [0, a]
        assert ids(one.allowed((x, y))) == [x, y]
        one.advance(a)
        assert not one.is_complete
