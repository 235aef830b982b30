"""Certificates of every kind, told apart by their schema.

A kind says how its evidence is read, judged and told. Whoever holds a certificate of any
kind can check it: the verdict is a function of the evidence alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from draftproof.audit import (
    evidence_file,
    greedy,
    matrix,
    matrix_evidence,
    sequential,
    state,
    stream,
)
from draftproof.audit.certificate import same_values
from draftproof.audit.mode_report import (
    facts_of_greedy,
    facts_of_matrix,
    facts_of_sequential,
    facts_of_state,
    facts_of_stream,
)
from draftproof.audit.subjects import on_off
from draftproof.audit.subjects.report import Fact, facts_of, facts_of_on_off
from draftproof.audit.verdict import judge
from draftproof.errors import ConfigError, DraftproofError

__all__ = ["KINDS", "Checked", "Kind", "VerdictLike", "check", "kind_of"]


class VerdictLike(Protocol):
    """What verdicts of all kinds have."""

    @property
    def verdict(self) -> str:
        """``"exact"``, ``"biased"`` or ``"not enough evidence"``."""
        ...

    @property
    def exit_code(self) -> int:
        """0 exact, 1 biased, 3 not enough evidence."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of certificate.

    Parameters
    ----------
    schema : str
        Name and version of the stored form.
    evidence : type
        Class of its evidence, with ``to_json`` and ``from_json``.
    judge : callable
        Evidence to verdict, a pure function.
    facts : callable
        Evidence and verdict to what they say.
    """

    schema: str
    evidence: Any
    judge: Callable[[Any], VerdictLike]
    facts: Callable[[Any, Any], list[Fact]]

    def stored(self, evidence: Any, verdict: VerdictLike) -> dict[str, Any]:
        """Return the certificate: plain lists, numbers and strings."""
        return {
            "schema": self.schema,
            "evidence": evidence.to_json(),
            "verdict": verdict.to_json(),
        }


#: All kinds.
KINDS: tuple[Kind, ...] = (
    Kind(evidence_file.SCHEMA, evidence_file.Evidence, judge, facts_of),
    Kind(on_off.SCHEMA, on_off.OnOffEvidence, on_off.judge_on_off, facts_of_on_off),
    Kind(
        sequential.SCHEMA,
        sequential.SequentialEvidence,
        sequential.judge_sequential,
        facts_of_sequential,
    ),
    Kind(stream.SCHEMA, stream.StreamEvidence, stream.judge_stream, facts_of_stream),
    Kind(greedy.SCHEMA, greedy.GreedyEvidence, greedy.judge_greedy, facts_of_greedy),
    Kind(state.SCHEMA, state.StateEvidence, state.judge_state, facts_of_state),
    Kind(
        matrix_evidence.SCHEMA,
        matrix_evidence.MatrixEvidence,
        matrix.judge_matrix,
        facts_of_matrix,
    ),
)


def kind_of(evidence: Any) -> Kind:
    """Return the kind of some evidence.

    Parameters
    ----------
    evidence : object
        Evidence of any kind.

    Returns
    -------
    Kind
        Its kind.

    Raises
    ------
    ConfigError
        If it is no evidence.
    """
    for kind in KINDS:
        if isinstance(evidence, kind.evidence):
            return kind
    raise ConfigError(f"{type(evidence).__name__}: expected evidence of an audit")


@dataclass(frozen=True, slots=True)
class Checked:
    """A certificate, judged again.

    Parameters
    ----------
    evidence : object
        What it holds.
    verdict : VerdictLike
        What follows from it.
    facts : list of (str, str)
        The same in words.
    differences : tuple of str
        Names of the stored entries that do not follow; empty when all do.
    """

    evidence: Any
    verdict: VerdictLike
    facts: list[Fact]
    differences: tuple[str, ...]


def check(path: Path) -> Checked:
    """Read a certificate of any kind and compute every statistic again.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Checked
        The verdict that follows from the evidence, and what differs from the stored one.

    Raises
    ------
    ConfigError
        If it is no JSON, of an unknown schema, or malformed.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}, expected JSON") from error
    if not isinstance(stored, dict):
        raise ConfigError(f"{path}: {type(stored).__name__}, expected an object")
    kinds = {kind.schema: kind for kind in KINDS}
    schema = stored.get("schema")
    if schema not in kinds:
        raise ConfigError(f"{path}: schema {schema!r}, expected one of {', '.join(kinds)}")
    held = stored.get("verdict")
    if not isinstance(stored.get("evidence"), dict) or not isinstance(held, dict):
        raise ConfigError(f"{path}: expected an evidence and a verdict")
    kind = kinds[schema]
    try:
        evidence = kind.evidence.from_json(stored["evidence"])
        verdict = kind.judge(evidence)
        differences = _differences(verdict.to_json(), held)
        return Checked(evidence, verdict, kind.facts(evidence, verdict), differences)
    except DraftproofError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        # A file may hold any value in any place, and this is no place to trust one.
        raise ConfigError(f"{path}: {error!r}; expected evidence of {schema}") from error


def _differences(again: Mapping[str, Any], held: Mapping[str, Any]) -> tuple[str, ...]:
    # Verdicts hold tuples, files hold lists.
    plain = json.loads(json.dumps(again))
    names = sorted(plain.keys() | held.keys())
    return tuple(n for n in names if not same_values(plain.get(n), held.get(n)))
