"""Kits that prove a backend or a drafter, and drafters that follow a script."""

from draftproof.testing.conformance import (
    BACKEND_CHECKS,
    DEFAULT_POLICIES,
    check_backend,
    check_proposer,
)
from draftproof.testing.proposer_checks import PROPOSER_CHECKS
from draftproof.testing.report import CheckResult, ConformanceError, ConformanceReport

__all__ = [
    "BACKEND_CHECKS",
    "DEFAULT_POLICIES",
    "PROPOSER_CHECKS",
    "CheckResult",
    "ConformanceError",
    "ConformanceReport",
    "check_backend",
    "check_proposer",
]
