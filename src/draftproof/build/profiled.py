"""Which runtime the user's own calibrations found fastest for a model.

Profiles are read, and what reads them is imported, where the cache holds some: nobody else
pays for it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.planner.profile import Profile

__all__ = ["ProfiledRuntime", "fastest_runtime"]

#: Tokens of the passes that are compared: a plain step, and a step with three drafts.
_WIDTHS = (1, 4)


@dataclass(frozen=True, slots=True)
class ProfiledRuntime:
    """A runtime with its calibration.

    Parameters
    ----------
    name : str
        ``"openvino"``, ``"torch"`` or ``"llamacpp"``.
    seconds : tuple of float
        Of a pass over one token and of one over four, of one row.
    """

    name: str
    seconds: tuple[float, ...]

    def __str__(self) -> str:
        """Return it for people."""
        one, four = (1e3 * each for each in self.seconds)
        return f"{self.name} ({one:.1f} ms for a token, {four:.1f} ms for four)"


def fastest_runtime(
    model: str, runtimes: Collection[str], *, precision: str, cache_dir: Path | None
) -> tuple[ProfiledRuntime, ...]:
    """Order runtimes by what ``draftproof calibrate`` measured on this machine.

    Parameters
    ----------
    model : str
        Name of the model, as calibrated.
    runtimes : collection of str
        Those that can run it here.
    precision : str
        How OpenVINO would hold the weights; its profiles of others are left out.
    cache_dir : Path, optional
        The user's cache when None.

    Returns
    -------
    tuple of ProfiledRuntime
        Fastest first, by the sum of both passes. Profiles of other machines, damaged ones
        and those without the two passes are left out.
    """
    from draftproof.planner.machine import is_this_machine, profile_folder

    folder = profile_folder(cache_dir)
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not paths:
        return ()

    from draftproof.planner.profile import read_profile

    found: dict[str, ProfiledRuntime] = {}
    for path in paths:
        try:
            profile = read_profile(path)
        except ConfigError:
            continue
        if profile.model != model or profile.runtime not in runtimes:
            continue
        if profile.runtime == "openvino" and profile.precision != precision:
            continue
        seconds = _seconds(profile)
        if seconds is not None and is_this_machine(profile.machine):
            found[profile.runtime] = ProfiledRuntime(profile.runtime, seconds)
    return tuple(sorted(found.values(), key=lambda each: sum(each.seconds)))


def _seconds(profile: Profile) -> tuple[float, ...] | None:
    """Return the medians of the passes that are compared, at the shortest context."""
    held: dict[int, tuple[int, float]] = {}
    for cell in profile.cells:
        if cell.batch == 1 and cell.width in _WIDTHS:
            known = held.get(cell.width)
            if known is None or cell.context < known[0]:
                held[cell.width] = (cell.context, cell.median_s)
    if len(held) < len(_WIDTHS):
        return None
    return tuple(held[width][1] for width in _WIDTHS)
