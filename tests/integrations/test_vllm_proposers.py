"""Our drafters behind vLLM's custom proposer class, without vLLM.

The batch below hands over what vLLM 0.32 does: its own arrays, longer and wider than the batch,
rows that move, stale tokens behind the end of a row.
"""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from draftproof.core.history import History
from draftproof.core.params import SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource, RoundCoins
from draftproof.errors import ConfigError
from draftproof.integrations import vllm as hook
from draftproof.integrations._row_texts import RowTexts
from draftproof.proposers import NgramProposer, SuffixProposer

KAPPA, MAX_LENGTH, MAX_ROWS = 4, 64, 8
CLASSES = (hook.NgramProposer, hook.SuffixProposer)
LOOP = [5, 6, 7, 8, 5, 6, 7]


def config(options: object = None, kappa: int = KAPPA, max_length: int = MAX_LENGTH):
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=kappa),
        model_config=SimpleNamespace(max_model_len=max_length),
        additional_config={} if options is None else {"draftproof": options},
    )


class Batch:
    """vLLM's persistent batch: rows of one array that requests enter, leave and swap."""

    def __init__(self) -> None:
        self.tokens = np.full((MAX_ROWS, MAX_LENGTH), 999, dtype=np.int32)
        self.lengths = np.zeros(MAX_ROWS, dtype=np.int32)
        self.sampled: list[list[int]] = []

    def put(self, rows: list[list[int]], waiting: tuple[int, ...] = ()) -> Batch:
        """Lay the batch anew; the rows that wait have not sampled yet."""
        for number, row in enumerate(rows):
            self.tokens[number, : len(row)] = row
            self.lengths[number] = len(row)
        self.sampled = [[] if n in waiting else row[-1:] for n, row in enumerate(rows)]
        return self

    def ask(self, proposer: object) -> list[list[int]]:
        return proposer.propose(self.sampled, self.lengths, self.tokens, slot_mappings=None)


def ours(kind: type, row: list[int], kappa: int = KAPPA) -> list[int]:
    """The drafts of the engine's own drafter that is asked once about the whole text."""
    drafter = NgramProposer() if kind is hook.NgramProposer else SuffixProposer()
    coins = RoundCoins(CoinSource(0), 0)
    request = ProposalRequest("r", row, kappa, SamplingParams(), History(), coins)
    return list(drafter.propose([request])[0].token_ids)


@pytest.mark.parametrize("kind", CLASSES)
def test_drafts_are_those_of_our_own_engine(kind):
    proposer, batch = kind(config()), Batch()
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 3, 10).tolist() for _ in range(5)]
    drafted = 0
    for _ in range(12):
        drafts = batch.put(rows).ask(proposer)
        assert drafts == [ours(kind, row) for row in rows]
        drafted += sum(map(len, drafts))
        for row in rows:
            row += rng.integers(0, 3, int(rng.integers(1, 4))).tolist()
    assert drafted > 50


@pytest.mark.parametrize("kind", CLASSES)
def test_rows_that_move_end_and_begin_keep_their_own_texts(kind):
    proposer, batch = kind(config()), Batch()
    rng = np.random.default_rng(1)
    rows = [[10 * n + t for t in rng.integers(0, 3, 8).tolist()] for n in range(6)]
    for step in range(12):
        drafts = batch.put(rows).ask(proposer)
        assert drafts == [ours(kind, row) for row in rows]
        for number, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            assert {token // 10 for token in draft} <= {row[0] // 10}, number
        assert proposer.num_texts == len(rows)
        for row in rows:
            row.append(int(10 * (row[0] // 10) + rng.integers(0, 3)))
        if step % 3 == 0:  # the last row fills the hole of one that ended
            rows[1] = rows.pop()
        if step % 4 == 1:
            rows[0], rows[-1] = rows[-1], rows[0]
        if step % 3 == 2:
            rows.append([100 * step + t for t in (0, 1, 2, 0, 1)])
            rows[-1] = [10 * (rows[-1][0] // 10) + t % 3 for t in (0, 1, 2, 0, 1)]


def test_a_row_that_moves_is_not_read_again():
    proposer, batch = hook.SuffixProposer(config()), Batch()
    first, second = [1, 2, 1, 2, 1], [3, 4, 3, 4, 3]
    batch.put([first, second]).ask(proposer)
    before = set(proposer._drafter._texts)
    batch.put([[*second, 4]]).ask(proposer)
    assert set(proposer._drafter._texts) < before


@pytest.mark.parametrize("kind", CLASSES)
def test_what_has_ended_is_forgotten(kind):
    proposer, batch = kind(config()), Batch()
    for n in range(40):
        batch.put([[n, n + 1, n, n + 1], [n + 7, n + 8, n + 7]]).ask(proposer)
        assert proposer.num_texts == 2
        assert proposer._drafter.num_requests == 2
    batch.put([]).ask(proposer)
    assert proposer.num_texts == 0
    assert proposer._drafter.num_requests == 0


@pytest.mark.parametrize("kind", CLASSES)
def test_a_row_whose_prompt_is_not_read_yet_drafts_nothing(kind):
    drafts = Batch().put([LOOP, LOOP], waiting=(0,)).ask(kind(config()))
    assert drafts[0] == []
    assert drafts[1][:1] == [8]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(("room", "most"), [(0, 0), (1, 0), (2, 1), (4, 3), (9, 4)])
def test_drafts_end_where_the_context_does(kind, room, most):
    proposer = kind(config(max_length=len(LOOP) + room))
    assert len(Batch().put([LOOP]).ask(proposer)[0]) == min(most, KAPPA)


class Moody:
    """A drafter that fails at texts which begin with 13, in the middle of its work."""

    def __init__(self) -> None:
        self.inner = SuffixProposer()

    def propose(self, requests):
        drafts = self.inner.propose(requests)
        if requests[0].token_ids[0] == 13:
            raise ValueError("thirteen")
        return drafts

    def release(self, request_id):
        self.inner.release(request_id)


def test_an_error_costs_one_row_its_drafts_and_is_logged_once(caplog):
    moody = Moody()
    proposer, batch = hook._RowProposer(config(), moody), Batch()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            drafts = batch.put([[13, 2, 13, 2], LOOP]).ask(proposer)
            assert drafts[0] == []
            assert drafts[1][:1] == [8]
            assert proposer.num_texts == moody.inner.num_requests == 1
    assert proposer.num_failures == 3
    assert len(caplog.records) == 1
    assert "thirteen" in caplog.text
    # The row is another one now: its text is read afresh.
    assert batch.put([LOOP, LOOP]).ask(proposer)[0][:1] == [8]


@pytest.mark.parametrize("kind", CLASSES)
def test_no_place_holder_is_drafted(kind):
    held = [5, 6, 7, -1, 5, 6, 7, -1, 5, 6]
    assert Batch().put([held]).ask(kind(config())) == [[7]]


def test_an_error_about_the_whole_batch_costs_its_drafts_only():
    proposer, batch = hook.NgramProposer(config()), Batch().put([LOOP, LOOP])
    assert proposer.propose(batch.sampled, None, batch.tokens) == [[], []]
    assert proposer.num_failures == 1
    assert batch.ask(proposer)[0][:1] == [8]


def test_options_reach_the_drafter():
    longest_only = hook.NgramProposer(config({"prompt_lookup_min": 4, "prompt_lookup_max": 5}))
    assert Batch().put([LOOP]).ask(longest_only) == [[]]
    assert Batch().put([LOOP]).ask(hook.NgramProposer(config()))[0][:1] == [8]
    strict = hook.SuffixProposer(config({"suffix_min_score": 1}))
    assert Batch().put([LOOP]).ask(strict) == [[]]
    short = hook.SuffixProposer(config({"suffix_window": 3}))
    assert Batch().put([LOOP]).ask(short) == [[]]


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (hook.NgramProposer, {"suffix_window": 3}, "suffix_window.*prompt_lookup_min"),
        (hook.SuffixProposer, {"window": 3}, "'window'.*suffix_window"),
        (hook.SuffixProposer, {"suffix_tenant_tokens": 3}, "suffix_tenant_tokens"),
        (hook.NgramProposer, {"prompt_lookup_min": "2"}, "'2'.*number"),
        (hook.NgramProposer, {"prompt_lookup_min": True}, "True.*number"),
        (hook.NgramProposer, {"prompt_lookup_min": 0}, r"0\.\.8"),
        (hook.NgramProposer, [1], "object"),
    ],
)
def test_options_that_mean_nothing_are_refused(kind, options, words):
    with pytest.raises(ConfigError, match=words):
        kind(config(options))


def test_vllm_is_not_imported():
    assert "vllm" not in sys.modules


def test_texts_are_told_apart_by_their_tokens():
    def row(*tokens: int):
        return np.array(tokens, dtype=np.int32)

    texts = RowTexts()
    first, ended = texts.follow({0: row(1, 2), 3: row(1, 3)})
    assert ended == []
    # The row is another one now, longer and with the same last token at the place.
    second, ended = texts.follow({0: row(9, 2, 4), 1: row(1, 3, 5)})
    assert ended == [first[0].name]
    assert second[1] is first[3]
    assert second[0].tokens.tolist() == [9, 2, 4]
    # Shorter than before, as after a reset: a text never shrinks.
    third, ended = texts.follow({0: row(9, 2)})
    assert third[0].tokens.tolist() == [9, 2]
    assert set(ended) == {second[0].name, second[1].name}


def test_of_two_texts_that_go_on_in_a_row_the_longer_one_is_taken():
    texts = RowTexts()
    first, _ = texts.follow({0: np.array([1], dtype=np.int32), 1: np.array([1, 2], dtype=np.int32)})
    second, ended = texts.follow({5: np.array([1, 2, 3], dtype=np.int32)})
    assert second[5] is first[1]
    assert ended == [first[0].name]
