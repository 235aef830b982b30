"""llama.cpp's own server, plain and with its n-gram drafts, over HTTP on the loopback.

``LLAMA_SERVER`` names the program (``llama-server`` on the path where it is not set). Two
servers hold the model; only the one that is asked computes.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any

from serving import Decode, Portions, serve

#: Tokens that must match before a draft is copied; as our own drafter's least.
_MATCH = 3
_START_S = 120.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(options: dict[str, Any], *, drafts: bool) -> str:
    """Start a server, wait until it is healthy and return its address."""
    port = free_port()
    command = [os.environ.get("LLAMA_SERVER", "llama-server")]
    command += ["--model", options["model"], "--port", str(port), "--host", "127.0.0.1"]
    command += ["--ctx-size", "2048", "--parallel", "1", "--log-disable", "--offline"]
    if options["threads"]:
        command += ["--threads", str(options["threads"])]
    if drafts:
        command += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", str(_MATCH)]
        command += ["--spec-ngram-simple-size-m", str(options["kappa"])]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(process.kill)
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {command}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return url
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"{command[0]} was not healthy after {_START_S:.0f} s")


def build() -> dict[str, str]:
    """Return the first line of what the program says of its version."""
    command = [os.environ.get("LLAMA_SERVER", "llama-server"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"llama-server": (said.stdout + said.stderr).strip().splitlines()[0]}


def start(options: dict[str, Any]) -> Decode:
    """Start both servers."""
    urls = {drafts: launch(options, drafts=drafts) for drafts in (False, True)}

    def decode(asked: dict[str, Any], portions: Portions) -> list[int]:
        body = {
            "prompt": asked["prompt_ids"],
            "n_predict": asked["max_tokens"],
            "temperature": 0.0,
            "return_tokens": True,
            "stream": True,
        }
        request = urllib.request.Request(
            f"{urls[bool(asked['drafts'])]}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        tokens: list[int] = []
        with urllib.request.urlopen(request) as answer:
            for line in answer:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    fresh = json.loads(line[len(b"data: ") :]).get("tokens") or []
                    portions.add(len(fresh))
                    tokens += fresh
        return tokens

    return decode


if __name__ == "__main__":
    serve(start, (), build)
