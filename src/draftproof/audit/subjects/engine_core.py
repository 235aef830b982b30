"""Draws from our own engine: many short requests in shared passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from draftproof.audit.subjects.draws import Draws, Policy, RoundKind, round_samples, totals_of
from draftproof.engine import EngineCore, GenerateRequest, GenerateResult, reads
from draftproof.evidence.joint_law import Outcome
from draftproof.evidence.localise import RoundSample

__all__ = ["EngineSubject", "tenant_of"]

#: Requests that wait at once: enough to fill every pass, few enough to hold no memory.
_WAITING = 2048


def tenant_of(core: EngineCore) -> str:
    """Return whose an audit's requests are: one tenant's where a drafter shares within it.

    Parameters
    ----------
    core : EngineCore
        The engine.

    Returns
    -------
    str
        Empty where no drafter reads it.
    """
    return "audit" if any(reads(each, "tenant") for each in core.proposers.values()) else ""


class EngineSubject:
    """An `EngineCore` as a decoder under test.

    Parameters
    ----------
    core : EngineCore
        The engine, with its drafter, rule and executor.
    num_lead : int, default 0
        Tokens at the start of every output that are certain and belong to the prompt:
        the first token after a prompt is drawn without drafts, so a model whose first
        token is certain shows a drafting round at once. They are dropped, and of the
        rounds only the first that drafts is kept, which starts from one and the same text.
    prediction : sequence of int, default ()
        Tokens that every output is expected to be, for drafters that read it.
    num_tail : int, default 0
        Tokens that are written past the horizon and dropped. A round drafts no more nodes
        than tokens are left, so that a tree at the end of a short text would never branch;
        with as many as it has nodes it does.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        num_lead: int = 0,
        prediction: Sequence[int] = (),
        num_tail: int = 0,
    ) -> None:
        self.core = core
        self._num_tail = num_tail
        self._num_lead = num_lead
        self._prediction = tuple(prediction)

    def draw(self, prompt_ids: Sequence[int], policy: Policy, num: int, first_seed: int) -> Draws:
        """Return continuations; see `draftproof.audit.subjects.Subject`."""
        prompt, tenant = tuple(prompt_ids), tenant_of(self.core)
        tokens = np.full((num, policy.horizon), -1, dtype=np.int64)
        rounds: Counter[RoundKind] = Counter()
        samples: Counter[RoundSample] = Counter()
        drafting = 0
        for begin in range(0, num, _WAITING):
            names = {}
            for index in range(begin, min(begin + _WAITING, num)):
                request = GenerateRequest(
                    prompt,
                    policy.params,
                    max_tokens=self._num_lead + policy.horizon + self._num_tail,
                    stop_token_ids=tuple(sorted(policy.eos_token_ids)),
                    ignore_eos=True,
                    seed=first_seed + index,
                    prediction=self._prediction,
                    tenant=tenant,
                )
                names[self.core.submit(request)] = index
            results = self.core.run()
            for name, index in names.items():
                result = results[name]
                output = self._output(result, policy.horizon)
                tokens[index, : len(output)] = output
                told = self._rounds(result, policy.horizon)
                kinds = [kind for kind, _drafts in told]
                drafts = [certain for _kind, certain in told]
                rounds.update(kinds)
                if not self._num_tail:  # else the last round reaches past the text
                    samples.update(round_samples(output, kinds, drafts))
                drafting += any(kind.drafted for kind in kinds)
        return Draws(tokens, dict(rounds), True, totals_of(rounds, drafting), dict(samples))

    def _output(self, result: GenerateResult, horizon: int) -> list[int]:
        if result.error is not None:
            raise result.error
        return result.token_ids[self._num_lead :][:horizon]

    def _rounds(
        self, result: GenerateResult, horizon: int
    ) -> list[tuple[RoundKind, Outcome | None]]:
        """Return the rounds of the text, with their drafts where their drafter had no choice."""
        past = len(result.prompt_ids) + self._num_lead + horizon
        last = len(result.records) - 1
        told: list[tuple[RoundKind, Outcome | None]] = []
        for index, record in enumerate(result.records):
            if record.position >= past:
                break
            cut = index == last and result.finish_reason == "stop"
            kind = RoundKind(record.depth, record.num_accepted, len(record.emitted), cut)
            drafts = record.drafted if record.is_certain else None
            if not self._num_lead:
                told.append((kind, drafts))
            elif record.drafted:
                return [(kind, drafts)]
        return told
