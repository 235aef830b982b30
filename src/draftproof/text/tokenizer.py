"""The tokenizer of a model: plain text, chats, and bytes of tokens.

User text never becomes a control token. Only what a chat template itself wrote
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tokenizers

from draftproof.errors import InvariantError, PromptError
from draftproof.models import ModelSource, read_gguf
from draftproof.text.chat import ChatTemplate, ControlGuard
from draftproof.text.vocabulary import Vocabulary

__all__ = ["LibraryEncoder", "PlainEncoder", "Tokenizer"]


class PlainEncoder(Protocol):
    """Encodes text that holds no control tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain text."""
        ...


class LibraryEncoder:
    """A `PlainEncoder` over the ``tokenizers`` library.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        A tokenizer whose special tokens are not parsed out of text.
    """

    __slots__ = ("_tokenizer",)

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain text.

        Parameters
        ----------
        text : str
            The text.

        Returns
        -------
        list of int
            The ids, without begin-of-text or end-of-text.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class Tokenizer:
    """Implements `draftproof.core.protocols.Tokenizer`.

    Parameters
    ----------
    vocabulary : Vocabulary
        All tokens by id.
    encoder : PlainEncoder
        Encodes a text from its beginning.
    eos_token_ids : iterable of int
        Ids that end a generation.
    prefix_ids : sequence of int
        Ids that begin every prompt, usually the begin-of-text token or nothing.
    suffix_ids : sequence of int
        Ids that end every plain prompt, usually nothing.
    chat_template : ChatTemplate or None
        The chat template, if the model has one.
    inner_encoder : PlainEncoder, optional
        Encodes text that follows a control token, where the model tells the two
        apart; ``encoder`` by default.
    strip : mapping of str to tuple of bool, optional
        Control tokens that swallow white space to their left or right.

    Notes
    -----
    ``decode`` joins the bytes of tokens. Models that begin each text with a space
    give that space back: a continuation needs it. Bytes that a byte-level
    vocabulary lacks are dropped by ``encode``, as the models' own tokenizers do.
    """

    __slots__ = (
        "_encoder",
        "_eos",
        "_guard",
        "_inner",
        "_prefix",
        "_suffix",
        "_template",
        "_vocabulary",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: PlainEncoder,
        *,
        eos_token_ids: Sequence[int] | frozenset[int],
        prefix_ids: Sequence[int] = (),
        suffix_ids: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
        inner_encoder: PlainEncoder | None = None,
        strip: Mapping[str, tuple[bool, bool]] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._inner = inner_encoder or encoder
        self._eos = frozenset(eos_token_ids)
        self._prefix = list(prefix_ids)
        self._suffix = list(suffix_ids)
        self._template = chat_template
        self._guard = ControlGuard(vocabulary.control_ids, strip)

    @classmethod
    def from_source(cls, source: ModelSource) -> Tokenizer:
        """Build the tokenizer of a resolved model.

        Parameters
        ----------
        source : ModelSource
            A GGUF file or a folder with ``tokenizer.json``.

        Returns
        -------
        Tokenizer
            Its tokenizer.

        Raises
        ------
        ModelFileError
            If the files are damaged or of a kind that is not supported.
        """
        # The builders import this module.
        from draftproof.text.from_folder import tokenizer_from_folder
        from draftproof.text.from_gguf import tokenizer_from_gguf

        if source.kind == "gguf":
            return tokenizer_from_gguf(read_gguf(source.path))
        return tokenizer_from_folder(source.path)

    @property
    def vocabulary(self) -> Vocabulary:
        """All tokens by id."""
        return self._vocabulary

    @property
    def vocab_size(self) -> int:
        """Number of token ids, up to the last one that has a string."""
        return len(self._vocabulary)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a generation."""
        return self._eos

    @property
    def has_chat_template(self) -> bool:
        """Whether ``encode_chat`` can be used."""
        return self._template is not None

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the token ids of a text.

        Parameters
        ----------
        text : str
            The text. Spellings of control tokens in it stay plain text.
        add_special : bool
            Add what the model wants around a prompt, such as the begin-of-text
            token.

        Returns
        -------
        list of int
            The ids.

        Raises
        ------
        PromptError
            If the text holds a lone surrogate, which UTF-8 cannot write.
        """
        ids = self._encoder.encode(_checked(text))
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Return the token ids of a chat, ready for the assistant's turn.

        Parameters
        ----------
        messages : sequence of mapping of str to str
            The turns, oldest first, each with ``role`` and ``content``.
        add_generation_prompt : bool
            Open the assistant's turn at the end.
        **variables : Any
            More names for the template, for example ``enable_thinking``.

        Returns
        -------
        list of int
            The ids. The begin-of-text token is there once, whether the template
            writes it or only the model wants it.

        Raises
        ------
        PromptError
            If the model has no chat template, a message is malformed, or the
            template refuses the messages.

        Notes
        -----
        Control tokens come from the template's own text alone; see
        `draftproof.text.chat.ControlGuard`.
        """
        if self._template is None:
            raise PromptError(
                "this model has no chat template; hint: send a plain prompt instead of messages"
            )
        checked = [_message(index, message) for index, message in enumerate(messages)]
        if not checked:
            raise PromptError("the chat has no messages, expected at least one")
        texts = [text for message in checked for text in message.values()]
        sentinel = self._guard.sentinel(self._template.source, *texts)
        guarded = [
            {key: self._guard.guard(text, sentinel) for key, text in message.items()}
            for message in checked
        ]
        rendered = self._template.render(
            guarded, add_generation_prompt=add_generation_prompt, **variables
        )
        return self._encode_rendered(self._guard.split(rendered, sentinel))

    def _encode_rendered(self, parts: Sequence[str | int]) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(parts):
            if isinstance(part, int):
                ids.append(part)
            else:
                encoder = self._inner if index else self._encoder
                ids.extend(encoder.encode(_checked(part)))
        starts_right = ids[: len(self._prefix)] == self._prefix
        return ids if starts_right else [*self._prefix, *ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds; empty for control tokens.

        Parameters
        ----------
        token_id : int
            The token. Ids past ``vocab_size`` are padding of the logits row and
            add nothing.

        Returns
        -------
        bytes
            The bytes, possibly a part of a character.

        Raises
        ------
        InvariantError
            If the id is negative.
        """
        if token_id < 0:
            raise InvariantError(f"token id {token_id} is negative")
        data = self._vocabulary.data
        return data[token_id] if token_id < len(data) else b""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD.

        Parameters
        ----------
        token_ids : sequence of int
            The tokens.

        Returns
        -------
        str
            Their text, without control tokens.
        """
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the text holds a lone surrogate {text[error.start]!r} at character {error.start}"
        ) from None
    return text


def _message(index: int, message: Mapping[str, str]) -> dict[str, str]:
    for key in ("role", "content"):
        if key not in message:
            raise PromptError(f"message {index} has no {key!r}")
    for key, value in message.items():
        if not isinstance(value, str):
            raise PromptError(
                f"message {index}: {key} is of type {type(value).__name__}, expected a string"
            )
    return dict(message)
