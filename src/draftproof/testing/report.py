"""What a kit found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draftproof.errors import InvariantError

__all__ = ["CheckResult", "ConformanceError", "ConformanceReport", "Skipped"]


class ConformanceError(InvariantError):
    """A promise of a contract that was seen broken."""


class Skipped(Exception):  # noqa: N818  no error
    """A check does not apply to this backend; the message says why."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of a kit.

    Parameters
    ----------
    name : str
        Name of the check.
    status : str
        ``"passed"``, ``"failed"`` or ``"skipped"``.
    detail : str
        What went wrong, or why the check does not apply.
    difference : float
        Largest difference of two logits that should be equal; 0 when none was compared.
    """

    name: str
    status: str
    detail: str = ""
    difference: float = 0.0


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """All checks of a kit.

    Parameters
    ----------
    subject : str
        What was checked.
    results : tuple of CheckResult
        The checks in the order they ran.
    """

    subject: str
    results: tuple[CheckResult, ...]

    def __iter__(self) -> Iterator[CheckResult]:
        """Go through the checks."""
        return iter(self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    @property
    def is_conforming(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def largest_difference(self) -> float:
        """Largest difference of two logits that should be equal."""
        return max((result.difference for result in self.results), default=0.0)

    def require(self) -> None:
        """Raise if a check failed.

        Raises
        ------
        ConformanceError
            Naming every failed check.
        """
        if self.failures:
            found = "; ".join(f"{result.name}: {result.detail}" for result in self.failures)
            raise ConformanceError(f"{self.subject} does not conform: {found}")

    def __str__(self) -> str:
        """Return one line per check."""
        lines = [f"{self.subject}: largest logit difference {self.largest_difference:.3g}"]
        lines += [
            f"  {result.status:8} {result.name}" + (f": {result.detail}" if result.detail else "")
            for result in self.results
        ]
        return "\n".join(lines)
