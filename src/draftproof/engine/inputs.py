"""What callers hand in, as the tuples of token ids that requests hold."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from draftproof.core.protocols import Tokenizer
from draftproof.errors import ConfigError, PromptError

__all__ = ["Prompt", "listed", "prediction_ids", "prompt_ids"]

#: A text, a chat (list of ``{"role", "content"}``) or token ids.
Prompt = str | Sequence[int] | Sequence[dict[str, str]]


def prompt_ids(prompt: Prompt, tokenizer: Callable[[], Tokenizer]) -> tuple[int, ...]:
    """Return the token ids of a prompt.

    Parameters
    ----------
    prompt : str, sequence of int or sequence of dict
        Text, token ids, or a chat of ``{"role": ..., "content": ...}`` turns.
    tokenizer : callable
        Gives the tokenizer; asked for text and chats only.

    Returns
    -------
    tuple of int
        Token ids.

    Raises
    ------
    PromptError
        If it is nothing of these.
    """
    ids: Any = prompt
    if isinstance(prompt, str):
        ids = tokenizer().encode(prompt)
    elif isinstance(prompt, list | tuple) and prompt and isinstance(prompt[0], dict):
        for turn in prompt:
            if not isinstance(turn, dict) or not {"role", "content"} <= turn.keys():
                raise PromptError(f"a turn of the chat is {turn!r}; expected role and content")
        ids = tokenizer().encode_chat(prompt)
    try:
        return tuple(operator.index(token) for token in ids)
    except TypeError as error:
        raise PromptError(f"the prompt is no text, chat or token ids: {error}") from error


def prediction_ids(
    prediction: str | Sequence[int], tokenizer: Callable[[], Tokenizer]
) -> tuple[int, ...]:
    """Return the token ids of a predicted output, given as text or as ids."""
    if isinstance(prediction, str):
        return tuple(tokenizer().encode(prediction, add_special=False))
    return listed("prediction", prediction)


def listed(name: str, values: Any) -> tuple[Any, ...]:
    """Return the values as a tuple.

    Parameters
    ----------
    name : str
        Their name, for the error.
    values : iterable
        The values.

    Returns
    -------
    tuple
        In the same order.

    Raises
    ------
    ConfigError
        If they are no sequence.
    """
    try:
        return tuple(values)
    except TypeError as error:
        raise ConfigError(f"{name} is {values!r}; expected a sequence") from error
