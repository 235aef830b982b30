"""Prove a backend or a drafter in two lines.

::

    def test_my_backend():
        check_backend(lambda: MyBackend(...), vocab_size=1000).require()

The kits know the protocols only. They run on the real thing: a backend is compared
with itself, one token at a time against blocks, fresh against rolled back, alone
against in company. They need a model whose logits depend on its input, and say so
when they are given one that cannot be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import ModelBackend, Proposer
from draftproof.testing.backend_checks import SCORING_CHECKS, Check
from draftproof.testing.bench import BackendBench
from draftproof.testing.proposer_checks import PROPOSER_CHECKS, ProposerBench, ProposerCheck
from draftproof.testing.report import CheckResult, ConformanceReport, Skipped
from draftproof.testing.sharing_checks import SHARING_CHECKS
from draftproof.testing.tree_checks import TREE_CHECKS

__all__ = ["BACKEND_CHECKS", "DEFAULT_POLICIES", "check_backend", "check_proposer"]

#: Policies a drafter is tried under: sampling, filters with a penalty, greedy.
DEFAULT_POLICIES = (
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=5, top_p=0.95, frequency_penalty=0.3),
    SamplingParams(temperature=0.0),
)

#: All checks of a backend by name, in order.
BACKEND_CHECKS: dict[str, Check] = {
    check.__name__: check for check in (*SCORING_CHECKS, *SHARING_CHECKS, *TREE_CHECKS)
}


def check_backend(
    make_backend: Callable[[], ModelBackend],
    *,
    vocab_size: int | None = None,
    tolerance: float = 1e-3,
    seed: int = 0,
    names: Collection[str] | None = None,
) -> ConformanceReport:
    """Check every promise of ``ModelBackend``.

    Parameters
    ----------
    make_backend : callable
        Returns a backend whose caches are empty. It is called often; weights should
        be shared between calls.
    vocab_size : int, optional
        Test tokens are drawn below this; the model's own size when not given. At
        least 2, and without padding.
    tolerance : float, default 1e-3
        Largest difference of two logits that count as equal. 0 asks for equal bits.
    seed : int, default 0
        Seed of the test tokens.
    names : collection of str, optional
        The checks to run, from ``BACKEND_CHECKS``; all when not given.

    Returns
    -------
    ConformanceReport
        One result per check, and the largest difference seen.
    """
    info = make_backend().info
    results = []
    for name, check in BACKEND_CHECKS.items():
        if names is None or name in names:
            size = vocab_size or info.vocab_size
            bench = BackendBench(make_backend, size, tolerance, seed)
            results.append(_result(name, partial(check, bench), partial(_difference, bench)))
    return ConformanceReport(f"{info.runtime} backend {info.name}", tuple(results))


def check_proposer(
    make_proposer: Callable[[], Proposer],
    *,
    vocab_size: int,
    num_draws: int = 2000,
    tolerance: float = 1e-3,
    seed: int = 0,
    policies: Sequence[SamplingParams] | None = None,
    names: Collection[str] | None = None,
) -> ConformanceReport:
    """Check every promise of ``Proposer``.

    Parameters
    ----------
    make_proposer : callable
        Returns a drafter that has seen nothing yet. It is called often.
    vocab_size : int
        Size of the target's logits row, at least 2.
    num_draws : int, default 2000
        How many sampled drafts are replayed through their recorded laws.
    tolerance : float, default 1e-3
        Largest difference of two probabilities that should be equal.
    seed : int, default 0
        Seed of test tokens and coins.
    policies : sequence of SamplingParams, optional
        Policies to draft under; plain sampling, a filtered one with a penalty and
        greedy when not given.
    names : collection of str, optional
        The checks to run, from ``PROPOSER_CHECKS``; all when not given. A drafter that
        learns from earlier rounds on purpose leaves out ``rounds_leave_no_trace``.

    Returns
    -------
    ConformanceReport
        One result per check. A check in which nothing was drafted counts as skipped.
    """
    chosen = tuple(policies or DEFAULT_POLICIES)
    results = []
    for name, check in PROPOSER_CHECKS.items():
        if names is None or name in names:
            bench = ProposerBench(make_proposer, vocab_size, num_draws, tolerance, seed, chosen)
            results.append(_result(name, partial(_with_drafts, check, bench), lambda: 0.0))
    return ConformanceReport(f"proposer {make_proposer().name}", tuple(results))


def _with_drafts(check: ProposerCheck, bench: ProposerBench) -> None:
    check(bench)
    if bench.num_drafted == 0:
        raise Skipped(f"nothing was drafted; notes: {sorted(bench.notes)}")


def _difference(bench: BackendBench) -> float:
    return bench.difference


def _result(name: str, check: Callable[[], None], difference: Callable[[], float]) -> CheckResult:
    try:
        check()
    except Skipped as reason:
        return CheckResult(name, "skipped", str(reason), difference())
    except Exception as error:  # noqa: BLE001  whatever is raised is a finding
        return CheckResult(name, "failed", f"{type(error).__name__}: {error}", difference())
    return CheckResult(name, "passed", "", difference())
