"""Kits that prove a backend, a drafter or a law, and drafters that follow a script."""

from draftproof.testing.assert_exact import ExactnessReport, assert_exact
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
    "ExactnessReport",
    "assert_exact",
    "check_backend",
    "check_proposer",
]
