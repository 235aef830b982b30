"""Chat templates, and text of users that cannot pass for the template's own.

A chat template is a Jinja program inside a model file. It runs in a sandbox: it
can read the messages and build a string, nothing else.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Never

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftproof.errors import ModelFileError, PromptError

__all__ = ["ChatTemplate", "ControlGuard"]

#: Unicode noncharacters, reserved for use inside programs, then a private-use area.
_SENTINELS: Final = tuple(map(chr, (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xF1000))))


class ChatTemplate:
    """A compiled chat template.

    Parameters
    ----------
    source : str
        Jinja source, as model files carry it.
    variables : mapping of str to Any, optional
        Names that the template may use beside the messages, such as
        ``bos_token``.
    now : callable, optional
        Clock behind ``strftime_now``; the local time by default. Templates that
        write the date make prompts that change from day to day.

    Raises
    ------
    ModelFileError
        If the source does not compile.
    """

    __slots__ = ("_template", "_variables", "source")

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        # The same whitespace rules and helpers as the templates in the field expect.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelFileError(f"the chat template does not compile: {error}") from error
        self._variables = dict(variables or {})
        self.source = source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the text of a chat.

        Parameters
        ----------
        messages : sequence of mapping
            The turns, oldest first.
        add_generation_prompt : bool
            Open the assistant's turn at the end.
        **variables : Any
            More names for the template.

        Returns
        -------
        str
            The prompt, with control tokens spelled out.

        Raises
        ------
        PromptError
            If the template refuses the messages or fails on them.
        """
        names: dict[str, Any] = {"tools": None, "documents": None, **self._variables, **variables}
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **names,
            )
        except _Refusal as refusal:
            raise PromptError(f"the chat template refused the messages: {refusal}") from None
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise PromptError(f"the chat template failed on the messages: {error}") from error


class _Refusal(jinja2.TemplateError):
    """Raised by a template through ``raise_exception``."""


def _refuse(message: str) -> Never:
    raise _Refusal(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False
) -> str:
    # Not Jinja's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


class _GenerationBlock(Extension):
    """Accepts ``{% generation %}``, a mark for training that prints its body."""

    tags = {"generation"}  # noqa: RUF012 (the attribute is Jinja's interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ControlGuard:
    """Keeps control tokens that users wrote apart from those of the template.

    Parameters
    ----------
    control_ids : mapping of str to int
        Control tokens by spelling.
    strip : mapping of str to tuple of bool, optional
        For each spelling whether white space to its left and right belongs to it.

    Notes
    -----
    Before a template runs, a sentinel character is put inside every spelling of a
    control token in the text of users. The rendered text then holds unbroken
    spellings only where the template itself wrote them. Those become control
    tokens; the sentinels are taken out of the rest, which is encoded as plain
    text. Spellings that begin in the user's text and end outside of it, or the
    reverse, are broken as well. A template may still build a spelling around a
    whole value, as ``'<|' + role + '|>'`` does on purpose, so whoever accepts
    roles from users must check them. The template works on the guarded text, so
    filters such as ``trim`` do what they always do. Control tokens of one
    character cannot be broken and are not parsed.
    """

    __slots__ = ("_find", "_ids", "_longest", "_prefixes", "_starts", "_strip", "_suffixes")

    def __init__(
        self,
        control_ids: Mapping[str, int],
        strip: Mapping[str, tuple[bool, bool]] | None = None,
    ) -> None:
        self._ids = {text: index for text, index in control_ids.items() if len(text) > 1}
        self._strip = dict(strip or {})
        # Longest first: a spelling may begin with another one.
        ordered = sorted(self._ids, key=len, reverse=True)
        # The class of first characters skips plain text before the long alternation.
        first = "".join(sorted({re.escape(text[0]) for text in ordered})) or "\0"
        spelled = "|".join(map(re.escape, ordered)) or "(?!)"
        self._find = re.compile(f"(?=[{first}])(?:{spelled})")
        # Matches no characters, so that overlapping spellings are all found.
        self._starts = re.compile(f"(?=[{first}])(?={spelled})")
        self._prefixes = {text[:cut] for text in ordered for cut in range(1, len(text))}
        self._suffixes = {text[cut:] for text in ordered for cut in range(1, len(text))}
        self._longest = max(map(len, ordered), default=1)

    def sentinel(self, *texts: str) -> str:
        """Return a character that occurs in none of the texts.

        Parameters
        ----------
        *texts : str
            Everything that a template may put into its output.

        Returns
        -------
        str
            One character.

        Raises
        ------
        PromptError
            If the texts use up every candidate.
        """
        for candidate in _SENTINELS:
            if not any(candidate in text for text in texts):
                return candidate
        raise PromptError("the messages use every Unicode noncharacter: no guard is left")

    def guard(self, text: str, sentinel: str) -> str:
        """Break every spelling of a control token inside a user's text.

        Parameters
        ----------
        text : str
            Text of a user.
        sentinel : str
            The character to break them with.

        Returns
        -------
        str
            The same text, with sentinels.
        """
        places = {match.start() + 1 for match in self._starts.finditer(text)}
        widths = range(1, min(self._longest, len(text) + 1))
        # Spellings that the template's text could complete, after or before this one.
        places.update(len(text) - w + 1 for w in widths if text[-w:] in self._prefixes)
        if any(text[:w] in self._suffixes for w in widths):
            places.add(0)
        cuts = [0, *sorted(places), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
        return sentinel.join(pieces) if places else text

    def split(self, rendered: str, sentinel: str) -> list[str | int]:
        """Cut a rendered chat into plain text and control tokens.

        Parameters
        ----------
        rendered : str
            Output of the template on guarded messages.
        sentinel : str
            The character they were guarded with.

        Returns
        -------
        list of str or int
            Plain text without sentinels, and ids of control tokens, in order.
        """
        parts: list[str | int] = []
        at, left_space = 0, False
        for match in self._find.finditer(rendered):
            lstrip, rstrip = self._strip.get(match[0], (False, False))
            parts.append(self._plain(rendered[at : match.start()], sentinel, left_space, lstrip))
            parts.append(self._ids[match[0]])
            at, left_space = match.end(), rstrip
        parts.append(self._plain(rendered[at:], sentinel, left_space, False))
        return [part for part in parts if part != ""]

    def _plain(self, text: str, sentinel: str, left: bool, right: bool) -> str:
        text = text.lstrip() if left else text
        return (text.rstrip() if right else text).replace(sentinel, "")
