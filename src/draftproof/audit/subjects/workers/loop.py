"""Answer an auditor's questions about one engine: JSON, one object per line.

Run as ``python loop.py ENGINE.py`` by a Python that has the engine. ``ENGINE.py`` has a
class ``Engine``::

    Engine(options)                        # loads the model
    engine.describe() -> dict              # versions, vocab_size, eos_token_ids,
                                           # parameters, order
    engine.encode(text) -> list of int
    engine.rows(texts) -> n rows of float32 logits after n lists of token ids
    engine.draw(prompt_ids, policy, seeds) -> dict of samples, rounds, totals, and by_draw
                                           # where it knows the rounds of each sample in order

A question is ``{"draftproof": 1, "id": n, "do": verb, ...}``, its answer ``{"draftproof": 1,
"id": n, "ok": ...}`` or ``{"draftproof": 1, "id": n, "error": text}``. Standard output
belongs to the answers: what the engine prints there goes to standard error.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
import traceback
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["VERSION", "main"]

#: Version of the messages.
VERSION = 1


def main(engine_file: str) -> int:
    """Answer questions until standard input ends.

    Parameters
    ----------
    engine_file : str
        The file with the class ``Engine``.

    Returns
    -------
    int
        Exit code: 0.
    """
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What the engine or its children print, or read, must not reach the auditor.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Not the files of other engines, whatever their names.
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    held: dict[str, Any] = {}
    for line in questions:
        number = None
        try:
            question = json.loads(line)
            number = question["id"]
            if question["draftproof"] != VERSION:
                raise ValueError(f"messages of version {question['draftproof']}, not {VERSION}")
            if question["do"] == "quit":
                return 0
            answer = {"ok": _VERBS[question["do"]](held, engine_file, question)}
        except Exception as error:  # noqa: BLE001  whatever an engine raises is the answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"draftproof": VERSION, "id": number, **answer}), file=answers, flush=True)
    return 0


def _load(held: dict[str, Any], engine_file: str, question: dict[str, Any]) -> Any:
    spec = importlib.util.spec_from_file_location("audited_engine", engine_file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{engine_file}: expected a file of Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    held["engine"] = module.Engine(question["options"])
    description = held["engine"].describe()
    description["versions"] = {"python": sys.version.split()[0], **description["versions"]}
    return description


def _encode(held: dict[str, Any], _file: str, question: dict[str, Any]) -> Any:
    return [int(token) for token in held["engine"].encode(question["text"])]


def _rows(held: dict[str, Any], _file: str, question: dict[str, Any]) -> Any:
    rows = [array("f", row) for row in held["engine"].rows(question["texts"])]
    if sys.byteorder == "big":
        for row in rows:
            row.byteswap()
    # Base64 keeps every bit of a float32; -inf and NaN have no spelling in JSON.
    return [base64.b64encode(row.tobytes()).decode("ascii") for row in rows]


def _draw(held: dict[str, Any], _file: str, question: dict[str, Any]) -> Any:
    return held["engine"].draw(question["prompt_ids"], question["policy"], question["seeds"])


_VERBS: dict[str, Callable[..., Any]] = {
    "load": _load,
    "encode": _encode,
    "rows": _rows,
    "draw": _draw,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
