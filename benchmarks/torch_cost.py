"""What a pass of the PyTorch backend costs on the CPU, by how linear layers are held.

Three tables: all matrix products of the model alone, for every way that torch offers,
whole passes of the backend, and how far roundings move the law of the model. n tokens of
one sequence (a verify block) over 200 tokens of context; repeats of all sizes and ways
are interleaved.

    python benchmarks/torch_cost.py MODEL [--threads 1] [--clock cpu|wall] [--output FILE]
                                    [--tables products,passes,laws]

MODEL is a GGUF file or the name of a model. ``--clock cpu`` counts the time of the calling
thread, which is steady on a shared machine; it asks for one thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import report, summary

from draftproof.backends.torch_hf import load_torch
from draftproof.backends.torch_hf.from_gguf import model_from_gguf
from draftproof.core.types import FlatBatch, Row
from draftproof.models import resolve

SIZES = (1, 2, 4, 8, 16, 32)
CONTEXT = 200
#: Outputs and inputs of the matrices of one layer of SmolLM2-135M, and of its head.
LAYER = ((576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536))
HEAD = (49152, 576)

Product = Callable[[torch.Tensor], torch.Tensor]


def plain(weight: torch.Tensor) -> Product:
    return lambda x: torch.nn.functional.linear(x, weight)


def onednn(weight: torch.Tensor) -> Product:
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight, 8)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, blocks, None, "none", [], "")


def mkl(weight: torch.Tensor) -> Product:
    blocks = torch.ops.mkl._mkl_reorder_linear_weight(weight, 8)
    return lambda x: torch.ops.mkl._mkl_linear(x, blocks, weight, None, 8)


def half(weight: torch.Tensor) -> Product:
    blocks = torch.ops.quantized.linear_prepack_fp16(weight, None)
    return lambda x: torch.ops.quantized.linear_dynamic_fp16(x, blocks)


def bfloat16(weight: torch.Tensor) -> Product:
    rounded = weight.bfloat16()
    return lambda x: torch.nn.functional.linear(x.bfloat16(), rounded).float()


def _codes(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(1) / 127
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def int8_weight_only(weight: torch.Tensor) -> Product:
    codes, scale = _codes(weight)
    return lambda x: torch._weight_int8pack_mm(x, codes, scale)


def int8_rows(weight: torch.Tensor) -> Product:
    """Activations rounded with a scale for each row."""
    codes, scale = _codes(weight)
    turned = codes.t()

    def product(x: torch.Tensor) -> torch.Tensor:
        row = x.abs().amax(1, keepdim=True) / 127
        return torch._int_mm(torch.round(x / row).to(torch.int8), turned) * scale * row

    return product


def int8_per_pass(weight: torch.Tensor) -> Product:
    """Activations rounded with one scale for the whole pass: refused by the backend."""
    codes, scale = _codes(weight)
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    quantised = torch.quantize_per_channel(
        codes.float() * scale[:, None], scale.double(), zeros, 0, torch.qint8
    )
    blocks = torch.ops.quantized.linear_prepack(quantised, None)
    return lambda x: torch.ops.quantized.linear_dynamic(x, blocks, True)


def _fixed_scale(weight: torch.Tensor) -> Product:
    """Multiply rows of whole numbers from -63 to 63, exactly: one scale serves all rows."""
    codes, scale = _codes(weight)
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    quantised = torch.quantize_per_channel(
        codes.float() * scale[:, None], scale.double(), zeros, 0, torch.qint8
    )
    blocks = torch.ops.quantized.linear_prepack(quantised, None)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return lambda x: product(x, 1.0, 64, blocks)


def int8_seven_bits(weight: torch.Tensor) -> Product:
    """Each row divided by its own largest entry; 7 bits, so that AVX2 sums exactly."""
    inner = _fixed_scale(weight)

    def product(x: torch.Tensor) -> torch.Tensor:
        unit = torch.linalg.vector_norm(x, float("inf"), -1, keepdim=True) / 63
        return inner(x / unit).mul_(unit)

    return product


def int8_fourteen_bits(weight: torch.Tensor) -> Product:
    """Add the remainders as further rows of the same product."""
    inner = _fixed_scale(weight)

    def product(x: torch.Tensor) -> torch.Tensor:
        unit = torch.linalg.vector_norm(x, float("inf"), -1, keepdim=True) / 63
        rows = x / unit
        high = rows.round()
        found = inner(torch.cat([high, rows.sub_(high).mul_(126)]))
        return torch.add(found[: len(x)], found[len(x) :], alpha=1 / 126).mul_(unit)

    return product


def int4_groups(weight: torch.Tensor) -> Product:
    """4-bit weights with scale and offset for 32 of them, as GGUF's Q4_1 has them."""
    groups = weight.view(len(weight), -1, 32)
    low, high = groups.amin(2), groups.amax(2)
    scale = (high - low) / 15
    codes = torch.round((groups - low[..., None]) / scale[..., None])
    blocks = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        codes.view(weight.shape).to(torch.int32), 1
    )
    held = torch.stack([scale.t(), low.t() + 8 * scale.t()], -1).contiguous()
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, blocks, 32, held)


WAYS = {
    "F.linear": plain,
    "oneDNN blocks": onednn,
    "MKL blocks": mkl,
    "fbgemm float16": half,
    "bfloat16": bfloat16,
    "int8 weights": int8_weight_only,
    "int8, scale per row": int8_rows,
    "int8, scale per pass": int8_per_pass,
    "int8, 7 bits per row": int8_seven_bits,
    "int8, 14 bits per row": int8_fourteen_bits,
    "int4, groups of 32": int4_groups,
}

#: Roundings of the third table: bits of the weights (16 is float16), and of each row of
#: the activations.
ROUNDINGS = ((16, None), (8, None), (8, 14), (8, 8), (8, 7))


def products(num_layers: int, repeats: int, clock: Callable[[], float]) -> list[dict[str, object]]:
    """Time all matrix products of a model with fewer layers, one way after another."""
    torch.manual_seed(0)
    shapes = [*(LAYER * num_layers), HEAD]
    weights = [torch.randn(shape) / shape[1] ** 0.5 for shape in shapes]
    inputs = {n: {width: torch.randn(n, width) for width in (576, 1536)} for n in SIZES}
    rows = []
    for name, make in WAYS.items():
        ways = [(make(weight), weight.shape[1]) for weight in weights]
        times: dict[int, list[float]] = {n: [] for n in SIZES}
        for repeat in range(repeats + 1):
            for n in SIZES:
                begin = clock()
                for product, width in ways:
                    product(inputs[n][width])
                if repeat:
                    times[n].append(clock() - begin)
        product, x = ways[4][0], inputs[8][576]
        exact = x @ weights[4].t()
        error = float((product(x) - exact).abs().max() / exact.abs().max())
        alone = float((product(x)[:1] - product(x[:1])).abs().max())
        row = {"way": name, "error": error, "row_depends_on_pass_by": alone}
        rows.append(row | _figures(times))
        _show(name, rows[-1], f"error {error:.0e}, row alone differs by {alone:.0e}")
    return rows


def passes(
    model: Path, linears: list[str], repeats: int, clock: Callable[[], float]
) -> list[dict[str, object]]:
    """Time whole passes of the backend, all ways interleaved."""
    backends = {name: load_torch(model, linear=name, kv_cache_bytes=64 << 20) for name in linears}
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 49152, (CONTEXT + max(SIZES),), generator=generator).tolist()
    times: dict[str, dict[int, list[float]]] = {name: {n: [] for n in SIZES} for name in linears}
    handles = {}
    for name, backend in backends.items():
        handles[name] = backend.open()
        backend.forward(FlatBatch.from_rows([Row(handles[name], tokens[:CONTEXT], 0, 0)]))
    for repeat in range(repeats + 1):
        for name, backend in backends.items():
            for n in SIZES:
                block = Row(handles[name], tokens[CONTEXT : CONTEXT + n], CONTEXT, n)
                begin = clock()
                backend.forward(FlatBatch.from_rows([block]))
                if repeat:
                    times[name][n].append(clock() - begin)
                backend.truncate(handles[name], CONTEXT)
    rows = []
    for name in linears:
        rows.append({"linear": name, "precision": backends[name].info.precision})
        rows[-1] |= _figures(times[name])
        _show(name, rows[-1], backends[name].info.precision)
    return rows


def laws(model: Path) -> list[dict[str, object]]:
    """Round weights and activations in float32, and compare the laws of a random text."""
    net = model_from_gguf(model)
    linears = [module for module in net.modules() if type(module) is torch.nn.Linear]
    weights = [module.weight.detach().clone() for module in linears]
    generator = torch.Generator().manual_seed(0)
    # Tokenizers keep the frequent pieces first.
    text = torch.randint(0, net.config.vocab_size // 16, (1, 128), generator=generator)

    def law() -> torch.Tensor:
        return torch.softmax(net(input_ids=text, use_cache=False).logits[0].double(), -1)

    expected = law()
    rows = []
    for bits, row_bits in ROUNDINGS:
        for module, weight in zip(linears, weights, strict=True):
            module.weight.copy_(weight.half() if bits == 16 else _rounded(weight, bits))
        hooks = [
            module.register_forward_pre_hook(lambda _, x, b=row_bits: (_rounded(x[0], b),))
            for module in linears
            if row_bits
        ]
        distance = (law() - expected).abs().sum(1) / 2
        for hook in hooks:
            hook.remove()
        row = {"weight_bits": bits, "activation_bits": row_bits}
        rows.append(row | {"mean_tv": float(distance.mean()), "max_tv": float(distance.max())})
        print(f"weights {bits}, activations {row_bits}: TV {distance.mean():.4f}", flush=True)
    return rows


def _rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Round each row to whole multiples of its largest entry over 2**(bits - 1) - 1."""
    unit = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / (2 ** (bits - 1) - 1)
    return torch.round(x / unit) * unit


def _figures(times: dict[int, list[float]]) -> dict[str, object]:
    least = min(times[1])
    return {
        "ms": {n: {k: round(v * 1e3, 3) for k, v in summary(times[n]).items()} for n in SIZES},
        "min_ms": {n: round(min(times[n]) * 1e3, 2) for n in SIZES},
        "cost_of_min": {n: round(min(times[n]) / least, 2) for n in SIZES},
    }


def _show(name: str, row: dict[str, object], note: str) -> None:
    least, cost = row["min_ms"], row["cost_of_min"]
    cells = "  ".join(f"{n}: {least[n]:.1f} ({cost[n]:.2f})" for n in SIZES)  # type: ignore[index]
    print(f"{name:22s} {cells}  {note}", flush=True)


def main() -> int:
    """Measure both tables and print the JSON record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file, or the name of a model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--layers", type=int, default=4, help="layers of the first table")
    parser.add_argument("--linears", default="plain,packed,f16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tables", default="products,passes,laws")
    parser.add_argument("--output", type=Path, default=None, help="write the JSON here too")
    args = parser.parse_args()
    if args.clock == "cpu" and args.threads != 1:
        print("--clock cpu asks for --threads 1", file=sys.stderr)
        return 2
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.clock == "cpu" else time.perf_counter
    path, tables = resolve(args.model).path, args.tables.split(",")
    record = {"benchmark": "torch_cost", "clock": args.clock, "threads": args.threads}
    record |= {"context": CONTEXT, "layers_of_products": args.layers, "repeats": args.repeats}
    with torch.inference_mode():
        if "products" in tables:
            record["products"] = products(args.layers, args.repeats, clock)
        if "laws" in tables:
            record["laws"] = laws(path)
    if "passes" in tables:
        record["passes"] = passes(path, args.linears.split(","), args.repeats, clock)
    report(record, args.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
