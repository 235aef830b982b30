"""Passes that the device benchmarks judge: logits and drafts like a language model's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftproof.core.policy import History, SamplingParams
from draftproof.core.rng import CoinSource, RoundCoins
from draftproof.core.types import Draft
from draftproof.device import Place, draw_drafts
from draftproof.verify import VerifyRow

#: Rule and policy of each case; greedy needs no law at all.
CASES = {
    "greedy": ("standard", SamplingParams(temperature=0.0)),
    "standard, one-hot drafts": ("standard", SamplingParams(temperature=0.8)),
    "standard": ("standard", SamplingParams(temperature=0.8)),
    "block": ("block", SamplingParams(temperature=0.8)),
    "sample-match": ("sample-match", SamplingParams(temperature=0.8)),
    "coupled": ("coupled", SamplingParams(temperature=0.8)),
    "standard, top_k 50": ("standard", SamplingParams(temperature=0.8, top_k=50)),
    "standard, top_p .95": ("standard", SamplingParams(temperature=0.8, top_p=0.95)),
    "standard, min_p .05": ("standard", SamplingParams(temperature=0.8, min_p=0.05)),
    "standard, penalties": ("standard", SamplingParams(temperature=0.8, repetition_penalty=1.1)),
}


class EndCoins(RoundCoins):
    """Coins of a round whose uniforms are replaced by given ones.

    Parameters
    ----------
    coins : RoundCoins
        Where drafts and noise come from.
    accept, sample : float
        What every coin of the kind is.
    """

    def __init__(self, coins: RoundCoins, accept: float, sample: float) -> None:
        super().__init__(coins._source, coins.start)
        self._accept, self._sample = accept, sample

    def accept(self, i: int) -> float:  # noqa: ARG002
        """Return the same coin for every draft."""
        return self._accept

    def sample(self, i: int) -> float:  # noqa: ARG002
        """Return the same coin for every position."""
        return self._sample


def make_logits(count: int, size: int, device: str, kind: torch.dtype, seed: int = 0) -> Tensor:
    """Return logits with a spread of 3, made on the host so that all devices get the same."""
    rng = np.random.default_rng(seed)
    values = (3 * rng.normal(size=(count, size))).astype(np.float32)
    return torch.from_numpy(values).to(device).to(kind)


def make_rows(
    name: str, logits: Tensor, kappa: int, *, on_device: bool = True, seed: int = 0
) -> list[VerifyRow]:
    """Return the rows of one pass: all have ``kappa`` drafts from a drafter near the target.

    With ``on_device`` the laws of drafts stay where the logits are; else they are laws of
    the core.
    """
    rule, params = CASES[name]
    size = logits.shape[1]
    generator = torch.Generator().manual_seed(seed)
    noise = 0.7 * torch.randn(logits.shape, generator=generator)
    near = logits.float() + noise.to(logits.device)
    rng = np.random.default_rng(seed)
    rows = []
    for first in range(0, len(logits), kappa + 1):
        coins = CoinSource(seed, first).round(100)
        history = History(rng.integers(0, size, 300).tolist())
        places = [Place(first + i, params, history) for i in range(kappa)]
        drafted = draw_drafts(near, places, [coins.draft(i) for i in range(kappa)])
        tokens = tuple(entry[0] for entry in drafted)
        laws = tuple(entry[1] for entry in drafted)
        if not on_device:
            laws = tuple(law if law.is_one_hot else law.on_host() for law in laws)
        draft = Draft(tokens, None if "one-hot" in name or name == "greedy" else laws, "bench")
        rows.append(VerifyRow(f"r{first}", rule, draft, params, history, coins, None, first))
    return rows
