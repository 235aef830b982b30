"""Test that the deterministic mode keeps its word on a real model.

Texts are made once with plain decoding, one request at a time. They are made again with
drafts, in batches that change from round to round, with a cache so small that requests
are sent away and resumed, with other prompts before them. Every token must be equal.
Greedy requests, and sampled ones under a seed-identical rule. Prints how many tokens
were compared and the price of the mode against the ordinary engine.

    python bit_identity.py --precision int8 --tokens 20000 --output results/bit_identity.json
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from pathlib import Path

from measure import report
from speculation import FREE, copying_prompt

from draftproof.build import load
from draftproof.engine import Engine, GenerateRequest

MAX_TOKENS = 100
KAPPAS = (1, 2, 3, 5, 8, 15)


def requests(engine: Engine, count: int) -> list[GenerateRequest]:
    """Make varied requests: both kinds of prompt, greedy and sampled."""
    made = []
    for index in range(count):
        prompt = copying_prompt(index) if index % 2 else f"{FREE[index % 8]} ({index})\n\n"
        sampled = index % 3 == 0
        made.append(
            engine.request(
                prompt,
                max_tokens=MAX_TOKENS,
                temperature=0.9 if sampled else 0.0,
                rule="sample-match" if index % 2 else "coupled",
                seed=index,
                ignore_eos=True,
                num_speculative_tokens=0,
                request_id=f"r{index}",
            )
        )
    return made


def with_drafts(request: GenerateRequest, shuffler: random.Random) -> GenerateRequest:
    """Return the request with drafts of some length."""
    return replace(request, kappa=shuffler.choice(KAPPAS))


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    config = {"method": "ngram", "num_speculative_tokens": 5}
    engine = load(
        options.model,
        precision=options.precision,
        speculative_config=config,
        deterministic=True,
        kv_cache_bytes=100 << 20,
    )
    shuffler = random.Random(4)
    todo = requests(engine, options.tokens // MAX_TOKENS)
    begin = time.perf_counter()
    plain = {r.request_id: engine.generate_many([r])[0].token_ids for r in todo}
    plain_s = time.perf_counter() - begin
    compared, different, accepted = 0, [], 0
    begin = time.perf_counter()
    shuffler.shuffle(todo)
    while todo:
        size = shuffler.choice((1, 2, 5, 9, 16))
        batch, todo = todo[:size], todo[size:]
        for result in engine.generate_many([with_drafts(r, shuffler) for r in batch]):
            compared += len(result.token_ids)
            accepted += result.stats.num_accepted_tokens
            if result.token_ids != plain[result.request_id]:
                different.append(result.request_id)
        print(f"\r{compared} tokens compared, {len(different)} texts differ", end="", flush=True)
    drafted_s = time.perf_counter() - begin
    print(
        f"\n{engine.core.num_preemptions} preemptions, {accepted} drafts accepted; "
        f"plain one by one {plain_s:.0f} s, with drafts in batches {drafted_s:.0f} s"
    )
    report(
        {
            "benchmark": "bit_identity",
            "precision": options.precision,
            "num_tokens_compared": compared,
            "texts_that_differ": different,
            "num_accepted_tokens": accepted,
            "num_preemptions": engine.core.num_preemptions,
            "plain_s": plain_s,
            "drafted_s": drafted_s,
        },
        options.output,
    )
    raise SystemExit(1 if different else 0)


if __name__ == "__main__":
    main()
