"""Token sequences of the target with its hidden states, on disk, in shards.

A shard is written whole and renamed into place, so that what an interruption leaves is
a corpus with fewer shards. Hidden states are kept in float16: rounding them costs less
than what a small head leaves unexplained.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ModelFileError

__all__ = ["Corpus", "Recording", "Shard"]

#: Names of shards begin so: those that are trained on, and those that are held out.
_SHARD, _HELD = "shard", "held"
_NAME: Final = re.compile(rf"({_SHARD}|{_HELD})-\d+\.npz")
_LARGEST: Final = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One sequence: n hidden states and the n + 1 tokens around them.

    Parameters
    ----------
    token_ids : ndarray of int32, shape (n + 1,)
        Tokens in order, from the last one of the prompt on.
    hidden : ndarray of float16, shape (n, E)
        ``hidden[i]`` is what the target's output layer read after ``token_ids[i]``, so
        that it gives the law of ``token_ids[i + 1]``.
    """

    token_ids: NDArray[np.int32]
    hidden: NDArray[np.float16]

    @classmethod
    def of(cls, token_ids: Sequence[int], hidden: Sequence[NDArray[np.float32]]) -> Recording:
        """Join what was observed; surplus tokens are dropped."""
        rows = np.clip(np.concatenate(list(hidden)), -_LARGEST, _LARGEST).astype(np.float16)
        count = min(len(rows), len(token_ids) - 1)
        return cls(np.asarray(token_ids[: count + 1], dtype=np.int32), rows[:count])

    def __len__(self) -> int:
        """Return the number of hidden states."""
        return len(self.hidden)


@dataclass(frozen=True, slots=True)
class Shard:
    """Some recordings of one file.

    Parameters
    ----------
    path : Path
        The file.
    recordings : tuple of Recording
        Its content.
    """

    path: Path
    recordings: tuple[Recording, ...]


class Corpus:
    """A folder of shards.

    Parameters
    ----------
    folder : Path
        Made when it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        """Return the shards there are, oldest first, those that are held out included."""
        found = [path for path in self._folder.glob("*-*.npz") if _NAME.fullmatch(path.name)]
        return sorted(found, key=_number)

    def next_number(self) -> int:
        """Return the number of the shard that `add` writes next."""
        held = self.paths()
        return self.number(held[-1]) + 1 if held else 0

    def number(self, path: Path) -> int:
        """Return the number of a shard, which grows with time."""
        return _number(path)

    def width(self) -> int | None:
        """Return the width of the hidden states; None where nothing is recorded."""
        shapes = (self.read(path).recordings for path in self.paths())
        return next((each[0].hidden.shape[1] for each in shapes if each), None)

    def is_held_out(self, path: Path) -> bool:
        """Say whether a shard was written to be held out."""
        return path.name.startswith(_HELD)

    def add(self, recordings: Sequence[Recording], *, held_out: bool = False) -> Path:
        """Write recordings as the next shard.

        Parameters
        ----------
        recordings : sequence of Recording
            At least one.
        held_out : bool, default False
            Whether they are for measuring only, which their file's name says.

        Returns
        -------
        Path
            The new file.
        """
        kind = _HELD if held_out else _SHARD
        return self.replace(self._folder / f"{kind}-{self.next_number():05d}.npz", recordings)

    def hold_out(self, path: Path) -> Path:
        """Mark a shard as held out, in its name; return the new one."""
        return path.rename(path.with_name(f"{_HELD}-{_number(path):05d}.npz"))

    def replace(self, path: Path, recordings: Sequence[Recording]) -> Path:
        """Write recordings as one shard, whole or not at all; return its file."""
        draft = path.with_suffix(".part")
        with draft.open("wb") as stream:
            np.savez(
                stream,
                lengths=np.array([len(each) for each in recordings], dtype=np.int32),
                token_ids=np.concatenate([each.token_ids for each in recordings]),
                hidden=np.concatenate([each.hidden for each in recordings]),
            )
        draft.rename(path)
        return path

    def read(self, path: Path) -> Shard:
        """Read one shard.

        Parameters
        ----------
        path : Path
            One of `paths`.

        Returns
        -------
        Shard
            Its recordings.

        Raises
        ------
        ModelFileError
            If the file is damaged.
        """
        lengths, token_ids, hidden = _arrays(path, "lengths", "token_ids", "hidden")
        total = int(lengths.sum())
        sizes = (token_ids.shape, hidden.shape[:1], hidden.ndim)
        if sizes != ((total + len(lengths),), (total,), 2):
            raise _damaged(path)
        found: list[Recording] = []
        row = token = 0
        for length in lengths.tolist():
            found.append(
                Recording(token_ids[token : token + length + 1], hidden[row : row + length])
            )
            row, token = row + length, token + length + 1
        return Shard(path, tuple(found))

    def __iter__(self) -> Iterator[Shard]:
        """Read all shards, one after another."""
        for path in self.paths():
            yield self.read(path)

    def num_tokens(self, paths: Sequence[Path] | None = None) -> int:
        """Return how many hidden states there are; reads the lengths only.

        Parameters
        ----------
        paths : sequence of Path, optional
            Some of `paths`; all of them when None.

        Returns
        -------
        int
            Their number.

        Raises
        ------
        ModelFileError
            If a file is damaged.
        """
        chosen = self.paths() if paths is None else paths
        return sum(int(_arrays(path, "lengths")[0].sum()) for path in chosen)


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _damaged(path: Path) -> ModelFileError:
    return ModelFileError(f"{path}: is damaged, or no shard of a corpus; remove it")


def _arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """Read arrays of a shard, of which the lengths are whole numbers from 0."""
    try:
        with path.open("rb") as stream, np.load(stream) as held:
            found = [np.asarray(held[name]) for name in names]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(path) from error
    lengths = found[0]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 0).any():
        raise _damaged(path)
    return found
