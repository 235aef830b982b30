"""A traced row learns the same from logits on a device as from the definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from device_kit import RULES, SIZES, random_pass  # noqa: E402
from engine_kit import GREEDY, NEAR, TABLE, WARM, make_core, requests, run  # noqa: E402

from draftproof.backends.table import TableBackend  # noqa: E402
from draftproof.core.types import TreeDraft  # noqa: E402
from draftproof.device import TorchExecutor  # noqa: E402
from draftproof.proposers import DraftModelProposer  # noqa: E402
from draftproof.verify import NumpyExecutor, Reached  # noqa: E402


def judged(executor, rows, logits):
    """The verdicts and what was learned."""
    rows = [replace(row, reached=Reached()) for row in rows]
    return executor.judge(rows, logits), [row.reached for row in rows]


def check(rows, logits, executor):
    truth, expected = judged(NumpyExecutor(), rows, logits)
    verdicts, learned = judged(executor, rows, torch.from_numpy(logits))
    for row, verdict, other, one, two in zip(rows, truth, verdicts, expected, learned, strict=True):
        if isinstance(verdict, Exception):
            continue
        assert verdict == other
        assert one.probs.keys() == two.probs.keys(), row.rule
        for node, prob in one.probs.items():
            assert two.probs[node] == pytest.approx(prob, rel=1e-4, abs=1e-30)
        assert two.token_prob == pytest.approx(one.token_prob, rel=1e-4, abs=1e-30)
        assert one.token_prob > 0


@pytest.mark.parametrize("rule", RULES)
def test_chains(rule):
    executor = TorchExecutor()
    for seed in range(12):
        work = random_pass(seed, SIZES[seed % len(SIZES)], [0, 1, 3, 6], rule=rule)
        check(work.rows, work.logits, executor)
    assert executor.counts.num_native > 30


@pytest.mark.parametrize("rule", ["target-only", "coupled", "recursive", "traversal"])
def test_trees(rule):
    executor = TorchExecutor(pad=True)
    for seed in range(12):
        work = random_pass(seed, 300, [6, 6], rule="sample-match", kind=0)
        rows = []
        for row in work.rows:
            tokens = row.draft.token_ids
            tree = TreeDraft.from_paths(
                [(tokens[0], tokens[1]), (tokens[0], tokens[2]), (7, 8), (9,)], "kit"
            )
            rows.append(replace(row, draft=tree, rule=rule))
        check(rows, work.logits, executor)
    assert executor.counts.num_native > (20 if rule in ("target-only", "coupled") else 0)


def test_decisions_and_counts_are_the_same_without_a_trace():
    for seed in range(12):
        work = random_pass(seed, 300, [0, 2, 5])
        plain, traced = TorchExecutor(), TorchExecutor()
        expected = plain.judge(work.rows, work.logits)
        verdicts, _ = judged(traced, work.rows, work.logits)
        assert [v for v in verdicts if not isinstance(v, Exception)] == [
            v for v in expected if not isinstance(v, Exception)
        ]
        assert plain.counts == traced.counts


@pytest.mark.parametrize("params", [GREEDY, WARM])
@pytest.mark.parametrize("rule", RULES)
def test_traces_of_an_engine(rule, params):
    def traces(executor=None):
        drafter = DraftModelProposer(TableBackend(NEAR))
        core = make_core(TABLE, proposers=[drafter], executor=executor, kappa=4)
        batch = requests(5, 9, 3, params=params, rule=rule, max_tokens=20)
        results = run(core, [replace(request, trace=True) for request in batch])
        return [trace for name in "abc" for trace in results[name].traces]

    for one, other in zip(traces(), traces(TorchExecutor()), strict=True):
        assert one.path == other.path
        assert one.coins == other.coins
        assert one.q == other.q
        for p, q in zip((*one.p, one.token_p), (*other.p, other.token_p), strict=True):
            assert (p is None) == (q is None)
            assert p is None or q == pytest.approx(p, rel=1e-5)


def test_a_row_that_is_not_traced_stays_empty_beside_one_that_is():
    work = random_pass(3, 300, [3, 3], rule="standard")
    rows = [work.rows[0], replace(work.rows[1], reached=Reached())]
    TorchExecutor().judge(rows, torch.from_numpy(work.logits))
    assert rows[0].reached is None
    assert len(rows[1].reached.probs) > 0
    assert np.isfinite(rows[1].reached.token_prob)
