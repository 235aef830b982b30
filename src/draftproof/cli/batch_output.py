"""A JSONL file of results that survives being interrupted at any byte.

Each result is appended as one line in one write. A process that is killed leaves at
most one torn line, at the end; the next run drops it. A result that stands in the file
is never computed again; an error may be, and then another file takes the place of this
one at once, without it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from draftproof.cli.json_lines import json_line
from draftproof.errors import ConfigError, DraftproofError

__all__ = ["Finished", "OutputFile"]

#: How every line begins; a torn line that begins otherwise is not ours to drop.
_HEAD = b'{"id": '


@dataclass(frozen=True, slots=True)
class Finished:
    """A line that an earlier run wrote.

    Parameters
    ----------
    request_hash : str
        What was asked.
    failed : bool
        Whether it holds an error.
    """

    request_hash: str
    failed: bool


class OutputFile:
    """The results of a batch, on disk.

    Parameters
    ----------
    path : Path
        The file; made when it is not there.

    Raises
    ------
    ConfigError
        If it holds something that this command did not write.
    DraftproofError
        If it cannot be written, or another process is writing it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Not "a+b": the torn line is cut off, and reading starts at 0.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
            self._file: BinaryIO = os.fdopen(descriptor, "r+b")
        except OSError as error:
            raise DraftproofError(f"cannot write --output {path}: {error.strerror}") from error
        try:
            _lock(self._file, path)
            #: Lines of earlier runs, by id.
            self.finished = self._recover()
        except BaseException:
            self._file.close()
            raise

    def drop(self, keys: Collection[int | str]) -> None:
        """Take lines out, so that they may be written anew.

        Parameters
        ----------
        keys : collection of (int or str)
            Ids in `finished`; they leave it.

        Raises
        ------
        DraftproofError
            If the disk refuses it; then the file is as it was.
        """
        self._file.seek(0)
        kept = [raw for raw in self._file if _finished(raw, str(self._path))[0] not in keys]
        place = self._path.resolve()
        beside = place.with_name(f"{place.name}.part")
        try:
            with beside.open("wb") as file:
                file.writelines(kept)
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(place, beside)
            if sys.platform == "win32":  # an open file cannot be replaced there
                self._file.close()
            beside.replace(place)
            replaced = place.open("r+b")
        except OSError as error:
            raise DraftproofError(f"cannot write {self._path}: {error.strerror}") from error
        before, self._file = self._file, replaced
        _lock(self._file, self._path)  # while the lock of the file before still holds
        before.close()
        self._file.seek(0, os.SEEK_END)
        for key in keys:
            del self.finished[key]

    def write(self, document: Mapping[str, Any]) -> None:
        """Append one result.

        Parameters
        ----------
        document : mapping
            The result; its first key is ``id``.

        Raises
        ------
        DraftproofError
            If the disk refuses it.
        """
        try:
            self._file.write(json_line(document).encode())
            self._file.flush()
        except OSError as error:
            raise DraftproofError(f"cannot write {self._path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _recover(self) -> dict[int | str, Finished]:
        """Read what is there; leave the file at the end of its last whole line."""
        finished: dict[int | str, Finished] = {}
        end = 0
        for number, raw in enumerate(self._file, 1):
            where = f"--output {self._path} line {number}"
            if not raw.endswith(b"\n"):
                if not (_HEAD.startswith(raw) or raw.startswith(_HEAD)):
                    raise ConfigError(f"{where} is not a result of this command; expected one")
                break
            key, line = _finished(raw, where)
            if key in finished:
                raise ConfigError(f"{where} has id {key!r} once more; expected each once")
            finished[key] = line
            end += len(raw)
        self._file.seek(end)
        self._file.truncate()
        return finished


def _finished(raw: bytes, where: str) -> tuple[int | str, Finished]:
    try:
        document = json.loads(raw)
        key = document["id"]
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise TypeError(key)
        return key, Finished(str(document["request_hash"]), "error" in document)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where} is not a result of this command; expected one") from error


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep a second process out: both would write the same lines."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DraftproofError(f"--output {path} is being written by another process") from error
    except OSError:
        # Some network file systems have no locks; the run itself is still sound.
        return
