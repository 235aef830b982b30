"""Kits that prove a backend or a drafter, and drafters that follow a script."""

from draftproof.testing.conformance import BACKEND_CHECKS, check_backend
from draftproof.testing.report import CheckResult, ConformanceError, ConformanceReport

__all__ = [
    "BACKEND_CHECKS",
    "CheckResult",
    "ConformanceError",
    "ConformanceReport",
    "check_backend",
]
