"""Prompts: from a word on the command line, from stdin, from a chat."""

from __future__ import annotations

import sys

from draftproof.errors import ConfigError, PromptError

__all__ = ["as_chat", "read_prompt", "read_stdin", "wants_chat"]


def read_prompt(argument: str | None) -> str:
    """Return the prompt.

    Parameters
    ----------
    argument : str, optional
        The word given; ``-`` or None mean stdin.

    Returns
    -------
    str
        The prompt. The last line break of stdin is dropped: it is the shell's.

    Raises
    ------
    ConfigError
        If there is none.
    PromptError
        If stdin is not UTF-8.
    """
    if argument is not None and argument != "-":
        return argument
    if argument is None and sys.stdin.isatty():
        raise ConfigError("there is no prompt; expected PROMPT, text on stdin, or --prompts")
    text = read_stdin()
    return text.removesuffix("\n").removesuffix("\r")


def read_stdin() -> str:
    """Return all of stdin.

    Returns
    -------
    str
        The text.

    Raises
    ------
    PromptError
        If it is not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"stdin holds byte {error.start} that is not UTF-8 text") from error


def wants_chat(chat: bool | None, system: str | None) -> bool:
    """Return whether prompts go through the chat template.

    Parameters
    ----------
    chat : bool, optional
        ``--chat`` or ``--raw``; None when neither was given.
    system : str, optional
        The system message.

    Returns
    -------
    bool
        True for ``--chat``, and for a system message.

    Raises
    ------
    ConfigError
        If a system message is given for a raw prompt.
    """
    if system is not None and chat is False:
        raise ConfigError(f"--system {system!r} needs a chat; expected no --raw beside it")
    return bool(chat) or system is not None


def as_chat(text: str, system: str | None) -> list[dict[str, str]]:
    """Return a prompt as a chat of one turn.

    Parameters
    ----------
    text : str
        What the user says.
    system : str, optional
        The system message.

    Returns
    -------
    list of dict
        Messages with ``role`` and ``content``.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": text}]
