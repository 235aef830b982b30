"""Bytes of cache, and how many requests fit with and without speculation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftproof.errors import ConfigError
from draftproof.planner.architecture import ModelShape
from draftproof.planner.hardware import Hardware

__all__ = [
    "Concurrency",
    "compaction_bytes",
    "max_concurrency",
    "noise_row_bytes",
    "reserved_slots",
]


def reserved_slots(kappa: int, *, double_buffered: bool = False) -> int:
    """Return the cache slots that one request reserves per step.

    Parameters
    ----------
    kappa : int
        Drafts of a chain; 0 is plain decoding.
    double_buffered : bool, default False
        Whether the engine plans the next step before this one ends and so reserves
        twice, as engines with overlapped scheduling do when they speculate.

    Returns
    -------
    int
        ``kappa + 1``, twice that when double-buffered, 1 without speculation.
    """
    if kappa < 0:
        raise ConfigError(f"kappa {kappa}: expected 0 or more")
    return (kappa + 1) * (2 if double_buffered and kappa else 1)


def compaction_bytes(shape: ModelShape, batch: int, tokens_per_request: float) -> float:
    """Return the bytes that move when accepted tree paths are made contiguous.

    Parameters
    ----------
    shape : ModelShape
        The model.
    batch : int
        Requests.
    tokens_per_request : float
        Moved tokens of each.

    Returns
    -------
    float
        Each token's keys and values are read once and written once.
    """
    return 2.0 * batch * tokens_per_request * shape.kv_bytes_per_token


def noise_row_bytes(batch: int, vocab_size: int, bytes_per_number: int = 4) -> int:
    """Return the bytes of one random number per vocabulary entry and request.

    Parameters
    ----------
    batch, vocab_size : int
        Requests, and entries of a row.
    bytes_per_number : int, default 4
        Width of a number.

    Returns
    -------
    int
        Bytes, as a sampler that races exponentials holds them.
    """
    return batch * vocab_size * bytes_per_number


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many requests fit.

    Parameters
    ----------
    plain, speculative : int
        Requests without and with speculation.
    plain_request_bytes, speculative_request_bytes : float
        Cache of one request.
    free_bytes : float
        Memory that is left for the cache without a draft model.
    draft_weight_bytes : float
        Weights of the draft model.
    """

    plain: int
    speculative: int
    plain_request_bytes: float
    speculative_request_bytes: float
    free_bytes: float
    draft_weight_bytes: float


def max_concurrency(
    target: ModelShape,
    hardware: Hardware,
    context: int,
    kappa: int,
    *,
    draft: ModelShape | None = None,
    tensor_parallel: int = 1,
    usable: float = 0.9,
    double_buffered: bool = False,
) -> Concurrency:
    """Return how many requests of one length fit with and without speculation.

    Parameters
    ----------
    target : ModelShape
        The target.
    hardware : Hardware
        One device; its memory must be known.
    context : int
        Tokens of each request.
    kappa : int
        Drafts per round, whose slots are reserved.
    draft : ModelShape, optional
        A draft model, with weights and a cache of its own.
    tensor_parallel : int, default 1
        Devices. Key heads that are fewer than devices are held more than once.
    usable : float, default 0.9
        Share of the memory that weights and cache may take.
    double_buffered : bool, default False
        See `reserved_slots`.

    Returns
    -------
    Concurrency
        Both numbers and the bytes behind them.

    Raises
    ------
    ConfigError
        If the memory of the device is not known, or the weights alone do not fit.
    """
    if not hardware.memory_bytes:
        raise ConfigError(f"{hardware.name}: its memory is not known; expected --memory-gb")
    memory = usable * hardware.memory_bytes * tensor_parallel
    free = memory - target.stored_bytes
    draft_weights = draft.stored_bytes if draft is not None and kappa else 0.0
    if free - draft_weights <= 0:
        raise ConfigError(
            f"{target.name} and its drafter take {(memory - free + draft_weights) / 1e9:.1f} GB; "
            f"expected less than {memory / 1e9:.1f} GB on {tensor_parallel} x {hardware.name}"
        )
    plain = _request_bytes(target, context, 0, tensor_parallel, double_buffered)
    speculative = _request_bytes(target, context, kappa, tensor_parallel, double_buffered)
    if draft is not None and kappa:
        speculative += _request_bytes(draft, context, kappa, tensor_parallel, double_buffered)
    return Concurrency(
        plain=math.floor(free / plain),
        speculative=math.floor((free - draft_weights) / speculative),
        plain_request_bytes=plain,
        speculative_request_bytes=speculative,
        free_bytes=free,
        draft_weight_bytes=draft_weights,
    )


def _request_bytes(
    shape: ModelShape, context: int, kappa: int, devices: int, double_buffered: bool
) -> float:
    copies = float(devices) if shape.latent is not None else max(1.0, devices / shape.num_kv_heads)
    slots = reserved_slots(kappa, double_buffered=double_buffered)
    return copies * (shape.kv_bytes(context) + slots * shape.kv_bytes_per_token)
