"""Predicted outputs: following, losing and finding the place again, and what is counted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffix_kit import request

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.policy import SamplingParams
from draftproof.core.types import StepRecord
from draftproof.errors import ConfigError
from draftproof.proposers import PredictionProposer, PredictionUsage, prediction_usage
from draftproof.proposers._alignment import Alignment, PredictionText
from draftproof.testing import check_proposer

PROMPT = [900, 901]
EAGER = 1e-9
#: No token twice: every place is told by one token.
PLAIN = tuple(range(100, 160))


def drafted(output, prediction=PLAIN, kappa=8, **options):
    proposer = PredictionProposer(**options)
    asked = request([*PROMPT, *output], kappa, prompt=2, prediction=prediction)
    return proposer.propose([asked])[0]


# -- following ---------------------------------------------------------------------------


@pytest.mark.parametrize("done", [0, 1, 2, 3, 30, 57, 59])
def test_while_the_output_follows_the_draft_is_what_comes_next(done):
    draft = drafted(PLAIN[:done])
    assert draft.token_ids == PLAIN[done : done + 8]
    assert draft.laws is None
    assert draft.note == ""


@pytest.mark.parametrize(
    ("output", "prediction", "note"),
    [
        (PLAIN, PLAIN, "used up"),
        ((1, 2), (), "no prediction"),
        (range(300, 330), PLAIN, "has left the prediction"),
    ],
)
def test_where_nothing_is_drafted_a_note_says_why(output, prediction, note):
    draft = drafted(output, prediction)
    assert draft.token_ids == ()
    assert note in draft.note


@pytest.mark.parametrize(
    ("output", "place"),
    [
        # A replaced token, before anything agrees and after.
        ([*PLAIN[:9], 500], 10),
        ([*PLAIN[:9], 500, *PLAIN[10:12]], 12),
        # Three tokens in place of two.
        ([*PLAIN[:9], 500, 501, 502, PLAIN[11]], 12),
        # Five tokens inserted.
        ([*PLAIN[:9], 500, 501, 502, 503, 504, PLAIN[9]], 10),
        # Nothing written yet but the replacement of the first token.
        ([500], 1),
        # Twenty tokens left out.
        ([*PLAIN[:9], PLAIN[29]], 30),
        # A part that was moved to the front, and the return to what was skipped.
        (PLAIN[40:44], 44),
        ([*PLAIN[40:44], *PLAIN[:3]], 3),
        # So much inserted that no place is guessed, then one token that agrees.
        ([*PLAIN[:9], *range(500, 550), PLAIN[9]], 10),
    ],
)
def test_the_place_is_found_again(output, place):
    draft = drafted(output)
    assert draft.token_ids == PLAIN[place : place + len(draft)]
    assert len(draft) >= 1


def test_an_unsettled_place_gets_a_shorter_draft():
    after = [[*PLAIN[:9], 500, *PLAIN[10 : 10 + n]] for n in range(5)]
    lengths = [len(drafted(output, kappa=40, min_score=EAGER)) for output in after]
    assert lengths == [2, 4, 6, 40, 40]
    assert len(drafted(after[1], kappa=40, min_score=EAGER, min_context=1)) == 40


def test_an_output_that_keeps_leaving_the_prediction_gets_shorter_drafts():
    # Every n-th token is another; the four that follow the last one settle the place.
    lengths = []
    for n in (5, 8, 12, 40):
        output = [500 + t if (39 - i) % n == 4 else t for i, t in enumerate(PLAIN[:40])]
        lengths.append(len(drafted(output, kappa=40)))
    lengths.append(len(drafted(PLAIN[:40], PLAIN * 2, kappa=40)))
    assert lengths == sorted(lengths)
    assert lengths[0] <= 15
    assert lengths[-1] == 40


def test_a_wrong_prediction_is_left_alone_and_taken_up_again_where_it_is_right():
    output, notes = [], []
    for turn in range(60):
        output += [7000 + turn, PLAIN[turn % 20]] if turn < 40 else [PLAIN[turn - 40]]
        notes.append(drafted(output).note)
    assert notes[0] == ""
    assert all("hardly follows" in note for note in notes[20:40])
    assert notes[-10:] == [""] * 10


@pytest.mark.parametrize("follows", [True, False])
def test_however_long_it_goes_on_nothing_is_certain(follows):
    alignment = Alignment(PredictionText(tuple(t % 7 for t in range(3000))), 3)
    for turn in range(2900 if follows else 1500):
        alignment.append(turn % 7 if follows else 3 * (turn % 2))
    assert alignment.worthwhile(0.1) in (range(400, 2000) if follows else range(10))


def test_of_equal_places_the_one_near_the_divergence_is_taken():
    # Ten paragraphs that differ in one token only; the output edits the fourth.
    text = [t for part in range(10) for t in (*range(100, 112), 200 + part, *range(112, 120))]
    output = [*text[:66], 500, *text[67:69]]
    draft = drafted(output, tuple(text))
    assert draft.token_ids == tuple(text[69:75])


def test_the_longer_context_beats_the_nearer_place():
    prediction = (*range(100, 110), 7, 1, *range(110, 120), 5, 6, 7, 2)
    output = [*range(100, 105), 3, 4, 5, 6, 7]
    assert drafted(output, prediction).token_ids == (2,)
    assert drafted([*range(100, 105), 7], prediction).token_ids[0] == 1


# -- by exhaustive search ----------------------------------------------------------------

texts = st.integers(1, 5).flatmap(lambda v: st.lists(st.integers(0, v), max_size=60))


def agreement(prediction, place, output):
    length = 0
    while (
        length < min(32, place, len(output))
        and prediction[place - 1 - length] == output[-1 - length]
    ):
        length += 1
    return length


@given(texts, texts, st.integers(1, 5))
def test_no_place_agrees_longer_than_the_one_chosen(prediction, output, min_context):
    alignment = Alignment(PredictionText(tuple(prediction)), min_context)
    for count, token in enumerate(output, 1):
        was, anchor, since = alignment.place, alignment._anchor, alignment._since + 1
        alignment.append(token)
        held, places = output[:count], range(1, len(prediction))
        lengths = {place: agreement(prediction, place, held) for place in places}
        place = alignment.place
        if was is not None and was < len(prediction) and prediction[was] == token:
            assert place == was + 1
        elif place is not None and alignment.run:
            near = {p: n for p, n in lengths.items() if anchor - 32 <= p <= anchor + since + 128}
            far = {p: n for p, n in lengths.items() if n >= min_context}
            longest = max({**near, **far}.values())
            assert alignment.run == lengths[place] == longest
            best = [p for p in {**near, **far} if lengths[p] == longest]
            if longest < 32:
                outside = [max(anchor - p, p - anchor - since, 0) for p in best]
                assert max(anchor - place, place - anchor - since, 0) == min(outside)
        else:
            assert all(
                length == 0
                for p, length in lengths.items()
                if anchor - 32 <= p <= anchor + min(since, 32) + 128
            )
            assert max(lengths.values(), default=0) < min_context
        if place is not None and place < len(prediction) and alignment.run:
            assert min(32, alignment.run) <= max(agreement(prediction, place, held), 1)


edits = st.lists(
    st.tuples(st.integers(0, 59), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3
)


@given(edits, st.integers(1, 4))
def test_after_any_edit_the_place_is_right_at_once_and_soon_settled(changes, min_context):
    # An edit removes some tokens at a place and puts new ones there.
    output, where, begin, fresh = [], [], 0, 1000
    for place, removed, added in sorted(changes):
        if place < begin:
            continue
        output += PLAIN[begin:place]
        where += range(begin + 1, place + 1)
        output += range(fresh, fresh + added)
        where += [None] * added
        fresh, begin = fresh + added, place + removed
    output += PLAIN[begin:]
    where += range(begin + 1, len(PLAIN) + 1)
    alignment, run, before = Alignment(PredictionText(PLAIN), min_context), 0, 0
    for token, place in zip(output, where, strict=True):
        alignment.append(token)
        run = 0 if place is None else run + 1 if place - 1 == before else 1
        before = place
        if place is not None and place < len(PLAIN):
            assert alignment.place == place
            assert run < min_context or alignment.is_settled


@given(texts, texts, st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_how_often_it_is_asked_changes_nothing(prediction, output, sizes):
    proposer, held, turn = PredictionProposer(), [*PROMPT], 0
    while len(held) < len(PROMPT) + len(output):
        done = len(held) - len(PROMPT)
        held += output[done : done + sizes[turn % len(sizes)]]
        turn += 1
        asked = request(held, prompt=2, prediction=prediction)
        assert proposer.propose([asked])[0] == drafted(held[2:], prediction)


def test_a_token_costs_no_more_in_a_longer_prediction():
    # Timings are in the benchmarks. What a test can pin down: places that are looked at.
    for size in (1_000, 30_000):
        text = PredictionText(tuple(t % 50 for t in range(size)))
        seen = []
        original = text.agreement

        def counted(place, output, seen=seen, original=original):
            seen.append(place)
            return original(place, output)

        text.agreement = counted
        alignment = Alignment(text, 3)
        for turn in range(200):
            alignment.append(turn % 50 if turn % 3 else 99)
        assert len(seen) <= 200 * 5


# -- other texts -------------------------------------------------------------------------


def test_a_replaced_history_or_prediction_is_noticed():
    proposer = PredictionProposer()
    tokens = [*PROMPT, *PLAIN[:10]]
    proposer.propose([request(tokens, prompt=2, prediction=PLAIN)])
    for replaced in ([*PROMPT, *PLAIN[:4]], [*PROMPT, 5, *PLAIN[1:20]], [*PROMPT, *PLAIN[30:33]]):
        expected = drafted(replaced[2:])
        assert proposer.propose([request(replaced, prompt=2, prediction=PLAIN)])[0] == expected
    tokens = [*PROMPT, *PLAIN[:10]]
    proposer.propose([request(tokens, prompt=2, prediction=PLAIN)])
    tokens[2:] = PLAIN[20:30]
    expected = drafted(PLAIN[20:30])
    assert proposer.propose([request(tokens, prompt=2, prediction=PLAIN)])[0] == expected
    other = tuple(reversed(PLAIN))
    expected = drafted(PLAIN[20:30], other)
    assert proposer.propose([request(tokens, prompt=2, prediction=other)])[0] == expected
    longer = request([900, *tokens], prompt=3, prediction=other)
    assert proposer.propose([longer])[0] == expected
    assert proposer.num_requests == 1
    proposer.release("a")
    assert proposer.num_requests == 0


def test_rows_with_and_without_a_prediction_travel_together():
    proposer = PredictionProposer()
    drafts = proposer.propose(
        [
            request(PROMPT, 2, name="a", prediction=(1, 2, 3)),
            request(PROMPT, 2, name="b"),
            request([*PROMPT, 7], 2, name="c", prompt=2, prediction=(7, 8)),
        ]
    )
    assert [draft.token_ids for draft in drafts] == [(1, 2), (), (8,)]


# -- the whole path ----------------------------------------------------------------------


class Told(PredictionProposer):
    """Gives every request the same prediction: the kit knows none."""

    prediction = tuple(t * t % 7 for t in range(80))

    def propose(self, requests):
        return super().propose([replace(r, prediction=self.prediction) for r in requests])


def test_it_conforms():
    report = check_proposer(Told, vocab_size=9, num_draws=200, tolerance=0.0)
    report.require()
    skipped = {result.name for result in report if result.status == "skipped"}
    assert skipped == {"laws_are_those_drawn_from", "laws_hold_at_their_edges"}


@pytest.mark.parametrize("kappa", [1, 4, 9])
def test_greedy_text_is_that_of_plain_decoding_and_a_true_prediction_is_all_accepted(loop, kappa):
    table, greedy = MarkovTable(6, None, seed=4), SamplingParams(temperature=0.0)
    plain = loop(TableBackend(table), None, [1, 2], params=greedy).rounds(60, 0).tokens

    class Knows(Told):
        prediction = tuple(plain[2:])

    class NearlyKnows(Told):
        prediction = (*plain[2:20], 5, 5, *plain[23:40], *plain[44:])

    for cls in (Knows, NearlyKnows):
        run = loop(TableBackend(table), cls(), [1, 2], params=greedy)
        while len(run.run.tokens) < 62:
            run.round(kappa)
        assert run.run.tokens[:62] == plain
        assert sum(run.run.accepted) >= 30 * kappa / (kappa + 1)
        missed = [d for d, n in zip(run.run.drafts, run.run.accepted, strict=True) if n < len(d)]
        assert bool(missed) == (cls is NearlyKnows)


@pytest.mark.parametrize(
    "options", [{"min_context": 0}, {"min_context": 33}, {"min_score": 0.0}, {"min_score": 1.0}]
)
def test_options_out_of_range_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ConfigError, match=f"{name} {value}"):
        PredictionProposer(**options)


# -- what is counted ---------------------------------------------------------------------


def record(drafted, num_accepted, sources, proposer="prediction", draft_sources=None):
    return StepRecord(
        "a", 5, tuple(range(drafted)), num_accepted, tuple(range(len(sources))), sources,
        proposer, draft_sources=draft_sources,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], (0, 0)),
        ([record(5, 3, ("accepted",) * 3 + ("recovered",))], (3, 2)),
        ([record(5, 5, ("accepted",) * 5 + ("bonus",))], (5, 0)),
        # A stop cut the round after two tokens: the others did not reach the output.
        ([record(5, 5, ("accepted",) * 2)], (2, 3)),
        # Other drafters and plain rounds.
        ([record(5, 3, ("accepted",) * 3 + ("recovered",), "suffix")], (0, 0)),
        ([record(0, 0, ("sampled",), "none")], (0, 0)),
        # A mixed draft: two predicted tokens and two of a model, three kept.
        (
            [
                record(
                    4, 3, ("accepted",) * 3 + ("recovered",), "hybrid",
                    ("prediction", "prediction", "draft-model", "draft-model"),
                ),
                record(2, 1, ("accepted", "recovered"), "hybrid", ("prediction",) * 2),
            ],
            (3, 1),
        ),
    ],
)  # fmt: skip
def test_usage_is_derived_from_records(records, expected):
    assert prediction_usage(records) == PredictionUsage(*expected)
