"""Windows, recurrent states and shared prefixes: no kind of memory changes the text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_kit import (
    DRAFTERS,
    GREEDY,
    TABLE,
    VOCAB,
    answers,
    check_equal,
    corrupt_every,
    drafter,
    ids,
    make_core,
    plain,
    prompts,
    requests,
    run,
)

from draftproof.backends.table import PagedStore, RecurrentStore, TableBackend, WindowStore
from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.proposers import NgramProposer
from draftproof.testing.scripted import OracleProposer

# Kinds of memory (KV-2, KV-6) -------------------------------------------------------------------


@pytest.mark.parametrize("kappa", range(1, 7))
@pytest.mark.parametrize("beyond", [1, 4, 11, 20])
def test_a_sliding_window_keeps_its_size_and_its_law(kappa, beyond):
    window = 8
    batch = requests(5, 2, max_tokens=window - 5 + beyond)
    store = WindowStore(window)
    sizes = []

    class Watched(TableBackend):
        def forward(self, passed):
            logits = super().forward(passed)
            sizes.extend(store.num_tokens_held(sequence) for sequence in passed.sequence_ids)
            return logits

        def commit(self, sequence_id):
            super().commit(sequence_id)
            assert store.num_tokens_held(sequence_id) <= window

    known = answers(batch, store=WindowStore(window))
    core = EngineCore(
        Watched(TABLE, store), proposers=[OracleProposer(known, corrupt_every(3))], kappa=kappa
    )
    assert ids(run(core, batch)) == ids(plain(batch, store=WindowStore(window)))
    assert max(sizes) <= window + kappa + 1


def test_the_window_test_depends_on_the_window():
    batch = requests(5, max_tokens=40)
    assert ids(plain(batch, store=WindowStore(8))) != ids(plain(batch))


def test_a_state_that_cannot_go_back_is_refused_with_the_reason():
    with pytest.raises(
        ConfigError, match=r"cannot rewind its state.*num_speculative_tokens=0, got 4"
    ):
        make_core(store=RecurrentStore(), proposers=[NgramProposer()], kappa=4)
    core = make_core(store=RecurrentStore(), proposers=[NgramProposer()])
    with pytest.raises(ConfigError, match="cannot rewind"):
        core.submit(GenerateRequest((1, 2), kappa=2))
    batch = requests(1, 2, 3, max_tokens=20)
    assert ids(run(core, batch)) == ids(plain(batch, store=RecurrentStore()))


@pytest.mark.parametrize("every", [1, 3, 16])
@pytest.mark.parametrize("name", ["junk", "half-wrong", "model"])
def test_a_state_with_snapshots_equals_plain_for_100_tokens(name, every):
    batch = requests(1, 2, 3, max_tokens=100)
    check_equal(batch, DRAFTERS[name], 4, make_store=lambda: RecurrentStore(snapshot_every=every))


# The prefix cache (KV-5) ------------------------------------------------------------------------


def counts_of(results):
    return {
        name: (r.token_ids, r.stats.num_draft_tokens, r.stats.num_accepted_tokens)
        for name, r in results.items()
    }


@pytest.mark.parametrize("name", ["model", "ngram", "half-wrong", "self"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_warm_prefix_changes_neither_text_nor_acceptance(name, temperature):
    params = SamplingParams(temperature=temperature)
    batch = requests(33, 18, 4, params=params, max_tokens=30)
    known = answers(batch)
    core = make_core(proposers=[drafter(name, known)], kappa=4)
    cold = counts_of(run(core, batch))
    before = core.target.num_tokens
    warm = counts_of(run(core, batch))
    assert warm == cold
    first = core.target.store.cache.counters().prefix_hit_tokens
    assert first >= 32 + 16
    assert core.target.num_tokens - before < before


def test_what_another_request_had_rejected_is_not_in_the_prefix():
    (prompt,) = prompts(16)
    first = GenerateRequest(prompt, GREEDY, max_tokens=40, request_id="a", seed=1)
    known = answers([first])
    core = make_core(proposers=[OracleProposer(known, corrupt_every(2))], kappa=6)
    run(core, [first])
    for cut in range(17, 40):
        tail = (known["a"][cut] + 1) % VOCAB
        other = GenerateRequest((*known["a"][:cut], tail), GREEDY, max_tokens=12, request_id="b")
        cold = make_core(proposers=[NgramProposer(1, 3)], kappa=6)
        warm = run(core, [replace(other, kappa=0)])["b"]
        assert warm.token_ids == run(cold, [other])["b"].token_ids


class StaleStore(PagedStore):
    """Restores the prefix of the first request it ever saw, whatever the tokens are."""

    first = None

    def open(self, token_ids):
        if self.first is None and token_ids:
            self.first = list(token_ids)
        return super().open(self.first[: len(token_ids)] if self.first else token_ids)


def test_a_prefix_of_another_context_is_seen():
    first, second = requests(16, 16, max_tokens=20)
    core = make_core(store=StaleStore())
    run(core, [first])
    assert ids(run(core, [second])) != ids(plain([second]))
