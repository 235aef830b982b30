"""The model part of gpu_check.py: the PyTorch backend on a device, with random weights.

Llamas of real shapes are made from a configuration. Proves that the backend scores as
transformers' own forward does, that replayed passes score as ordinary ones, that drafts
leave greedy texts as they are, and that logits stay on the device; then times passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers

from draftproof.backends.torch_hf import TorchBackend, load_torch
from draftproof.backends.torch_hf.cuda_graphs import CudaCapturer
from draftproof.backends.torch_hf.graphs import GraphRunner, Uncaptured
from draftproof.core.params import SamplingParams
from draftproof.core.types import FlatBatch, Row
from draftproof.device import TorchExecutor
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import BackendError
from draftproof.proposers import NgramProposer

#: Layers, width, width of the inner layers, heads, heads of keys, vocabulary.
SHAPES = {
    "tiny": (2, 64, 96, 4, 2, 512),
    "SmolLM2-135M": (30, 576, 1536, 9, 3, 49152),
    "Llama-3.2-1B": (16, 2048, 8192, 32, 8, 128256),
}
WIDTHS = (1, 2, 4, 8, 16)
#: Largest difference of the logits of a token, relative to them, as root mean squares.
LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.1}


@dataclass
class Subject:
    """A model on a device, and what its own forward says of a few texts."""

    name: str
    device: str
    dtype: torch.dtype
    texts: list[list[int]] = field(default_factory=list)
    expected: list[torch.Tensor] = field(default_factory=list)
    ordinary: Any = None
    replaying: Any = None

    @property
    def label(self) -> str:
        """Return model and type in words."""
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}"


def make_subject(name: str, device: str, dtype: torch.dtype) -> Subject:
    """Build a model, score texts by its own forward, and load it with and without graphs."""
    layers, width, inner, heads, kv_heads, vocab = SHAPES[name]
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=4096,
        initializer_range=0.05,
        tie_word_embeddings=False,  # a tied random model repeats its last token for ever
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="eager"
        ).eval()
    subject = Subject(name, device, dtype)
    rng = np.random.default_rng(1)
    for size in (90, 61, 33):
        text = rng.integers(0, vocab, size).tolist()
        with torch.inference_mode():
            ids = torch.tensor([text], device=device)
            subject.texts.append(text)
            subject.expected.append(model(input_ids=ids, use_cache=False).logits[0].float())
    room = (2 << 30) if device == "cuda" else (16 << 20)
    options: dict[str, Any] = {"kv_cache_bytes": room, "host_logits": False}
    subject.ordinary = load_torch(model, cuda_graphs="off", **options)
    info = subject.ordinary.info
    paged = subject.ordinary.model
    capturer = CudaCapturer(paged.device) if device == "cuda" else Uncaptured()
    subject.replaying = TorchBackend(
        paged,
        name=info.name,
        precision=info.precision,
        context_length=info.context_length,
        make_graphs=partial(GraphRunner, capturer=capturer, sightings=1),
        **options,
    )
    return subject


def score(backend: Any, texts: list[list[int]]) -> list[torch.Tensor]:
    """Score texts in shared passes of ragged rows, from narrow to wide, with rollbacks."""
    sequences = [backend.open() for _ in texts]
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    widths = [(9, 1, 2), (1, 1, 1), (1, 1, 1), (5, 4, 1), (3, 4, 4), (4, 4, 3), (16, 2, 4)]
    at = [0] * len(texts)
    while any(begin < len(text) for begin, text in zip(at, texts, strict=True)):
        row_widths = widths.pop(0) if widths else (40, 40, 40)
        chosen = [n for n, text in enumerate(texts) if at[n] < len(text)]
        pieces = {n: texts[n][at[n] : at[n] + row_widths[n]] for n in chosen}
        # Once with wrong tokens, which are rolled back, and once with the right ones.
        for wrong in (True, False):
            rows = [
                Row(sequences[n], piece[::-1] if wrong else piece, at[n], len(piece))
                for n, piece in pieces.items()
            ]
            logits = backend.forward(FlatBatch.from_rows(rows))
            for n in pieces if wrong else ():
                backend.truncate(sequences[n], at[n])
        parts = logits.split([len(piece) for piece in pieces.values()])
        for (n, piece), part in zip(pieces.items(), parts, strict=True):
            found[n].append(part)
            at[n] += len(piece)
    for sequence in sequences:
        backend.close(sequence)
    return [torch.cat(parts) for parts in found]


def check_logits(subject: Subject) -> Iterator[str]:
    """Backend against the model's own forward, ordinary and replayed."""
    for way in ("ordinary", "replaying"):
        scored = score(getattr(subject, way), subject.texts)
        gaps = [
            float(((got - right).norm(dim=1) / right.norm(dim=1)).max())
            for got, right in zip(scored, subject.expected, strict=True)
        ]
        print(f"  {way}: logits of a token within {max(gaps):.2g} of their size")
        if not max(gaps) <= LIMITS[subject.dtype]:
            yield f"{subject.label}, {way}: logits of a token off by {max(gaps):.2g} of their size"
    counts = subject.replaying.graphs
    print(f"  {counts}")
    if counts.failure or not counts.num_replayed:
        yield f"{subject.label}: {counts.failure or 'no pass was replayed'}"


def check_texts(subject: Subject) -> Iterator[str]:
    """Greedy texts: plain, and with n-gram drafts over replayed passes."""
    if subject.dtype != torch.float32:
        return  # half precision rounds a row otherwise in wider passes
    pattern = subject.texts[0][:8]
    prompts = [(*pattern, *pattern, *text[:first]) for first, text in enumerate(subject.texts, 1)]
    texts = []
    for target, proposers in ((subject.ordinary, []), (subject.replaying, [NgramProposer()])):
        core = EngineCore(
            target, proposers=proposers, kappa=5 * len(proposers), executor=TorchExecutor()
        )
        greedy = SamplingParams(temperature=0.0)
        names = [core.submit(GenerateRequest(prompt, greedy, max_tokens=64)) for prompt in prompts]
        ran = core.run()
        results = [ran[name] for name in names]
        if errors := [result.error for result in results if result.error]:
            yield f"{subject.label}: {errors[0]}"
        texts.append([result.token_ids for result in results])
    drafted = sum(result.stats.num_draft_tokens for result in results)
    accepted = sum(result.stats.num_accepted_tokens for result in results)
    print(f"  {drafted} drafts, {accepted} accepted")
    if texts[0] != texts[1] or not drafted:
        yield f"{subject.label}: texts with drafts differ from plain ones, or nothing was drafted"


def check_transfers(subject: Subject) -> Iterator[str]:
    """Logits stay on the device, and no pass waits for it."""
    for way in ("ordinary", "replaying"):
        backend = getattr(subject, way)
        sequence = backend.open()
        rows = [Row(sequence, [7], place, 1) for place in range(6)]
        for row in rows[:3]:  # captures its bucket, and compares the first replay
            backend.forward(FlatBatch.from_rows([row]))
        if subject.device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            logits = [backend.forward(FlatBatch.from_rows([row])) for row in rows[3:]]
        except BackendError as error:
            yield f"{subject.label}, {way}: a pass waits for the device: {error}"
            continue
        finally:
            if subject.device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            backend.close(sequence)
        if any(part.device.type != subject.device for part in logits):
            yield f"{subject.label}, {way}: logits left the device"


MODEL_CHECKS: dict[str, Callable[[Subject], Iterator[str]]] = {
    "logits": check_logits,
    "greedy texts": check_texts,
    "transfers": check_transfers,
}


def time_passes(
    subject: Subject, time_pass: Callable[[Callable[[], object], str, int], float], *, quick: bool
) -> dict[str, float]:
    """Return milliseconds per pass by batch, width and way, all logits wanted."""
    context = 40 if quick else 512
    made: dict[str, float] = {}
    for way in ("ordinary", "replaying"):
        backend = getattr(subject, way)
        for batch in (1, 4) if quick else (1, 8, 32):
            sequences = [backend.open() for _ in range(batch)]
            for sequence in sequences:
                prompt = Row(sequence, [1 + sequence % 99] * context, 0, 0)
                backend.forward(FlatBatch.from_rows([prompt]))

            def one_pass(width: int, held: Any = backend, ids: Any = tuple(sequences)) -> None:
                rows = [Row(each, [5] * width, context, width) for each in ids]
                held.forward(FlatBatch.from_rows(rows))
                for each in ids:
                    held.truncate(each, context)

            for width in WIDTHS:
                seconds = time_pass(partial(one_pass, width), subject.device, 3 if quick else 20)
                made[f"batch {batch}, {way}, n = {width}"] = seconds * 1e3
            for sequence in sequences:
                backend.close(sequence)
    return made


def show_passes(label: str, made: dict[str, float]) -> None:
    """Print a line per batch and way: milliseconds, and in brackets the cost of n tokens."""
    for key in [key.removesuffix(", n = 1") for key in made if key.endswith(", n = 1")]:
        times = [made[f"{key}, n = {width}"] for width in WIDTHS]
        shown = " ".join(f"{time:8.3f} ({time / times[0]:.2f})" for time in times)
        print(f"{label}, {key:22} {shown}")


def check_models(
    device: str,
    quick: bool,
    time_pass: Callable[[Callable[[], object], str, int], float],
) -> tuple[list[str], dict[str, Any]]:
    """Check and time all models; return flaws, and milliseconds per pass by model."""
    names = ["tiny"] if quick else ["SmolLM2-135M", "Llama-3.2-1B"]
    flaws: list[str] = []
    figures: dict[str, Any] = {}
    for name in names:
        for dtype in (torch.float32, torch.bfloat16):
            subject = make_subject(name, device, dtype)
            for title, check in MODEL_CHECKS.items():
                begin = time.perf_counter()
                found = list(check(subject))
                end = "ok" if not found else "FAILED"
                print(f"{subject.label}, {title}: {end} in {time.perf_counter() - begin:.1f} s")
                for flaw in found:
                    print(f"  {flaw}")
                flaws += found
            if dtype == torch.bfloat16 or quick:
                figures[subject.label] = time_passes(subject, time_pass, quick=quick)
    print(f"ms per pass for n = {', '.join(map(str, WIDTHS))}, and c_v(n)")
    for label, made in figures.items():
        show_passes(label, made)
    return flaws, figures
