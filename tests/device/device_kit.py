"""Random passes, coins at the ends, and executors with a planted fault."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import draftproof.device as room
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft
from draftproof.verify import NumpyExecutor, VerifyRow

TOP = 1 - 2.0**-53
#: Sizes at and around the edges of blocks of 256.
SIZES = (2, 3, 5, 17, 255, 256, 257, 511, 512, 513, 1000, 2000)
RULES = ("standard", "block", "coupled", "sample-match")


class EndCoins:
    """Coins of a round of which some uniforms are replaced by given ones."""

    def __init__(self, coins, accept=None, sample=None) -> None:
        self.start = coins.start
        self._coins, self._accept, self._sample = coins, accept, sample

    def draft(self, i: int) -> float:
        return self._coins.draft(i)

    def accept(self, i: int) -> float:
        return self._coins.accept(i) if self._accept is None else self._accept

    def sample(self, i: int) -> float:
        return self._coins.sample(i) if self._sample is None else self._sample

    def noise(self, i: int, vocab_size: int):
        return self._coins.noise(i, vocab_size)


@dataclass(frozen=True)
class Pass:
    """The rows and logits of one pass."""

    rows: list[VerifyRow]
    logits: np.ndarray

    def truth(self) -> list[Any]:
        return NumpyExecutor().judge(self.rows, self.logits)


def random_params(rng: np.random.Generator, size: int, *, filters: bool = True) -> SamplingParams:
    pick = rng.choice
    if not filters:
        return SamplingParams(temperature=float(pick([0.0, 0.3, 1.0, 1.7])))
    bias = {int(t): float(rng.normal()) for t in rng.integers(0, size, rng.integers(0, 3))}
    return SamplingParams(
        temperature=float(pick([0.0, 0.3, 0.8, 1.0, 1.7])),
        top_k=int(pick([0, 0, 1, 2, 20, 3000])),
        top_p=float(pick([1.0, 1.0, 0.3, 0.9, 0.999])),
        min_p=float(pick([0.0, 0.0, 0.05, 0.5])),
        repetition_penalty=float(pick([1.0, 1.0, 1.3])),
        presence_penalty=float(pick([0.0, 0.0, 0.7])),
        frequency_penalty=float(pick([0.0, 0.0, -0.2])),
        logit_bias=bias if rng.random() < 0.3 else {},
        allowed_token_ids=tuple(range(0, size, 2)) if rng.random() < 0.1 else None,
        banned_token_ids=(1,) if rng.random() < 0.2 else (),
        min_tokens=int(pick([0, 0, 5])),
        eos_token_ids=frozenset({1, size + 5}),
    )


def random_logits(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Logits with ties, zeros of the law, equal rows of bf16 and wide or flat spreads."""
    logits = (rng.normal(size=(count, size)) * rng.choice([0.0, 0.3, 3.0, 30.0])).astype(np.float32)
    form = rng.integers(0, 4)
    if form == 0:
        logits = np.round(logits)
    elif form == 1:
        logits[rng.random(logits.shape) < 0.4] = -np.inf
        logits[:, rng.integers(0, size)] = 0.0
    return logits


def random_row(
    rng: np.random.Generator, logits: np.ndarray, seed: int, first: int, **fields: Any
) -> VerifyRow:
    """Draft for one row: one-hot, from dense laws, or from sparse ones."""
    kappa, size = len(logits) - 1, logits.shape[1]
    coins = fields.pop("coins", None) or CoinSource(seed, first).round(int(rng.integers(0, 50)))
    history = History(rng.integers(0, size, 4).tolist())
    for token in rng.integers(0, size, 3).tolist():
        history.append(token)
    kind = fields.pop("kind", rng.integers(0, 3))
    tokens, laws = [], []
    for i in range(kappa):
        near = (np.maximum(logits[i], -1e4) + rng.normal(size=size)).astype(np.float32)
        law = target_law(near, SamplingParams(top_k=5 if kind == 1 else 0), history)
        laws.append(law)
        tokens.append(int(near.argmax()) if kind == 0 else law.draw(coins.draft(i)))
    return VerifyRow(
        f"r{first}",
        fields.pop("rule", None) or str(rng.choice(RULES)),
        Draft(tuple(tokens), tuple(laws) if kind else None, "kit"),
        fields.pop("params", None) or random_params(rng, size),
        history,
        coins,
        None,
        first,
    )


def random_pass(seed: int, size: int, kappas: list[int], **fields: Any) -> Pass:
    """A ragged pass: one row per entry of ``kappas``."""
    rng = np.random.default_rng(seed)
    rows, parts, first = [], [], 0
    for kappa in kappas:
        logits = random_logits(rng, kappa + 1, size)
        rows.append(random_row(rng, logits, seed, first, **fields))
        parts.append(logits)
        first += kappa + 1
    return Pass(rows, np.concatenate(parts))


def same(one: Any, other: Any) -> bool:
    """Whether two entries of an executor's answer agree, errors by kind and words."""
    if isinstance(one, Exception):
        return type(one) is type(other) and str(one) == str(other)
    return bool(one == other)


def has_mass(row: VerifyRow, verdict: Any, logits: np.ndarray) -> bool:
    """Whether all emitted tokens have a positive probability under the definition."""
    if isinstance(verdict, Exception):
        return True
    tokens = [*row.draft.token_ids[: len(verdict.path)], verdict.token_id]
    laws = (
        target_law(logits[row.first_row + j], row.params, row.history, row.draft.token_ids[:j])
        for j in range(len(tokens))
    )
    return all(law.prob(token) > 0 for law, token in zip(laws, tokens, strict=True))


@contextmanager
def planted(*faults: tuple[str, str, str]) -> Iterator[type[room.TorchExecutor]]:
    """Give the executor class of a room with faults: module, right line, wrong line.

    The modules are compiled anew from their source under other names; those that are
    installed stay as they are.
    """
    folder = Path(room.__file__).parent
    names = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    texts = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in names}
    for module, right, wrong in faults:
        count = texts[module].count(right)
        assert count == 1, f"{right!r} stands {count} times in {module}"
        texts[module] = texts[module].replace(right, wrong)
    made: list[str] = []
    try:
        for name in names:
            full = f"planted_{name}"
            module_object = ModuleType(full)
            module_object.__spec__ = importlib.util.spec_from_loader(full, loader=None)
            sys.modules[full] = module_object
            made.append(full)
        for name in _in_order(texts):
            text = texts[name].replace("draftproof.device.", "planted_")
            exec(
                compile(text, f"planted_{name}.py", "exec"), sys.modules[f"planted_{name}"].__dict__
            )
        yield sys.modules["planted_executor"].TorchExecutor
    finally:
        for full in made:
            sys.modules.pop(full, None)


def _in_order(texts: dict[str, str]) -> list[str]:
    """Modules before those that import them; the kernels are not needed."""
    left = {name for name in texts if "triton" not in name and name != "kernels"}
    order: list[str] = []
    while left:
        ready = sorted(
            name
            for name in left
            if not any(
                f"from draftproof.device.{other} import" in texts[name].split("\nclass ")[0]
                for other in left - {name}
            )
        )
        order += ready
        left -= set(ready)
    return order
