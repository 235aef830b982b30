"""Draft inside vLLM with our n-gram and suffix drafters, and compare with vLLM alone.

Run it with the Python of vLLM, after ``pip install --no-deps .``::

    python benchmarks/vllm_custom_class.py FOLDER [--output FILE]

``FOLDER`` is a model that transformers can load. Greedy, float32: the texts with drafts are
compared with those without, token by token; where they fork, the two best logits of vLLM are told.
No timing is taken. Needs vLLM's counters of speculation for what was kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

HOOK = "draftproof.integrations.vllm"
#: What drafts, each compared with plain decoding.
ARMS: dict[str, dict[str, Any]] = {
    "draftproof ngram": {"method": "custom_class", "model": f"{HOOK}.NgramProposer"},
    "draftproof suffix": {"method": "custom_class", "model": f"{HOOK}.SuffixProposer"},
    "vllm ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 8},
}
#: Prompts with something to copy, of unlike lengths, so that rows leave the batch one by one.
TEXTS = (
    "Repeat this line three times: the quick brown fox jumps over the lazy dog.\n"
    "the quick brown fox jumps over the lazy dog.\n",
    "for name in names:\n    print(name)\nfor size in sizes:\n    print(size)\nfor key in",
    "one two three four, one two three four, one two",
    "The library opens at nine. The library closes at five. The library",
    "Write a short story about a lighthouse keeper.",
)
COUNTERS = {
    "vllm:spec_decode_num_drafts": "rounds",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}


def run_arm(folder: Path, arm: dict[str, Any] | None, args: argparse.Namespace) -> dict[str, Any]:
    """Generate all prompts in one batch and count what was kept."""
    import vllm

    options: dict[str, Any] = {}
    if arm is not None:
        options["speculative_config"] = arm | {"num_speculative_tokens": args.drafts}
    llm = vllm.LLM(
        str(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=args.context,
        disable_log_stats=False,
        max_num_seqs=4,  # fewer rows than prompts: one begins where another has ended
        seed=0,
        **options,
    )
    prompts = [{"prompt_token_ids": ids} for ids in prompt_ids(folder, args.random)]
    sampling = vllm.SamplingParams(
        temperature=0.0, max_tokens=args.tokens, ignore_eos=True, logprobs=2, detokenize=False
    )
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    counted = dict.fromkeys(COUNTERS.values(), 0)
    for metric in llm.get_metrics():
        if metric.name in COUNTERS:
            counted[COUNTERS[metric.name]] += int(metric.value)
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    gaps = [
        [_gap(list(held.values())) for held in output.outputs[0].logprobs or ()]
        for output in outputs
    ]
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    failures = getattr(getattr(runner, "drafter", None), "num_failures", 0)
    del llm
    gc.collect()
    return {"texts": texts, "gaps": gaps, "failures": failures, **counted}


def _gap(held: list[Any]) -> float:
    """Return how far the best log-probability is above the second."""
    best = sorted((entry.logprob for entry in held), reverse=True)
    return float(best[0] - best[1])


def prompt_ids(folder: Path, random: bool) -> list[list[int]]:
    """Return the prompts: texts, or for a model without words loops of its few tokens."""
    if random:
        return [[(i * (n + 1)) % (5 + n) for i in range(20 + n)] for n in range(len(TEXTS))]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


def compare(arm: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Say where texts fork, and how close the two best logits were there."""
    forks = []
    for number, (left, right) in enumerate(zip(arm["texts"], plain["texts"], strict=True)):
        places = [i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b]
        if places:
            gap = plain["gaps"][number][places[0]]
            forks.append({"text": number, "token": places[0], "gap": gap})
    emitted = sum(map(len, arm["texts"]))
    return {
        "texts": len(arm["texts"]),
        "tokens": emitted,
        "forks": forks,
        **{name: arm[name] for name in (*COUNTERS.values(), "failures")},
    }


def main() -> None:
    """Run all arms and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--random", action="store_true", help="the model knows no words")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    import vllm

    plain = run_arm(args.folder, None, args)
    rows = {name: compare(run_arm(args.folder, ARMS[name], args), plain) for name in args.arms}
    for name, row in rows.items():
        print(f"{name:18} {row['tokens']} tokens, {row['accepted']} of {row['drafted']} drafts "
              f"kept in {row['rounds']} rounds, {len(row['forks'])} of {row['texts']} texts fork, "
              f"{row['failures']} failures")  # fmt: skip
        for fork in row["forks"]:
            print(f"    text {fork['text']} at token {fork['token']}: gap {fork['gap']:.2g}")
    if args.output:
        document = {
            "vllm": vllm.__version__,
            "model": args.folder.name,
            "tokens": args.tokens,
            "num_speculative_tokens": args.drafts,
            "arms": rows,
        }
        args.output.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
