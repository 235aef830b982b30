"""Prompts of your own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.bench.workloads.composing import Turns
from draftproof.core import strict_json
from draftproof.errors import ConfigError

__all__ = ["PromptFile", "read_prompt_file"]


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Prompts from a file, again from the first when they are used up.

    Parameters
    ----------
    path : str
        The file.
    prompts : tuple of tuple
        At least one chat.
    """

    path: str
    prompts: tuple[Turns, ...]

    @property
    def num_distinct(self) -> int:
        """How many prompts differ from each other."""
        return len(set(self.prompts))

    def prompt(self, kind: str, number: int) -> Turns:  # noqa: ARG002
        """Return a prompt.

        Parameters
        ----------
        kind : str
            Ignored: a file is of one kind.
        number : int
            From 0; numbers beyond the file begin it again.

        Returns
        -------
        tuple of (str, str)
            Roles and texts of a chat.
        """
        return self.prompts[number % len(self.prompts)]


def read_prompt_file(path: Path) -> PromptFile:
    """Read prompts.

    Parameters
    ----------
    path : Path
        One JSON object per line with ``prompt`` (a string) or ``messages`` (a chat).

    Returns
    -------
    PromptFile
        The prompts.

    Raises
    ------
    ConfigError
        If the file cannot be read or a line is something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path}: cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            prompts.append(_turns(line, f"{path}, line {number}"))
    if not prompts:
        raise ConfigError(f"--prompts {path}: expected at least one prompt")
    return PromptFile(str(path), tuple(prompts))


def _turns(line: str, where: str) -> Turns:
    expected = 'expected {"prompt": "…"} or {"messages": [{"role": …, "content": …}]}'
    try:
        held: Any = strict_json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: no JSON ({error}); {expected}") from error
    if not isinstance(held, dict) or not {"prompt", "messages"} & held.keys():
        raise ConfigError(f"{where}: {expected}")
    if isinstance(held.get("prompt"), str) and held["prompt"]:
        return (("user", held["prompt"]),)
    turns = held.get("messages")
    if not isinstance(turns, list) or not turns:
        raise ConfigError(f"{where}: {expected}")
    pairs = []
    for turn in turns:
        if not isinstance(turn, dict) or not all(
            isinstance(turn.get(key), str) for key in ("role", "content")
        ):
            raise ConfigError(f"{where}: {expected}")
        pairs.append((turn["role"], turn["content"]))
    return tuple(pairs)
