"""The hybrid drafter: which part drafts what, and that the whole is one lawful drafter."""

from dataclasses import replace

import pytest
from draft_model_kit import OTHER, VOCAB, drafter, target
from suffix_kit import request

from draftproof.core.law import OneHotLaw
from draftproof.core.policy import SamplingParams
from draftproof.core.types import Draft
from draftproof.errors import ConfigError
from draftproof.proposers import DraftModelProposer, HybridProposer, NgramProposer, SuffixProposer
from draftproof.testing import check_proposer
from draftproof.testing.scripted import RaisingProposer, ScriptedProposer

EAGER = 1e-9


def hybrid(draftless=None, *, table=OTHER, model=None, **options):
    if draftless is None:
        draftless = [SuffixProposer(min_score=0.3)]
    return HybridProposer(draftless, model or drafter(table)[0], **options)


def scripted(length, name="script"):
    """Drafts this many tokens with ids that rise from the text's last one."""
    return ScriptedProposer(
        lambda asked: [(asked.token_ids[-1] + 1 + i) % VOCAB for i in range(length)], name
    )


def sampled(tokens, kappa, **options):
    params = SamplingParams(temperature=0.9, frequency_penalty=0.4)
    return replace(request(tokens, kappa, **options), params=params)


# -- who drafts what ---------------------------------------------------------------------


@pytest.mark.parametrize("length", range(6))
def test_the_model_goes_on_where_the_draftless_part_stops(length):
    proposer = hybrid([scripted(length)], max_model_tokens=3, enough=4)
    draft = proposer.propose([sampled([1, 2], 8)])[0]
    num_model = 3 if length < 4 else 0
    assert draft.sources == ("script",) * length + ("draft-model",) * num_model
    assert draft.token_ids[:length] == tuple((3 + i) % VOCAB for i in range(length))
    if num_model:
        assert [isinstance(law, OneHotLaw) for law in draft.laws] == (
            [True] * length + [False] * num_model
        )
        assert all(law.prob(t) > 0 for law, t in zip(draft.laws, draft.token_ids, strict=True))
    else:
        assert draft.laws is None


@pytest.mark.parametrize("kappa", range(1, 8))
@pytest.mark.parametrize("length", range(4))
def test_kappa_limits_the_whole(kappa, length):
    kept = min(length, kappa)
    draft = hybrid([scripted(kept)]).propose([sampled([1, 2], kappa)])[0]
    assert len(draft) == min(kappa, kept + 3)


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("length", range(4))
def test_behind_a_head_the_model_drafts_what_it_would_behind_the_same_text(length, coupled):
    # The same tokens committed instead of drafted, with the coins of the same round: this is
    # what the model's law behind a head means. The penalty tells whether the head counts.
    head = tuple((3 + i) % VOCAB for i in range(length))
    asked = replace(sampled([1, 2], length + 3, prompt=1), coupled=coupled)
    draft = hybrid([scripted(length)]).propose([asked])[0]
    text = [1, 2, *head]
    committed = replace(sampled(text, 3, prompt=1), coupled=coupled, coins=Shifted(asked, length))
    alone = drafter(OTHER)[0].propose([committed])[0]
    assert draft.token_ids == head + alone.token_ids
    for mine, fresh in zip(draft.laws[length:], alone.laws, strict=True):
        assert (mine.dense() == fresh.dense()).all()


class Shifted:
    """The coins of a round from an offset on."""

    def __init__(self, asked, offset):
        self.coins, self.offset = asked.coins, offset

    def draft(self, i):
        return self.coins.draft(self.offset + i)

    def noise(self, i, vocab_size):
        return self.coins.noise(self.offset + i, vocab_size)


def test_the_first_part_that_drafts_is_taken_for_each_row():
    first = ScriptedProposer(lambda asked: [4] if asked.token_ids[-1] == 1 else [], "first")
    second = ScriptedProposer(lambda asked: [5, 6], "second")
    proposer = hybrid([first, second], max_model_tokens=1)
    drafts = proposer.propose([request([2, 1], name="a"), request([2, 3], name="b")])
    assert [draft.sources for draft in drafts] == [
        ("first", "draft-model"),
        ("second", "second", "draft-model"),
    ]
    assert second.calls == [("b", 2, 8)]


def test_greedy_drafts_have_no_laws():
    draft = hybrid([scripted(2)]).propose([request([1, 2])])[0]
    assert len(draft) == 5
    assert draft.laws is None
    assert draft.sources == ("script",) * 2 + ("draft-model",) * 3


# -- failures ----------------------------------------------------------------------------


def broken(name="broken"):
    return RaisingProposer(scripted(2, name), ValueError("broken"))


def test_a_draftless_part_that_fails_leaves_the_model():
    draft = hybrid([broken()]).propose([sampled([1, 2], 5)])[0]
    assert draft.sources == ("draft-model",) * 3


class BrokenModel(DraftModelProposer):
    def propose_after(self, requests, heads):
        raise ValueError("no model")


def test_a_model_that_fails_leaves_the_draftless_part_and_says_so():
    model = BrokenModel(drafter(OTHER)[1])
    draft = hybrid([scripted(2)], model=model).propose([sampled([1, 2], 5)])[0]
    assert draft.sources == ("script",) * 2
    assert draft.laws is None
    assert "no model" in draft.note


def test_when_all_parts_fail_nothing_is_drafted_and_both_reasons_are_told():
    model = BrokenModel(drafter(OTHER)[1])
    drafts = hybrid([broken()], model=model).propose([sampled([1], 5), sampled([2], 5, name="b")])
    for draft in drafts:
        assert draft == Draft(proposer="hybrid", note=draft.note, sources=())
        assert "broken" in draft.note
        assert "no model" in draft.note


def test_all_parts_forget_a_request_though_one_fails_to():
    class Forgetful(SuffixProposer):
        def release(self, request_id):
            raise ValueError("cannot")

    inner, (model, backend) = SuffixProposer(), drafter(OTHER)
    proposer = HybridProposer([inner, Renamed(Forgetful())], model)
    proposer.propose([sampled([1, 2, 1], 4)])
    assert (inner.num_requests, model.num_requests) == (1, 1)
    with pytest.raises(ValueError, match="cannot"):
        proposer.release("a")
    assert (inner.num_requests, model.num_requests, backend.num_open) == (0, 0, 0)


class Renamed:
    def __init__(self, inner):
        self.propose, self.release, self.name = inner.propose, inner.release, "renamed"


@pytest.mark.parametrize(
    ("draftless", "options", "expected"),
    [
        ([], {}, "no draftless part"),
        ([scripted(1)], {"max_model_tokens": 0}, "max_model_tokens 0"),
        ([scripted(1)], {"enough": 0}, "enough 0"),
        ([scripted(1), scripted(1)], {}, "a name of its own"),
    ],
)
def test_options_out_of_range_are_refused(draftless, options, expected):
    with pytest.raises(ConfigError, match=expected):
        hybrid(draftless, **options)


# -- the drafter's cache -----------------------------------------------------------------


@pytest.mark.parametrize("rule", ["standard", "block", "coupled"])
def test_heads_leave_no_trace_in_the_models_cache(loop, rule):
    # The drafter is the target: with its cache right, it never misses behind a true head.
    suffix = SuffixProposer(min_score=0.25)
    proposer = hybrid([suffix], model=drafter()[0], enough=9)
    run = loop(target(), proposer, [1, 2, 3, 1], seed=5, rule=rule)
    from_model = 0
    for turn in range(60):
        draft, verdict = run.round((1, 6, 3, 8, 5)[turn % 5])
        heads = draft.sources.count("suffix")
        if heads and verdict.num_accepted >= heads:
            assert verdict.num_accepted == len(draft)
            from_model += len(draft) - heads
        if turn % 7 == 6:
            run.round(0)
    assert from_model >= 5


def test_heads_are_never_published_to_the_prefix_cache(loop):
    _, backend = model_and_backend = drafter(OTHER)
    finals = []

    def commit(sequence_id):
        finals.append(backend.length(sequence_id))
        original(sequence_id)

    original, backend.commit = backend.commit, commit
    proposer = HybridProposer([scripted(3)], model_and_backend[0])
    run = loop(target(), proposer, [1, 2, 3], seed=5)
    for turn in range(12):
        before = len(run.run.tokens)
        run.round(3 if turn % 3 else 6)
        assert all(length <= before for length in finals)
    assert not finals  # heads in every round: nothing was ever final in the model's cache


# -- conformance -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["suffix", "ngram", "script", "cut model"])
def test_it_conforms(kind):
    parts = {
        "suffix": lambda: [SuffixProposer(min_score=0.3)],
        "ngram": lambda: [NgramProposer(1, 3)],
        "script": lambda: [scripted(1)],
        "cut model": lambda: [SuffixProposer(min_score=0.3)],
    }[kind]
    options = {"min_confidence": 0.25} if kind == "cut model" else {}

    def make():
        return HybridProposer(parts(), drafter(**options)[0], enough=3)

    report = check_proposer(make, vocab_size=VOCAB, num_draws=300, tolerance=0.0)
    report.require()


# -- who is asked first --------------------------------------------------------------------


class Telling(ScriptedProposer):
    """A scripted drafter that tells a fixed sign."""

    def __init__(self, sign, name):
        super().__init__(lambda asked: [(asked.token_ids[-1] + 1) % VOCAB], name)
        self.sign = sign

    def foretell(self, request_id, token_ids):
        if self.sign is None:
            raise RuntimeError("broken")
        return self.sign


@pytest.mark.parametrize(
    ("signs", "first", "told"),
    [
        ((1, 3), "b", 3),  # a firm copy before a weak one, whatever the order
        ((2, 3, 3), "b", 3),
        ((2, 2), "a", 2),  # even ones in order
        ((0, 1), "b", 1),
        ((3, 3), "a", 3),
        ((-1, 1), "a", 1),  # not known yet: looked at before a weak copy
        ((-1, 3), "b", 3),
        ((None, 1), "b", 1),  # one that fails to tell is asked last
    ],
)
def test_the_part_with_the_best_sign_is_asked_first(signs, first, told):
    parts = [Telling(sign, name) for sign, name in zip(signs, "abc", strict=False)]
    proposer = hybrid(parts, enough=1)
    asked = sampled([1, 2], 3)
    assert proposer.propose([asked])[0].sources == (first,)
    assert proposer.foretell(asked.request_id, asked.token_ids) == told


def test_each_row_has_its_own_order():
    class ByText(Telling):
        def foretell(self, request_id, token_ids):
            return 3 if (token_ids[-1] == 2) == (self.name == "b") else 1

    proposer = hybrid([ByText(0, "a"), ByText(0, "b")], enough=1)
    drafts = proposer.propose([sampled([1, 2], 3), sampled([2, 1], 3), sampled([0, 2], 3)])
    assert [draft.sources for draft in drafts] == [("b",), ("a",), ("b",)]


def test_a_part_that_never_tells_is_asked_before_weak_copies_and_after_firm_ones():
    silent = scripted(1, "silent")
    asked = sampled([1, 2], 3)
    for sign, first in ((1, "silent"), (2, "a"), (3, "a")):
        proposer = hybrid([Telling(sign, "a"), silent], enough=1)
        assert proposer.propose([asked])[0].sources == (first,), sign


def test_the_last_part_is_not_looked_up_twice_where_no_other_would_draft():
    class Counting(Telling):
        asked = 0

        def foretell(self, request_id, token_ids):
            self.asked += 1
            return self.sign

    for sign, asked in ((0, 0), (1, 1)):
        last = Counting(3, "b")
        hybrid([Telling(sign, "a"), last], enough=1).propose([sampled([1, 2], 3)])
        assert last.asked == asked
