"""How long an audit of the engine over tables takes, in one process and in several.

Each draw is a request of its own through the whole engine: submit, two passes or more,
drafts, verification, commit. The counts must not depend on the number of processes.

    python benchmarks/audit_speed.py --draws 240000 --processes 2 --output benchmarks/results/…
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

from measure import report

from draftproof.audit.subjects import Draws, Policy, TableRecipe
from draftproof.audit.subjects.fan_out import draw_in_looks
from draftproof.audit.subjects.table_engine import PROMPT
from draftproof.core.params import SamplingParams


def timed(recipe: TableRecipe, draws: int, processes: int) -> tuple[float, Draws]:
    """Return seconds on the clock, the start of the processes included, and the draws."""
    policy = Policy(SamplingParams(), recipe.law().horizon)
    begin = time.perf_counter()
    ((found,),) = draw_in_looks(
        recipe, [(PROMPT, policy)], [draws], first_seed=1, processes=processes
    )
    return time.perf_counter() - begin, found


def digest(draws: Draws) -> str:
    return hashlib.blake2b(draws.tokens.tobytes(), digest_size=8).hexdigest()


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=240_000)
    parser.add_argument("--alone", type=int, default=12_000, help="draws in one process")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rule", default="standard")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    recipe = TableRecipe(options.rule)
    few, alone = timed(recipe, options.alone, 1)
    _, shared = timed(recipe, options.alone, options.processes)
    seconds, _ = timed(recipe, options.draws, options.processes)
    figures = {
        "draws": options.draws,
        "tokens_per_draw": recipe.law().horizon,
        "rule": options.rule,
        "processes": options.processes,
        "seconds": seconds,
        "us_per_draw_in_one_process": 1e6 * few / options.alone,
        "same_draws_in_any_number_of_processes": digest(alone) == digest(shared),
    }
    print(
        f"{options.draws} draws in {options.processes} processes: {seconds:.1f} s; "
        f"{figures['us_per_draw_in_one_process']:.0f} us per draw in one"
    )
    report({"benchmark": "audit_speed", "figures": figures}, options.output)


if __name__ == "__main__":
    main()
