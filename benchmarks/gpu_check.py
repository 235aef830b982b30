"""Check executors and models on a machine with a GPU, and time them. Needs no downloads.

Proves on the given device that decisions equal the definition's for every rule, policy
and float type; that exponentials, noise and sums are within the stated bounds; and that a
row does not depend on its batch. Then prints nanoseconds per entry of the logits. Then
does the same for models with random weights: see gpu_check_model.py. Ends with one JSON
line; the exit code is 1 if a check failed.
Usage: ``python benchmarks/gpu_check.py [--device cuda] [--output FILE]``, 8 minutes at most;
``--device cpu`` is a smoke test of this script.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from device_cases import CASES, EndCoins, make_logits, make_rows
from gpu_check_model import check_models
from measure import report

from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import CoinSource
from draftproof.device import Place, TorchExecutor
from draftproof.device.laws import TorchLaws
from draftproof.device.noise import make_noise
from draftproof.device.places import pack_places
from draftproof.device.precision import WEIGHT_ERROR
from draftproof.verify import NumpyExecutor, VerifyRow

TOP = 1 - 2.0**-53


def kernel_sets(device: str) -> list[str]:
    return ["torch", "triton"] if device == "cuda" else ["torch"]


def check_decisions(device: str, quick: bool) -> Iterator[str]:
    """Every case, float type, set of kernels and size: no decision may differ."""
    sizes = (257, 4096, 49152) if quick else (257, 4096, 49152, 128256)
    num_rows = num_near = 0
    for size in sizes:
        for kind in (torch.float32, torch.bfloat16, torch.float16):
            logits = make_logits(20, size, device, kind, seed=size)
            on_host = logits.float().cpu().numpy()
            for name in CASES:
                rows = make_rows(name, logits, 3, seed=size)
                truth = NumpyExecutor().judge(rows, on_host)
                for kernels in kernel_sets(device):
                    executor = TorchExecutor(kernels=kernels, pad=True)
                    if executor.judge(rows, logits) != truth:
                        yield f"{name}, {size} tokens, {kind}, {kernels}: decisions differ"
                    num_rows += len(rows)
                    num_near += executor.counts.num_near_edge
    print(f"  {num_rows} rows, {num_near} near an edge and decided by the definition")
    if num_near > num_rows // 20:
        yield f"{num_near} of {num_rows} rows near an edge: expected at most 1 in 20"


def check_ends(device: str, quick: bool) -> Iterator[str]:  # noqa: ARG001
    """At both ends of the coins no token without target mass is emitted."""
    logits = make_logits(20, 3000, device, torch.float32)
    logits[:, ::2] = -torch.inf
    on_host = logits.cpu().numpy()
    for name in CASES:
        for end in (0.0, TOP):
            rows = [
                replace(row, coins=EndCoins(row.coins, end, end))
                for row in make_rows(name, logits, 3)
            ]
            truth = NumpyExecutor().judge(rows, on_host)
            for kernels in kernel_sets(device):
                if TorchExecutor(kernels=kernels).judge(rows, logits) != truth:
                    yield f"{name}, coins {end}, {kernels}: decisions differ"
                own = TorchExecutor("keep", kernels=kernels).judge(rows, logits)
                for row, verdict in zip(rows, own, strict=True):
                    if not has_mass(row, verdict, on_host):
                        yield f"{name}, coins {end}, {kernels}: {verdict} has no target mass"


def has_mass(row: VerifyRow, verdict: Any, logits: np.ndarray) -> bool:
    tokens = [*row.draft.token_ids[: len(verdict.path)], verdict.token_id]
    laws = (
        target_law(logits[row.first_row + j], row.params, row.history, row.draft.token_ids[:j])
        for j in range(len(tokens))
    )
    return all(law.prob(token) > 0 for law, token in zip(laws, tokens, strict=True))


def check_exponential(device: str, quick: bool) -> Iterator[str]:  # noqa: ARG001
    """Weights are within the budget that the bounds of all decisions rest on.

    The definition takes 2.52 units in the last place of the 6; the rest is the device's.
    """
    for temperature in (1.0, 0.7):
        logits = -torch.linspace(0, 80 * temperature, 1 << 16, device=device)[None]
        place = Place(0, SamplingParams(temperature=temperature), History())
        packed = pack_places([place], logits.shape[1], 1)
        exponents = logits[0] * packed.inverse_temperature.item()  # rounded to float32
        right = torch.exp(exponents.double())
        tokens = torch.arange(logits.shape[1], device=device)
        for name, laws in laws_of(device, logits, packed):
            got = laws.weights_at(torch.zeros_like(tokens), tokens)
            worst = float(((got - right).abs() / right).max()) * 2**23
            print(f"  {name}, T = {temperature}: within {worst:.2f} units in the last place")
            if worst > WEIGHT_ERROR * 2**23 - 2.52:
                yield f"{name}: exponential off by {worst:.2f} units, expected at most 3.48"


def laws_of(device: str, logits: torch.Tensor, packed: Any) -> list[tuple[str, Any]]:
    made: list[tuple[str, Any]] = [("torch", TorchLaws(logits, packed))]
    if device == "cuda":
        from draftproof.device.triton_laws import TritonLaws

        made.append(("triton", TritonLaws(logits, packed)))
    return made


def check_batch(device: str, quick: bool) -> Iterator[str]:  # noqa: ARG001
    """Compare the numbers of a row alone and in a batch: the same bits."""
    logits = make_logits(65, 49152, device, torch.bfloat16)
    places = [Place(row, SamplingParams(temperature=0.7), History()) for row in range(65)]
    whole = laws_of(device, logits, pack_places(places, 49152, 65))
    for row in (0, 1, 64):
        alone = laws_of(device, logits, pack_places([places[row]], 49152, 1))
        for (name, many), (_, one) in zip(whole, alone, strict=True):
            if not torch.equal(many.sums[row], one.sums[0]):
                yield f"{name}: block sums of row {row} depend on the batch"


def check_noise(device: str, quick: bool) -> Iterator[str]:  # noqa: ARG001
    """Compare the noise of places with the definition's, up to the rounding of a logarithm."""
    noise = [CoinSource(seed).round(9).noise(1, 70001) for seed in range(16)]
    made = make_noise(noise, 70001, torch.device(device)).cpu().numpy()
    expected = np.stack([np.asarray(held) for held in noise])
    worst = float((np.abs(made - expected) / expected).max()) * 2**52
    print(f"  noise within {worst:.1f} units of 2**-52")
    if worst > 8:
        yield f"noise off by {worst:.1f} units of 2**-52, expected at most 8"


def time_pass(call: Callable[[], object], device: str, repeats: int) -> float:
    """Return the median seconds of a call, device work included."""
    seconds = []
    for turn in range(repeats + 3):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if turn >= 3:
            seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def timings(device: str, quick: bool) -> dict[str, Any]:
    """Time a pass of every case: batch 1 and 64, kappa 3, in bf16."""
    size = 8192 if quick else 128256
    made: dict[str, Any] = {}
    for batch in (1, 4 if quick else 64):
        logits = make_logits(4 * batch, size, device, torch.bfloat16)
        entries = logits.numel()
        repeats = 3 if quick else 20
        read = time_pass(lambda held=logits: held.amax(1), device, repeats)
        made[f"read, batch {batch}"] = {"us": read * 1e6, "ns_per_entry": read * 1e9 / entries}
        for name in CASES:
            rows = make_rows(name, logits, 3)
            for kernels in kernel_sets(device):
                judge = TorchExecutor(kernels=kernels).judge
                seconds = time_pass(lambda r=rows, j=judge, t=logits: j(r, t), device, repeats)
                key = f"{name}, batch {batch}, {kernels}"
                made[key] = {"us": seconds * 1e6, "ns_per_entry": seconds * 1e9 / entries}
    return made


CHECKS = {
    "exponential": check_exponential,
    "noise": check_noise,
    "batch": check_batch,
    "ends of the coins": check_ends,
    "decisions": check_decisions,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device was found; expected one, or --device cpu", file=sys.stderr)
        return 2
    quick = given.device == "cpu"
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    flaws: list[str] = []
    for title, check in CHECKS.items():
        begin = time.perf_counter()
        wrong = list(check(given.device, quick))
        print(f"{title}: {'ok' if not wrong else 'FAILED'} in {time.perf_counter() - begin:.1f} s")
        for flaw in wrong:
            print(f"  {flaw}")
        flaws += wrong
    figures = timings(given.device, quick)
    for key, figure in figures.items():
        print(f"{key:48} {figure['us']:10.1f} us {figure['ns_per_entry']:8.3f} ns per entry")
    more, passes = check_models(given.device, quick, time_pass)
    flaws += more
    found = {"device": name, "flaws": flaws, "timings": figures, "passes_ms": passes}
    report(found, given.output)
    return 1 if flaws else 0


if __name__ == "__main__":
    raise SystemExit(main())
