"""Write trace files while an engine runs.

A round costs one line and no system call: lines are handed to the system once a second
and whenever a request ends. A process that is killed loses at most that second, and
leaves at most one line that broke off.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, BinaryIO, Self

from draftproof.bench.trace_file import is_trace_file
from draftproof.bench.trace_record import TraceHeader
from draftproof.core.params import SamplingParams
from draftproof.core.protocols import Tokenizer
from draftproof.core.trace import RoundTrace
from draftproof.engine import GenerateRequest, GenerateResult, StepOutput
from draftproof.errors import ConfigError, DraftproofError

__all__ = ["TraceWriter", "round_document"]

#: Longest time that a line waits in memory, in seconds, while others come.
FLUSH_S = 1.0
_BUFFER_BYTES = 1 << 16
_ROUND_FIELDS = tuple(field.name for field in fields(RoundTrace))
_SECONDS = frozenset({"draft_s", "target_s", "verify_s", "other_s"})
#: Derived from the other fields, or filled in by the engine.
_NO_POLICY = frozenset({"stages", "stages_under_a_mask", "eos_token_ids"})


def round_document(trace: RoundTrace) -> dict[str, Any]:
    """Return a round as JSON's own types.

    Parameters
    ----------
    trace : RoundTrace
        The round.

    Returns
    -------
    dict
        Its fields. Probabilities and coins are written in full, so that decisions can be
        checked; seconds to a tenth of a microsecond; an unknown ``token_p`` is null.
    """
    held: dict[str, Any] = {name: getattr(trace, name) for name in _ROUND_FIELDS}
    for name in _SECONDS:
        held[name] = round(held[name], 7)
    if math.isnan(trace.token_p):
        held["token_p"] = None
    return held


class TraceWriter:
    """A listener that appends the rounds of an engine to a file.

    Parameters
    ----------
    path : str or Path
        The file. A trace that is there already is continued by another run; a line that
        broke off at its end is dropped.
    holds_text : bool, default False
        Whether prompts and outputs are written as text.

    Raises
    ------
    ConfigError
        If the file holds something else.
    DraftproofError
        If it cannot be written, or another process is writing it.
    """

    def __init__(self, path: str | Path, *, holds_text: bool = False) -> None:
        self._path = Path(path)
        self._holds_text = holds_text
        self._tokenizer: Tokenizer | None = None
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[float, GenerateRequest]] = {}
        self._origin = self._flushed = perf_counter()
        self._error: OSError | None = None
        self.num_rounds = 0
        try:
            self._file = _opened(self._path)
        except OSError as error:
            raise DraftproofError(f"cannot write --trace {path}: {error.strerror}") from error

    @property
    def wants_traces(self) -> bool:
        """Whether all requests are traced for it: yes."""
        return True

    def begin(self, header: TraceHeader, tokenizer: Tokenizer | None = None) -> None:
        """Write the line that begins a run; what follows counts its seconds from here.

        Parameters
        ----------
        header : TraceHeader
            How the run is made.
        tokenizer : Tokenizer, optional
            Spells prompts, where text is written.
        """
        self._tokenizer = tokenizer
        self._origin = perf_counter()
        header = replace(header, holds_text=self._holds_text)
        with self._lock:
            self._write({"kind": "run", **asdict(header)})
            self._flush()

    def on_request(self, request: GenerateRequest) -> None:
        """Remember when a request came, and its policy."""
        self._begun[request.request_id] = (self._now(), request)

    def on_output(self, output: StepOutput) -> None:
        """Write a round; and the request, where this was its last output."""
        at_s = self._now()
        with self._lock:
            if output.trace is not None:
                self.num_rounds += 1
                head = {"kind": "round", "request": output.request_id, "at_s": at_s}
                self._write(head | round_document(output.trace))
            if output.result is not None:
                begun = self._begun.pop(output.request_id, None)
                if begun is not None:
                    self._write(self._request_document(output.result, *begun, at_s))
                self._flush()
            elif perf_counter() - self._flushed > FLUSH_S:
                self._flush()

    def close(self) -> None:
        """Write what waits and close the file.

        Raises
        ------
        DraftproofError
            If the disk refused a line: the trace ends there, though nothing else did.
        """
        with self._lock:
            self._flush()
            try:
                self._file.close()
            except OSError as error:
                self._error = self._error or error
        if self._error is not None:
            raise DraftproofError(
                f"--trace {self._path} is incomplete: {self._error.strerror}"
            ) from self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _now(self) -> float:
        return round(perf_counter() - self._origin, 6)

    def _write(self, document: Mapping[str, Any]) -> None:
        """Append a line. A disk that refuses ends the trace, not the requests."""
        if self._error is not None:
            return
        line = json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            self._error = error

    def _flush(self) -> None:
        self._flushed = perf_counter()
        if self._error is not None or self._file.closed:
            return
        try:
            self._file.flush()
        except OSError as error:
            self._error = error

    def _request_document(
        self, result: GenerateResult, begun_s: float, request: GenerateRequest, at_s: float
    ) -> dict[str, Any]:
        held: dict[str, Any] = {
            "kind": "request",
            "request": result.request_id,
            "begun_s": begun_s,
            "at_s": at_s,
            "policy": _policy(request.params),
            "seed": result.seed,
            "stream": request.stream,
            "rule": result.rule,
            "exactness": result.exactness,
            "num_prompt_tokens": len(result.prompt_ids),
            "num_tokens": len(result.tokens),
            "finish_reason": result.finish_reason,
            "stats": asdict(result.stats),
            "kappa": request.kappa,
            "notes": result.notes,
            "error": "" if result.error is None else str(result.error),
        }
        if self._holds_text:
            held["text"] = result.text
            if self._tokenizer is not None:
                held["prompt"] = self._tokenizer.decode(result.prompt_ids)
        return held


def _opened(path: Path) -> BinaryIO:
    """Open a file for more lines, at the end of its last whole one."""
    if path.exists() and path.is_file() and path.stat().st_size and not is_trace_file(path):
        raise ConfigError(f"--trace {path} holds something else; expected a trace or a new file")
    file = path.open("ab", buffering=_BUFFER_BYTES)
    try:
        _lock(file, path)
        if file.seekable() and file.tell():
            file.truncate(_end_of_last_line(path))
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep a second process out: the lines of two runs would mix."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DraftproofError(f"--trace {path} is being written by another process") from error
    except OSError:
        # Some network file systems, and devices, have no locks.
        return


def _end_of_last_line(path: Path) -> int:
    """Return the length of a file without a last line that broke off."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end:
            begin = max(0, end - _BUFFER_BYTES)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def _policy(params: SamplingParams) -> dict[str, Any]:
    """Return the sampling parameters that are not the plain ones."""
    plain = SamplingParams()
    held = {
        field.name: getattr(params, field.name)
        for field in fields(SamplingParams)
        if field.name not in _NO_POLICY
    }
    return {name: value for name, value in held.items() if value != getattr(plain, name)}
