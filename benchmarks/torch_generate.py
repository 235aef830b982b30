"""The engine on PyTorch against transformers' own generation, on the same weights.

Greedy, batch 1, float32. Subjects: ``generate``, ``generate`` with prompt lookup, and the
engine without and with the n-gram drafter at the same kappa; rounds are interleaved in
random order, and ratios are taken within a round.

    python benchmarks/torch_generate.py MODEL [--kappa 8] [--linear auto] [--output FILE]

``--clock cpu`` counts the processor time of the process with one thread, which is steady
on a shared machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import interleave, ratios, report, shown, summary
from transformers.utils import logging

from draftproof.backends.torch_hf import load_torch
from draftproof.backends.torch_hf.from_gguf import model_from_gguf
from draftproof.engine import Engine, EngineCore
from draftproof.models import resolve
from draftproof.proposers import NgramProposer
from draftproof.text import Tokenizer

#: A task that copies from its prompt, which is what prompt lookup is for.
PROMPT = (
    "Repeat this text word for word, then stop.\n\n"
    "The harbour lies to the north of the old town. Every morning the boats come back with "
    "herring and cod, and every morning the gulls are there before them. In the market hall "
    "the fish is weighed, sold and packed in ice. By noon the hall is empty and the floor is "
    "washed, and the gulls go back to the harbour to wait for the boats."
)


def main() -> int:
    """Measure and print the JSON record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file, or the name of a model")
    parser.add_argument("--kappa", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--linear", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=None, help="write the JSON here too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    logging.set_verbosity_error()
    source = resolve(args.model)
    args.model = source.path
    tokenizer = Tokenizer.from_source(source)
    prompt = tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    texts: dict[str, list[int]] = {}
    subjects = _theirs(args, prompt, clock, texts) | _ours(args, tokenizer, prompt, clock, texts)
    figures = interleave(subjects, repeats=args.repeats)
    for name, values in figures.items():
        same = "same text" if texts[name] == texts["generate"] else "another text"
        print(f"{name:24s} {shown(summary(values))} tokens/s, {same}")
    pairs = {
        "plain": ratios(figures["engine"], figures["generate"]),
        "prompt lookup": ratios(figures["engine, n-gram"], figures["generate, lookup"]),
        "lookup over plain, ours": ratios(figures["engine, n-gram"], figures["engine"]),
        "lookup over plain, theirs": ratios(figures["generate, lookup"], figures["generate"]),
    }
    for name, pair in pairs.items():
        print(f"{name:26s} {shown(pair)} times")
    record = {"benchmark": "torch_generate", "kappa": args.kappa, "clock": args.clock}
    record |= {"linear": args.linear, "threads": args.threads, "prompt_tokens": len(prompt)}
    record |= {"num_tokens": args.tokens, "ratios": pairs}
    record |= {"same_text": {name: text == texts["generate"] for name, text in texts.items()}}
    record |= {"tokens_per_s": {name: summary(values) for name, values in figures.items()}}
    report(record, args.output)
    return 0


def _theirs(
    args: argparse.Namespace,
    prompt: list[int],
    clock: Callable[[], float],
    texts: dict[str, list[int]],
) -> dict[str, Callable[[], float]]:
    """Return transformers' generation without and with prompt lookup."""
    model = model_from_gguf(args.model)
    ids = torch.tensor([prompt])

    def run(name: str, **options: int) -> float:
        begin = clock()
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=args.tokens,
            min_new_tokens=args.tokens,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        elapsed = clock() - begin
        texts[name] = found[0, len(prompt) :].tolist()
        return len(texts[name]) / elapsed

    return {
        "generate": lambda: run("generate"),
        "generate, lookup": lambda: run("generate, lookup", prompt_lookup_num_tokens=args.kappa),
    }


def _ours(
    args: argparse.Namespace,
    tokenizer: Tokenizer,
    prompt: list[int],
    clock: Callable[[], float],
    texts: dict[str, list[int]],
) -> dict[str, Callable[[], float]]:
    """Return the engine without and with the n-gram drafter."""
    backend = load_torch(
        args.model, linear=args.linear, kv_cache_bytes=64 << 20, prefix_caching=False
    )

    def run(name: str, engine: Engine) -> float:
        begin = clock()
        result = engine.generate(prompt, max_tokens=args.tokens, ignore_eos=True)
        elapsed = clock() - begin
        texts[name] = [event.token_id for event in result.tokens]
        return len(texts[name]) / elapsed

    plain = Engine(EngineCore(backend, tokenizer=tokenizer))
    lookup = Engine(
        EngineCore(backend, tokenizer=tokenizer, proposers=[NgramProposer()], kappa=args.kappa)
    )
    return {
        "engine": lambda: run("engine", plain),
        "engine, n-gram": lambda: run("engine, n-gram", lookup),
    }


if __name__ == "__main__":
    raise SystemExit(main())
