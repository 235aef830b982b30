"""Seconds per pass and per round.

A pass of the target costs ``T(B, n, kv)``: B rows, n tokens in them, kv cached tokens
that attention reads. It is a measured table, an affine law ``c0 + c1 n + c2 kv`` with
steps where the hardware has them, or a roofline with derived constants. Verification
is never free: every drafted token is a token of the pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError
from draftproof.planner.architecture import ModelShape
from draftproof.planner.hardware import Hardware

__all__ = ["AffineCost", "RooflineCost", "ScaledCost", "StepCost", "step_seconds"]

Floats = NDArray[np.float64]


class StepCost(Protocol):
    """What a pass costs."""

    def many(self, batch: float, tokens: Floats, kv_tokens: float) -> Floats:
        """Return the seconds of passes that differ in their number of tokens.

        Parameters
        ----------
        batch : float
            Rows of the pass.
        tokens : ndarray of float64, shape (N,)
            Tokens of each pass, at least ``batch``.
        kv_tokens : float
            Cached tokens that attention reads, summed over the rows.

        Returns
        -------
        ndarray of float64, shape (N,)
            Seconds.
        """
        ...


def step_seconds(cost: StepCost, batch: float, tokens: float, kv_tokens: float = 0.0) -> float:
    """Return the seconds of one pass.

    Parameters
    ----------
    cost : StepCost
        The model of costs.
    batch, tokens, kv_tokens : float
        Rows, tokens in them, cached tokens that attention reads.

    Returns
    -------
    float
        Seconds.
    """
    return float(cost.many(batch, np.asarray([tokens], dtype=np.float64), kv_tokens)[0])


@dataclass(frozen=True, slots=True)
class AffineCost:
    """``c0 + c1 n + c2 kv + c3 B``, with steps.

    Parameters
    ----------
    base_s : float
        Seconds of an empty pass: the weights are read.
    per_token_s, per_kv_token_s, per_row_s : float
        Seconds per token, per cached token, per row.
    pad_to : tuple of int
        Rising sizes to which a pass is padded, for example those of captured graphs.
        A pass longer than the last one is not padded.
    """

    base_s: float
    per_token_s: float
    per_kv_token_s: float = 0.0
    per_row_s: float = 0.0
    pad_to: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse negative costs and sizes that do not rise."""
        for name in ("base_s", "per_token_s", "per_kv_token_s", "per_row_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if list(self.pad_to) != sorted(set(self.pad_to)):
            raise ConfigError(f"pad_to {self.pad_to}: expected rising sizes")

    def many(self, batch: float, tokens: Floats, kv_tokens: float) -> Floats:
        """Return the seconds of passes; see `StepCost.many`."""
        if self.pad_to:
            sizes = np.asarray(self.pad_to, dtype=np.float64)
            place = np.searchsorted(sizes, tokens)
            padded = sizes[np.minimum(place, len(sizes) - 1)]
            tokens = np.where(place < len(sizes), padded, tokens)
        fixed = self.base_s + self.per_kv_token_s * kv_tokens + self.per_row_s * batch
        seconds: Floats = fixed + self.per_token_s * tokens
        return seconds


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The larger of streaming and arithmetic, at given rates: a floor, not a forecast.

    Parameters
    ----------
    dense_bytes : float
        Weights that every pass streams.
    flops_per_token : float
        Arithmetic per token, attention scores left out.
    bytes_per_s, flops_per_s : float
        Rates of all devices together.
    kv_bytes_per_token : float
        Bytes that attention reads per cached token.
    attention_flops_per_pair : float
        Arithmetic per pair of a new and a cached token.
    expert_bytes : float
        Weights of all routed experts.
    expert_share : float
        Share of the experts that one token takes.
    link_s_per_token : float
        Seconds of communication per token under tensor parallelism.
    """

    dense_bytes: float
    flops_per_token: float
    bytes_per_s: float
    flops_per_s: float
    kv_bytes_per_token: float = 0.0
    attention_flops_per_pair: float = 0.0
    expert_bytes: float = 0.0
    expert_share: float = 0.0
    link_s_per_token: float = 0.0

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        hardware: Hardware,
        *,
        tensor_parallel: int = 1,
        context: float = 0.0,
    ) -> RooflineCost:
        """Derive the constants of a model on a device.

        Parameters
        ----------
        shape : ModelShape
            The model.
        hardware : Hardware
            One device.
        tensor_parallel : int, default 1
            Devices that share each layer. Key heads that are fewer than devices are
            repeated, and latent caches are held whole by each.
        context : float, default 0
            Cached tokens per row, where sliding windows cap what is read.

        Returns
        -------
        RooflineCost
            Its rates are those of all devices; what is repeated counts as often.

        Raises
        ------
        ConfigError
            If the number of devices is below 1.
        """
        if tensor_parallel < 1:
            raise ConfigError(f"tensor parallel {tensor_parallel}: expected 1 or more")
        copies = max(1.0, tensor_parallel / shape.num_kv_heads)
        if shape.latent is not None:
            copies = float(tensor_parallel)
        dense, experts, head, _table = shape.bytes_of_parts()
        link = 0.0
        if tensor_parallel > 1 and hardware.link_bytes_per_s:
            # Two ring all-reduces per layer of 2-byte activations.
            moved = 2 * shape.num_layers * shape.hidden_size * 2.0
            link = moved * 2 * (tensor_parallel - 1) / tensor_parallel / hardware.link_bytes_per_s
        per_token = shape.kv_bytes(context) / context if context else shape.kv_bytes_per_token
        return cls(
            dense_bytes=dense + head,
            flops_per_token=shape.flops_per_token,
            bytes_per_s=hardware.bytes_per_s * tensor_parallel,
            flops_per_s=hardware.flops_per_s * tensor_parallel,
            kv_bytes_per_token=per_token * copies,
            attention_flops_per_pair=shape.attention_flops(context) / context if context else 0.0,
            expert_bytes=experts,
            expert_share=shape.moe.experts_per_token / shape.moe.num_experts if shape.moe else 0.0,
            link_s_per_token=link,
        )

    @classmethod
    def normalised(cls, ridge_tokens: float) -> RooflineCost:
        """Return a roofline in units of one plain step at batch 1.

        Parameters
        ----------
        ridge_tokens : float
            Tokens per pass at which arithmetic takes as long as streaming.

        Returns
        -------
        RooflineCost
            ``max(1, n / ridge)``.
        """
        return cls(1.0, 1.0 / ridge_tokens, 1.0, 1.0)

    def many(self, batch: float, tokens: Floats, kv_tokens: float) -> Floats:
        """Return the seconds of passes; see `StepCost.many`."""
        moved = self.dense_bytes + self.kv_bytes_per_token * kv_tokens
        weights: Any = 0.0
        if self.expert_bytes:
            weights = self.expert_bytes * (1.0 - (1.0 - self.expert_share) ** tokens)
        pairs = tokens * (kv_tokens / batch)
        flops = self.flops_per_token * tokens + self.attention_flops_per_pair * pairs
        floor = np.maximum((moved + weights) / self.bytes_per_s, flops / self.flops_per_s)
        seconds: Floats = floor + self.link_s_per_token * tokens
        return seconds


@dataclass(frozen=True, slots=True)
class ScaledCost:
    """Another model that is a scaled copy of one whose costs are known.

    Parameters
    ----------
    of : StepCost
        The known costs.
    ratio : float
        The cost ratio c.
    """

    of: StepCost
    ratio: float

    def __post_init__(self) -> None:
        """Check the ratio."""
        if not self.ratio >= 0:
            raise ConfigError(f"cost ratio {self.ratio}: expected 0 or more")

    def many(self, batch: float, tokens: Floats, kv_tokens: float) -> Floats:
        """Return the seconds of passes; see `StepCost.many`."""
        return self.ratio * self.of.many(batch, tokens, kv_tokens)
