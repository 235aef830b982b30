"""What drafters that copy tell before they draft, alone and in front of a model."""

from __future__ import annotations

import numpy as np
import pytest
from draft_model_kit import OTHER, VOCAB, drafter
from suffix_kit import request

from draftproof.core.protocols import Foreteller
from draftproof.proposers import (
    HybridHeadProposer,
    HybridProposer,
    NgramProposer,
    PredictionProposer,
    SuffixProposer,
)
from draftproof.testing.scripted import ScriptedProposer

PROMPT = [900, 901]
PLAIN = tuple(range(100, 160))


def lively(length, seed, vocab=6):
    """A text that copies from itself now and then."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, vocab, 8).tolist()
    while len(text) < length:
        begin = int(rng.integers(0, len(text)))
        text += text[begin : begin + int(rng.integers(1, 9))]
    return text[:length]


# -- suffixes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "sign"), [(0, 0), (1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (20, 3)]
)
def test_the_longer_the_match_of_a_suffix_the_firmer(match, sign):
    text = [*range(50, 50 + match), 7, 8, 9, *range(50, 50 + match)]
    proposer = SuffixProposer()
    assert isinstance(proposer, Foreteller)
    assert proposer.foretell("a", text if match else [1, 2, 3]) == sign


def test_votes_that_are_split_back_a_draft_less():
    head = [1, 2, 3, 4, 5, 6]
    agreed = [*head, 7, *head, 7, *head]
    split = [*head, 7, *head, 8, *head]
    assert SuffixProposer().foretell("a", agreed) == 3
    assert SuffixProposer().foretell("a", split) < 3


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("min_score", [0.1, 0.3, 0.6])
def test_a_suffix_tells_nothing_exactly_where_nothing_would_be_drafted(seed, min_score):
    text, told = lively(120, seed), set()
    for end in range(1, len(text)):
        proposer = SuffixProposer(min_score=min_score, min_match=2)
        sign = proposer.foretell("a", text[:end])
        draft = SuffixProposer(min_score=min_score, min_match=2).propose([request(text[:end])])[0]
        assert bool(sign) == bool(draft.token_ids)
        told.add(sign)
    assert len(told) >= 3


def test_what_a_tenant_wrote_before_is_not_known_until_the_request_drafts():
    proposer = SuffixProposer(tenant_tokens=500)
    story = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    proposer.propose([request([40, *story], name="first", prompt=1, tenant="t", seed=1)])
    proposer.release("first")
    ahead = [50, *story[:7]]
    assert proposer.foretell("second", ahead) == -1
    (draft,) = proposer.propose([request(ahead, 4, name="second", prompt=1, tenant="t", seed=2)])
    assert draft.token_ids == (8, 9, 10, 11)
    assert proposer.foretell("second", ahead) == 3
    # Of another tenant, and with the coins that wrote it, nothing is copied.
    for name, tenant, seed in (("third", "u", 3), ("fourth", "t", 1)):
        proposer.propose([request(ahead, name=name, prompt=1, tenant=tenant, seed=seed)])
        assert proposer.foretell(name, ahead) == 0


# -- predictions ---------------------------------------------------------------------------


def signs_of(output, prediction=PLAIN):
    """Signs along an output, each told behind a draft for the text before."""
    proposer, found = PredictionProposer(), []
    for end in range(len(output) + 1):
        tokens = [*PROMPT, *output[:end]]
        found.append(proposer.foretell("a", tokens))
        proposer.propose([request(tokens, prompt=2, prediction=prediction)])
    return found


def test_a_prediction_is_not_known_before_the_first_draft_and_firm_while_it_is_followed():
    assert signs_of(PLAIN[:5]) == [-1, 3, 3, 3, 3, 3]


def test_where_the_output_leaves_its_prediction_the_sign_falls_and_comes_back():
    found = signs_of([*PLAIN[:9], 500, *PLAIN[10:20]])
    assert found[9] == 3
    assert found[10] == 1, "nothing agrees behind what was replaced"
    assert found[11] == 2
    assert found[-1] == 3
    assert signs_of([*PLAIN, 1, 2])[-3:] == [0, 0, 0], "the prediction is used up"


def test_a_request_without_a_prediction_tells_nothing_once_that_is_known():
    proposer = PredictionProposer()
    assert proposer.foretell("a", PROMPT) == -1
    proposer.propose([request(PROMPT)])
    assert proposer.foretell("a", PROMPT) == 0
    assert proposer.num_requests == 0
    proposer.release("a")
    assert proposer.foretell("a", PROMPT) == -1
    proposer.propose([request(PROMPT)])
    proposer.propose([request(PROMPT, prediction=PLAIN)])
    assert proposer.foretell("a", PROMPT) == 3


def test_another_text_under_the_same_name_is_not_foretold():
    proposer = PredictionProposer()
    proposer.propose([request([*PROMPT, *PLAIN[:3]], prompt=2, prediction=PLAIN)])
    assert proposer.foretell("a", [*PROMPT, 1, 2, 3]) == -1
    assert proposer.foretell("a", [*PROMPT, *PLAIN[:6]]) == 3


@pytest.mark.parametrize("seed", range(3))
def test_a_prediction_tells_nothing_exactly_where_nothing_would_be_drafted(seed):
    rng = np.random.default_rng(seed)
    output = [t if rng.random() < 0.6 else 7 for t in PLAIN]
    proposer, told = PredictionProposer(), set()
    proposer.propose([request(PROMPT, prompt=2, prediction=PLAIN)])
    for end in range(1, len(output) + 1):
        tokens = [*PROMPT, *output[:end]]
        sign = proposer.foretell("a", tokens)
        (draft,) = proposer.propose([request(tokens, prompt=2, prediction=PLAIN)])
        assert bool(sign) == bool(draft.token_ids)
        told.add(sign)
    assert told >= {0, 1, 2}


# -- in front of a model -------------------------------------------------------------------


def hybrid(*draftless, **options):
    return HybridProposer(draftless, drafter(OTHER)[0], **options)


def test_a_hybrid_tells_the_sign_of_the_copy_and_that_its_model_is_not_foretold():
    proposer = hybrid(PredictionProposer(), SuffixProposer())
    assert isinstance(proposer, Foreteller)
    assert isinstance(HybridHeadProposer([SuffixProposer()], drafter(OTHER)[0]), Foreteller)
    assert proposer.foretell("a", [1, 2, 3]) == -1
    assert proposer.foretell("a", [4, 5, 6, 1, 4, 5, 6]) == 2
    proposer.propose([request([4, 5, 6], prompt=3, prediction=(2, 3, 4, 5, 6))])
    assert proposer.foretell("a", [4, 5, 6, 2, 3]) == 3, "what comes first decides"


def test_a_part_that_never_tells_hides_what_stands_behind_it():
    silent = ScriptedProposer(lambda asked: [1], "script")
    assert hybrid(silent, SuffixProposer()).foretell("a", [4, 5, 6, 1, 4, 5, 6]) == -1
    assert hybrid(SuffixProposer(), silent).foretell("a", [4, 5, 6, 1, 4, 5, 6]) == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_hybrid_foretells_a_copy_exactly_where_it_copies(seed):
    text, seen = lively(60, seed, VOCAB), set()
    for end in range(2, len(text)):
        proposer = hybrid(PredictionProposer(), SuffixProposer(min_score=0.3))
        sign = proposer.foretell("a", text[:end])
        (draft,) = proposer.propose([request(text[:end], 4)])
        assert (sign > 0) == (draft.sources[0] == "suffix")
        seen.add(sign)
    assert seen >= {-1, 1, 2}


# -- telling changes nothing ---------------------------------------------------------------


class KeepsAnOldMatch(SuffixProposer):
    """The planted fault: what was found for a shorter text is drafted from."""

    def foretell(self, request_id, token_ids):
        before = self._texts.get(request_id)
        match = before and before.match
        sign = super().foretell(request_id, token_ids)
        if match:
            self._texts[request_id].match = match
        return sign


def drafts_along(make, text, *, asks):
    """Drafts in every third round, and the signs in between."""
    proposer, tokens, found, signs = make(), [], [], []
    for place, token in enumerate(text):
        tokens.append(token)
        if asks:
            signs.append(proposer.foretell("a", tokens))
        if place % 3 == 2:
            asked = request(tokens, 5, prompt=4, prediction=text[4:40:2], tenant="t")
            found.append(proposer.propose([asked])[0])
    return found, signs


MAKERS = {
    "suffix": SuffixProposer,
    "shared": lambda: SuffixProposer(tenant_tokens=100),
    "ngram": lambda: NgramProposer(1, 4),
    "prediction": PredictionProposer,
    "hybrid": lambda: hybrid(PredictionProposer(), SuffixProposer(min_score=0.3)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_drafts_are_the_same_whether_or_not_somebody_asked_before(name):
    text = lively(50, 3, VOCAB)
    quiet, _ = drafts_along(MAKERS[name], text[:1] * 3 + text, asks=False)
    asked, signs = drafts_along(MAKERS[name], text[:1] * 3 + text, asks=True)
    assert [d.token_ids for d in asked] == [d.token_ids for d in quiet]
    assert any(d.token_ids for d in quiet)
    assert len(set(signs)) > 1


def test_a_drafter_that_keeps_an_old_match_is_seen():
    text = lively(50, 3, VOCAB)
    quiet, _ = drafts_along(KeepsAnOldMatch, text, asks=False)
    asked, _ = drafts_along(KeepsAnOldMatch, text, asks=True)
    assert [d.token_ids for d in asked] != [d.token_ids for d in quiet]


@pytest.mark.parametrize("name", ["suffix", "ngram", "hybrid"])
def test_a_sign_is_a_function_of_the_committed_tokens(name):
    # Whatever the coins, the history of questions and what was drafted in between.
    text = lively(60, 5, VOCAB)
    _, along = drafts_along(MAKERS[name], text, asks=True)
    if name == "hybrid":  # here with a prediction, which a fresh one is not told
        make = MAKERS[name]
        proposer = make()
        proposer.propose([request(text[:1], name="b")])
        along = [proposer.foretell("b", text[: end + 1]) for end in range(len(text))]
    fresh = [MAKERS[name]().foretell("b", text[: end + 1]) for end in range(len(text))]
    assert along == fresh


def test_a_match_is_looked_up_once_per_end(monkeypatch):
    proposer, text = SuffixProposer(), lively(40, 1)
    proposer.foretell("a", text)
    index = proposer._texts["a"].index
    calls = []
    inner = index.longest
    monkeypatch.setattr(index, "longest", lambda *args: calls.append(1) or inner(*args))
    proposer.propose([request(text)])
    assert not calls
    text.append(text[3])
    proposer.foretell("a", text)
    proposer.propose([request(text)])
    assert len(calls) == 1
