"""A reference law as a file, for subjects whose model is not ours to run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.errors import ConfigError
from draftproof.evidence import JointLaw

__all__ = ["LawFile", "read_laws", "write_laws"]

#: Name and version of the file.
SCHEMA = "draftproof-laws/1"


@dataclass(frozen=True, slots=True)
class LawFile:
    """The law of one prompt.

    Parameters
    ----------
    name : str
        Name shown to people.
    prompt_ids : tuple of int
        The prompt.
    law : JointLaw
        The law of its continuation.
    """

    name: str
    prompt_ids: tuple[int, ...]
    law: JointLaw


def write_laws(path: Path, laws: list[LawFile]) -> None:
    """Write laws as JSON.

    Parameters
    ----------
    path : Path
        The file.
    laws : list of LawFile
        One per prompt.
    """
    stored = {
        "schema": SCHEMA,
        "laws": [
            {
                "name": each.name,
                "prompt_ids": list(each.prompt_ids),
                "horizon": each.law.horizon,
                "eos_token_ids": sorted(each.law.eos_token_ids),
                "outcomes": [list(outcome) for outcome in each.law.outcomes],
                "probs": each.law.probs.tolist(),
            }
            for each in laws
        ],
    }
    path.write_text(json.dumps(stored) + "\n", encoding="utf-8")


def read_laws(path: Path) -> list[LawFile]:
    """Read laws.

    Parameters
    ----------
    path : Path
        A file that `write_laws` wrote, or one like it.

    Returns
    -------
    list of LawFile
        One per prompt.

    Raises
    ------
    ConfigError
        If it is no such file.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or stored.get("schema") != SCHEMA or not stored["laws"]:
            raise ConfigError(f"{path}: expected at least one law under the schema {SCHEMA}")
        return [_law(entry) for entry in stored["laws"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: {error!r}; expected the schema {SCHEMA}") from error


def _law(entry: Any) -> LawFile:
    law = JointLaw(
        tuple(tuple(map(int, outcome)) for outcome in entry["outcomes"]),
        np.array(entry["probs"], dtype=np.float64),
        int(entry["horizon"]),
        frozenset(map(int, entry["eos_token_ids"])),
    )
    return LawFile(str(entry["name"]), tuple(map(int, entry["prompt_ids"])), law)
