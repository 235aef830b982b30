"""Audit on a Ray cluster of two local nodes that loses a worker and then a node.

    python benchmarks/audit_ray.py [--draws 8000] [--output FILE.json]

The same audit is made twice: in one process, and with ``--ray`` on two nodes of one core each.
While the second runs, a worker that draws is killed, and a while later a whole node. Both
certificates must be the same, byte for byte. The last line printed is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ray.cluster_utils import Cluster

#: How a worker that runs the task is called while it does.
TASK = b"ray::_draw_part"
#: A node of one core, without what nobody looks at here.
NODE = {"num_cpus": 1, "include_dashboard": False, "include_log_monitor": False}
#: Seconds between two looks, between the two losses, and at most until the end.
LOOK_S, BETWEEN_S, END_S = 0.02, 1.0, 600.0


def audit(certificate: Path, draws: int, *words: str) -> list[str]:
    """Return the command line of the audit."""
    return [
        *(sys.executable, "-m", "draftproof", "audit", "engine", "--table", "--rule", "block"),
        *("--draws", str(draws), "--tv", "0.1", "--seed", "20261130"),
        *("--output", str(certificate), *words),
    ]


def drawing() -> list[int]:
    """Return the processes that draw right now."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "cmdline").read_bytes().startswith(TASK):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def with_losses(command: list[str], cluster: Cluster, second: object) -> list[str]:
    """Run an audit, kill a worker that draws and then a node; return what was lost."""
    told: list[str] = []
    process = subprocess.Popen(command, env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"})
    end = time.monotonic() + END_S
    killed_at = None
    while process.poll() is None and time.monotonic() < end:
        time.sleep(LOOK_S)
        if killed_at is None:
            for worker in drawing()[:1]:
                os.kill(worker, signal.SIGKILL)
                told.append("a worker while it drew")
                killed_at = time.monotonic()
        elif len(told) == 1 and time.monotonic() > killed_at + BETWEEN_S and drawing():
            cluster.remove_node(second, allow_graceful=False)
            told.append("a node while another part was drawn")
    if process.wait(timeout=END_S) != 0:
        raise SystemExit(f"the audit on the cluster ended with {process.returncode}")
    return told


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=8000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        alone, shared = Path(name) / "alone.json", Path(name) / "shared.json"
        cluster = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            subprocess.run(audit(alone, options.draws, "--processes", "1"), check=True)
            second = cluster.add_node(**NODE)
            lost = with_losses(
                audit(shared, options.draws, "--ray", cluster.address), cluster, second
            )
        finally:
            cluster.shutdown()
        figures = {
            "draws": options.draws,
            "nodes": 2,
            "lost": lost,
            "verdict": json.loads(alone.read_text())["verdict"]["verdict"],
            "certificates_are_the_same_bytes": alone.read_bytes() == shared.read_bytes(),
        }
    print(json.dumps(figures))
    if options.output is not None:
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
    if not figures["certificates_are_the_same_bytes"] or len(lost) < 2:
        raise SystemExit("the certificates differ, or nothing was lost")


if __name__ == "__main__":
    main()
