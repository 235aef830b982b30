"""Every decision of the torch executor is the definition's, on the same coins."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from device_kit import RULES, SIZES, TOP, EndCoins, Pass, has_mass, random_pass, same  # noqa: E402

from draftproof.core.constraint import Constraint  # noqa: E402
from draftproof.core.policy import History, SamplingParams  # noqa: E402
from draftproof.core.rng import CoinSource  # noqa: E402
from draftproof.core.types import Draft, TreeDraft  # noqa: E402
from draftproof.device import TorchExecutor  # noqa: E402
from draftproof.errors import NonFiniteLogitsError  # noqa: E402
from draftproof.verify import AllowLossy, Lenience, NumpyExecutor, VerifyRow  # noqa: E402

passes = st.builds(
    random_pass,
    seed=st.integers(0, 2**32),
    size=st.sampled_from(SIZES),
    kappas=st.lists(st.integers(0, 6), min_size=1, max_size=5),
)


def check(work: Pass, executor: TorchExecutor, logits=None) -> None:
    truth = work.truth()
    verdicts = executor.judge(
        work.rows, torch.from_numpy(work.logits) if logits is None else logits
    )
    for row, expected, got in zip(work.rows, truth, verdicts, strict=True):
        assert same(expected, got), f"{row.rule} {row.params}: {expected} became {got}"


@settings(max_examples=60, deadline=None)
@given(work=passes, pad=st.booleans())
def test_decides_as_the_definition(work, pad):
    check(work, TorchExecutor(pad=pad))


@settings(max_examples=30, deadline=None)
@given(work=passes)
def test_kept_decisions_differ_only_near_an_edge(work):
    for row, expected in zip(work.rows, work.truth(), strict=True):
        strict, keep = TorchExecutor(), TorchExecutor("keep")
        strict.judge([row], work.logits)
        (got,) = keep.judge([row], work.logits)
        assert strict.counts.num_near_edge or same(expected, got)


def test_few_rows_are_near_an_edge():
    """On a fixed workload of awkward rows, at most 1 in 40 is handed back for its coins."""
    executor = TorchExecutor()
    num_rows = 0
    for seed in range(72):
        work = random_pass(seed, SIZES[seed % len(SIZES)], [0, 1, 3, 6])
        num_rows += len(work.rows)
        check(work, executor)
    counts = executor.counts
    assert counts.num_near_edge <= num_rows // 40
    assert counts.num_native == num_rows - counts.num_near_edge - counts.num_without_law
    assert counts.num_unsupported == 0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("accept", [0.0, 0.5, TOP])
@pytest.mark.parametrize("sample", [0.0, TOP])
def test_ends_of_the_coin(rule, accept, sample):
    """No token without target mass is emitted, and the definition's choice is made."""
    for seed in range(5):
        coins = EndCoins(CoinSource(seed).round(4), accept, sample)
        work = random_pass(seed, 300, [0, 2, 5], rule=rule, coins=coins)
        check(work, TorchExecutor())
        kept = TorchExecutor("keep").judge(work.rows, work.logits)
        for row, verdict in zip(work.rows, kept, strict=True):
            assert has_mass(row, verdict, work.logits)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_other_float_types(kind):
    for seed in range(10):
        work = random_pass(seed, 300, [0, 2, 5])
        logits = torch.from_numpy(work.logits).to(getattr(torch, kind))
        check(Pass(work.rows, logits.float().numpy()), TorchExecutor(), logits)


def test_numpy_logits_that_may_not_be_written_to():
    work = random_pass(1, 300, [0, 2, 5])
    work.logits.flags.writeable = False
    check(work, TorchExecutor(), work.logits)


def test_logits_are_not_written_to():
    work = random_pass(3, 300, [0, 2, 5, 1])
    before = work.logits.copy()
    TorchExecutor().judge(work.rows, torch.from_numpy(work.logits))
    assert np.array_equal(before, work.logits)


@pytest.mark.parametrize("rule", RULES)
def test_ragged_rows_equal_solo_runs(rule):
    """0, 1, 3 and 5 drafts in all orders; the last token has all mass, so -1 would win."""
    work = random_pass(5, 257, [0, 1, 3, 5], rule=rule)
    logits = work.logits
    logits[6:, 256] = 40.0  # the longest row, and part of the third
    solo = [NumpyExecutor().judge([row], logits)[0] for row in work.rows]
    for order in permutations(range(4)):
        executor = TorchExecutor("keep", pad=True)
        verdicts = executor.judge([work.rows[i] for i in order], torch.from_numpy(logits))
        assert verdicts == [solo[i] for i in order]


def test_rows_without_a_law_harm_no_neighbour():
    for flaw in (np.nan, np.inf):
        work = random_pass(7, 300, [2, 2, 2])
        work.logits[3, 5] = flaw
        executor = TorchExecutor()
        check(work, executor)
        verdicts = executor.judge(work.rows, torch.from_numpy(work.logits))
        assert isinstance(verdicts[1], NonFiniteLogitsError)
        assert not isinstance(verdicts[0], Exception)
        assert not isinstance(verdicts[2], Exception)


def test_a_flaw_that_is_not_reached_is_no_error():
    """The rules stop at the first refusal; what lies behind it may be anything."""
    for rule in RULES:
        logits = np.full((3, 8), np.nan, dtype=np.float32)
        logits[0] = [0, -np.inf, -np.inf, 1, 2, 3, 4, 5]
        row = VerifyRow(
            "r", rule, Draft((1, 2), None, "kit"), SamplingParams(), History(),
            CoinSource(1).round(0), None, 0,
        )  # fmt: skip
        executor = TorchExecutor()
        check(Pass([row], logits), executor)
        assert executor.counts.num_native == 1


class Even(Constraint):
    """Allows even tokens; after an odd draft it has no answer."""

    def __init__(self, size: int) -> None:
        self.size = size

    def allowed(self, extra=()):
        if any(token % 2 for token in extra):
            return None
        return np.arange(self.size) % 2 == 0

    def forced(self, limit):
        return ()

    def advance(self, token):
        raise NotImplementedError

    @property
    def is_complete(self):
        return False


def with_constraint(row: VerifyRow, constraint) -> VerifyRow:
    return VerifyRow(
        row.request_id, row.rule, row.draft, row.params, row.history, row.coins, constraint,
        row.first_row,
    )  # fmt: skip


def test_grammars_are_masks_on_the_device():
    executor = TorchExecutor()
    for seed in range(20):
        work = random_pass(seed, 257, [0, 2, 4])
        rows = [with_constraint(row, Even(257)) for row in work.rows]
        check(Pass(rows, work.logits), executor)
    assert executor.counts.num_native >= 55


def tree_row(
    seed: int, rule: str, params: SamplingParams, size: int
) -> tuple[VerifyRow, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(8, size)) * 2).astype(np.float32)
    parents = (-1, -1, 0, 0, 2, 1, 5)
    tokens = []
    for node, parent in enumerate(parents):
        taken = {tokens[n] for n in range(node) if parents[n] == parent}
        best = [t for t in np.argsort(-logits[parent + 1]).tolist() if t not in taken]
        tokens.append(best[0])
    coins = CoinSource(seed).round(2)
    tree = TreeDraft(tuple(tokens), parents, None, "kit")
    return VerifyRow("t", rule, tree, params, History([1]), coins, None, 0), logits


@pytest.mark.parametrize("rule", ["target-only", "coupled", "recursive", "traversal"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_trees(rule, temperature):
    executor = TorchExecutor()
    for seed in range(12):
        row, logits = tree_row(seed, rule, SamplingParams(temperature=temperature), 40)
        check(Pass([row], logits), executor)
    on_host = rule in ("recursive", "traversal") and temperature > 0
    assert executor.counts.num_unsupported == (12 if on_host else 0)


def test_what_the_device_does_not_judge_is_counted():
    work = random_pass(11, 64, [2, 2, 2, 2, 2], rule="standard", params=SamplingParams())
    rows = list(work.rows)

    def other(row, **changes):
        fields = {name: getattr(row, name) for name in VerifyRow.__slots__} | changes
        return VerifyRow(**fields)

    odd = ("temperature", "bias", "penalties", "allowed", "top_k", "top_p", "min_p")
    rows[0] = other(rows[0], rule=AllowLossy(Lenience(0.5)))
    rows[1] = other(rows[1], params=SamplingParams(temperature=0.5, logit_bias={1: 2.0}, order=odd))
    rows[2] = other(rows[2], draft=Draft((-1, 2), None, "kit"))
    rows[3] = other(rows[3], params=SamplingParams(banned_token_ids=(64,)))
    executor = TorchExecutor()
    check(Pass(rows, work.logits), executor)
    assert executor.counts.num_unsupported == 4
    assert executor.counts.num_native + executor.counts.num_near_edge == 1


def test_logprobs_are_the_definitions():
    work = random_pass(2, 300, [2])
    row = work.rows[0]
    executor, definition = TorchExecutor(), NumpyExecutor()
    for processed in (False, True):
        got = executor.logprobs(row, torch.from_numpy(work.logits), 0, 7, 3, processed=processed)
        assert got == definition.logprobs(row, work.logits, 0, 7, 3, processed=processed)
