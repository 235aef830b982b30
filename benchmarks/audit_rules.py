"""Audit the engine on a real model with every rule and drafter, one audit after the other.

    python benchmarks/audit_rules.py FOLDER [--tv 0.16] [--model smollm2] [--drafters ngram,suffix]
        [--rules standard,block]

A drafter is the name of a method, or METHOD:HEAD for those with a head, or ``early_exit:LAYERS``.
Methods of predictions get a text that comes true in part. Certificates of another ``--tv`` than
0.16 are named by it.

Each audit is one run of ``draftproof audit engine`` in one thread, so that its certificate
can be made again by itself. A certificate that lies in the folder already is not made again.
The last line printed is a JSON object: per audit the exit code and the seconds of CPU time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
from pathlib import Path

RULES = ("standard", "block", "coupled", "sample-match")
DRAFTERS = "ngram,suffix,draft_head:smollm2-head"
#: What copies can be found of, and text whose next token is open, for drafts of a model.
COPIED, OPEN = "one two one two one", "Bread is made of flour, water and"
#: What the output after the first is expected to be.
PREDICTED = " two one three two one two one"


def command(model: str, drafter: str, rule: str, tv: float, certificate: Path) -> list[str]:
    """Return the command line of one audit."""
    method, _, part = drafter.partition(":")
    # A tree of two nodes hardly branches.
    nodes = 4 if method.endswith("_tree") else 2
    config = {"method": method, "num_speculative_tokens": nodes, "rejection_sample_method": rule}
    config |= {"num_layers": int(part)} if part.isdigit() else {"model": part} if part else {}
    options = f"--top-k 2 --horizon 4 --tv {tv:g} --seed 20261130 --threads 1".split()
    if method.startswith("prediction"):
        expected = certificate.with_name("predicted.txt")
        expected.write_text(PREDICTED, encoding="utf-8")
        options += ["--prediction", str(expected)]
    is_drawn = part and not method.startswith("hybrid")
    return [
        *(sys.executable, "-m", "draftproof", "audit", "engine", "-m", model),
        *("--speculative-config", json.dumps(config), *options),
        *("--prompt", OPEN if is_drawn else COPIED, "--output", str(certificate)),
    ]


def main() -> None:
    """Run the audits that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tv", type=float, default=0.16)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafters", default=DRAFTERS)
    parser.add_argument("--rules", default=",".join(RULES))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    told = {}
    for drafter, rule in itertools.product(args.drafters.split(","), args.rules.split(",")):
        name = f"engine_{args.model}_{drafter.partition(':')[0]}_{rule.replace('-', '_')}"
        name += f"_tv{args.tv:g}" if args.tv != parser.get_default("tv") else ""
        certificate = args.folder / f"{name}.json"
        if certificate.exists():
            continue
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"== {name}", flush=True)
        code = subprocess.run(
            command(args.model, drafter, rule, args.tv, certificate), check=False
        ).returncode
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        told[name] = {"exit": code, "cpu_s": round(spent, 1)}
        print(f"exit {code}, {spent:.1f} s of CPU time", flush=True)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
