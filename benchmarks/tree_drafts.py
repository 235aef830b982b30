"""Tokens per pass of trees and of chains with as many drafted tokens at most.

Each drafter decodes the same prompts as a chain and as a tree, all prompts of a kind in one
batch, and tokens per pass of a row are counted: no time is taken, so that other work on the
machine does not matter. At temperature 0 all arms decode one text, up to the rounding of the
model; at 1 each draws a text of the same law. A prediction is the answer at temperature 0
with an edit every twelve tokens: one is exchanged, one left out, one put in, in turn.

    python tree_drafts.py --output results/tree_drafts.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from measure import report

from draftproof.bench.workloads import Workloads
from draftproof.build.drafters import make_proposers
from draftproof.build.heads import load_head
from draftproof.build.runtimes import load_model
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.policy import SamplingParams
from draftproof.core.stats import SpecDecodeStats
from draftproof.engine import EngineCore, GenerateRequest

KINDS = ("copy-edit", "code-edit", "extract", "chat")
#: A chain and the tree of the same drafter.
PAIRS = {
    "ngram": "ngram_tree",
    "suffix": "suffix_tree",
    "prediction": "prediction_tree",
    "draft_head": "draft_head_tree",
    "hybrid": "hybrid_tree",
}
#: Tokens from one edit of a prediction to the next.
_BETWEEN_EDITS = 12


class Bench:
    """The model, its head, and the prompts of each kind.

    Parameters
    ----------
    options : argparse.Namespace
        Of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.target, self.tokenizer = load_model(
            options.model, precision=options.precision, with_hidden=True
        )
        self.head = load_head(options.head, self.target, precision=options.precision)

    def prompts(self, kind: str) -> list[tuple[int, ...]]:
        """Return the prompts of a kind."""
        return [
            tuple(
                self.tokenizer.encode_chat(
                    [
                        {"role": role, "content": text}
                        for role, text in Workloads().prompt(kind, number)
                    ]
                )
            )
            for number in range(self.options.prompts)
        ]

    def predictions(self, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return what each prompt's answer is predicted to be."""
        core = EngineCore(self.target, tokenizer=self.tokenizer)
        return [edited(ids) for ids, _ in self.run(core, prompts, 0.0, [()] * len(prompts))]

    def core(self, method: str, kappa: int) -> EngineCore:
        """Return an engine with one drafter."""
        settings: dict[str, Any] = {"method": method}
        if method.startswith(("draft_head", "hybrid")):
            settings["model"] = self.options.head
        config = SpeculativeConfig.parse(settings)
        head = self.head if "model" in settings else None
        proposers = make_proposers(config, self.target.info.vocab_size, head=head)
        return EngineCore(self.target, tokenizer=self.tokenizer, proposers=proposers, kappa=kappa)

    def run(
        self,
        core: EngineCore,
        prompts: Sequence[tuple[int, ...]],
        temperature: float,
        predictions: Sequence[tuple[int, ...]],
    ) -> list[tuple[tuple[int, ...], SpecDecodeStats]]:
        """Decode prompts together; return the ids and the counters of each."""
        names = [
            core.submit(
                GenerateRequest(
                    prompt,
                    SamplingParams(temperature=temperature),
                    max_tokens=self.options.max_tokens,
                    ignore_eos=True,
                    seed=index,
                    prediction=prediction,
                )
            )
            for index, (prompt, prediction) in enumerate(zip(prompts, predictions, strict=True))
        ]
        results = core.run()
        found = []
        for name in names:
            result = results[name]
            if result.error is not None:
                raise result.error
            found.append((tuple(result.token_ids), result.stats))
        return found

    def cell(
        self,
        chains: Sequence[str],
        prompts: Sequence[tuple[int, ...]],
        said: Sequence[tuple[int, ...]],
        temperature: float,
        kappa: int,
    ) -> dict[str, Any]:
        """Count each chain and its tree on the prompts of one kind."""
        table = {}
        for method in (each for chain in chains for each in (chain, PAIRS[chain])):
            given = said if method.startswith("prediction") else [()] * len(prompts)
            runs = self.run(self.core(method, kappa), prompts, temperature, given)
            row = table[method] = counted([stats for _, stats in runs])
            print(
                f"  {method:16} {row['tokens_per_pass']:.2f} tokens a pass, kept "
                f"{row['kept']} of {row['drafted']}",
                flush=True,
            )
        return table


def edited(ids: Sequence[int]) -> tuple[int, ...]:
    """Return a text with an edit every twelve tokens."""
    said: list[int] = []
    for place, token in enumerate(ids):
        edit, is_kept = divmod(place + 1, _BETWEEN_EDITS)
        other = ids[(5 * place + 3) % len(ids)]
        if is_kept:
            said.append(token)
        elif edit % 3 == 1:
            said.append(other)
        elif edit % 3 == 0:
            said += [other, token]
    return tuple(said)


def counted(runs: Sequence[SpecDecodeStats]) -> dict[str, Any]:
    """Return tokens per pass of a row, over all prompts and of each."""
    pooled = SpecDecodeStats()
    for stats in runs:
        pooled = pooled.merge(stats)
    return {
        "tokens_per_pass": pooled.num_emitted_tokens / pooled.num_rounds,
        "passes": pooled.num_rounds,
        "tokens": pooled.num_emitted_tokens,
        "drafted": pooled.num_draft_tokens,
        "kept": pooled.num_accepted_tokens,
        "passes_of_each": [stats.num_rounds for stats in runs],
        "kept_per_drafter": [
            pooled.num_accepted_tokens_per_drafter,
            pooled.num_draft_tokens_per_drafter,
        ],
    }


def main() -> None:
    """Count all cells and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--head", default="smollm2-head", help="a draft head's name or folder")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--pairs", default=",".join(PAIRS), help="of chains, by their names")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8])
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if unknown := [name for name in options.pairs.split(",") if name not in PAIRS]:
        parser.error(f"--pairs has {unknown}; expected some of {', '.join(PAIRS)}")
    bench = Bench(options)
    kinds = options.kinds.split(",")
    prompts = {kind: bench.prompts(kind) for kind in kinds}
    said = {kind: bench.predictions(prompts[kind]) for kind in kinds}
    settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
    figures: dict[str, Any] = {}
    for temperature, kappa, kind in product(options.temperatures, options.nodes, kinds):
        title = f"{kind}, temperature {temperature:g}, {kappa} nodes"
        print(f"\n{title}", flush=True)
        figures[title] = bench.cell(
            options.pairs.split(","), prompts[kind], said[kind], temperature, kappa
        )
        # After each cell, so that a run that is cut off leaves what it counted.
        report(
            {"benchmark": "tree_drafts", "settings": settings, "figures": figures}, options.output
        )


if __name__ == "__main__":
    main()
