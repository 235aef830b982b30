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

from collections.abc import Callable, Collection

from draftproof.core.protocols import ModelBackend
from draftproof.testing.backend_checks import SCORING_CHECKS, Check, Skipped
from draftproof.testing.bench import BackendBench
from draftproof.testing.report import CheckResult, ConformanceReport
from draftproof.testing.sharing_checks import SHARING_CHECKS

__all__ = ["BACKEND_CHECKS", "check_backend"]

#: All checks of a backend by name, in order.
BACKEND_CHECKS: dict[str, Check] = {
    check.__name__: check for check in (*SCORING_CHECKS, *SHARING_CHECKS)
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
            results.append(_run(name, check, bench))
    return ConformanceReport(f"{info.runtime} backend {info.name}", tuple(results))


def _run(name: str, check: Check, bench: BackendBench) -> CheckResult:
    try:
        check(bench)
    except Skipped as reason:
        return CheckResult(name, "skipped", str(reason), bench.difference)
    except Exception as error:  # noqa: BLE001  whatever a backend raises is a finding
        return CheckResult(name, "failed", _text(error), bench.difference)
    return CheckResult(name, "passed", "", bench.difference)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
