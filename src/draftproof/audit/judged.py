"""What every verdict of an audit can do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from draftproof.audit.evidence_file import shown

__all__ = ["Judged"]


class Judged:
    """Base of the frozen dataclasses that hold a verdict."""

    __slots__ = ()

    verdict: str

    @property
    def exit_code(self) -> int:
        """0 exact, 1 biased, 3 not enough evidence."""
        return {"exact": 0, "biased": 1}.get(self.verdict, 3)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        fields: Any = self
        found: dict[str, Any] = shown(asdict(fields))
        return found
