"""Ends anywhere inside a block: EOS, strings, criteria, limits; text and streams."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from engine_kit import (
    GREEDY,
    VOCAB,
    Pieces,
    answers,
    corrupt_every,
    drafter,
    ids,
    make_core,
    make_engine,
    plain,
    requests,
    run,
    written,
)

from draftproof.backends.table import MarkovTable
from draftproof.core.params import SamplingParams
from draftproof.engine import GenerateRequest
from draftproof.engine import commit as commit_module
from draftproof.engine import step as step_module
from draftproof.engine.session import Session
from draftproof.engine.stopping import StopDecision
from draftproof.proposers import NgramProposer
from draftproof.testing.scripted import FixedProposer, OracleProposer

LONG = 20
#: A law whose greedy text never repeats a token within LONG tokens: token i + 1 after token i.
RISING = MarkovTable(
    LONG + 2,
    1,
    rows={(i,): np.eye(LONG + 2)[(i + 1) % (LONG + 2)] * 0.5 + 0.5 / (LONG + 2) for i in range(22)},
)


def rising(kappa, **options):
    known = {"r": list(range(LONG + 2)) * 3}
    core = make_core(RISING, proposers=[OracleProposer(known)], kappa=kappa, **options)
    request = GenerateRequest((0,), GREEDY, max_tokens=LONG + 8, request_id="r")
    return core, request


def check_eos_at(index, kappa):
    """Token number ``index`` of the text is EOS; the text ends with it."""
    core, request = rising(kappa, eos_token_ids=frozenset({index + 1}))
    core.submit(request)
    outputs = []
    while core.has_work:
        outputs += core.step()
    streamed = [token.token_id for output in outputs for token in output.tokens]
    result = outputs[-1].result
    assert streamed == result.token_ids == list(range(1, index + 2))
    assert (result.finish_reason, result.stop_reason) == ("stop", index + 1)
    assert result.stats.num_emitted_tokens == index + 1
    assert core.target.num_open == 0


# EOS (ST-1) -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", range(17))
def test_eos_ends_the_text_wherever_it_falls_in_a_block(kappa):
    for index in range(16):
        check_eos_at(index, kappa)


def test_an_end_that_is_looked_for_at_the_last_token_only_is_seen(monkeypatch):
    commit = step_module.commit_row

    class LastOnly:
        def __init__(self, stopper, count):
            self.stopper, self.left = stopper, count

        def push(self, token, **options):
            self.left -= 1
            decision = self.stopper.push(token, **options)
            return decision if self.left == 0 else StopDecision(decision.text)

    def faulty(plan, row, verdict, *rest):
        kept = plan.session.stopper
        plan.session.stopper = LastOnly(kept, len(verdict.path) + 1)
        try:
            return commit(plan, row, verdict, *rest)
        finally:
            plan.session.stopper = kept

    monkeypatch.setattr(step_module, "commit_row", faulty)
    with pytest.raises(AssertionError):
        check_eos_at(2, 4)
    check_eos_at(0, 4)  # the fault hides where the end is last in its block


@pytest.mark.parametrize("kappa", [0, 3, 8])
def test_ignore_eos_goes_on_and_a_model_without_eos_works(kappa):
    for eos in (frozenset({4}), frozenset()):
        core, _ = rising(kappa, eos_token_ids=eos)
        core.submit(GenerateRequest((0,), GREEDY, max_tokens=15, ignore_eos=True, request_id="r"))
        result = core.run()["r"]
        assert result.token_ids == list(range(1, 16))
        assert result.finish_reason == "length"


@pytest.mark.parametrize("kappa", [1, 4, 16])
def test_a_drafter_that_always_proposes_eos_neither_ends_nor_stalls(kappa):
    eos = 6
    params = SamplingParams(temperature=0.0, logit_bias={eos: -30.0})
    batch = requests(4, 9, params=params, max_tokens=30)
    core = make_core(
        proposers=[FixedProposer((eos, 1))], kappa=kappa, eos_token_ids=frozenset({eos})
    )
    results = run(core, batch)
    assert ids(results) == ids(plain(batch, eos_token_ids=frozenset({eos})))
    assert all(len(result.token_ids) == 30 for result in results.values())
    assert all(result.stats.num_draft_tokens > 0 for result in results.values())


def test_committed_tokens_are_those_before_the_end():
    """Block [d1, EOS, d3, d4, bonus], all matching: two tokens are committed (ME-2)."""
    core, request = rising(4, eos_token_ids=frozenset({3}))
    result = run(core, [request])["r"]
    first, last = result.records
    assert first.emitted == (1,)
    assert last.drafted == (2, 3, 4, 5)
    assert last.emitted == (2, 3)
    assert last.sources == ("accepted", "accepted")
    assert last.num_accepted == 4
    assert result.stats.num_emitted_tokens == len(result.token_ids) == 3
    assert result.stats.committed_per_round == 1.5
    assert result.stats.accepted_per_draft == 4.0


# Limits (ST-4) ----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", range(1, 11))
@pytest.mark.parametrize("name", ["oracle", "ngram", "half-wrong", "over budget"])
def test_the_length_is_respected_to_the_token(name, max_tokens):
    for kappa in range(1, 13):
        batch = requests(6, 3, max_tokens=max_tokens)
        known = {k: [*v, *[0] * 20] for k, v in answers(batch).items()}
        core = make_core(proposers=[drafter(name, known)], kappa=kappa)
        results = run(core, batch)
        assert ids(results) == ids(plain(batch))
        assert {len(result.token_ids) for result in results.values()} == {max_tokens}
        assert all(result.finish_reason == "length" for result in results.values())
        # No draft that could not be used is paid for.
        for result in results.values():
            end = len(result.prompt_ids) + max_tokens
            assert all(r.position + len(r.drafted) < end for r in result.records)


def test_one_token_makes_no_draft_call():
    for length in (1, 5, 30):
        junk = FixedProposer((1,))
        core = make_core(proposers=[junk], kappa=8)
        (result,) = run(core, requests(length, max_tokens=1)).values()
        assert junk.calls == []
        assert result.notes == []
    assert junk.released == ["a"]


def test_drafts_past_the_budget_are_seen(monkeypatch):
    monkeypatch.setattr(
        Session, "kappa_for_round", lambda self: self.kappa if self.num_generated else 0
    )
    batch = requests(6, max_tokens=2)
    known = {k: [*v, *[0] * 20] for k, v in answers(batch).items()}
    result = run(make_core(proposers=[OracleProposer(known)], kappa=8), batch)["a"]
    assert any(r.position + len(r.drafted) >= 6 + 2 for r in result.records)


# Strings (ST-2, ST-3) ---------------------------------------------------------------------------

WORDS = Pieces([b"a", b"b", b"c", b"d", b"e", b"xyz", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac!"])
SCRIPT = [0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 1, 5, 2, 3, 8, 9, 4, 0, 1]


def speaking(kappa, corrupt=None, script=SCRIPT):
    known = {"r": [0, *script, *[0] * 40]}
    return make_engine(
        written(script, WORDS.vocab_size),
        tokenizer=WORDS,
        proposers=[OracleProposer(known, corrupt)],
        kappa=kappa,
    )


def speak(kappa, corrupt=None, script=SCRIPT, **options):
    return speaking(kappa, corrupt, script).generate(
        [0], **{"max_tokens": len(script), "request_id": "r", **options}
    )


def first_end(stops, script=SCRIPT):
    """The rule written again: the first token whose text completes a stop, the earliest cut."""
    for count in range(1, len(script) + 1):
        text = b"".join(map(WORDS.token_bytes, script[:count])).decode("utf-8", "ignore")
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
        if ends:
            return count, text[: min(ends)[1]]
    text = WORDS.decode(script)
    return len(script), text


def check_stop(stops, kappa, corrupt=None, script=SCRIPT):
    count, text = first_end(stops, script)
    result = speak(kappa, corrupt, script, stop=stops, logprobs=0)
    assert result.text == text
    assert len(result.token_ids) == count
    assert all(token.logprob is not None for token in result.tokens)
    assert result.stats.num_emitted_tokens == count
    assert WORDS.decode(result.token_ids).startswith(result.text)
    assert "".join(token.text for token in result.tokens) == text
    streamed = list(
        speaking(kappa, corrupt, script).stream(
            [0], stop=stops, max_tokens=len(script), request_id="r"
        )
    )
    assert "".join(output.text for output in streamed) == text
    assert [t.token_id for output in streamed for t in output.tokens] == result.token_ids


@pytest.mark.parametrize("kappa", [0, 1, 2, 3, 5, 8, 12, 16])
def test_a_stop_string_ends_the_text_at_every_offset(kappa):
    text = WORDS.decode(SCRIPT)
    for start in range(len(text)):
        for length in (1, 2, 4):
            check_stop([text[start : start + length]], kappa)


@pytest.mark.parametrize("kappa", [1, 2, 3, 5, 16])
def test_stops_over_block_ends_inside_tokens_and_in_pairs(kappa):
    for stops in (["y"], ["xy", "é"], ["z", "yz"], ["é", "deé"], ["€!b", "zzz"], ["cdexyzé"]):
        for corrupt in (None, lambda at, token: token if at % 3 else 0):
            check_stop(stops, kappa, corrupt)


@pytest.mark.parametrize("seed", range(4))
def test_random_stops_of_random_texts(seed):
    rng = np.random.default_rng(seed)
    units = [[0], [1], [2], [3], [4], [5], [6, 7], [8, 9]]
    for _ in range(40):
        script = [token for at in rng.integers(0, len(units), 18) for token in units[at]]
        text = WORDS.decode(script)
        cuts = rng.integers(0, len(text) - 3, 2)
        check_stop(
            [text[c : c + rng.integers(1, 4)] for c in cuts], int(rng.integers(1, 9)), None, script
        )


def test_a_stop_string_that_never_completes_is_printed():
    for kappa in (0, 1, 4):
        result = speak(kappa, stop=["bQ", "exyzQ"], max_tokens=12)
        assert result.text == WORDS.decode(SCRIPT[:12])
        assert result.finish_reason == "length"


# Criteria of the caller (SO-2) ------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0, 1, 3, 8])
@pytest.mark.parametrize("name", ["oracle", "half-wrong", "ngram"])
def test_a_criterion_is_asked_after_every_token_in_order(name, kappa):
    seen = []

    def criterion(output):
        seen.append(tuple(output))
        return len(output) == 17

    batch = requests(5, max_tokens=40)
    known = answers(batch)
    request = GenerateRequest(
        batch[0].prompt_ids, GREEDY, max_tokens=40, request_id="a", stop_criterion=criterion
    )
    core = make_core(proposers=[drafter(name, known)], kappa=kappa)
    result = run(core, [request])["a"]
    assert result.finish_reason == "stop"
    truth = known["a"][5 : 5 + 17]
    assert result.token_ids == truth
    assert seen == [tuple(truth[:count]) for count in range(1, 18)]


# Streams (SM-1) ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", range(9))
@pytest.mark.parametrize("corrupt", [None, lambda at, token: token if at % 4 else 1])
def test_streamed_pieces_join_to_the_text(kappa, corrupt):
    subject = speaking(kappa, corrupt)
    outputs = list(subject.stream([0], max_tokens=len(SCRIPT), request_id="r"))
    text = WORDS.decode(SCRIPT)
    assert "".join(output.text for output in outputs) == text == outputs[-1].result.text
    assert "�" not in "".join(output.text for output in outputs)
    assert [t.token_id for output in outputs for t in output.tokens] == SCRIPT
    assert outputs[-1].result.token_ids == SCRIPT
    if kappa == 8 and corrupt is None:
        assert max(len(output.tokens) for output in outputs) == 9

    async def collect():
        stream = speaking(kappa, corrupt).astream([0], max_tokens=len(SCRIPT), request_id="r")
        return "".join([output.text async for output in stream])

    assert asyncio.run(collect()) == text


@pytest.mark.parametrize("kappa", [0, 2, 8])
def test_an_unfinished_character_at_the_end_is_replaced_once(kappa):
    for cut in (7, 10):
        result = speak(kappa, max_tokens=cut)
        assert result.text == WORDS.decode(SCRIPT[:cut])
        assert result.text.endswith("�")
        assert result.text.count("�") == 1


def test_a_stream_of_the_last_token_of_each_block_is_seen(monkeypatch):
    event = commit_module.TokenEvent

    def faulty(token, source, text, *rest):
        return event(token, source, "" if source == "accepted" else text, *rest)

    monkeypatch.setattr(commit_module, "TokenEvent", faulty)
    outputs = list(speaking(4).stream([0], max_tokens=len(SCRIPT), request_id="r"))
    assert "".join(output.text for output in outputs) != WORDS.decode(SCRIPT)


def test_ngrams_and_stops_and_logprobs_together():
    """The very mix of ST-3: n-gram drafts, a stop string, log probabilities."""
    script = [0, 1, 2, 3] * 5
    for kappa in (0, 4, 8):
        subject = make_engine(
            written(script, WORDS.vocab_size),
            tokenizer=WORDS,
            proposers=[NgramProposer(1, 3)],
            kappa=kappa,
        )
        result = subject.generate([0], stop=["dabcdab"], logprobs=2, max_tokens=20)
        assert result.text == "abc"
        assert result.token_ids == script[:10]
        assert len([t for t in result.tokens if t.logprob is not None]) == 10


def test_the_scripts_hold_what_the_tests_say():
    assert WORDS.decode(SCRIPT) == "abcdexyzéa€!bxyzcd€!eab"
    assert corrupt_every(1)(3, VOCAB - 1) == 0
