"""A program in another Python, asked by JSON lines over its standard streams."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from draftproof.audit.subjects.workers import loop
from draftproof.errors import BackendError, ConfigError

__all__ = ["WorkerProcess"]

#: Lines of standard error that a message repeats; the rest is in the file it names.
_SHOWN_LINES = 6
_GRACE_S = 5.0


class WorkerProcess:
    """Runs an engine's file under another interpreter.

    Parameters
    ----------
    python : Path
        The interpreter; it needs the engine's package and nothing else.
    engine_file : Path
        A file with the class ``Engine``; see `draftproof.audit.subjects.workers.loop`.
    timeout_s : float, default 600
        Longest wait for one answer, in seconds.
    environment : mapping of str to str, optional
        Variables added to those of this process.

    Attributes
    ----------
    log : Path
        Its standard error; removed when it is closed, kept when it fails.

    Raises
    ------
    ConfigError
        If the interpreter cannot be started.
    """

    def __init__(
        self,
        python: Path,
        engine_file: Path,
        *,
        timeout_s: float = 600.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout {timeout_s} s: expected more than 0")
        self._name = engine_file.stem
        self._timeout_s = timeout_s
        self._asked = 0
        self._answers: queue.Queue[str | None] = queue.Queue()
        descriptor, path = tempfile.mkstemp(prefix="draftproof-worker-", suffix=".log")
        self.log = Path(path)
        try:
            self._process = subprocess.Popen(
                [str(python), "-u", str(Path(loop.__file__)), str(engine_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                encoding="utf-8",
                env=_environment(environment),
                # Engines start processes of their own: they end together.
                start_new_session=True,
            )
        except OSError as error:
            self.log.unlink()
            raise ConfigError(f"{python}: {error.strerror}; expected an interpreter") from error
        finally:
            os.close(descriptor)
        # It must not hold this object, whose end is what ends the process.
        reader = threading.Thread(
            target=_read, args=(self._process.stdout, self._answers), daemon=True
        )
        reader.start()
        self._reader = reader
        self._finalizer = weakref.finalize(self, _finish, self._process, reader, self.log)

    def ask(self, do: str, **arguments: Any) -> Any:
        """Ask one question and wait for its answer.

        Parameters
        ----------
        do : str
            The verb.
        **arguments : object
            What goes with it, of values that JSON can hold.

        Returns
        -------
        object
            The answer.

        Raises
        ------
        BackendError
            If the worker ends, is silent for too long, breaks the protocol or reports
            an error. It is ended, and its standard error is kept in the file `log`.
        """
        self._asked += 1
        question = {"draftproof": loop.VERSION, "id": self._asked, "do": do, **arguments}
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=self._timeout_s)
        except (OSError, ValueError):  # a closed pipe, on either side
            line = None
        except queue.Empty:
            raise self._failed(f"gave no answer to {do!r} in {self._timeout_s:g} s") from None
        if line is None:
            raise self._failed(f"ended before it answered {do!r}")
        try:
            answer = json.loads(line)
            version, number = answer["draftproof"], answer["id"]
        except (ValueError, LookupError, TypeError):
            raise self._failed(f"said {line[:80]!r}, which is no answer") from None
        if version != loop.VERSION or number != self._asked:
            raise self._failed(
                f"gave answer {number} of version {version} to question {self._asked} of "
                f"version {loop.VERSION}"
            )
        if "ok" not in answer:
            raise self._failed(f"reports {answer.get('error')}")
        return answer["ok"]

    def close(self, *, keep_log: bool = False) -> None:
        """End the worker; harmless when it has ended.

        Parameters
        ----------
        keep_log : bool, default False
            Whether the file with its standard error stays.
        """
        if keep_log and self._finalizer.detach():
            _end(self._process, self._reader)
        self._finalizer()

    def _failed(self, what: str) -> BackendError:
        self.close(keep_log=True)
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = [line.strip()[:200] for line in lines if line.strip()][-_SHOWN_LINES:]
        said = f"; its last words: {' | '.join(last)}; all of them: {self.log}" if last else ""
        return BackendError(f"the worker {self._name} {what}{said}")


def _read(stream: Iterable[str], answers: queue.Queue[str | None]) -> None:
    for line in stream:
        answers.put(line)
    answers.put(None)


def _end(process: subprocess.Popen[str], reader: threading.Thread) -> None:
    """Close its input, which ends it; kill the whole group where that does not help."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):  # the worker may have gone first
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reader.join()
    process.stdout.close()


def _finish(process: subprocess.Popen[str], reader: threading.Thread, log: Path) -> None:
    _end(process, reader)
    log.unlink(missing_ok=True)


def _environment(added: Mapping[str, str] | None) -> dict[str, str]:
    # The other Python has packages of its own: those of this one must not shadow them.
    ours = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return ours | dict(added or {})
