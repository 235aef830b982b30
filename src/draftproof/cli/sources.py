"""Generated text with the origin of every token visible, with and without colour."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from draftproof.core.types import TokenSource
    from draftproof.engine import TokenEvent

__all__ = ["SourcePainter", "printable"]

#: Colour never carries the meaning alone: each source has an attribute of its own.
STYLES: dict[TokenSource, str] = {
    "accepted": "green",
    "recovered": "bold yellow",
    "bonus": "underline cyan",
    "sampled": "",
}

#: Marks where there is no colour.
MARKS: dict[TokenSource, tuple[str, str]] = {
    "accepted": ("[", "]"),
    "recovered": ("{", "}"),
    "bonus": ("<", ">"),
    "sampled": ("", ""),
}

MEANING: dict[TokenSource, str] = {
    "accepted": "a draft that was kept",
    "recovered": "drawn after a rejection",
    "bonus": "drawn after all drafts were kept",
    "sampled": "plain decoding",
}

#: Control characters that a model may write and a terminal would obey.
_OBEYED = {
    code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t\r"
} | {ord("\r"): ""}


def printable(text: str) -> str:
    """Make text safe for a terminal.

    Parameters
    ----------
    text : str
        Text of a model.

    Returns
    -------
    str
        The same with control characters replaced, line breaks and tabs kept.
    """
    return text.translate(_OBEYED)


class SourcePainter:
    """Marks tokens by their source.

    Parameters
    ----------
    console : Console
        Knows whether there is colour.
    """

    def __init__(self, console: Console) -> None:
        from rich.color import ColorSystem
        from rich.style import Style

        self._styles: dict[TokenSource, Style] | None = None
        self._is_terminal = console.is_terminal
        if console.color_system and not console.no_color and not console.legacy_windows:
            self._styles = {source: Style.parse(style) for source, style in STYLES.items()}
        self._colors = ColorSystem.EIGHT_BIT

    def paint(self, tokens: Sequence[TokenEvent]) -> str:
        """Return the text of some tokens, marked.

        Parameters
        ----------
        tokens : sequence of TokenEvent
            Tokens of one step or of many.

        Returns
        -------
        str
            Neighbours of one source share one mark.
        """
        parts = []
        for source, group in groupby(tokens, key=lambda token: token.source):
            text = "".join(token.text for token in group)
            parts.append(self.mark(source, printable(text) if self._is_terminal else text))
        return "".join(parts)

    def mark(self, source: TokenSource, text: str) -> str:
        """Return text in the mark of a source.

        Parameters
        ----------
        source : str
            The source.
        text : str
            The text; nothing is marked when it is empty.

        Returns
        -------
        str
            The marked text.
        """
        if not text:
            return ""
        if self._styles is not None:
            return self._styles[source].render(text, color_system=self._colors)
        left, right = MARKS[source]
        return f"{left}{text}{right}"

    def legend(self) -> str:
        """Return one line that explains the marks.

        Returns
        -------
        str
            The line, without a line break.
        """
        parts = [f"{self.mark(source, source)} = {meaning}" for source, meaning in MEANING.items()]
        return " · ".join(parts)
