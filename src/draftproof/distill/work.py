"""The folder ``work`` beside a head: opened for what it was made from, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from draftproof.backends.borrowed import Borrowed
from draftproof.backends.fingerprint import fingerprint
from draftproof.core.types import ModelInfo
from draftproof.distill.corpus import Corpus
from draftproof.distill.draft_ids import DRAFT_IDS, read_ids
from draftproof.distill.origin import Origin, check_origin, read_origin, write_origin
from draftproof.distill.progress import CHECKPOINT
from draftproof.errors import ConfigError

__all__ = ["ORIGIN", "USERS_TEXT", "asked_origin", "check_folder", "open_work"]

#: Name of the file that says what a folder was made from.
ORIGIN: Final = "origin.json"
#: What ``config.json`` says about texts of the user.
USERS_TEXT: Final = "the user's"

Progress = Callable[[str], None]


def asked_origin(
    info: ModelInfo,
    borrowed: Borrowed,
    draft_vocab_size: int,
    *,
    has_texts: bool,
    start: str = "",
) -> Origin:
    """Describe what a head is asked to be made from.

    Parameters
    ----------
    info : ModelInfo
        Of the target.
    borrowed : Borrowed
        What the head borrows from it.
    draft_vocab_size : int
        Most tokens that can be drafted.
    has_texts : bool
        Whether the user brings texts.
    start : str, default ""
        Name of the head to start from; empty for the linear guess.

    Returns
    -------
    Origin
        With nothing read yet.
    """
    return Origin(
        info.name,
        info.precision,
        fingerprint(borrowed.output),
        fingerprint(borrowed.states),
        "files" if has_texts else "own",
        min(draft_vocab_size, len(borrowed.output)),
        start=start,
    )


def check_folder(folder: Path) -> None:
    """Refuse a path at which no folder can be.

    Parameters
    ----------
    folder : Path
        Where a head is to be written.

    Raises
    ------
    ConfigError
        If it is a file, or below one.
    """
    first = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if first is not None and not first.is_dir():
        raise ConfigError(f"{folder}: {first} is a file; expected a folder for the head")


def open_work(folder: Path, asked: Origin, width: int, progress: Progress) -> Origin:
    """Return what a head's folder was made from, and refuse what does not fit it.

    Parameters
    ----------
    folder : Path
        The head's folder. Its folder ``work`` is made when it does not exist.
    asked : Origin
        What it is asked to be made from.
    width : int
        Of the target's hidden states.
    progress : callable
        Told where a folder of an earlier version is taken over.

    Returns
    -------
    Origin
        What the folder was made from so far.

    Raises
    ------
    ConfigError
        If the folder was made from something else.
    ModelFileError
        If a file of it is damaged.
    """
    work = folder / "work"
    known = read_origin(work / ORIGIN)
    if known is None:
        known = asked
        if (work / "corpus").is_dir():
            known = _taken_over(folder, asked, width, progress)
    if not (work / CHECKPOINT).is_file():
        # Text can be recorded before it is decided what training starts from.
        known = replace(known, start=asked.start)
    check_origin(known, asked, folder)
    work.mkdir(parents=True, exist_ok=True)
    write_origin(work / ORIGIN, known)
    return known


def _taken_over(folder: Path, asked: Origin, width: int, progress: Progress) -> Origin:
    """Find out what an earlier version made a folder from, as far as that can be told."""
    corpus = Corpus(folder / "work" / "corpus")
    recorded = corpus.width()
    if recorded is None:
        return asked
    if recorded != width:
        raise ConfigError(
            f"{folder} cannot be gone on with: its text has hidden states of width {recorded}, "
            f"{asked.target} of width {width}. Expected the same model, or another folder for -o"
        )
    size, path = asked.draft_vocab_size, folder / "work" / DRAFT_IDS
    if path.is_file():
        size = len(read_ids(path)[0])
    config = _config(folder)
    text: Literal["own", "files"] = asked.text
    if "draftproof" in config:
        text = "files" if config["draftproof"].get("text") == USERS_TEXT else "own"
    name = str(config.get("speculators_config", {}).get("verifier", {}).get("name_or_path", ""))
    is_closed = text == "files"
    progress(
        f"{folder} is of an earlier version, which did not record what it was made from: taken "
        f"over as of {name or asked.target}"
        + (". Which texts it read is not known: no more are read" if is_closed else "")
    )
    return replace(
        asked,
        target=name or asked.target,
        text=text,
        draft_vocab_size=size,
        is_closed=is_closed,
        start="",
    )


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
