"""How draft models are joined to a target: the same ids, shared tokens, the text, or not at all."""

from __future__ import annotations

import pytest

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.build import SpeculativeConfig
from draftproof.build.draft_links import early_exit, link_vocabularies
from draftproof.build.drafters import make_proposers
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.proposers import (
    DraftModelProposer,
    DraftModelTreeProposer,
    HybridProposer,
    RetokenisedProposer,
)

DRAFT = TableBackend(MarkovTable(4, 1, seed=1))


class Pieces:
    """A tokenizer of single letters."""

    def __init__(self, letters):
        self.letters = letters
        self.vocab_size = len(letters)
        self.eos_token_ids = frozenset()

    def encode(self, text, *, add_special=True):
        return [self.letters.index(letter) for letter in text if letter in self.letters]

    def encode_chat(self, messages):
        raise NotImplementedError

    def token_bytes(self, token_id):
        return self.letters[token_id].encode()

    def decode(self, token_ids):
        return "".join(self.letters[token] for token in token_ids)


def made(target, draft, *, method="draft_model", **options):
    said = []
    config = SpeculativeConfig.parse({"method": method, "model": "x", **options})
    link = link_vocabularies(
        config, (Pieces(target), Pieces(draft)), (len(target), len(draft)), said.append
    )
    (proposer,) = make_proposers(config, len(target), DRAFT, link=link)
    return proposer, " ".join(said)


@pytest.mark.parametrize("mapping", ["auto", "intersection", "retokenise", "none"])
def test_the_same_vocabulary_needs_no_mapping(mapping):
    proposer, said = made("abcd", "abcd", vocab_mapping=mapping)
    assert type(proposer) is DraftModelProposer
    assert said == ""


@pytest.mark.parametrize(
    ("draft", "kind", "told"),
    [
        ("badc", DraftModelProposer, "has 4 of the target's 4 tokens; drafts are drawn from these"),
        ("baxy", DraftModelProposer, "has 2 of the target's 4 tokens; drafts are drawn from these"),
        ("axyz", RetokenisedProposer, "has 1 of the target's 4 tokens; drafts are the target's"),
    ],
)
def test_auto_draws_shared_tokens_where_half_are_shared_and_says_so(draft, kind, told):
    proposer, said = made("abcd", draft)
    assert type(proposer) is kind
    assert told in said


def test_what_is_asked_for_is_taken():
    assert type(made("abcd", "axyz", vocab_mapping="intersection")[0]) is DraftModelProposer
    assert type(made("abcd", "badc", vocab_mapping="retokenise")[0]) is RetokenisedProposer
    with pytest.raises(IncompatibleModelsError, match=r"differ at id 0.*vocab_mapping 'none'"):
        made("abcd", "badc", vocab_mapping="none")


def test_trees_are_drawn_from_shared_tokens_and_hybrids_take_either():
    assert type(made("abcd", "axyz", method="draft_model_tree")[0]) is DraftModelTreeProposer
    hybrid = made("abcd", "axyz", method="hybrid")[0]
    assert type(hybrid) is HybridProposer
    assert type(hybrid._model) is RetokenisedProposer


def test_vocabularies_that_share_nothing_are_joined_by_text_alone():
    assert type(made("abcd", "wxyz")[0]) is RetokenisedProposer
    with pytest.raises(IncompatibleModelsError, match="share no token"):
        made("abcd", "wxyz", vocab_mapping="intersection")


@pytest.mark.parametrize(
    ("options", "temperature"),
    [
        ({}, 0.0),
        ({"draft_sample_method": "probabilistic"}, None),
        ({"draft_sample_method": "greedy"}, 0.0),
        ({"draft_temperature": 0.7}, 0.7),
    ],
)
def test_text_is_written_greedily_unless_something_else_is_said(options, temperature):
    proposer, _ = made("abcd", "badc", vocab_mapping="retokenise", **options)
    assert proposer._writer._temperature == temperature


def test_a_runtime_without_early_exits_is_named():
    with pytest.raises(ConfigError, match="num_layers 3: the runtime table has no early exit"):
        early_exit(DRAFT, 3)
