"""Token sequences of the target with its hidden states, on disk, in shards.

A shard is written whole and renamed into place, so that what an interruption leaves is
a corpus with fewer shards. Hidden states are kept in float16: rounding them costs less
than what a small head leaves unexplained.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ModelFileError

__all__ = ["Corpus", "Recording", "Shard"]

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
        """Return the shards there are, oldest first."""
        return sorted(self._folder.glob("shard-*.npz"))

    def add(self, recordings: Sequence[Recording]) -> Path:
        """Write recordings as the next shard.

        Parameters
        ----------
        recordings : sequence of Recording
            At least one.

        Returns
        -------
        Path
            The new file.
        """
        held = self.paths()
        number = int(held[-1].stem.split("-")[1]) + 1 if held else 0
        path = self._folder / f"shard-{number:05d}.npz"
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
        try:
            with np.load(path) as held:
                lengths, token_ids = held["lengths"], held["token_ids"]
                hidden = held["hidden"]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ModelFileError(f"{path}: is not a shard of a corpus; remove it") from error
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

    def num_tokens(self) -> int:
        """Return how many hidden states there are; reads the lengths only."""
        total = 0
        for path in self.paths():
            with np.load(path) as held:
                total += int(held["lengths"].sum())
        return total
