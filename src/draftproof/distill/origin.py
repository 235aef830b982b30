"""What the work folder of a head was made from, so that nothing else is mixed in.

``origin.json`` stands beside the corpus. It also says how far the user's texts were read: it
is written after the shards, so that shards which it does not know are those of an
interrupted write, and are read again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, Literal

from draftproof.backends.fingerprint import is_like
from draftproof.errors import ConfigError, ModelFileError

__all__ = ["Origin", "TextFile", "check_origin", "read_origin", "text_file", "write_origin"]

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file that was read, and how far.

    Parameters
    ----------
    name : str
        Its path below the folder of ``--text``.
    size : int
        Bytes.
    sha256 : str
        Hash of its bytes, in hexadecimal.
    num_pieces : int, default 0
        Pieces of it that are in the corpus.
    is_read : bool, default False
        Whether that is all of it.
    """

    name: str
    size: int
    sha256: str
    num_pieces: int = 0
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class Origin:
    """What a head is made from.

    Parameters
    ----------
    target : str
        Name of the target, for people.
    precision : str
        How its weights are held.
    output : str
        `draftproof.backends.fingerprint.fingerprint` of its output layer.
    state : str
        The same of hidden states of a fixed text, which all layers have part in.
    text : {"own", "files"}
        Whether the target answers prompts or reads the user's texts.
    draft_vocab_size : int
        Tokens that can be drafted.
    files : tuple of TextFile
        Files that were read or begun, in the order of reading.
    num_shards : int
        Number of the shard that comes after those that belong to ``files``.
    is_closed : bool, default False
        Whether an earlier version read texts and did not tell which: none are added.
    start : str, default ""
        Name of the head that training started from; empty for the linear guess.
    """

    target: str
    precision: str
    output: str
    state: str
    text: Literal["own", "files"]
    draft_vocab_size: int
    files: tuple[TextFile, ...] = ()
    num_shards: int = 0
    is_closed: bool = False
    start: str = ""


def text_file(path: Path, name: str) -> TextFile:
    """Describe a file that is to be read.

    Parameters
    ----------
    path : Path
        Where it is.
    name : str
        What it is called in messages.

    Returns
    -------
    TextFile
        With nothing read of it.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return TextFile(name, path.stat().st_size, file_digest(stream, "sha256").hexdigest())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def check_origin(known: Origin, asked: Origin, folder: Path) -> None:
    """Refuse to go on with a folder that was made from something else.

    Parameters
    ----------
    known : Origin
        What the folder was made from.
    asked : Origin
        What it would be gone on with; its files are not looked at.
    folder : Path
        Named in the message.

    Raises
    ------
    ConfigError
        If they differ in anything that recorded text or head depend on.
    """
    kinds = {"own": "the target's own answers", "files": "texts of --text"}
    differences = (
        ("the text", kinds[known.text], kinds[asked.text]),
        ("--draft-vocab", known.draft_vocab_size, asked.draft_vocab_size),
        ("the precision of the target", known.precision, asked.precision),
        ("--start", known.start or "not given", asked.start or "not given"),
    )
    for name, before, now in differences:
        if before != now:
            raise _other(folder, f"{name} was {before} and is {now} now")
    weights = (
        ("output layer is", known.output, asked.output),
        ("hidden states are", known.state, asked.state),
    )
    for name, before, now in weights:
        if not is_like(before, now):
            raise _other(
                folder, f"it was made for {known.target}, whose {name} not that of {asked.target}"
            )


def _other(folder: Path, difference: str) -> ConfigError:
    return ConfigError(
        f"{folder} cannot be gone on with: {difference}. Expected the same as before, or another "
        "folder for -o"
    )


def read_origin(path: Path) -> Origin | None:
    """Read what a folder was made from.

    Parameters
    ----------
    path : Path
        What `write_origin` wrote.

    Returns
    -------
    Origin or None
        None where there is no such file.

    Raises
    ------
    ModelFileError
        If it is damaged.
    """
    try:
        held: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if held.pop("format") != _FORMAT or held["text"] not in ("own", "files"):
            raise ValueError("another format")
        files = tuple(TextFile(**each) for each in held.pop("files"))
        return replace(Origin(**held), files=files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path}: does not say what the folder was made from: {error}; remove the folder "
            f"{path.parent} to start afresh"
        ) from error


def write_origin(path: Path, origin: Origin) -> None:
    """Write what a folder was made from, whole or not at all.

    Parameters
    ----------
    path : Path
        The file.
    origin : Origin
        What to write.
    """
    draft = path.with_suffix(".part")
    text = json.dumps({"format": _FORMAT} | asdict(origin), indent=1)
    draft.write_text(text + "\n", encoding="utf-8")
    draft.rename(path)
