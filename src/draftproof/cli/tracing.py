"""``--trace``: the rounds of a run, appended to a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.errors import ConfigError, DraftproofError

if TYPE_CHECKING:
    from draftproof.engine import Engine

__all__ = ["TraceFile", "TraceText", "shown_command", "tracing"]

_PANEL = "Trace"
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE.jsonl",
        help="Append each round: drafts, probabilities, coins, times; see 'draftproof report'.",
        rich_help_panel=_PANEL,
    ),
]
TraceText = Annotated[
    bool,
    typer.Option(
        "--trace-text",
        help="Let the trace hold prompts and outputs as text; token ids it holds anyway.",
        rich_help_panel=_PANEL,
    ),
]

#: Options whose next word holds text of the user's, or a secret.
_TELLING = frozenset(
    {"--system", "--stop", "--json-schema", "--regex", "--choice", "--api-key", "--prediction"}
)
#: Options whose next word holds no text.
_PLAIN = frozenset(
    {
        "-k", "-m", "-md", "-n", "--attention", "--backend", "--context-length", "--cuda-graphs",
        "--device", "--draft-model", "--draft-precision", "--dtype", "--frequency-penalty",
        "--host", "--kv-cache-mb", "--linear", "--logit-bias", "--logprobs", "--logprobs-mode",
        "--max-rows", "--max-tokens", "--min-p", "--min-tokens", "--model", "--n",
        "--num-speculative-tokens", "--output", "--port", "--precision", "--presence-penalty",
        "--prompts", "--repetition-penalty", "--rule", "--seed", "--speculative-config",
        "--temperature", "--tensor-parallel", "--threads", "--top-k", "--top-p", "--trace",
    }
)  # fmt: skip


@contextmanager
def tracing(
    path: Path | None,
    *,
    holds_text: bool,
    settings: Mapping[str, Any],
    threads: int | None,
) -> Iterator[Callable[[Engine], Engine]]:
    """Trace the engines that are loaded inside the block.

    Parameters
    ----------
    path : Path, optional
        The file; nothing is traced when None.
    holds_text : bool
        Whether prompts and outputs are written as text.
    settings : mapping of str to Any
        What to say of the engine; JSON's own types.
    threads : int, optional
        Threads of the model's runtime, where they were chosen.

    Yields
    ------
    callable
        Takes an engine that was loaded and returns it, traced.

    Raises
    ------
    ConfigError
        If text is asked for without a trace, or the file holds something else.
    DraftproofError
        If the file cannot be written, or could not be written to its end.
    """
    if path is None:
        if holds_text:
            raise ConfigError("--trace-text needs --trace FILE, where the text would go")
        yield _untraced
        return
    from draftproof.bench.environment import describe_environment
    from draftproof.bench.trace_record import TRACE_FORMAT, TraceHeader
    from draftproof.bench.trace_writer import TraceWriter

    writer = TraceWriter(path, holds_text=holds_text)

    def traced(engine: Engine) -> Engine:
        core = engine.core
        command = shown_command(sys.argv[1:], holds_text=holds_text)
        writer.begin(
            TraceHeader(
                TRACE_FORMAT,
                describe_environment(command, threads),
                asdict(core.target.info),
                {
                    "drafters": list(core.proposers),
                    "default_drafter": core.default_proposer,
                    "chooses_lengths": core.chooses_lengths,
                    **settings,
                },
            ),
            core.tokenizer,
        )
        core.listeners.add(writer)
        return engine

    try:
        yield traced
    except BaseException:
        # What went wrong first is what the user must read.
        with suppress(DraftproofError):
            writer.close()
        raise
    writer.close()


def _untraced(engine: Engine) -> Engine:
    return engine


def shown_command(arguments: Sequence[str], *, holds_text: bool) -> list[str]:
    """Return the words of a command as a trace may hold them.

    Parameters
    ----------
    arguments : sequence of str
        The words after the command's name.
    holds_text : bool
        Whether prompts may be shown; keys never are.

    Returns
    -------
    list of str
        The command. A word that may hold text is ``...``: only names of options, and
        values that are known to hold none, are kept.
    """
    shown = ["draftproof"]
    option = ""  # whose value the next word is
    only_prompts = False
    for place, word in enumerate(arguments):
        name, equals, _ = word.partition("=")
        if option:
            is_kept, option = _is_kept(option, holds_text), ""
        elif only_prompts or not word.startswith("-"):
            is_kept = holds_text or place == 0
        elif equals:
            is_kept = _is_kept(name, holds_text)
            word, is_kept = word if is_kept else f"{name}=...", True
        else:
            is_kept, only_prompts = True, word == "--"
            option = word if word in _TELLING | _PLAIN else ""
        shown.append(word if is_kept else "...")
    return shown


def _is_kept(option: str, holds_text: bool) -> bool:
    """Whether the value of an option may be shown."""
    return option in _PLAIN or (holds_text and option != "--api-key")
