"""The tokens that can be drafted, chosen once and kept beside the corpus."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.distill.corpus import Corpus
from draftproof.distill.vocabulary import draft_vocabulary
from draftproof.errors import ModelFileError

__all__ = ["DRAFT_IDS", "chosen_ids", "read_ids"]

#: Name of the file.
DRAFT_IDS: Final = "draft_ids.npz"


def read_ids(path: Path) -> tuple[NDArray[np.int64], float]:
    """Read what an earlier run has chosen.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    ids : ndarray of int64, shape (D,)
        Rising token ids.
    coverage : float
        The probability that the target's laws give to them, on average.

    Raises
    ------
    ModelFileError
        If it is damaged.
    """
    try:
        with path.open("rb") as stream, np.load(stream) as held:
            ids, coverage = held["ids"], float(held["coverage"])
        if ids.ndim != 1 or not len(ids) or ids[0] < 0 or not (np.diff(ids) > 0).all():
            raise ValueError("no rising token ids")
        return ids.astype(np.int64), coverage
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ModelFileError(
            f"{path}: does not say which tokens can be drafted; remove it, and they are chosen "
            "again"
        ) from error


def chosen_ids(
    path: Path, corpus: Corpus, output: NDArray[np.float32], size: int
) -> tuple[NDArray[np.int64], float]:
    """Choose the tokens that can be drafted, or read what an earlier run has chosen.

    Parameters
    ----------
    path : Path
        Where they are kept.
    corpus : Corpus
        Text of the target.
    output : ndarray of float32, shape (V, E)
        The target's output layer.
    size : int
        How many tokens; all when there are fewer.

    Returns
    -------
    ids : ndarray of int64, shape (min(size, V),)
        Rising token ids.
    coverage : float
        The probability that the target's laws give to them, on average.

    Raises
    ------
    ModelFileError
        If the file is damaged, or of another target.
    """
    if path.is_file():
        ids, coverage = read_ids(path)
        if ids[-1] >= len(output):
            raise ModelFileError(
                f"{path}: token {ids[-1]} can be drafted, of a target with {len(output)}; remove "
                "it, and they are chosen again"
            )
        return ids, coverage
    ids, coverage = draft_vocabulary(corpus, output, size)
    draft = path.with_suffix(".part")
    with draft.open("wb") as stream:
        np.savez(stream, ids=ids, coverage=coverage)
    draft.rename(path)
    return ids, coverage
