"""Judge the rows of a pass where its logits live, with torch.

Decisions are the definition's (`draftproof.verify.NumpyExecutor`) on the same coins.
What crosses to the host is a few integers per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.core.tree import TreeDraft, TreeVerdict
from draftproof.core.types import Draft
from draftproof.device.chains import has_sound_laws, pack_chains
from draftproof.device.follow import draw_places, race_places, visited, walk
from draftproof.device.greedy import greedy_tokens
from draftproof.device.laws import TorchLaws, to_device
from draftproof.device.place_laws import PlaceLaws
from draftproof.device.places import Place, Places, bucket, is_native, pack_places
from draftproof.device.reached import (
    as_words,
    chain_probs,
    greedy_probs,
    keep_chain,
    keep_walk,
    place_probs,
)
from draftproof.device.rules import judge_block, judge_standard
from draftproof.errors import ConfigError
from draftproof.verify import NumpyExecutor, TokenLogprobs, VerifyRow

__all__ = ["ExecutorCounts", "TorchExecutor"]


@dataclass(slots=True)
class ExecutorCounts:
    """How rows were judged, summed over the life of an executor.

    Parameters
    ----------
    num_native : int
        Rows decided on the device.
    num_near_edge : int
        Rows that met a coin near an edge.
    num_without_law : int
        Rows that reached logits without a law; the definition words their error.
    num_unsupported : int
        Rows of a kind that the device does not judge.
    """

    num_native: int = 0
    num_near_edge: int = 0
    num_without_law: int = 0
    num_unsupported: int = 0

    @property
    def num_by_definition(self) -> int:
        """Rows whose reached logits were copied to the host."""
        return self.num_near_edge + self.num_without_law + self.num_unsupported


@dataclass(frozen=True, slots=True)
class _Job:
    """A row that the device can judge: its index in the pass and its places."""

    index: int
    row: VerifyRow
    draft: Draft | TreeDraft
    places: tuple[Place, ...]

    @property
    def is_traced(self) -> bool:
        return self.row.reached is not None


class TorchExecutor:
    """An executor for logits held as a torch tensor, on any device and of any float type.

    Parameters
    ----------
    near_edge : {"definition", "keep"}
        What happens to a row that met a coin so near to an edge that rounding decides:
        ``"definition"`` copies the logits that the row reaches and lets the definition
        decide, so that decisions are identical in every case; ``"keep"`` keeps the
        device's decision, and the row is counted.
    kernels : {"auto", "torch", "triton"}
        What computes the laws of policies that have a temperature and nothing else, and
        greedy tokens: ``"triton"`` reads the logits and writes no weights; ``"auto"``
        takes it on CUDA where triton is installed. Other policies, and races, use torch.
    pad : bool, optional
        Whether sizes are padded to buckets, so that passes of similar size run the same
        kernels on the same shapes. None says so on every device but the CPU.

    Raises
    ------
    ConfigError
        If ``near_edge`` or ``kernels`` is unknown.

    Notes
    -----
    Judged on the device: the rules ``standard`` and ``block`` on chains, ``coupled``,
    ``sample-match`` and ``target-only`` on chains and trees, and greedy policies under
    every rule; any policy in the usual order of stages; grammars, as a mask per place;
    drafts with laws on the device or on the host. Judged by the definition, and counted:
    rules that are not exact, sampled trees under ``recursive`` and ``traversal``, other
    orders of stages, and rows whose draft or policy the definition refuses.
    """

    def __init__(
        self,
        near_edge: str = "definition",
        *,
        kernels: str = "auto",
        pad: bool | None = None,
    ) -> None:
        if near_edge not in ("definition", "keep"):
            raise ConfigError(f"near_edge {near_edge!r}: expected definition or keep")
        if kernels not in ("auto", "torch", "triton"):
            raise ConfigError(f"kernels {kernels!r}: expected auto, torch or triton")
        self._kernels = kernels
        self.counts = ExecutorCounts()
        self._keeps_near = near_edge == "keep"
        self._pad = pad
        self._definition = NumpyExecutor()

    def judge(self, rows: Sequence[VerifyRow], logits: Any) -> list[TreeVerdict | Exception]:
        """Decide every row; see `draftproof.verify.Executor`."""
        tensor = as_tensor(logits)
        groups: dict[str, list[_Job]] = {}
        verdicts: dict[int, TreeVerdict | Exception] = {}
        for index, row in enumerate(rows):
            kind, job = _sort(index, row, tensor.shape[1])
            if job is not None:
                groups.setdefault(kind, []).append(job)
        for kind, jobs in groups.items():
            for job, verdict in zip(jobs, self._judge_group(kind, jobs, tensor), strict=True):
                if verdict is not None:
                    verdicts[job.index] = verdict
        self.counts.num_native += len(verdicts)
        self.counts.num_unsupported += len(rows) - sum(map(len, groups.values()))
        for index, row in enumerate(rows):
            if index not in verdicts:
                verdicts[index] = self._definition.judge([row], HostRows(tensor))[0]
        return [verdicts[index] for index in range(len(rows))]

    def logprobs(
        self, row: VerifyRow, logits: Any, node: int, token: int, top: int, *, processed: bool
    ) -> TokenLogprobs:
        """Report log probabilities; see `draftproof.verify.Executor`.

        One row is copied to the host, and the definition reads it: reports are asked for
        by few requests, and must agree with those of other executors.
        """
        held = HostRows(as_tensor(logits))
        return self._definition.logprobs(row, held, node, token, top, processed=processed)

    def _judge_group(
        self, kind: str, jobs: Sequence[_Job], logits: Tensor
    ) -> list[TreeVerdict | None]:
        """Judge rows of one kind; None where the definition must decide."""
        if kind in ("standard", "block"):
            return self._judge_ratio(kind, jobs, logits)
        places = [place for job in jobs for place in job.places]
        packed = pack_places(places, logits.shape[1], self._size(len(places), logits))
        laws: PlaceLaws | None = None
        if kind == "greedy":
            tokens, is_bad = self._greedy(logits, packed)
            is_near = torch.zeros_like(is_bad)
        elif kind == "race":
            laws = raced = TorchLaws(logits, packed)
            noise = [
                job.row.coins.noise(len(place.extra), logits.shape[1])
                for job in jobs
                for place in job.places
            ]
            tokens, is_near = race_places(raced, noise, logits.shape[1])
            is_bad = raced.is_bad[: len(places)]
        else:
            laws = self._laws(logits, packed)
            is_bad = laws.is_bad
            coins = np.full(len(packed), 0.5)
            coins[: len(places)] = [
                job.row.coins.sample(len(place.extra)) for job in jobs for place in job.places
            ]
            tokens, is_near = draw_places(laws, to_device(coins, logits.device))
        parts = torch.stack([tokens, is_near.long(), is_bad.long()])
        if laws is not None and any(job.is_traced for job in jobs):
            probs = place_probs(laws, [job.draft for job in jobs], tokens)
            parts = torch.cat([parts[:, : len(places)], as_words(probs)])
        crossing = parts.cpu().numpy()
        verdicts: list[TreeVerdict | None] = []
        begin = 0
        for job in jobs:
            here = crossing[:, begin : begin + len(job.places)]
            verdicts.append(self._follow(job, here))
            begin += len(job.places)
        return verdicts

    def _follow(self, job: _Job, crossed: NDArray[np.int64]) -> TreeVerdict | None:
        """Walk along the target's tokens of one row, by the numbers that crossed."""
        tokens, near, bad = crossed[:3]
        verdict = walk(job.draft, tokens.tolist())
        at = np.add(visited(verdict), 1)
        settled = self._settle(verdict, bool(near[at].any()), bool(bad[at].any()))
        if settled is not None and job.row.reached is not None:
            is_greedy = len(crossed) == 3
            probs = (
                greedy_probs(job.draft, tokens.tolist()) if is_greedy else crossed[3:].view("f8")
            )
            keep_walk(job.row.reached, job.draft, verdict, probs)
        return settled

    def _judge_ratio(
        self, kind: str, jobs: Sequence[_Job], logits: Tensor
    ) -> list[TreeVerdict | None]:
        """Judge chains by the ratio of target and draft."""
        places = [place for job in jobs for place in job.places]
        vocab_size = logits.shape[1]
        ends = np.cumsum([len(job.places) for job in jobs])
        drafts = [job.draft for job in jobs if isinstance(job.draft, Draft)]
        chains = pack_chains(
            [job.row for job in jobs],
            drafts,
            [int(end) - len(job.places) for end, job in zip(ends, jobs, strict=True)],
            vocab_size,
            logits.device,
            pad=self._pads(logits),
        )
        packed = pack_places(places, vocab_size, self._size(len(places), logits))
        laws = self._laws(logits, packed)
        decision = (judge_standard if kind == "standard" else judge_block)(laws, chains)
        parts = torch.stack([part.long() for part in decision])
        if any(job.is_traced for job in jobs):
            probs = chain_probs(laws, chains, decision.accepted, decision.tokens)
            parts = torch.cat([parts, as_words(probs.T)])
        crossing = parts[:, : len(jobs)].cpu().numpy()
        verdicts: list[TreeVerdict | None] = []
        for job, draft, crossed in zip(jobs, drafts, crossing.T, strict=True):
            accepted, token, near, bad = crossed[:4].tolist()
            settled = self._settle(_verdict(draft, accepted, token), bool(near), bool(bad))
            if settled is not None and job.row.reached is not None:
                numbers = np.ascontiguousarray(crossed[4:]).view(np.float64).tolist()
                keep_chain(job.row.reached, kind, draft, accepted, numbers)
            verdicts.append(settled)
        return verdicts

    def _laws(self, logits: Tensor, places: Places) -> PlaceLaws:
        if places.is_plain and self._has_kernels(logits):
            from draftproof.device.triton_laws import TritonLaws

            return TritonLaws(logits, places)
        return TorchLaws(logits, places)

    def _greedy(self, logits: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        if places.edits is None and self._has_kernels(logits):
            from draftproof.device.triton_laws import triton_greedy

            return triton_greedy(logits, places)
        return greedy_tokens(logits, places)

    def _has_kernels(self, logits: Tensor) -> bool:
        if self._kernels != "auto":
            return self._kernels == "triton"
        return logits.device.type == "cuda" and find_spec("triton") is not None

    def _settle(self, verdict: TreeVerdict, is_near: bool, is_bad: bool) -> TreeVerdict | None:
        """Count a row, and return its verdict unless the definition must decide."""
        if is_bad:
            self.counts.num_without_law += 1
            return None
        if is_near and not self._keeps_near:
            self.counts.num_near_edge += 1
            return None
        return verdict

    def _pads(self, logits: Tensor) -> bool:
        return logits.device.type != "cpu" if self._pad is None else self._pad

    def _size(self, count: int, logits: Tensor) -> int:
        return bucket(count) if self._pads(logits) else count


class HostRows:
    """Rows of logits that are copied to the host when they are asked for.

    Parameters
    ----------
    logits : Tensor, shape (M, V)
        The logits.
    """

    __slots__ = ("_held", "_logits")

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self._held: dict[int, NDArray[np.float32]] = {}

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        """Return one row, shape (V,)."""
        if row not in self._held:
            self._held[row] = self._logits[row].float().cpu().numpy()
        return self._held[row]


def as_tensor(logits: Any) -> Tensor:
    """Return logits as a tensor, without a copy where that is possible."""
    if isinstance(logits, Tensor):
        tensor = logits.detach()
    else:
        array = np.asarray(logits)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if tensor.ndim != 2 or not tensor.is_floating_point():
        shape = tuple(tensor.shape)
        raise ConfigError(f"logits {shape} of {tensor.dtype}: expected (M, V) of a float type")
    return tensor


def _sort(index: int, row: VerifyRow, vocab_size: int) -> tuple[str, _Job | None]:
    """Name the group that judges a row; no job where that is the definition."""
    try:
        kind = _kind(row, vocab_size)
        if not kind:
            return kind, None
        places = tuple(_places(row))
    except Exception:  # noqa: BLE001  the definition meets the same error, as this row's own
        return "", None
    if not all(is_native(place, vocab_size) for place in places):
        return "", None
    return kind, _Job(index, row, row.draft, places)


def _kind(row: VerifyRow, vocab_size: int) -> str:
    draft = row.draft
    if not isinstance(row.rule, str):
        return ""
    if isinstance(draft, TreeDraft):
        sound = all(0 <= token < vocab_size for token in draft.token_ids)
        own = row.rule in ("target-only", "coupled")
        if row.rule in ("recursive", "traversal"):
            own = row.params.is_greedy and draft.child_laws is None
    else:
        sound = has_sound_laws(draft, vocab_size)
        own = row.rule in ("standard", "block", "coupled", "sample-match")
    if not (sound and own):
        return ""
    if row.params.is_greedy:
        return "greedy"
    if row.rule == "coupled":
        return "race"
    if row.rule in ("target-only", "sample-match"):
        return "draw"
    return "standard" if not len(draft) else row.rule


def _verdict(draft: Draft, accepted: int, token: int) -> TreeVerdict:
    path = tuple(range(accepted))
    if accepted < len(draft):
        return TreeVerdict(path, token, "recovered")
    return TreeVerdict(path, token, "bonus" if path else "sampled")


def _places(row: VerifyRow) -> list[Place]:
    places = []
    for node in range(-1, len(row.draft)):
        extra = row.drafted_before(node)
        allowed = None if row.constraint is None else row.constraint.allowed(extra)
        places.append(Place(row.first_row + 1 + node, row.params, row.history, extra, allowed))
    return places
