"""The record that lies beside a prepared graph and says what it is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from draftproof.errors import ModelFileError

__all__ = ["MANIFEST_FILE", "Manifest", "file_sha256", "read_manifest", "write_manifest"]

#: Name of the record inside a prepared folder.
MANIFEST_FILE: Final = "draftproof.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a prepared folder holds, and how close its law is to the source's.

    Parameters
    ----------
    format : int
        Version of the graph builder; another one means that the folder is stale.
    source_name : str
        Name of the model.
    source_sha256 : str
        Of the GGUF file.
    architecture : str
        For example ``"llama"``.
    precision : str
        How the weights are kept.
    context_length : int
        Largest number of tokens of one sequence.
    vocab_size : int
        Rows of the output layer.
    versions : mapping of str to str
        Packages that made it.
    files : mapping of str to str
        SHA-256 of every file of the folder but this one.
    mean_tv, max_tv : float
        Total variation between next-token laws of the graph and of the reference.
    num_laws : int
        How many laws were compared.
    tv_limit : float
        Mean total variation above which the model would have been refused.
    """

    format: int
    source_name: str
    source_sha256: str
    architecture: str
    precision: str
    context_length: int
    vocab_size: int
    versions: dict[str, str]
    files: dict[str, str]
    mean_tv: float
    max_tv: float
    num_laws: int
    tv_limit: float


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the record of a folder."""
    text = json.dumps(dataclasses.asdict(manifest), indent=2)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest | None:
    """Read the record of a folder, None when it has none.

    Parameters
    ----------
    folder : Path
        A model folder.

    Returns
    -------
    Manifest or None
        The record.

    Raises
    ------
    ModelFileError
        If there is a record that cannot be read.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return None
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(**values)
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{path}: is not a record of a prepared model") from error
