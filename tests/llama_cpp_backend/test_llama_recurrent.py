"""Models that keep a state: what was rejected is replayed from the state before."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.llama_cpp.native import LlamaContext
from draftproof.errors import InvariantError

CLOSE = 2e-4


class Counter(LlamaContext):
    """A context that counts the tokens it computes."""

    computed = 0

    def decode(self, token_ids, *rest):
        type(self).computed += len(token_ids)
        return super().decode(token_ids, *rest)


def close(found, expected):
    return found.shape == expected.shape and float(np.abs(found - expected).max()) < CLOSE


def test_facts(make_backend):
    info = make_backend("mamba", slots=8).info
    assert (info.rewindable, info.trees, info.page_size, info.kv_bytes_per_token) == (
        True,
        False,
        0,
        0,
    )


@pytest.mark.parametrize("accepted", range(5))
def test_only_accepted_drafts_are_computed_again(decoder, tokens, accepted):
    class Mine(Counter):
        computed = 0

    state = decoder("mamba", slots=8, context_type=Mine)
    sequence = state.backend.open()
    state.feed(sequence, tokens[:20], 0)
    state.feed(sequence, tokens[20:25])  # a pending token and four drafts
    state.backend.truncate(sequence, 21 + accepted)
    assert Mine.computed == 25
    found = state.feed(sequence, tokens[40:43])
    # All accepted: nothing. Else the pending token and what was accepted after it.
    assert Mine.computed == 28 + (0 if accepted == 4 else 1 + accepted)
    text = tokens[: 21 + accepted] + tokens[40:43]
    assert close(found, decoder("mamba").score(text)[-3:])


def test_rounds_of_rejections_do_not_pile_up(decoder, tokens):
    class Mine(Counter):
        computed = 0

    state = decoder("mamba", slots=8, context_type=Mine)
    sequence, text = state.backend.open(), tokens[:20]
    state.feed(sequence, text, 0)
    most = 0
    for turn in range(12):
        before = Mine.computed
        state.feed(sequence, [turn, *tokens[30:34]])
        text = [*text, turn, tokens[30]]
        state.backend.truncate(sequence, len(text))
        most = max(most, Mine.computed - before)
    assert most <= 5 + 8 + 2
    assert close(state.feed(sequence, tokens[:2]), decoder("mamba").score(text + tokens[:2])[-2:])


def test_without_a_spare_sequence_the_text_is_read_again(decoder, tokens):
    few = decoder("mamba", slots=2)
    one = few.backend.open()
    few.feed(one, tokens[:10], 0)
    few.feed(one, tokens[10:14])
    few.backend.truncate(one, 11)
    two = few.backend.open()
    assert not few.backend.reserve(two, 1)
    assert close(
        few.feed(one, tokens[30:33]), decoder("mamba").score(tokens[:11] + tokens[30:33])[-3:]
    )


def test_deep_rollbacks_and_forks(decoder, tokens):
    state = decoder("mamba", slots=8)
    sequence = state.backend.open()
    state.feed(sequence, tokens[:12], 0)
    child = state.backend.fork(sequence)
    state.backend.truncate(child, 4)
    state.feed(sequence, tokens[12:15], 0)
    expected = decoder("mamba").score(tokens[:4] + tokens[50:53])[-3:]
    assert close(state.feed(child, tokens[50:53]), expected)
    expected = decoder("mamba").score(tokens[:18])[-3:]
    assert close(state.feed(sequence, tokens[15:18]), expected)


def test_a_tree_is_refused(decoder, tokens):
    state = decoder("mamba", slots=8)
    sequence = state.backend.open()
    with pytest.raises(InvariantError, match="a recurrent model scores chains only"):
        state.feed(sequence, tokens[:3], parents=[-1, 0, 0])
    assert state.backend.length(sequence) == 0
