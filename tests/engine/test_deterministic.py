"""The deterministic mode: shapes of passes, and refusal where kernels do not keep it."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.core.policy import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.engine.deterministic import MAX_PASS_TOKENS, MAX_ROW_TOKENS
from draftproof.errors import ConfigError
from draftproof.proposers import NgramProposer

TABLE = MarkovTable(5, 2, seed=3)


class RoundsByShape(TableBackend):
    """Adds noise of float32 size that depends on the number of tokens of a pass."""

    def forward(self, batch):
        logits = super().forward(batch)
        rounded = logits * np.float32(1 + 1e-6 * len(batch))
        return rounded.astype(np.float32)


class RoundsInFullPasses(TableBackend):
    """Rounds otherwise in passes of more than 60 tokens: another kernel."""

    def forward(self, batch):
        logits = super().forward(batch)
        return (logits * np.float32(1 + 1e-6 * (len(batch) > 60))).astype(np.float32)


def backend(kind=TableBackend, num_pages=200):
    return kind(TABLE, PagedStore(num_pages, 32))


def core(target, **options):
    return EngineCore(
        target, proposers=[NgramProposer(min_n=1)], kappa=5, deterministic=True, **options
    )


def requests(count, prompt_length=70, **options):
    generator = np.random.default_rng(8)
    return [
        GenerateRequest(
            tuple(generator.integers(0, 5, prompt_length).tolist()),
            SamplingParams(),
            max_tokens=50,
            seed=index,
            rule="sample-match",
            request_id=f"r{index}",
            **options,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("kind", [RoundsByShape, RoundsInFullPasses])
def test_a_model_that_rounds_by_shape_is_refused_with_the_gap(kind):
    with pytest.raises(ConfigError, match="cannot run deterministically here: a row of 1 tokens"):
        core(backend(kind))


def test_passes_rows_and_cuts_keep_their_limits():
    target = backend()
    engine = core(target)
    before = len(target.passes)
    for request in requests(12):
        engine.submit(request)
    results = engine.run()
    assert all(len(result.tokens) == 50 for result in results.values())
    by_call = {}
    for row in target.passes[before:]:
        by_call.setdefault(row.call, []).append(row)
        start, count = row.positions[0], len(row.token_ids)
        if start < 70:
            assert (start % 32, count) in {(0, 32), (0, 6)}
        else:
            assert count <= MAX_ROW_TOKENS
    assert max(sum(len(r.token_ids) for r in rows) for rows in by_call.values()) <= MAX_PASS_TOKENS


def test_rows_that_do_not_fit_take_turns():
    target = backend(num_pages=400)
    engine = core(target)
    for request in requests(30, prompt_length=40):
        engine.submit(request)
    for _ in range(60):
        engine.step()
    lengths = [session.num_generated for session in engine._sessions.values()]
    assert not lengths or max(lengths) - min(lengths) <= 6 * 8, lengths


def test_only_prompts_are_shared_and_resumed_text_is_read_in_narrow_rows():
    target = backend(num_pages=14)
    engine = core(target)
    for request in requests(4):
        engine.submit(request)
    results = engine.run()
    assert engine.num_preemptions > 0, "the pool is large enough: nothing was resumed"
    roomy = core(backend())
    for request in requests(4):
        roomy.submit(request)
    expected = roomy.run()
    for name, result in results.items():
        assert result.token_ids == expected[name].token_ids
    first = results["r0"]
    followup = GenerateRequest(
        (*first.prompt_ids, *first.token_ids), SamplingParams(), max_tokens=1, seed=0
    )
    sequence = target.open(followup.prompt_ids)
    assert target.length(sequence) <= 64, "a page of generated tokens was shared"
    target.close(sequence)


def test_too_many_drafts_are_refused():
    engine = core(backend())
    with pytest.raises(ConfigError, match="deterministic mode allows at most 15"):
        engine.submit(requests(1, kappa=16)[0])


def test_the_label_says_to_the_bit():
    engine = core(backend())
    engine.submit(requests(1)[0])
    assert engine.run()["r0"].exactness == "seed-identical, to the bit"
