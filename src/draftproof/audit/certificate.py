"""A verdict that can be checked: the counts it came from, and the way back to it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.audit.evidence_file import SCHEMA, Evidence
from draftproof.audit.verdict import Verdict, judge
from draftproof.errors import ConfigError

__all__ = ["Certificate", "recompute", "same_values"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A verdict with everything it follows from.

    Parameters
    ----------
    evidence : Evidence
        Laws, counts, logs and plan.
    verdict : mapping of str to object
        The verdict as it was stored.
    """

    evidence: Evidence
    verdict: Mapping[str, Any]

    @classmethod
    def of(cls, evidence: Evidence) -> Certificate:
        """Judge some evidence and return its certificate."""
        return cls(evidence, judge(evidence).to_json())

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        return {
            "schema": SCHEMA,
            "evidence": self.evidence.to_json(),
            "verdict": dict(self.verdict),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Certificate:
        """Return the certificate of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        Certificate
            As stored; `recompute` says whether the verdict follows from the counts.

        Raises
        ------
        ConfigError
            If the schema is another, or an entry is missing.
        """
        schema = stored.get("schema")
        if schema != SCHEMA:
            raise ConfigError(f"schema {schema!r}: expected {SCHEMA}")
        if "evidence" not in stored or "verdict" not in stored:
            raise ConfigError("certificate without evidence or verdict: expected both")
        return cls(Evidence.from_json(stored["evidence"]), dict(stored["verdict"]))

    def save(self, path: Path) -> None:
        """Write the certificate as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read a certificate.

        Parameters
        ----------
        path : Path
            A file that `save` wrote.

        Returns
        -------
        Certificate
            As stored.

        Raises
        ------
        ConfigError
            If it is no JSON, or no certificate.
        """
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}, expected JSON") from error
        if not isinstance(stored, dict):
            raise ConfigError(f"{path}: {type(stored).__name__}, expected an object")
        return cls.from_json(stored)


def recompute(certificate: Certificate) -> tuple[Verdict, tuple[str, ...]]:
    """Compute every statistic again from the stored counts.

    Parameters
    ----------
    certificate : Certificate
        From a file.

    Returns
    -------
    verdict : Verdict
        What the evidence says.
    differences : tuple of str
        Names of the stored entries that do not follow from it; empty when all do.
    """
    verdict = judge(certificate.evidence)
    again, held = verdict.to_json(), certificate.verdict
    names = sorted(again.keys() | held.keys())
    return verdict, tuple(n for n in names if not same_values(again.get(n), held.get(n)))


def same_values(left: Any, right: Any) -> bool:
    """Compare stored values; floats up to what another build of numpy may round.

    Parameters
    ----------
    left, right : object
        Of dicts, lists, strings, numbers and None.

    Returns
    -------
    bool
        Whether they say the same.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_values(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_values, left, right))
    if isinstance(left, float) and isinstance(right, (int, float)):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
    return bool(left == right)
