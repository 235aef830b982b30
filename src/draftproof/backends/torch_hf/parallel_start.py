"""Starts the ranks of a model: processes of this machine that hold a share each.

The rank of a process is what it is told here, never what the environment says. This file
is also the program that the other ranks run: ``python -m`` and its name, with their
orders as one JSON argument.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from draftproof.backends.torch_hf.loading import load_torch
from draftproof.backends.torch_hf.parallel import ParallelBackend, RanksLink, follow
from draftproof.errors import BackendError, ConfigError

__all__ = ["load_parallel"]

#: Seconds that ranks get to end by themselves.
_FAREWELL: Final = 10.0
#: How long a rank waits for another one within a pass, and while the model is loaded.
_PASS_LIMIT: Final = timedelta(minutes=10)


def load_parallel(folder: str | Path, num_ranks: int, **options: Any) -> ParallelBackend:
    """Load a model over several processes of this machine.

    Parameters
    ----------
    folder : str or Path
        A Hugging Face folder.
    num_ranks : int
        Processes, this one included; at least 2. Each takes one GPU where there are
        any, else its share of the cores.
    **options : object
        As for `load_torch`, JSON values only. ``threads`` counts those of one rank.

    Returns
    -------
    ParallelBackend
        Rank 0. `ParallelBackend.shut_down` ends the others; so does the end of this
        process.

    Raises
    ------
    ConfigError
        If the number is out of range, or this process belongs to a process group.
    BackendError
        If a rank cannot be started.
    """
    if num_ranks < 2:
        raise ConfigError(f"a model over {num_ranks} ranks; expected at least 2")
    if dist.is_initialized():
        raise ConfigError("this process belongs to a process group; expected one that does not")
    gpus = torch.cuda.device_count()
    if 0 < gpus < num_ranks:
        raise ConfigError(f"a model over {num_ranks} ranks on {gpus} GPUs; expected at most {gpus}")
    threads = options.pop("threads", None) or max((os.cpu_count() or 1) // num_ranks, 1)
    meeting = Path(tempfile.mkdtemp(prefix="draftproof-ranks-"))
    orders = {
        "folder": str(folder),
        "num_ranks": num_ranks,
        "meeting": str(meeting / "store"),
        "options": {**options, "threads": threads},
    }
    others = [
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, json.dumps({**orders, "rank": rank})],
            stdin=subprocess.DEVNULL,
        )
        for rank in range(1, num_ranks)
    ]

    def stop() -> None:
        end = time.monotonic() + _FAREWELL
        for process in others:
            try:
                process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        for left in meeting.iterdir():
            left.unlink()
        meeting.rmdir()

    try:
        backend = ParallelBackend(_join({**orders, "rank": 0}), RanksLink(), stop)
        atexit.register(backend.shut_down)  # so that nobody has to think of it
        return backend
    except BaseException as error:
        for process in others:
            process.kill()
        stop()
        if isinstance(error, RuntimeError) and not isinstance(error, BackendError):
            line = " ".join(str(error).split())[:200]
            raise BackendError(f"a rank of the model could not be started: {line}") from error
        raise


def _join(orders: dict[str, Any]) -> Any:
    """Meet the other ranks and load the share of this one."""
    rank, num_ranks = orders["rank"], orders["num_ranks"]
    os.environ["LOCAL_RANK"] = str(rank)  # transformers takes the GPU of this number
    kind = "cpu:gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
        kind += ",cuda:nccl"
    file_store: Any = getattr(dist, "FileStore")  # noqa: B009  torch does not declare it
    store = file_store(orders["meeting"], num_ranks)
    dist.init_process_group(kind, store=store, rank=rank, world_size=num_ranks, timeout=_PASS_LIMIT)
    torch.manual_seed(rank)  # other noise on every rank, on purpose: nothing may hang on it
    return load_torch(orders["folder"], num_ranks=num_ranks, **orders["options"])


def _main() -> None:
    """Run one of the other ranks."""
    orders = json.loads(sys.argv[1])
    try:
        follow(_join(orders), RanksLink())
    except RuntimeError as error:
        # Rank 0 has gone, or says the same itself.
        line = " ".join(str(error).split())[:200]
        sys.stderr.write(f"rank {orders['rank']} ends: {line}" + "\n")
    except BackendError as error:
        sys.stderr.write(f"rank {orders['rank']} ends: {error}" + "\n")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    _main()
