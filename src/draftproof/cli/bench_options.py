"""What ``draftproof bench`` is asked, and what it turns into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from draftproof.errors import ConfigError

__all__ = ["listed", "redacted"]

GRID = "Grid"
ROUNDS = "Rounds"
SERVER = "Server"
RESULT = "Result"

T = TypeVar("T")


def _option(panel: str, *names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Sweep = Annotated[
    str | None,
    _option(
        GRID,
        "--sweep",
        metavar="kappa=0,1,3",
        help="Most drafts per round, each an arm; auto is one. Plain decoding always runs too.",
    ),
]
Concurrency = Annotated[
    str, _option(GRID, "--concurrency", metavar="1,4,16", help="Requests in flight.")
]
Rate = Annotated[
    str | None,
    _option(
        GRID,
        "--rate",
        metavar="0.5,2",
        help="Poisson arrivals per second, instead of a closed loop.",
    ),
]
Temperature = Annotated[str, _option(GRID, "--temperature", metavar="0,1", help="0 is greedy.")]
Workload = Annotated[
    str,
    _option(
        GRID,
        "--workload",
        metavar="KINDS",
        help="Of copy-edit, code-edit, extract, summarise, chat, story; or all.",
    ),
]
Prompts = Annotated[
    Path | None,
    _option(
        GRID,
        "--prompts",
        metavar="FILE.jsonl",
        help="Your own prompts instead: one object with prompt or messages per line.",
    ),
]
MaxTokens = Annotated[int, _option(GRID, "--max-tokens", help="Most tokens per request.")]
Requests = Annotated[
    int,
    _option(
        GRID,
        "--requests",
        help="Counted requests per round and request in flight; under arrivals, per round.",
    ),
]
IgnoreEos = Annotated[
    bool, _option(GRID, "--ignore-eos", help="Go on past the end of texts; they repeat more then.")
]
Rounds = Annotated[int, _option(ROUNDS, "--rounds", help="Most rounds; six give an interval.")]
Width = Annotated[
    float | None,
    _option(ROUNDS, "--width", help="End an arm once its interval is this share of the median."),
]
Minutes = Annotated[float | None, _option(ROUNDS, "--minutes", help="Begin no round after this.")]
Confidence = Annotated[float, _option(ROUNDS, "--confidence", help="Of every interval.")]
Seed = Annotated[int, _option(ROUNDS, "--seed", help="Of orders, arrivals and requests.")]
Endpoint = Annotated[
    str | None,
    _option(SERVER, "--endpoint", metavar="URL", help="Measure a server of OpenAI's API instead."),
]
Baseline = Annotated[
    str | None,
    _option(SERVER, "--baseline", metavar="URL", help="A server that decodes plainly, in turns."),
]
ApiKey = Annotated[
    str | None,
    _option(
        SERVER, "--api-key", help="Sent to the servers.", envvar="DRAFTPROOF_API_KEY",
        show_envvar=True,
    ),
]  # fmt: skip
Timeout = Annotated[float, _option(SERVER, "--timeout", help="Longest silence in seconds.")]
Output = Annotated[
    Path | None,
    _option(RESULT, "-o", "--output", metavar="RUN.json", help="Where the run is kept."),
]
Resume = Annotated[
    bool, _option(RESULT, "--resume", help="Go on with what the output or its journal holds.")
]


def listed(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """Read values by commas.

    Parameters
    ----------
    option : str
        Name of the option, for the error.
    text : str
        What was typed.
    kind : callable
        Turns a word into a value, or raises ValueError.

    Returns
    -------
    list
        The values.

    Raises
    ------
    ConfigError
        If a word is none.
    """
    found = []
    for word in text.split(","):
        try:
            found.append(kind(word.strip()))
        except ValueError as error:
            raise ConfigError(
                f"{option} {text!r}: {word.strip()!r}: expected values by commas"
            ) from error
    return found


def redacted(arguments: Sequence[str]) -> list[str]:
    """Return a command line without its key.

    Parameters
    ----------
    arguments : sequence of str
        The words.

    Returns
    -------
    list of str
        With ``***`` for the key.
    """
    words = list(arguments)
    for place, word in enumerate(words):
        if word == "--api-key" and place + 1 < len(words):
            words[place + 1] = "***"
        elif word.startswith("--api-key="):
            words[place] = "--api-key=***"
    return words
