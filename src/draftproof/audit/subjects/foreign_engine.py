"""A foreign engine in an environment of its own, as a decoder under test."""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.subjects import workers
from draftproof.audit.subjects.draws import (
    Draws,
    Policy,
    RoundKind,
    overlong,
    own_seed,
    padded,
    placed_rounds,
    round_kind,
    totals_of,
)
from draftproof.audit.subjects.row_law import law_of_rows
from draftproof.audit.subjects.worker_process import WorkerProcess
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError
from draftproof.evidence import JointLaw, RoundSample

__all__ = ["ENGINES", "Description", "EngineProcessRecipe", "EngineProcessSubject"]

#: Engines that have a worker, by the name of their package.
ENGINES = ("llama_cpp", "openvino_genai", "transformers", "vllm")
#: Draws of one question: short of any sensible time limit, long enough to hide its cost.
_DRAWS_PER_CALL = 256


@dataclass(frozen=True, slots=True)
class Description:
    """What an engine says of itself.

    Parameters
    ----------
    versions : mapping of str to str
        Of Python and of the packages that take part.
    vocab_size : int
        Number of token ids.
    eos_token_ids : tuple of int
        Tokens that end a text.
    parameters : tuple of str
        Fields of `draftproof.core.params.SamplingParams` that it honours with our meaning.
    order : tuple of str
        Its order of filters, in the words of `SamplingParams.order`.
    """

    versions: Mapping[str, str]
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    parameters: tuple[str, ...]
    order: tuple[str, ...]

    @classmethod
    def of(cls, told: Any) -> Description:
        """Read an answer of a worker; raises BackendError if something is missing."""
        try:
            return cls(
                {str(k): str(v) for k, v in told["versions"].items()},
                int(told["vocab_size"]),
                tuple(map(int, told["eos_token_ids"])),
                tuple(map(str, told["parameters"])),
                tuple(map(str, told["order"])),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BackendError(f"a worker described its engine as {told!r}: {error!r}") from error


class EngineProcessSubject:
    """An engine behind a `WorkerProcess`.

    Parameters
    ----------
    worker : WorkerProcess
        Owned from here on; `close` ends it.
    options : mapping of str to object
        What the engine's ``Engine`` is made from.
    """

    def __init__(self, worker: WorkerProcess, options: Mapping[str, Any]) -> None:
        self._worker = worker
        try:
            self.description = Description.of(worker.ask("load", options=dict(options)))
        except BackendError:
            worker.close(keep_log=True)
            raise

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._worker.ask("encode", text=text)
        return ids

    def rows(self, texts: list[list[int]]) -> NDArray[np.float32]:
        """Return raw logits after some texts, in plain passes.

        Parameters
        ----------
        texts : list of list of int
            Token ids.

        Returns
        -------
        ndarray of float32, shape (n, V)
            One row per text.
        """
        told = self._worker.ask("rows", texts=texts)
        rows = np.array([np.frombuffer(base64.b64decode(row), "<f4") for row in told], np.float32)
        if rows.shape != (len(texts), self.description.vocab_size):
            raise BackendError(
                f"logits of shape {rows.shape}: expected {len(texts)} rows of "
                f"{self.description.vocab_size}"
            )
        return rows

    def in_its_order(self, policy: Policy) -> Policy:
        """Return a policy with the engine's order of filters and its end tokens.

        Parameters
        ----------
        policy : Policy
            The policy.

        Returns
        -------
        Policy
            The same knobs.

        Raises
        ------
        ConfigError
            If the engine lacks one that is not at rest.
        """
        resting = asdict(SamplingParams())
        for name, value in asdict(policy.params).items():
            known = name in self.description.parameters or name.startswith(("order", "stages"))
            if not known and value != resting[name]:
                raise ConfigError(
                    f"{name} {value!r}: expected {', '.join(self.description.parameters)} only, "
                    "which this engine has"
                )
        params = replace(policy.params, order=self.description.order)
        ends = policy.eos_token_ids | frozenset(self.description.eos_token_ids)
        return replace(policy, params=params, eos_token_ids=ends)

    def law(self, prompt_ids: Sequence[int], policy: Policy) -> JointLaw:
        """Enumerate the law of a continuation from the engine's own logits.

        Parameters
        ----------
        prompt_ids : sequence of int
            The prompt.
        policy : Policy
            What `in_its_order` gave.

        Returns
        -------
        JointLaw
            See `draftproof.audit.subjects.row_law.law_of_rows`.
        """
        return law_of_rows(self.rows, prompt_ids, policy)

    def draw(self, prompt_ids: Sequence[int], policy: Policy, num: int, first_seed: int) -> Draws:
        """Return continuations; see `draftproof.audit.subjects.Subject`.

        Every draw has a seed of its own, `own_seed` of ``first_seed + i``.
        """
        params = {name: getattr(policy.params, name) for name in self.description.parameters}
        asked = params | {
            "max_tokens": policy.horizon,
            "eos_token_ids": sorted(policy.eos_token_ids),
        }
        samples: list[list[int]] = []
        rounds: Counter[RoundKind] = Counter()
        placed: Counter[RoundSample] = Counter()
        drafting: list[int] = []
        totals: DraftTotals | None = DraftTotals(0, 0, 0)
        reports = True
        for begin in range(0, num, _DRAWS_PER_CALL):
            seeds = [
                own_seed(first_seed + i) for i in range(begin, min(begin + _DRAWS_PER_CALL, num))
            ]
            told = self._worker.ask("draw", prompt_ids=list(prompt_ids), policy=asked, seeds=seeds)
            if len(told["samples"]) != len(seeds):
                raise BackendError(f"{len(told['samples'])} samples, {len(seeds)} were asked for")
            samples += told["samples"]
            reports = reports and told.get("rounds") is not None
            for *kind, times in told.get("rounds") or ():
                rounds[round_kind(kind)] += times
            by_draw = told.get("by_draw")
            if by_draw is not None:
                found, number = placed_rounds(told["samples"], by_draw, policy.horizon)
                placed.update(found)
                drafting.append(number)
            part = told.get("totals")
            known = totals is not None and part is not None
            totals = totals + DraftTotals(**part) if totals is not None and known else None
        if drafting and reports:
            totals = totals_of(rounds, sum(drafting))
        tokens, too_long = padded(samples, policy.horizon), overlong(samples, policy)
        return Draws(tokens, dict(rounds), reports, totals, dict(placed), too_long)


@dataclass(frozen=True, slots=True)
class EngineProcessRecipe:
    """How to start an engine, from this process or another.

    Parameters
    ----------
    engine : str
        One of `ENGINES`, or the path of a file with a class ``Engine``.
    options : mapping of str to object
        What ``Engine`` is made from.
    python : Path
        The interpreter that has the engine.
    timeout_s : float, default 600
        Longest wait for one answer, in seconds.
    environment : mapping of str to str
        Variables added to the worker's.
    """

    engine: str
    options: Mapping[str, Any]
    python: Path = Path(sys.executable)
    timeout_s: float = 600.0
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an engine that nothing is known of."""
        if not self.file.is_file():
            raise ConfigError(
                f"engine {self.engine!r}: expected {', '.join(ENGINES)} or a file of Python"
            )
        if not math.isfinite(self.timeout_s) or self.timeout_s <= 0:
            raise ConfigError(f"timeout {self.timeout_s} s: expected more than 0")

    @property
    def file(self) -> Path:
        """The worker's file."""
        if self.engine in ENGINES:
            return Path(workers.__path__[0]) / f"{self.engine}_engine.py"
        return Path(self.engine)

    def __call__(self) -> EngineProcessSubject:
        """Start the worker and load the model."""
        worker = WorkerProcess(
            self.python, self.file, timeout_s=self.timeout_s, environment=self.environment
        )
        return EngineProcessSubject(worker, self.options)
