"""The text of a request in another vocabulary: right after every round, and read once."""

from __future__ import annotations

import random

import numpy as np
import pytest
from vocabulary_kit import DRAFT, TARGET, Pieces, bridge, shared

from draftproof.backends.table import FunctionTable, MarkovTable, PagedStore, TableBackend
from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.proposers import (
    DraftModelProposer,
    DraftModelTreeProposer,
    RetokenisedProposer,
    SharedVocabulary,
)
from draftproof.proposers._translation import LOOK_BACK, Translations, common_length
from draftproof.testing import check_proposer
from draftproof.text import TextBridge

GREEDY = SamplingParams(temperature=0.0)
WORDS = [b" one", b" two", b" t", b"wo", b"on", b"e", b"o", b"n", b"w", b"t", b" "]
#: Merges words that the target writes in parts, and parts that it writes as words.
TIGHT = [b" ", b"o", b"n", b"e", b"t", b"w", b" on", b"two", b" t", b"ne", b" one two"]


def ask(tokens, kappa=3, *, name="a", params=GREEDY, seed=0, **options):
    return ProposalRequest(
        name, tokens, kappa, params, History(tokens), CoinSource(seed).round(len(tokens)), **options
    )


def spelled(tokenizer, ids):
    return b"".join(map(tokenizer.token_bytes, ids))


def test_a_growing_text_is_the_text_of_the_drafter_at_every_step():
    target, draft = Pieces(WORDS), Pieces(TIGHT, start=[11])
    texts, rng, tokens = Translations(TextBridge(target, draft)), random.Random(3), []
    before = [11]
    for _ in range(300):
        tokens += rng.choices(range(len(WORDS)), k=rng.randint(1, 5))
        ids, kept = texts.read("a", tokens)
        assert ids[0] == 11
        assert spelled(draft, ids) == spelled(target, tokens)
        assert ids[:kept] == before[:kept]
        assert kept >= len(before) - LOOK_BACK
        before = list(ids)
    # Read at once, the text is cut alike: what was cut too early has been mended.
    whole, _ = Translations(TextBridge(target, draft)).read("b", list(tokens))
    assert whole == before


def test_each_token_is_read_once_however_long_the_text(monkeypatch):
    target, draft = Pieces(WORDS), Pieces(TIGHT)
    joined = TextBridge(target, draft)
    sizes = []
    encode = joined.to_draft
    monkeypatch.setattr(joined, "to_draft", lambda data: sizes.append(len(data)) or encode(data))
    texts, tokens = Translations(joined), [0, 1] * 2000
    texts.read("a", tokens)
    sizes.clear()
    for _ in range(50):
        tokens += [0, 1, 1]
        texts.read("a", tokens)
    assert max(sizes) < 4 * 4 * LOOK_BACK  # bytes: a few tokens of the end, never the text


def test_a_text_that_was_rolled_back_or_exchanged_is_read_again():
    texts = Translations(bridge())
    tokens = [0, 1, 2, 0]
    texts.read("a", tokens)
    assert spelled(DRAFT, texts.read("a", tokens[:2])[0]) == b"ab"
    assert spelled(DRAFT, texts.read("a", [1, 1])[0]) == b"bb"
    tokens[-1] = 1
    assert spelled(DRAFT, texts.read("a", tokens)[0]) == spelled(TARGET, tokens)
    texts.release("a")
    texts.release("unknown")
    assert len(texts) == 0


def drafters(table, store=None):
    store = store or PagedStore(2000, 4)
    backend = TableBackend(table, store, context_length=2048)
    shared_ids = SharedVocabulary(shared(), bridge())
    return {
        "chain": DraftModelProposer(backend, vocabulary=shared_ids),
        "tree": DraftModelTreeProposer(backend, vocabulary=shared_ids),
        "text": RetokenisedProposer(backend, bridge()),
    }


@pytest.mark.parametrize("kind", ["chain", "tree", "text"])
def test_a_drafter_that_goes_on_drafts_what_a_fresh_one_does(kind):
    """Rejected drafts, skipped rounds and re-cut text leave nothing behind in the cache."""
    table, rng = MarkovTable(5, None, seed=4, spread=1.5), random.Random(5)
    going_on, tokens = drafters(table)[kind], [0, 1, 0]
    for turn in range(40):
        request = ask(tokens, params=SamplingParams(), seed=turn)
        (draft,) = going_on.propose([request])
        (fresh,) = drafters(table)[kind].propose([request])
        assert draft.token_ids == fresh.token_ids
        laws = "child_laws" if kind == "tree" else "laws"
        pairs = zip(getattr(draft, laws) or (), getattr(fresh, laws) or (), strict=True)
        for law, other in pairs:
            assert (law is None) == (other is None)
            if law is not None:
                assert np.array_equal(law.dense(), other.dense())
        accepted = draft.token_ids[: rng.randint(0, 2)] if kind != "tree" else ()
        tokens += [*accepted, *rng.choices(range(3), k=rng.randint(1, 3))]
    going_on.release("a")
    assert going_on.num_requests == 0


def written(text, vocabulary):
    """A drafter that knows the text and goes on with it wherever it is, in its own tokens."""

    def law(held):
        row = np.zeros(vocabulary.vocab_size)
        done = len(spelled(vocabulary, held))
        rest = [i for i, p in enumerate(vocabulary.pieces) if p and text[done:].startswith(p)]
        row[max(rest, key=lambda i: len(vocabulary.pieces[i])) if rest else -1] = 1.0
        return row

    return FunctionTable(vocabulary.vocab_size, law)


def test_a_drafter_that_knows_the_text_has_every_draft_accepted():
    """Also where its tokens reach over the end of what stands: that end is not written twice."""
    target, draft = Pieces(WORDS), Pieces(TIGHT)
    text = b" one two one two two one one two one one two two" * 3
    answer = target.encode(text.decode())
    proposer = RetokenisedProposer(TableBackend(written(text, draft)), TextBridge(target, draft))
    tokens, num_rounds = answer[:1], 0
    while len(tokens) < len(answer) - 8:
        (drafted,) = proposer.propose([ask(tokens, 4)])
        assert drafted.note == ""
        assert drafted.laws is None
        stands = len(spelled(target, tokens))
        assert text[stands:].startswith(spelled(target, drafted.token_ids))
        # The text of a draft may end inside a word, which the target cuts otherwise.
        accepted = common_length(drafted.token_ids, answer[len(tokens) :])
        whole_words = text[stands:][: len(spelled(target, drafted.token_ids))].rpartition(b" ")[0]
        assert len(spelled(target, drafted.token_ids[:accepted])) >= len(whole_words)
        tokens, num_rounds = answer[: len(tokens) + accepted + 1], num_rounds + 1
    assert num_rounds < len(answer) / 2


class Careless(TextBridge):
    """Leaves out as many tokens as the end of the text has by itself."""

    def to_target(self, before, data):
        return self._to_target.encode(before + data)[len(self._to_target.encode(before)) :]


@pytest.mark.parametrize(("kind", "is_right"), [(TextBridge, True), (Careless, False)])
def test_a_draft_goes_on_where_the_text_ends_however_that_was_cut(kind, is_right):
    target, draft = Pieces(WORDS), Pieces(TIGHT)
    # The words in parts, as no tokenizer would cut them: the next token may join such a part.
    cut = [0, 2, 3, 10, 4, 5, 2, 8, 6, 0]
    text = spelled(target, cut) + b" two one two"
    proposer = RetokenisedProposer(TableBackend(written(text, draft)), kind(target, draft))
    goes_on = []
    for count in range(1, len(cut) + 1):
        (drafted,) = proposer.propose([ask(cut[:count], 4)])
        rest = text[len(spelled(target, cut[:count])) :]
        goes_on.append(len(drafted) > 0 and rest.startswith(spelled(target, drafted.token_ids)))
    assert all(goes_on) is is_right


def test_text_drafts_end_where_the_drafter_ends_and_never_pass_kappa():
    draft = Pieces(TIGHT)
    text = b" one two"
    proposer = RetokenisedProposer(
        TableBackend(written(text, draft)), TextBridge(Pieces(WORDS), draft)
    )
    (drafted,) = proposer.propose([ask([0], 5)])  # " one" stands
    assert drafted.token_ids == (1,)
    (drafted,) = proposer.propose([ask([6, 7], 5)])  # "on" is not how the text goes
    assert len(drafted) <= 5
    fast = Pieces([*TIGHT, b" one two one two one two"])
    proposer = RetokenisedProposer(
        TableBackend(written(text * 9, fast)), TextBridge(Pieces(WORDS), fast)
    )
    (drafted,) = proposer.propose([ask([0, 1], 2)])
    assert drafted.token_ids == (0, 1)


class Only:
    """A grammar that allows some tokens everywhere."""

    def __init__(self, allowed, vocab_size):
        self.mask = np.isin(np.arange(vocab_size), allowed)

    def allowed(self, extra=()):
        return self.mask


def test_text_drafts_end_where_a_grammar_forbids_them():
    draft, text = Pieces(TIGHT), b" one two" * 5
    for kind, expected in (([0, 1], (1, 0, 1)), ([1], (1,)), ([0], ())):
        proposer = RetokenisedProposer(
            TableBackend(written(text, draft)), TextBridge(Pieces(WORDS), draft)
        )
        grammar = Only(kind, len(WORDS) + 1)
        (drafted,) = proposer.propose([ask([0], 4, constraint=grammar)])
        assert drafted.token_ids == expected


def test_a_policy_about_tokens_of_the_target_does_not_reach_the_writer():
    params = SamplingParams(
        temperature=0.0, logit_bias={2: 5.0}, banned_token_ids=(2,), repetition_penalty=1.3
    )
    table = MarkovTable(5, None, seed=4, spread=1.5)
    (plain,) = drafters(table)["text"].propose([ask([0, 1, 0])])
    (other,) = drafters(table)["text"].propose([ask([0, 1, 0], params=params)])
    assert plain.token_ids == other.token_ids


def test_the_policy_of_the_request_acts_on_shared_tokens():
    params = SamplingParams(banned_token_ids=(0,))
    proposer = drafters(MarkovTable(5, None, seed=4))["chain"]
    (draft,) = proposer.propose([ask([0, 1, 0], 4, params=params)])
    assert set(draft.token_ids) == {1}


def test_a_drafter_out_of_context_or_unable_to_spell_says_so():
    short = TableBackend(MarkovTable(5, None, seed=4), context_length=4)
    proposer = DraftModelProposer(short, vocabulary=SharedVocabulary(shared(), bridge()))
    # Begin-of-text and four letters: "ab" is two tokens here.
    (draft,) = proposer.propose([ask([2, 2], 3)])
    assert "past the drafter's context of 4" in draft.note
    (draft,) = proposer.propose([ask([2, 0], 3)])
    assert len(draft) == 1
    assert "no room" in draft.note
    mute = Pieces([b"a"])
    vocabulary = SharedVocabulary(TextBridge(TARGET, mute).shared(3, 2), TextBridge(TARGET, mute))
    silent = DraftModelProposer(TableBackend(MarkovTable(2, 1)), vocabulary=vocabulary)
    (draft,) = silent.propose([ask([0, 1], 3)])
    assert "cannot spell the byte 0x62" in draft.note


def test_nothing_shared_and_two_vocabularies_are_refused():
    other = TextBridge(TARGET, Pieces([b"x", b"y"], ends=0))
    with pytest.raises(IncompatibleModelsError, match="share no token"):
        SharedVocabulary(other.shared(3, 2), other)
    vocabulary = SharedVocabulary(shared(), bridge())
    for kind in (DraftModelProposer, DraftModelTreeProposer):
        with pytest.raises(ConfigError, match="target_vocab_size 3 beside a vocabulary"):
            kind(TableBackend(MarkovTable(5, 1)), vocabulary=vocabulary, target_vocab_size=3)


@pytest.mark.parametrize("kind", ["chain", "tree", "text"])
def test_the_conformance_kit_passes(kind):
    table = MarkovTable(5, None, seed=4, spread=1.5)
    check_proposer(lambda: drafters(table)[kind], vocab_size=3, num_draws=200).require()
