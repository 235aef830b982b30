"""Stop strings (ST-2): the decision is a function of the text alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import ConfigError, InvariantError
from draftproof.text import StopMatcher, StopUpdate


def first_completion(text: str, stops: list[str]) -> tuple[int, int, str] | None:
    """The rule by its definition: first end, then longest. (start, end, stop)."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            stop = max(done, key=len)
            return end - len(stop), end, stop
    return None


def must_hold(text: str, stops: list[str]) -> int:
    """Length of the longest suffix that is a proper prefix of a stop string."""
    return max(
        (n for stop in stops for n in range(len(stop)) if n and text.endswith(stop[:n])), default=0
    )


def stream(pieces: Iterable[str], stops: list[str]) -> tuple[str, StopUpdate | None, int]:
    """Streamed text, the update with the match, and the index of its piece."""
    matcher, shown = StopMatcher(stops), ""
    for index, piece in enumerate(pieces):
        update = matcher.push(piece)
        shown += update.text
        if update.stop is not None:
            return shown, update, index
    return shown + matcher.flush(), None, -1


SMALL = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(deadline=None)
@given(SMALL, STOPS, st.lists(st.integers(0, 30), max_size=12))
def test_any_cut_of_the_text_gives_the_defined_answer(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    shown, update, index = stream(pieces, stops)
    expected = first_completion(text, stops)
    if expected is None:
        assert update is None
        assert shown == text
        return
    start, end, stop = expected
    assert update is not None
    assert (update.start, update.end, update.stop) == (start, end, stop)
    assert shown == text[:start]
    # It was seen with the first piece that reaches its end, neither earlier nor later.
    before, after = edges[index], edges[index + 1]
    assert before < end <= after


@settings(deadline=None)
@given(SMALL, STOPS)
def test_holds_back_exactly_what_could_become_a_stop(text: str, stops: list[str]) -> None:
    matcher, shown = StopMatcher(stops), ""
    for count, char in enumerate(text, 1):
        update = matcher.push(char)
        if update.stop is not None:
            return
        shown += update.text
        assert len(shown) == count - must_hold(text[:count], stops)
        assert text.startswith(shown)


@pytest.mark.parametrize("num_stop_tokens", [1, 2, 3, 4])
@pytest.mark.parametrize("block", range(1, 17))
def test_stop_of_some_tokens_at_every_offset_of_a_block(num_stop_tokens: int, block: int) -> None:
    stop = "".join("<ST>"[:num_stop_tokens])
    for offset in range(block + 1):
        tokens = [f"w{i} " for i in range(offset)] + list(stop)
        tokens += [f"x{i} " for i in range(block)]
        matcher, shown, committed = StopMatcher([stop]), "", []
        found = None
        for first in range(0, len(tokens), block):
            for token in tokens[first : first + block]:
                committed.append(token)
                update = matcher.push(token)
                shown += update.text
                found = update.stop
                if found:
                    break
            if found:
                break
        assert found == stop
        assert shown == "".join(tokens[:offset])
        # ST-3: the ids kept reach to the token that completed the stop, no further.
        assert committed == tokens[: offset + num_stop_tokens]


def test_inside_one_token() -> None:
    assert StopMatcher(["b"]).push("abc") == StopUpdate("a", "b", 1, 2)


def test_straddling_with_characters_before_and_after() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("xxst") == StopUpdate("xx")
    assert matcher.push("op yy") == StopUpdate("", "stop", 2, 6)
    assert matcher.flush() == ""


def test_two_stops_in_one_piece_the_earliest_wins() -> None:
    for stops in (["B", "D"], ["D", "B"]):
        assert StopMatcher(stops).push("aBcDe") == StopUpdate("a", "B", 1, 2)


def test_nested_stops_the_first_to_complete_wins() -> None:
    """Else the answer would depend on whether the rest had arrived."""
    for pieces in (["xabcdy"], list("xabcdy"), ["xab", "cdy"]):
        shown, update, _ = stream(pieces, ["abcd", "bc"])
        assert update is not None
        assert (shown, update.stop, update.start) == ("xa", "bc", 2)


def test_same_end_the_longest_wins() -> None:
    assert StopMatcher(["c", "abc", "bc"]).push("xabcx") == StopUpdate("x", "abc", 1, 4)


def test_failed_beginning_is_released() -> None:
    matcher = StopMatcher(["aab"])
    assert matcher.push("aa").text == ""
    assert matcher.push("a").text == "a"
    assert matcher.push("c").text == "aac"


def test_text_before_stops_are_allowed() -> None:
    matcher = StopMatcher(["end", "da"])
    assert matcher.push("the end", may_stop=False) == StopUpdate("the en")
    # "da" began before stops were allowed and completes after.
    assert matcher.push("a", may_stop=True) == StopUpdate("", "da", 6, 8)
    plain = StopMatcher(["end"])
    assert plain.push("the end", may_stop=False).text == "the end"
    assert plain.push(" end").start == 8


def test_flush_gives_back_the_rest_and_the_tail() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("a st").text == "a "
    assert matcher.flush("\ufffd") == "st\ufffd"
    assert matcher.flush() == ""


def test_no_stops_nothing_is_held() -> None:
    matcher = StopMatcher()
    assert matcher.push("anything") == StopUpdate("anything")
    assert matcher.flush() == ""


def test_bad_stops_and_use_after_the_end() -> None:
    with pytest.raises(ConfigError, match="a stop string is empty"):
        StopMatcher(["a", ""])
    with pytest.raises(ConfigError, match="expected a list of strings"):
        StopMatcher("abc")
    matcher = StopMatcher(["a"])
    matcher.push("a")
    with pytest.raises(InvariantError, match="after a stop string had completed"):
        matcher.push("b")


def test_cost_is_linear_in_the_text() -> None:
    """A hostile stop string: the failure links are walked, never the text again."""
    stop = "a" * 500 + "b"
    matcher = StopMatcher([stop])
    steps = 0
    automaton = matcher._automaton
    assert automaton is not None
    children = automaton._children

    class Counting(list[dict[str, int]]):
        def __getitem__(self, index: object) -> dict[str, int]:  # type: ignore[override]
            nonlocal steps
            steps += 1
            return super().__getitem__(index)  # type: ignore[index, call-overload, no-any-return]

    automaton._children = Counting(children)
    text = ("a" * 499 + "c") * 20
    for char in text:
        matcher.push(char)
    assert steps <= 2 * len(text) + len(stop)
