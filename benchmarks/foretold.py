"""How often what drafters foretell comes true: the first draft behind each sign.

Recorded greedy texts of SmolLM2-135M (``results/controller_texts.json``), token by token: the
sign that a drafter tells, and whether the text goes on with the first token it would draft.
No model runs, so the counts are the same everywhere.

    python benchmarks/foretold.py [--output FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import report

from draftproof.core.params import SamplingParams
from draftproof.core.policy import History
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.planner.tracker import TrackerConfig
from draftproof.proposers import NgramProposer, SuffixProposer

TEXTS = Path(__file__).parent / "results/controller_texts.json"
GREEDY = SamplingParams(temperature=0.0)
#: As configurations make them; the last stands in front of a model.
DRAFTERS: dict[str, Callable[[], NgramProposer | SuffixProposer]] = {
    "ngram": lambda: NgramProposer(2, 5),
    "suffix": SuffixProposer,
    "suffix of a hybrid": lambda: SuffixProposer(min_score=0.3),
}


def counts(make: Callable[[], NgramProposer | SuffixProposer], texts: Any) -> dict[int, list[int]]:
    """Return by sign: first drafts that the text went on with, and all."""
    found: dict[int, list[int]] = {}
    for text in texts:
        drafter, tokens = make(), [*text["prompt"], text["output"][0]]
        for token in text["output"][1:]:
            sign = drafter.foretell("text", tokens)
            kept = 0
            if sign:
                asked = ProposalRequest(
                    "text", tokens, 1, GREEDY, History(()), CoinSource(0).round(0)
                )
                kept = drafter.propose([asked])[0].token_ids == (token,)
            held = found.setdefault(sign, [0, 0])
            held[0] += kept
            held[1] += 1
            tokens.append(token)
    return found


def main() -> None:
    """Count and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path, default=TEXTS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    texts = json.loads(options.texts.read_text(encoding="utf-8"))
    figures = {}
    for name, make in DRAFTERS.items():
        found = counts(make, texts)
        figures[name] = {str(sign): found[sign] for sign in sorted(found)}
        for sign, (kept, told) in sorted(found.items()):
            prior = f", prior {TrackerConfig().prior(sign)[0]}" if sign else ""
            print(f"{name:18} sign {sign}: {kept} of {told}, {kept / told:.2f}{prior}")
    report({"benchmark": "foretold", "kept_of_told": figures}, options.output)


if __name__ == "__main__":
    main()
