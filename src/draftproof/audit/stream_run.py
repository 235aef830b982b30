"""Run the audit of long texts on our engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.evidence_file import Plan
from draftproof.audit.forced import draft_law_at, forced_laws, law_distance
from draftproof.audit.repeated_texts import TextMarks
from draftproof.audit.stream import PromptDrafts, StreamEvidence, StreamLook
from draftproof.audit.subjects.engine_core import tenant_of
from draftproof.audit.told_states import ToldStates
from draftproof.core.history import History
from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest, GenerateResult
from draftproof.errors import ConfigError
from draftproof.evidence.calibration import seed_of
from draftproof.evidence.stream import StreamAudit, StreamBets

__all__ = ["NamedPrompt", "measured_tolerance", "watch_stream"]

#: Name and token ids.
NamedPrompt = tuple[str, Sequence[int]]

#: Texts that the engine writes at once.
_TEXTS = 16
#: Places whose bets are kept for the sensitivity.
_SAMPLE = 1500
#: Tokens of a text on which the noise of pass shapes is measured, and the margin over
#: the largest that was seen.
_MEASURED, _MARGIN = 48, 2.0


@dataclass(slots=True)
class _Sample:
    """Bets at the first places where the drafter has a law."""

    rng: np.random.Generator
    right: list[tuple[float, ...]] = field(default_factory=list)
    wrong: list[tuple[float, ...]] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)

    def add(self, bets: StreamBets, p: NDArray[np.float64], q: NDArray[np.float64]) -> None:
        """Draw a token of either law at each place, and keep what the bets turn on."""
        rows = np.flatnonzero(q.sum(axis=1) > 0)[: _SAMPLE - len(self.right)]
        if not len(rows):
            return
        p, q = p[rows], q[rows]
        self.distances += law_distance(p, q).tolist()
        for laws, kept in ((p, self.right), (q, self.wrong)):
            edges = np.cumsum(laws, axis=1)
            at = self.rng.random(len(rows)) * edges[:, -1]
            tokens = np.array(
                [np.searchsorted(edge, u, "right") for edge, u in zip(edges, at, strict=True)]
            )
            kept += [tuple(row) for row in np.round(bets.gaps(p, q, tokens), 6).tolist()]


def measured_tolerance(
    core: EngineCore, prompt_ids: Sequence[int], output_ids: Sequence[int], params: SamplingParams
) -> float:
    """Measure how far laws move with the shape of a pass.

    Parameters
    ----------
    core : EngineCore
        The engine.
    prompt_ids : sequence of int
        A prompt.
    output_ids : sequence of int
        A text that follows it.
    params : SamplingParams
        The policy.

    Returns
    -------
    float
        Twice the largest total variation between rows of one token, of four and a
        prefill, over the first 48 tokens.
    """
    text = output_ids[:_MEASURED]
    whole, *others = (
        np.concatenate(list(forced_laws(core.target, prompt_ids, text, params, width)))
        for width in (len(text), 1, 4)
    )
    return _MARGIN * max(float(law_distance(whole, laws).max()) for laws in others)


def watch_stream(
    core: EngineCore,
    subject: str,
    prompts: Sequence[NamedPrompt],
    params: SamplingParams,
    plan: Plan,
    *,
    budget: int,
    text_tokens: int,
    first_seed: int,
    bets: StreamBets | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> StreamEvidence:
    """Let the engine write until the evidence raises the alarm or the budget is spent.

    Parameters
    ----------
    core : EngineCore
        The engine, with its default drafter.
    subject : str
        What it is called in the certificate.
    prompts : sequence of (str, sequence of int)
        Names and token ids, taken in turn.
    params : SamplingParams
        The policy; filters leave no full vocabulary and are refused.
    plan : Plan
        Rates, decided beforehand.
    budget : int
        Most tokens.
    text_tokens : int
        Tokens of a text.
    first_seed : int
        Text ``i`` has the seed ``first_seed + i``.
    bets : StreamBets, optional
        The bets; by default with a tolerance that is measured on the first text.
    say : callable of str
        Gets a line now and then.

    Returns
    -------
    StreamEvidence
        Wealth after every text, and what the sensitivity is simulated from.

    Raises
    ------
    ConfigError
        If the policy filters or is greedy, or there is nothing to write.
    """
    if params.is_greedy or params.top_k or params.top_p < 1 or params.min_p:
        raise ConfigError(
            "a stream is audited over the full vocabulary: expected a temperature above 0 and no "
            "top_k, top_p or min_p"
        )
    if not prompts or text_tokens < 1 or budget < 1:
        raise ConfigError(f"{budget} tokens in texts of {text_tokens}: expected 1 or more")
    reader: _Reader | None = None
    index = 0
    while (reader is None or not reader.audit.is_alarmed) and index * text_tokens < budget:
        count = min(_TEXTS, math.ceil((budget - index * text_tokens) / text_tokens))
        named = [prompts[n % len(prompts)] for n in range(index, index + count)]
        asked = [tuple(ids) for _, ids in named]
        results = _write(core, asked, params, text_tokens, first_seed + index)
        if reader is None:
            first = results[0].token_ids
            if bets is None:
                bets = StreamBets(tolerance=measured_tolerance(core, asked[0], first, params))
            reader = _Reader(core, params, StreamAudit(bets, plan.alpha), plan.seed)
        for (name, _), ids, result in zip(named, asked, results, strict=True):
            reader.read(name, ids, result)
            if reader.audit.is_alarmed:
                break
        index += count
        odds = math.exp(min(reader.audit.log_e, 700.0))
        say(f"{reader.audit.num_tokens} tokens, evidence of {odds:.3g} to 1 against exactness")
    assert reader is not None  # narrows the type
    return reader.evidence(subject, plan, budget, [name for name, _ in prompts])


def _write(
    core: EngineCore,
    prompts: Sequence[tuple[int, ...]],
    params: SamplingParams,
    text_tokens: int,
    first_seed: int,
) -> list[GenerateResult]:
    names = [
        core.submit(
            GenerateRequest(
                ids,
                params,
                max_tokens=text_tokens,
                ignore_eos=True,
                seed=first_seed + number,
                tenant=tenant_of(core),
            )
        )
        for number, ids in enumerate(prompts)
    ]
    results = core.run()
    for name in names:
        error = results[name].error
        if error is not None:
            raise error
    return [results[name] for name in names]


class _Reader:
    """Reads texts with target and drafter beside it, and bets."""

    def __init__(
        self, core: EngineCore, params: SamplingParams, audit: StreamAudit, seed: int
    ) -> None:
        self.audit = audit
        self._core = core
        self._params = params
        self._sample = _Sample(seed_of(seed, "sample"))
        self._looks: list[StreamLook] = []
        self._texts: list[TextMarks] = []
        self._num_with_law = 0
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    def read(self, prompt: str, prompt_ids: tuple[int, ...], result: GenerateResult) -> None:
        self._drafted[prompt] += result.stats.num_draft_tokens
        self._accepted[prompt] += result.stats.num_accepted_tokens
        audit, text = self.audit, result.token_ids
        name = f"audit of {result.request_id}"
        drafter = self._core.proposers.get(self._core.default_proposer)
        history = History(prompt_ids)
        at = 0
        probs: list[float] = []
        held = () if drafter is None else (drafter,)
        states = ToldStates(self._core.target, [*prompt_ids, *text], held)
        try:
            for p in forced_laws(self._core.target, prompt_ids, text, self._params):
                tokens = text[at : at + len(p)]
                q = np.zeros_like(p)
                for row, token in zip(q, tokens, strict=True):
                    before = [*prompt_ids, *text[:at]]
                    law = None
                    if drafter is not None:
                        states.tell(drafter, name, len(before))
                        law = draft_law_at(drafter, name, before, self._params, history, len(row))
                    if law is not None:
                        row[:] = law.dense()
                    history.append(token)
                    at += 1
                audit.add(p, q, tokens)
                probs += p[np.arange(len(p)), list(tokens)].tolist()
                self._num_with_law += int((q.sum(axis=1) > 0).sum())
                self._sample.add(audit.bets, p, q)
        finally:
            if drafter is not None:
                drafter.release(name)
        self._texts.append(TextMarks.of(prompt, text, probs, audit.bets.tolerance))
        wealth = tuple(audit.log_wealth.tolist())
        self._looks.append(StreamLook(audit.num_tokens, audit.num_impossible, wealth))

    def evidence(
        self, subject: str, plan: Plan, budget: int, prompts: Sequence[str]
    ) -> StreamEvidence:
        distances = self._sample.distances
        # A prompt that the budget never came to has drafted nothing.
        drafts = (
            PromptDrafts(name, self._drafted[name], self._accepted[name])
            for name in dict.fromkeys(prompts)
        )
        return StreamEvidence(
            subject,
            plan,
            self.audit.bets,
            budget,
            tuple(self._looks),
            self._num_with_law,
            float(np.mean(distances)) if distances else math.nan,
            (tuple(self._sample.right), tuple(self._sample.wrong)),
            tuple(drafts),
            texts=tuple(self._texts),
        )
