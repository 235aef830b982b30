"""The engine on PyTorch against transformers' own generation, on the same weights.

Greedy, float32. Subjects: ``generate``, ``generate`` with prompt lookup and with its own first
layers as the assistant, and the engine plain, with the n-gram drafter and with the same
early exit, at the same kappa; rounds are interleaved in random order, and ratios are taken
within a round. With ``--batch`` above 1 the rows are the same sentences in other orders;
what transformers refuses is kept as the error that it gives.

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
from draftproof.core.protocols import Proposer
from draftproof.engine import Engine, EngineCore
from draftproof.models import resolve
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.text import Tokenizer

#: A task that copies from its prompt, which is what prompt lookup is for.
SENTENCES = (
    "The harbour lies to the north of the old town.",
    "Every morning the boats come back with herring and cod, and every morning the gulls are "
    "there before them.",
    "In the market hall the fish is weighed, sold and packed in ice.",
    "By noon the hall is empty and the floor is washed, and the gulls go back to the harbour to "
    "wait for the boats.",
)


def prompts_of(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Ask for the sentences in as many orders; each begins with another one."""
    asked = []
    for row in range(count):
        turned = [SENTENCES[(row + place) % len(SENTENCES)] for place in range(len(SENTENCES))]
        task = "Repeat this text word for word, then stop." + "." * (row // len(SENTENCES))
        content = f"{task}\n\n{' '.join(turned)}"
        asked.append(tokenizer.encode_chat([{"role": "user", "content": content}]))
    return asked


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
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--layers", type=int, default=8, help="of the early exit; 0 leaves it out")
    parser.add_argument("--output", type=Path, default=None, help="write the JSON here too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    logging.set_verbosity_error()
    source = resolve(args.model)
    args.model = source.path
    tokenizer = Tokenizer.from_source(source)
    prompts = prompts_of(tokenizer, args.batch)
    texts: dict[str, list[list[int]]] = {}
    refused: dict[str, str] = {}
    subjects = _theirs(args, prompts, clock, texts, refused)
    subjects |= _ours(args, tokenizer, prompts, clock, texts)
    figures = interleave(subjects, repeats=args.repeats)
    for name, values in figures.items():
        same = sum(map(list.__eq__, texts[name], texts["generate"]))
        print(f"{name:24s} {shown(summary(values))} tokens/s, {same} of {args.batch} texts equal")
    for name, error in refused.items():
        print(f"{name:24s} refused: {error}")
    wanted = {
        "plain": ("engine", "generate"),
        "prompt lookup": ("engine, n-gram", "generate, lookup"),
        "early exit": ("engine, early exit", "generate, early exit"),
        "lookup over plain, ours": ("engine, n-gram", "engine"),
        "lookup over plain, theirs": ("generate, lookup", "generate"),
        "lookup over their plain": ("engine, n-gram", "generate"),
    }
    pairs = {
        name: ratios(figures[of], figures[to])
        for name, (of, to) in wanted.items()
        if of in figures and to in figures
    }
    for name, pair in pairs.items():
        print(f"{name:26s} {shown(pair)} times")
    record = {"benchmark": "torch_generate", "kappa": args.kappa, "clock": args.clock}
    record |= {"linear": args.linear, "threads": args.threads, "batch": args.batch}
    record |= {"prompt_tokens": [len(prompt) for prompt in prompts], "refused": refused}
    record |= {"num_tokens": args.tokens, "layers": args.layers, "ratios": pairs}
    record |= {"same_text": {name: text == texts["generate"] for name, text in texts.items()}}
    record |= {"tokens_per_s": {name: summary(values) for name, values in figures.items()}}
    report(record, args.output)
    return 0


def _theirs(
    args: argparse.Namespace,
    prompts: list[list[int]],
    clock: Callable[[], float],
    texts: dict[str, list[list[int]]],
    refused: dict[str, str],
) -> dict[str, Callable[[], float]]:
    """Return transformers' generation: plain, with prompt lookup, with an early exit."""
    model = model_from_gguf(args.model)
    longest = max(map(len, prompts))
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in prompts])

    def run(name: str, tokens: int, options: dict[str, int]) -> float:
        begin = clock()
        found = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        elapsed = clock() - begin
        texts[name] = found[:, longest:].tolist()
        return tokens * len(prompts) / elapsed

    ways: dict[str, dict[str, int]] = {
        "generate": {},
        "generate, lookup": {"prompt_lookup_num_tokens": args.kappa},
    }
    if args.layers:
        ways["generate, early exit"] = {
            "assistant_early_exit": args.layers,
            "num_assistant_tokens": args.kappa,
        }
    subjects: dict[str, Callable[[], float]] = {}
    for name, options in ways.items():
        try:
            run(name, 2, options)
        except ValueError as error:
            refused[name] = str(error)
            texts.pop(name, None)
            continue
        subjects[name] = lambda n=name, o=options: run(n, args.tokens, o)
    return subjects


def _ours(
    args: argparse.Namespace,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    clock: Callable[[], float],
    texts: dict[str, list[list[int]]],
) -> dict[str, Callable[[], float]]:
    """Return the engine: plain, with the n-gram drafter, with an early exit."""
    backend = load_torch(
        args.model, linear=args.linear, kv_cache_bytes=256 << 20, prefix_caching=False
    )

    def run(name: str, engine: Engine) -> float:
        requests = [
            engine.request(prompt, max_tokens=args.tokens, ignore_eos=True) for prompt in prompts
        ]
        begin = clock()
        results = engine.generate_many(requests)
        elapsed = clock() - begin
        texts[name] = [[event.token_id for event in result.tokens] for result in results]
        return sum(map(len, texts[name])) / elapsed

    def engine(*proposers: Proposer) -> Engine:
        kappa = args.kappa if proposers else 0
        return Engine(EngineCore(backend, tokenizer=tokenizer, proposers=proposers, kappa=kappa))

    engines = {"engine": engine(), "engine, n-gram": engine(NgramProposer())}
    if args.layers:
        exit_ = backend.early_exit(args.layers)
        engines["engine, early exit"] = engine(DraftModelProposer(exit_))
    return {name: lambda n=name, e=each: run(n, e) for name, each in engines.items()}


if __name__ == "__main__":
    raise SystemExit(main())
