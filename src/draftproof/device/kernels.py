# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
"""Triton kernels: laws and draws straight from logits, without an array of weights.

Every kernel reads logits of any float type and computes a weight where it needs one,
as ``exp((logit - peak) * inverse_temperature)`` with the float32 roundings of the
definition up to the exponential. Sums are float64 and made inside blocks of 256, so a
row's numbers depend on the row alone, whatever the batch. Two passes over a row, one
for its peak and one for its sums, and not one with a running rescale: the definition's
exponent is rounded from the peak of the whole row, and a sum that was rescaled from the
peak of a part would weigh the unlikely tokens differently.

`triton_laws` calls the kernels; nothing else does. It forbids fused multiply-adds, which
would leave out the rounding of the exponent.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["ITEMS", "TILE", "blocks", "draws", "excess_sums", "peaks", "points", "sums"]

#: Entries that one program reads: a multiple of the block of 256.
TILE = 4096
#: Single tokens that one program looks up.
ITEMS = 128

_BLOCK = tl.constexpr(256)
_LOG2E = tl.constexpr(1.4426950408889634)
# ln 2 in two parts; the first has nine bits, so that its multiples are exact.
_LN2_HIGH = tl.constexpr(0.693359375)
_LN2_LOW = tl.constexpr(-0.00021219444005469058)


@triton.jit
def _exp(x):
    """Float32 exponential of a number that is not positive, within 2 units in the last place.

    Argument reduction by ln 2 and a Taylor polynomial, because the hardware's power of
    two rounds ``x / ln 2`` and so errs by more the smaller the weight is.
    """
    whole = tl.floor(x * _LOG2E + 0.5)
    whole = tl.where(x > -104.0, whole, 0.0)
    r = x - whole * _LN2_HIGH
    r = r - whole * _LN2_LOW
    tail = r * (1.0 / 5040.0) + (1.0 / 720.0)
    tail = tail * r + (1.0 / 120.0)
    tail = tail * r + (1.0 / 24.0)
    tail = tail * r + (1.0 / 6.0)
    tail = tail * r + 0.5
    value = (tail * r * r + r) + 1.0
    # Two powers of two, because one alone cannot scale to the smallest numbers.
    power = whole.to(tl.int32)
    half = power >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((power - half + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x > -104.0, value * first * second, tl.where(x == x, 0.0, x))


@triton.jit
def _weigh(logits, row, stride, tokens, size, peak, inverse):
    """Weights of some tokens of a row, 0 outside the vocabulary."""
    held = tl.load(logits + row * stride + tokens, mask=tokens < size, other=float("-inf"))
    return _exp((held.to(tl.float32) - peak) * inverse)


@triton.jit
def peaks(logits, stride, size, rows, out_peak, out_token, tile_size: tl.constexpr):
    """Largest logit of a tile and its first token; NaN if the tile holds one."""
    place = tl.program_id(0)
    tile = tl.program_id(1)
    row = tl.load(rows + place)
    tokens = tile * tile_size + tl.arange(0, tile_size)
    held = tl.load(logits + row * stride + tokens, mask=tokens < size, other=float("-inf"))
    held = held.to(tl.float32)
    broken = tl.max((held != held).to(tl.int32), axis=0)
    peak = tl.max(tl.where(held == held, held, float("-inf")), axis=0)
    token = tl.min(tl.where(held == peak, tokens, size), axis=0)
    spot = place * tl.num_programs(1) + tile
    tl.store(out_peak + spot, tl.where(broken > 0, float("nan"), peak))
    tl.store(out_token + spot, token)


@triton.jit
def sums(logits, stride, size, rows, peak, inverse, out, tile_size: tl.constexpr):
    """Float64 sums of the weights of the blocks of a tile."""
    place = tl.program_id(0)
    tile = tl.program_id(1)
    row = tl.load(rows + place)
    tokens = tile * tile_size + tl.arange(0, tile_size)
    weights = _weigh(
        logits, row, stride, tokens, size, tl.load(peak + place), tl.load(inverse + place)
    )
    parts = tl.sum(tl.reshape(weights.to(tl.float64), (tile_size // _BLOCK, _BLOCK)), axis=1)
    spots = tile * (tile_size // _BLOCK) + tl.arange(0, tile_size // _BLOCK)
    width = tl.num_programs(1) * (tile_size // _BLOCK)
    tl.store(out + place * width + spots, parts)


@triton.jit
def points(
    logits, stride, size, rows, peak, inverse, places, tokens, out, count, items: tl.constexpr
):
    """Weights of single tokens at given places."""
    item = tl.program_id(0) * items + tl.arange(0, items)
    exists = item < count
    place = tl.load(places + item, mask=exists, other=0)
    weight = _weigh(
        logits,
        tl.load(rows + place),
        stride,
        tl.load(tokens + item, mask=exists, other=0),
        size,
        tl.load(peak + place),
        tl.load(inverse + place),
    )
    tl.store(out + item, weight.to(tl.float64), mask=exists)


@triton.jit
def blocks(logits, stride, size, rows, peak, inverse, places, numbers, out):
    """Weights of one block of 256 tokens at given places."""
    item = tl.program_id(0)
    place = tl.load(places + item)
    inside = tl.arange(0, _BLOCK)
    weights = _weigh(
        logits,
        tl.load(rows + place),
        stride,
        tl.load(numbers + item) * _BLOCK + inside,
        size,
        tl.load(peak + place),
        tl.load(inverse + place),
    )
    tl.store(out + item * _BLOCK + inside, weights.to(tl.float64))


@triton.jit
def excess_sums(
    logits,
    stride,
    size,
    rows,
    peak,
    inverse,
    places,
    units,
    drafts,
    draft_stride,
    draft_rows,
    out,
    tile_size: tl.constexpr,
):
    """Float64 sums of ``(weight - unit * draft weight)+`` over the blocks of a tile."""
    item = tl.program_id(0)
    tile = tl.program_id(1)
    place = tl.load(places + item)
    tokens = tile * tile_size + tl.arange(0, tile_size)
    weights = _weigh(
        logits,
        tl.load(rows + place),
        stride,
        tokens,
        size,
        tl.load(peak + place),
        tl.load(inverse + place),
    )
    draft_row = tl.load(draft_rows + item)
    draft = tl.load(drafts + draft_row * draft_stride + tokens, mask=tokens < size, other=0.0)
    excess = weights.to(tl.float64) - tl.load(units + item) * draft.to(tl.float64)
    excess = tl.where(excess < 0.0, 0.0, excess)
    parts = tl.sum(tl.reshape(excess, (tile_size // _BLOCK, _BLOCK)), axis=1)
    spots = tile * (tile_size // _BLOCK) + tl.arange(0, tile_size // _BLOCK)
    width = tl.num_programs(1) * (tile_size // _BLOCK)
    tl.store(out + item * width + spots, parts)


@triton.jit
def draws(
    logits,
    stride,
    size,
    rows,
    peak,
    inverse,
    places,
    block_sums,
    width,
    coins,
    units,
    dropped,
    drafts,
    draft_stride,
    draft_rows,
    out_token,
    out_edges,
    padded_width: tl.constexpr,
    has_drafts: tl.constexpr,
):
    """Inverse of the cumulative law at one coin; the edges around it for the bound.

    The law is ``(weight - unit * draft weight)+`` without the token ``dropped``.
    """
    item = tl.program_id(0)
    place = tl.load(places + item)
    numbers = tl.arange(0, padded_width)
    held = tl.load(block_sums + item * width + numbers, mask=numbers < width, other=0.0)
    steps = tl.cumsum(held, axis=0)
    total = tl.sum(tl.where(numbers == width - 1, steps, 0.0), axis=0)
    point = tl.load(coins + item) * total
    first = tl.min(tl.where((steps > point) & (numbers < width), numbers, padded_width), axis=0)
    last = tl.max(tl.where(held > 0.0, numbers, 0), axis=0)
    block = tl.where(first < padded_width, first, last)
    before = tl.sum(tl.where(numbers == block - 1, steps, 0.0), axis=0)

    inside = tl.arange(0, _BLOCK)
    tokens = block * _BLOCK + inside
    weights = _weigh(
        logits,
        tl.load(rows + place),
        stride,
        tokens,
        size,
        tl.load(peak + place),
        tl.load(inverse + place),
    ).to(tl.float64)
    weights = tl.where(tokens == tl.load(dropped + item), 0.0, weights)
    if has_drafts:
        draft_row = tl.load(draft_rows + item)
        draft = tl.load(drafts + draft_row * draft_stride + tokens, mask=tokens < size, other=0.0)
        taken = weights - tl.load(units + item) * draft.to(tl.float64)
        weights = tl.where(taken < 0.0, 0.0, taken)
    grown = tl.cumsum(weights, axis=0)
    rest = point - before
    slot = tl.min(tl.where(grown > rest, inside, _BLOCK), axis=0)
    final = tl.max(tl.where(weights > 0.0, inside, 0), axis=0)
    slot = tl.where(slot < _BLOCK, slot, final)
    upper = before + tl.sum(tl.where(inside == slot, grown, 0.0), axis=0)
    lower = before + tl.sum(tl.where(inside == slot - 1, grown, 0.0), axis=0)
    tl.store(out_token + item, block * _BLOCK + slot)
    tl.store(out_edges + item * 4, lower)
    tl.store(out_edges + item * 4 + 1, upper)
    tl.store(out_edges + item * 4 + 2, point)
    tl.store(out_edges + item * 4 + 3, total)
