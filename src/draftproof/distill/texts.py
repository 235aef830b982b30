"""Let the target read texts of the user, piece by piece, and go on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from draftproof.core.protocols import ModelBackend, Tokenizer
from draftproof.core.types import FlatBatch, Row
from draftproof.distill.corpus import Corpus, Recording
from draftproof.distill.origin import Origin, TextFile, text_file
from draftproof.distill.seeds import HELD_OUT
from draftproof.errors import ConfigError

__all__ = ["record_texts", "text_files"]

#: Most tokens of a piece, and most pieces of what is written at once.
_PIECE, _AT_ONCE = 256, 96
#: Characters of a file that are cut into tokens at once, and the longest rest of a line.
_BLOCK, _LINE = 1 << 16, 1 << 12
_SUFFIXES: Final = (".txt", ".md")

Progress = Callable[[str], None]


def text_files(folder: Path) -> list[Path]:
    """Return the text files of a path: itself, or all ``.txt`` and ``.md`` below it.

    Parameters
    ----------
    folder : Path
        A file or a folder.

    Returns
    -------
    list of Path
        In order of name.

    Raises
    ------
    ConfigError
        If there is none, or the path does not exist.
    """
    if folder.is_file():
        return [folder]
    if not folder.exists():
        raise ConfigError(f"{folder}: does not exist; expected a text file or a folder of them")
    found = sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file()
    )
    if not found:
        raise ConfigError(f"{folder}: no file that ends in .txt or .md, expected some")
    return found


def record_texts(
    target: ModelBackend,
    tokenizer: Tokenizer,
    folder: Path,
    corpus: Corpus,
    origin: Origin,
    num_tokens: int,
    *,
    save: Callable[[Origin], None],
    is_over: Callable[[], bool],
    progress: Progress,
) -> int:
    """Record hidden states over texts of the user, in pieces of one pass each.

    The second piece of twelve is held out.

    Parameters
    ----------
    target : ModelBackend
        A backend with hidden states.
    tokenizer : Tokenizer
        Its tokenizer.
    folder : Path
        Text files in UTF-8: one, or a folder of them.
    corpus : Corpus
        Where shards are added.
    origin : Origin
        What was read before.
    num_tokens : int
        Hidden states in the whole corpus; the piece that reaches it is the last one.
    save : callable
        Told what was read whenever it is on disk.
    is_over : callable
        Asked after each piece; True ends the reading once there are two.
    progress : callable
        Told one line per shard.

    Returns
    -------
    int
        Hidden states in the corpus.

    Raises
    ------
    ConfigError
        If a file that was read before is another one now, or one cannot be read.
    """
    for path in corpus.paths():
        if corpus.number(path) >= origin.num_shards:
            path.unlink()  # of an interrupted write: its text is read again
    held = corpus.num_tokens()
    number = sum(each.num_pieces for each in origin.files)
    parts: tuple[list[Recording], list[Recording]] = ([], [])

    def flush(now: Origin, name: str) -> Origin:
        for found, held_out in zip(parts, (False, True), strict=True):
            if found:
                corpus.add(found, held_out=held_out)
                found.clear()
        now = replace(now, num_shards=corpus.next_number())
        save(now)
        progress(f"{held} of at most {num_tokens} tokens recorded, the last from {name}")
        return now

    def is_enough() -> bool:
        return number > 1 and (held >= num_tokens or is_over())

    for at, path in _in_order(folder, origin):
        if is_enough():
            break
        entry = origin.files[at] if at < len(origin.files) else _described(folder, path)
        if entry.is_read:
            continue
        for piece in islice(_pieces(path, tokenizer, target), entry.num_pieces, None):
            recording = _read(target, piece)
            parts[number % HELD_OUT == 1].append(recording)
            number, held = number + 1, held + len(recording)
            entry = replace(entry, num_pieces=entry.num_pieces + 1)
            origin = replace(origin, files=(*origin.files[:at], entry, *origin.files[at + 1 :]))
            if is_enough():
                break
            if sum(map(len, parts)) >= _AT_ONCE:
                origin = flush(origin, entry.name)
        else:
            entry = replace(entry, is_read=True)
            origin = replace(origin, files=(*origin.files[:at], entry, *origin.files[at + 1 :]))
    flush(origin, origin.files[-1].name if origin.files else str(folder))
    return held


def _described(folder: Path, path: Path) -> TextFile:
    name = path.name if path == folder else path.relative_to(folder).as_posix()
    return text_file(path, name)


def _in_order(folder: Path, origin: Origin) -> Iterator[tuple[int, Path]]:
    """Return the files with their numbers, those that were read before first."""
    base = folder.parent if folder.is_file() else folder
    files = text_files(folder)
    known: list[Path] = []
    for entry in origin.files:
        path = base / entry.name
        now = text_file(path, entry.name) if path in files else None
        if now is None or (now.size, now.sha256) != (entry.size, entry.sha256):
            raise ConfigError(
                f"{path} was read before and is {'no part' if now is None else 'another text'} of "
                f"--text {folder} now. Expected the same texts, or another folder for -o"
            )
        known.append(path)
    return enumerate([*known, *(path for path in files if path not in known)])


def _pieces(path: Path, tokenizer: Tokenizer, target: ModelBackend) -> Iterator[Sequence[int]]:
    """Cut a file into pieces that fit one pass, each with the token that follows it."""
    longest = min(_PIECE, target.info.context_length)
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            is_first = True
            while block := stream.read(_BLOCK):
                ids = tokenizer.encode(block + stream.readline(_LINE), add_special=is_first)
                is_first = False
                for at in range(0, len(ids), longest):
                    if len(ids) - at > 2:
                        yield ids[at : at + longest + 1]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _read(target: ModelBackend, ids: Sequence[int]) -> Recording:
    """Score one piece; its last token is only what the one before led to."""
    sequence = target.open()
    try:
        target.forward(FlatBatch.from_rows([Row(sequence, ids[:-1], 0, 0)]))
        hidden = target.hidden()  # type: ignore[attr-defined]
    finally:
        target.close(sequence)
    return Recording.of(ids, [hidden])
