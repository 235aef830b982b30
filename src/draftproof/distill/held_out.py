"""Which part of a corpus is held out: never trained on, never solved on, only measured.

What is held out is in the name of its file, so that it stays the same while a corpus grows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from draftproof.distill.corpus import Corpus
from draftproof.distill.seeds import HELD_OUT
from draftproof.errors import ConfigError

__all__ = ["mark", "settle", "split"]

#: Of a single shard that was not recorded in two parts, this share is held out.
_SHARE = 6


def split(corpus: Corpus) -> tuple[list[Path], list[Path]]:
    """Return the shards to train on and those that are held out.

    Parameters
    ----------
    corpus : Corpus
        The corpus.

    Returns
    -------
    training : list of Path
        All others.
    held_out : list of Path
        Shards that were recorded as such. Where there is none, as in folders of earlier
        versions, every twelfth shard, or the newest of fewer; nothing of a single one.
    """
    paths = corpus.paths()
    held = [path for path in paths if corpus.is_held_out(path)]
    if not held and len(paths) > 1:
        held = [path for at, path in enumerate(paths) if at % HELD_OUT == HELD_OUT - 1]
        held = held or paths[-1:]
    return [path for path in paths if path not in held], held


def mark(corpus: Corpus) -> None:
    """Put into their names which shards are held out, before any are added.

    Parameters
    ----------
    corpus : Corpus
        The corpus, perhaps of an earlier version.
    """
    for path in split(corpus)[1]:
        corpus.hold_out(path)


def settle(corpus: Corpus, progress: Callable[[str], None]) -> None:
    """Fix what is held out, on disk, before anything is trained.

    Parameters
    ----------
    corpus : Corpus
        The corpus. Of a single shard the last sixth of its recordings becomes a shard of
        its own.
    progress : callable
        Told where an earlier version may have trained on what is held out now.

    Raises
    ------
    ConfigError
        If the corpus cannot be split: it has fewer than two recordings.
    """
    mark(corpus)
    training, held = split(corpus)
    if training and held:
        return
    usable = [each for path in training for each in corpus.read(path).recordings if len(each) > 1]
    if len(usable) < 2:
        raise ConfigError(
            f"{len(usable)} recordings to train on and {len(held)} shards held out; expected more "
            "text: one recording is trained on and another held out"
        )
    count = max(1, len(usable) // _SHARE)
    # The shard loses them first: an interruption here costs text, and lets none be in both.
    corpus.replace(training[0], usable[:-count])
    corpus.add(usable[-count:], held_out=True)
    progress(
        f"{count} of {len(usable)} recordings are held out from now on; an earlier version may "
        "have trained on them"
    )
