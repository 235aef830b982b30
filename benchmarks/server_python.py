"""What engine and server add to a pass: processor time of their threads per token.

The model is a stand-in that hands out stored logits at once, so whatever the threads of the
server use is Python. A client in a process of its own streams chat completions, one at a
time and several, and reads bytes without looking at them.

    python benchmarks/server_python.py --output benchmarks/results/…
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from subprocess import run

import numpy as np
from measure import report, shown, summary
from numpy.typing import NDArray

from draftproof.core.types import FlatBatch, ModelInfo
from draftproof.engine import Engine, EngineCore
from draftproof.models import resolve
from draftproof.server import ServerConfig, Service
from draftproof.server.run import make_server
from draftproof.text import Tokenizer

#: Rows of stored logits; a token at position ``p`` gets row ``p`` modulo their number.
_STORED = 256
_ENGINE = "draftproof-engine"


class StandIn:
    """A model whose passes take no time; implements ``ModelBackend``."""

    def __init__(self, vocab_size: int) -> None:
        self.info = ModelInfo("stand-in", "none", vocab_size, 4096)
        rng = np.random.default_rng(0)
        self._logits = 4 * rng.standard_normal((_STORED, vocab_size), dtype=np.float32)
        self._lengths: dict[int, int] = {}
        self._names = count()

    def open(self, token_ids: Sequence[int] = ()) -> int:
        """Start a sequence."""
        del token_ids
        name = next(self._names)
        self._lengths[name] = 0
        return name

    def length(self, sequence_id: int) -> int:
        """Return how many tokens it holds."""
        return self._lengths[sequence_id]

    def fork(self, sequence_id: int) -> int:
        """Copy a sequence."""
        name = self.open()
        self._lengths[name] = self._lengths[sequence_id]
        return name

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """There is always room."""
        del sequence_id, num_tokens
        return True

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        """Return stored logits."""
        for name, tokens in zip(batch.sequence_ids, np.diff(batch.row_begins), strict=True):
            self._lengths[name] += int(tokens)
        return self._logits[batch.positions[batch.logits_rows] % _STORED]

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop tokens."""
        self._lengths[sequence_id] = length + len(keep)

    def commit(self, sequence_id: int) -> None:
        """Nothing is shared."""

    def close(self, sequence_id: int) -> None:
        """Forget a sequence."""
        del self._lengths[sequence_id]


def thread_seconds() -> dict[str, float]:
    """Return the processor time of every thread, the engine's apart from the others."""
    seconds = {"engine": 0.0, "front": 0.0}
    for thread in threading.enumerate():
        if thread.ident is not None and thread is not threading.current_thread():
            used = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            seconds["engine" if thread.name == _ENGINE else "front"] += used
    return seconds


def stream(port: int, at_once: int, requests: int, max_tokens: int) -> None:
    """Be the client: stream completions and drop what comes."""

    def one(number: int) -> None:
        body = json.dumps(
            {
                "model": "stand-in", "stream": True, "temperature": 0, "ignore_eos": True,
                "max_tokens": max_tokens,
                "messages": [{"role": "user", "content": f"Tell me a story, the {number}th."}],
            }
        ).encode()  # fmt: skip
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head.encode() + body)
            received = b""
            while part := connection.recv(1 << 16):
                received = (received + part)[-64:]
        if b"[DONE]" not in received:
            raise SystemExit(f"a stream ended with {received!r}")

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, range(requests)))


def measured(port: int, at_once: int, requests: int, max_tokens: int) -> dict[str, float]:
    """Return milliseconds of processor time per token, the engine's thread and the others."""
    tokens = requests * max_tokens
    before = thread_seconds()
    arguments = [port, at_once, requests, max_tokens]
    run([sys.executable, __file__, "--client", *map(str, arguments)], check=True)
    after = thread_seconds()
    return {name: 1e3 * (after[name] - before[name]) / tokens for name in before}


def main() -> None:
    """Run and report, or be the client."""
    if sys.argv[1:2] == ["--client"]:
        stream(*map(int, sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="whose tokenizer is used")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_source(resolve(options.model))
    engine = Engine(EngineCore(StandIn(tokenizer.vocab_size), tokenizer=tokenizer))
    ports: list[int] = []
    server = make_server(Service(engine, ServerConfig("stand-in", port=0)), ports.append)
    front = threading.Thread(target=server.run, name="front")
    front.start()
    while not ports:
        time.sleep(0.05)
    figures = {}
    for at_once in (1, 4):
        runs = [
            measured(ports[0], at_once, options.requests, options.tokens)
            for _ in range(options.repeats + 1)
        ][1:]
        parts = {name: summary([run[name] for run in runs]) for name in runs[0]}
        figures[f"{at_once} at once"] = parts
        told = ", ".join(f"{name} {shown(part, 3)}" for name, part in parts.items())
        print(f"{at_once} at once, ms per token: {told}")
    server.should_exit = True
    front.join()
    report({"benchmark": "server_python", "figures": figures}, options.output)


if __name__ == "__main__":
    main()
