"""Many prompts through one engine, in ragged batches, resumable at any moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.cli.batch_input import PromptLine
from draftproof.cli.batch_output import OutputFile
from draftproof.cli.context import Notes, write_data
from draftproof.cli.documents import result_document
from draftproof.cli.json_lines import json_line
from draftproof.errors import ConfigError, InvariantError

if TYPE_CHECKING:
    from draftproof.engine import Engine, GenerateResult

__all__ = ["BatchCounts", "run_batch"]

Write = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True)
class BatchCounts:
    """How far a batch is.

    Parameters
    ----------
    done, failed, total : int
        Lines written, lines among them that hold an error, lines of the input.
    """

    done: int
    failed: int
    total: int


def run_batch(
    load: Callable[[], Engine],
    lines: Sequence[PromptLine],
    output: Path | None,
    notes: Notes,
    *,
    window: int,
) -> BatchCounts:
    """Generate for all lines that have no result yet, and again for those that failed.

    Parameters
    ----------
    load : callable
        Makes the engine; not called when nothing is left to do.
    lines : sequence of PromptLine
        The input.
    output : Path, optional
        The result file; stdout when None.
    notes : Notes
        Where progress goes.
    window : int
        Most requests that are queued or running at once.

    Returns
    -------
    BatchCounts
        What the output holds now.

    Raises
    ------
    ConfigError
        If the output holds results of other requests.
    DraftproofError
        If the engine itself fails; finished lines stay written.
    """
    sink = nullcontext() if output is None else OutputFile(output)
    with sink as file:
        finished = {} if file is None else file.finished
        _check_same(lines, {key: line.request_hash for key, line in finished.items()}, output)
        # What is wrong with a line itself would fail again; anything else may have passed.
        again = {
            line.key
            for line in lines
            if line.error is None and line.key in finished and finished[line.key].failed
        }
        if again and file is not None:
            notes.say(f"{len(again)} lines of {output} failed; they are tried again")
            file.drop(again)
        left = [line for line in lines if line.key not in finished]
        failed = sum(line.failed for line in finished.values())
        counts = BatchCounts(len(finished), failed, len(lines))
        if finished:
            notes.say(f"{counts.done} of {counts.total} lines are in {output} already")
        if not left:
            return counts
        write: Write = _to_stdout if file is None else file.write
        engine = load()
        try:
            with _progress(notes, counts) as advance:
                for line, result in _results(engine, left, window):
                    document = _document(line, result)
                    write(document)
                    counts.done += 1
                    counts.failed += "error" in document
                    advance()
        except KeyboardInterrupt:
            if output is not None:
                notes.say(
                    f"{counts.done} of {counts.total} lines are in {output}; "
                    "the same command goes on from there"
                )
            raise
        finally:
            engine.close()
    return counts


def _results(
    engine: Engine, lines: Sequence[PromptLine], window: int
) -> Iterator[tuple[PromptLine, GenerateResult | Exception]]:
    """Yield each line with its result as it ends.

    Steps are driven from here, because one failing request must not end the others.
    Nothing else uses the engine meanwhile.
    """
    core = engine.core
    waiting = deque(lines)
    running: dict[str, PromptLine] = {}
    try:
        while waiting or running:
            while waiting and len(running) < window:
                line = waiting.popleft()
                try:
                    if line.error is not None:
                        raise line.error
                    name = f"line {line.key!r}"
                    request = engine.request(line.prompt, **line.options, request_id=name)
                    running[core.submit(request)] = line
                except InvariantError:
                    raise
                except Exception as error:  # noqa: BLE001  a bad line must not stop the others
                    yield line, error
            if not running:
                continue
            for output in core.step():
                if output.result is not None:
                    yield running.pop(output.request_id), output.result
    finally:
        for name in running:
            core.abort(name)
        core.reap()


def _document(line: PromptLine, result: GenerateResult | Exception) -> dict[str, Any]:
    document: dict[str, Any] = {"id": line.key, "request_hash": line.request_hash}
    error = result if isinstance(result, Exception) else result.error
    if error is not None:
        return {**document, "error": str(error), "error_type": type(error).__name__}
    assert not isinstance(result, Exception)  # narrows the type
    return {**document, **result_document(result)}


def _check_same(
    lines: Sequence[PromptLine], finished: Mapping[int | str, str], output: Path | None
) -> None:
    """Refuse to mix results of different requests in one file."""
    wanted = {line.key: line.request_hash for line in lines}
    for key, request_hash in finished.items():
        if key not in wanted:
            raise ConfigError(
                f"--output {output} holds id {key!r}, which the input lacks; expected another file"
            )
        if wanted[key] != request_hash:
            raise ConfigError(
                f"--output {output} holds id {key!r} for another prompt, model or options; "
                "expected the same, or another file"
            )


def _to_stdout(document: Mapping[str, Any]) -> None:
    write_data(json_line(document))


@contextmanager
def _progress(notes: Notes, counts: BatchCounts) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal; yield what moves it on by one line."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=notes.console,
        disable=notes.quiet or not notes.console.is_terminal,
    )
    with bar:
        task = bar.add_task("lines", total=counts.total, completed=counts.done)
        yield lambda: bar.advance(task)
