"""Decoders under a policy matrix: our engine, and any server of completions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.matrix_run import Drawn, RefusedError
from draftproof.audit.shown_drafts import certain_draws
from draftproof.audit.subjects.draws import Policy, Subject, totals_of
from draftproof.audit.subjects.http_completions import HttpCompletions, RequestRefusedError
from draftproof.core.params import DEFAULT_ORDER
from draftproof.core.protocols import ModelBackend
from draftproof.errors import ConfigError
from draftproof.evidence.joint_law import JointLaw, Outcome
from draftproof.evidence.reference import enumerate_law

__all__ = ["DrawnMatrix", "ServerMatrix", "best_next_tokens"]


def best_next_tokens(
    target: ModelBackend, prompt_ids: Sequence[int]
) -> Callable[[Policy], list[int]]:
    """Return what ranks the next tokens after a prompt.

    Parameters
    ----------
    target : ModelBackend
        The model.
    prompt_ids : sequence of int
        The prompt.

    Returns
    -------
    callable of Policy
        Gives the possible next tokens, most probable first.
    """

    def ranked(policy: Policy) -> list[int]:
        law = enumerate_law(target, prompt_ids, policy.params, 1)
        order = sorted(range(len(law)), key=lambda slot: -law.probs[slot])
        return [law.outcomes[slot][0] for slot in order]

    return ranked


class DrawnMatrix:
    """A subject that gives token ids, against the model whose law it should keep.

    Parameters
    ----------
    subject : Subject
        The decoder; a `ConfigError` is a refusal.
    target : ModelBackend
        The model.
    prompt_ids : sequence of int
        The prompt.
    """

    def __init__(self, subject: Subject, target: ModelBackend, prompt_ids: Sequence[int]) -> None:
        self._subject = subject
        self._target = target
        self._prompt = tuple(prompt_ids)

    def law(self, policy: Policy) -> JointLaw:
        """Return the law under a policy."""
        return enumerate_law(
            self._target,
            self._prompt,
            policy.params,
            policy.horizon,
            eos_token_ids=policy.eos_token_ids,
        )

    def drawn(self, policy: Policy, num: int, first_seed: int) -> Drawn:
        """Draw; see `draftproof.audit.matrix_run.MatrixSubject`."""
        try:
            drawn = self._subject.draw(self._prompt, policy, num, first_seed)
        except ConfigError as error:
            raise RefusedError(str(error)) from error
        rows = [tuple(token for token in row if token >= 0) for row in drawn.tokens.tolist()]
        totals = drawn.totals
        if totals is None and drawn.reports_rounds:
            totals = totals_of(drawn.rounds, None)
        return Drawn(rows, _with_draws(totals, num, policy.horizon))


class ServerMatrix:
    """A server, held to the law of its texts.

    Parameters
    ----------
    server : HttpCompletions
        The server; a status of 400 to 499 is a refusal.
    target : ModelBackend
        A local copy of its model.
    decode : callable of sequence of int
        Turns ids into text.
    prompt : str or sequence of int
        What the server gets.
    prompt_ids : sequence of int
        The same as ids.
    order : tuple of str
        The server's filters, in the words of `SamplingParams.order`.
    """

    def __init__(
        self,
        server: HttpCompletions,
        target: ModelBackend,
        decode: Callable[[Sequence[int]], str],
        prompt: str | Sequence[int],
        prompt_ids: Sequence[int],
        order: tuple[str, ...] = DEFAULT_ORDER,
    ) -> None:
        self._server = server
        self._order = order
        self._target = target
        self._decode = decode
        self._prompt = prompt
        self._prompt_ids = tuple(prompt_ids)
        self._numbers: dict[str, int] = {}

    def law(self, policy: Policy) -> JointLaw:
        """Return the law of texts; texts have the same numbers under every policy."""
        law = enumerate_law(
            self._target,
            self._prompt_ids,
            replace(policy.params, order=self._order),
            policy.horizon,
            eos_token_ids=policy.eos_token_ids,
        )
        masses: defaultdict[Outcome, float] = defaultdict(float)
        for outcome, prob in zip(law.outcomes, law.probs.tolist(), strict=True):
            kept = [token for token in outcome if token not in law.eos_token_ids]
            masses[self._number(self._decode(kept))] += prob
        return JointLaw.from_mapping(masses, 1)

    def drawn(self, policy: Policy, num: int, first_seed: int) -> Drawn:
        """Draw; see `draftproof.audit.matrix_run.MatrixSubject`."""
        try:
            texts, drafts = self._server.answers(self._prompt, policy, num, first_seed)
        except (RequestRefusedError, ConfigError) as error:
            raise RefusedError(str(error)) from error
        return Drawn(
            [self._number(text) for text in texts], _with_draws(drafts, num, policy.horizon)
        )

    def _number(self, text: str) -> Outcome:
        return (self._numbers.setdefault(text, len(self._numbers)),)


def _with_draws(totals: DraftTotals | None, num: int, horizon: int) -> DraftTotals | None:
    """Return sums that say in how many of the draws drafts are certain."""
    if totals is None:
        return None
    return replace(totals, draws=min(num, math.ceil(certain_draws(totals, horizon))))
