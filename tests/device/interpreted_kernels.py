"""Cases for the interpreter of triton, run as a program by ``test_kernels.py``.

The interpreter is chosen before triton is imported, so it needs a process of its own.
Prints one JSON object: the name of each case, and what is wrong with it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from device_kit import TOP, EndCoins, has_mass, random_pass, same

from draftproof.core.policy import History, SamplingParams
from draftproof.core.rng import CoinSource
from draftproof.device import TorchExecutor, triton_laws
from draftproof.device import kernels as sound_kernels
from draftproof.device.draws import draw
from draftproof.device.laws import TorchLaws
from draftproof.device.place_laws import Cut
from draftproof.device.places import Place, pack_places
from draftproof.device.triton_laws import TritonLaws, triton_greedy

RULES = ("standard", "block", "sample-match")


def laws_of(logits, temperatures):
    places = [
        Place(row, SamplingParams(temperature=heat), History())
        for row, heat in enumerate(temperatures)
    ]
    packed = pack_places(places, logits.shape[1], len(places))
    return TorchLaws(logits, packed), TritonLaws(logits, packed), packed


def some_logits(size: int, kind=torch.float32):
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(4, size, generator=generator) * 5
    logits[0, ::3] = -torch.inf
    logits[1] = logits[1].round()
    return logits.to(kind)


def weights_agree():
    """Within 4 units in the last place of the torch executor's, zero where it is zero."""
    for size, kind in ((2, torch.float32), (257, torch.bfloat16), (5000, torch.float16)):
        one, other, _ = laws_of(some_logits(size, kind), (0.3, 1.0, 0.7, 2.0))
        tokens = torch.arange(0, size, max(1, size // 60))
        for place in range(4):
            places = torch.full_like(tokens, place)
            a, b = one.weights_at(places, tokens), other.weights_at(places, tokens)
            assert ((a - b).abs() <= 4 * 2.0**-23 * a + 2.0**-126).all()
            assert ((a == 0) == (b == 0)).all() or float(a[a > 0].min()) < 2.0**-126
        assert torch.allclose(one.totals, other.totals, rtol=4 * 2.0**-23, atol=0)
        blocks = torch.zeros(4, dtype=torch.int64)
        a, b = (laws.block(torch.arange(4), blocks) for laws in (one, other))
        assert torch.allclose(a, b, rtol=4 * 2.0**-23, atol=2.0**-126)


def exponential_is_good():
    """Within 2 units in the last place of float64, down to where float32 ends."""
    falling = -torch.linspace(0, 110, 3001)[None]
    _, laws, _ = laws_of(falling, (1.0,))
    got = laws.weights_at(torch.zeros(3001, dtype=torch.int64), torch.arange(3001))
    right = torch.exp(falling[0].double())
    normal = right > 2.0**-126
    assert ((got - right).abs() <= 2 * 2.0**-23 * right)[normal].all()
    assert ((got - right).abs() <= 2 * 2.0**-149)[~normal].all()


def greedy_agrees():
    for size in (2, 300, 5000):
        logits = some_logits(size)
        logits[2, [1, size // 2, size - 1]] = 40.0  # a tie: the lowest id
        logits[3] = -torch.inf
        _, _, packed = laws_of(logits[:3], (1.0,) * 3)
        tokens, is_bad = triton_greedy(logits, packed)
        assert tokens.tolist() == logits[:3].argmax(1).tolist()
        assert not is_bad.any()


def places_without_a_law_are_named():
    logits = some_logits(300)
    logits[0, 17], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    one, other, packed = laws_of(logits, (1.0,) * 4)
    assert one.is_bad.tolist() == other.is_bad.tolist() == [True, True, True, False]
    assert triton_greedy(logits, packed)[1].tolist() == [True, True, True, False]


def draws_agree(sizes=(2, 600), ends=(0.0, 0.6, TOP)):
    """At, beside and between the steps, with a token dropped and a draft taken away."""
    for size in sizes:
        logits = some_logits(size)
        logits[2, : min(256, size - 1)] = -torch.inf  # a block without mass
        one, other, _ = laws_of(logits, (0.3, 1.0, 0.7, 2.0))
        every = torch.arange(4)
        generator = torch.Generator().manual_seed(0)  # no coin of 0.6 at an edge of all rows
        drafts = torch.rand(4, -(-size // 256) * 256, dtype=torch.float64, generator=generator)
        drafts[:, size:] = 0
        units = 2 * one.totals / drafts.sum(1)
        nothing = torch.zeros(4, dtype=torch.float64)
        for coin in ends:
            coins = torch.full((4,), coin, dtype=torch.float64)
            sums = [laws.excess_sums(every, units, drafts, every) for laws in (one, other)]
            cut = Cut(torch.full((4,), -1), units, drafts, every)
            pairs = [draw(laws, every, laws.sums, coins, nothing) for laws in (one, other)]
            pairs += [
                draw(laws, every, held, coins, 4e-6 * laws.totals, cut)
                for laws, held in zip((one, other), sums, strict=True)
            ]
            for a, b in (pairs[:2], pairs[2:]):
                agree = a.tokens == b.tokens
                assert (agree | (a.is_near & b.is_near)).all()
                assert coin in (0.0, TOP) or (~a.is_near).any()
            assert (one.weights_at(every, pairs[1].tokens) > 0).all()


def dropped_tokens_are_not_drawn():
    _, laws, packed = laws_of(some_logits(600), (0.3, 1.0, 0.7, 2.0))
    every = torch.arange(4)
    dropped = triton_greedy(some_logits(600), packed)[0]
    rest = laws.sums.clone()
    rest[every, dropped // 256] -= laws.weights_at(every, dropped)
    nothing = torch.zeros(4, dtype=torch.float64)
    for coin in (0.1, 0.5, 0.9):
        coins = torch.full((4,), coin, dtype=torch.float64)
        cut = Cut(dropped, nothing, rest[:0], every)
        assert (draw(laws, every, rest.clamp(min=0), coins, nothing, cut).tokens != dropped).all()


def rows_do_not_depend_on_the_batch():
    logits = some_logits(600)
    _, whole, _ = laws_of(logits, (0.3, 1.0, 0.7, 2.0))
    for row, heat in enumerate((0.3, 1.0, 0.7, 2.0)):
        _, alone, _ = laws_of(logits[row : row + 1], (heat,))
        assert torch.equal(whole.sums[row], alone.sums[0])


def decisions(number: int):
    def check():
        size = (2, 256, 257, 700)[number % 4]
        params = (SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(temperature=0))
        for rule in RULES:
            coins = EndCoins(CoinSource(number).round(1), (None, 0.0, TOP)[number % 3])
            work = random_pass(number, size, [0, 2], rule=rule, params=params[number % 3 - 1])
            ends = random_pass(number, size, [2], rule=rule, params=params[0], coins=coins)
            for one in (work, ends) if number else (work,):
                strict = TorchExecutor(kernels="triton", pad=bool(number % 2))
                got = strict.judge(one.rows, torch.from_numpy(one.logits))
                assert all(map(same, one.truth(), got)), f"{rule}: {one.truth()} became {got}"
                keep = TorchExecutor("keep", kernels="triton")
                for row, verdict in zip(one.rows, keep.judge(one.rows, one.logits), strict=True):
                    assert has_mass(row, verdict, one.logits)

    return check


def planted(right: str, wrong: str, case):
    """A fault in a kernel must turn a case red."""

    def check():
        source = Path(sound_kernels.__file__).read_text(encoding="utf-8")
        assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times"
        path = Path(sys.argv[1]) / f"kernels_{abs(hash(wrong))}.py"
        path.write_text(source.replace(right, wrong), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("faulty_kernels", path)
        faulty = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(faulty)
        triton_laws.kernels = faulty
        try:
            case()
        except (AssertionError, IndexError):
            return
        finally:
            triton_laws.kernels = sound_kernels
        raise AssertionError("the fault was not seen")

    return check


draws_between = partial(draws_agree, (600,), (0.6,))
draws_at_0 = partial(draws_agree, (600,), (0.0,))

CASES = {
    "weights": weights_agree,
    "exponential": exponential_is_good,
    "greedy": greedy_agrees,
    "no law": places_without_a_law_are_named,
    "draws": draws_agree,
    "dropped": dropped_tokens_are_not_drawn,
    "batch": rows_do_not_depend_on_the_batch,
    **{f"decisions {n}": decisions(n) for n in range(4)},
    "fault: hardware exponential": planted(
        "return tl.where(x > -104.0, value * first * second, tl.where(x == x, 0.0, x))",
        "return tl.exp2((x.to(tl.float16) * _LOG2E).to(tl.float32))",
        exponential_is_good,
    ),
    "fault: last of ties": planted(
        "token = tl.min(tl.where(held == peak, tokens, size), axis=0)",
        "token = tl.max(tl.where(held == peak, tokens, 0), axis=0)",
        greedy_agrees,
    ),
    "fault: NaN is skipped": planted(
        'tl.where(broken > 0, float("nan"), peak)', "peak", places_without_a_law_are_named
    ),
    "fault: residual not clamped": planted(
        "excess = tl.where(excess < 0.0, 0.0, excess)", "excess = tl.abs(excess)", draws_between
    ),
    "fault: draft stays in the block": planted(
        "weights = tl.where(taken < 0.0, 0.0, taken)",
        "weights = tl.where(taken < 0.0, weights, weights)",
        draws_between,
    ),
    "fault: not above": planted("(steps > point)", "(steps >= point)", draws_at_0),
    "fault: row of the neighbour": planted(
        "row = tl.load(rows + place)\n    tokens = tile * tile_size + tl.arange(0, tile_size)\n"
        "    weights",
        "row = tl.load(rows) + place * 0\n    tokens = tile * tile_size + tl.arange(0, tile_size)\n"
        "    weights",
        weights_agree,
    ),
    "fault: dropped token stays": planted(
        "tl.where(tokens == tl.load(dropped + item), 0.0, weights)",
        "weights",
        dropped_tokens_are_not_drawn,
    ),
}


if __name__ == "__main__":
    np.seterr(all="ignore")
    results = {}
    for name, case in CASES.items():
        try:
            case()
        except Exception as error:  # noqa: BLE001  reported by the test
            results[name] = f"{type(error).__name__}: {error}"
        else:
            results[name] = ""
    sys.stdout.write(json.dumps(results))
