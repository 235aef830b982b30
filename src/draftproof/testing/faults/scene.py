"""A small engine that is right, and the law that its texts should have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from draftproof.backends.table import PagedStore, ProbabilityTable, TableBackend, TokenStore
from draftproof.core.constraint import ConstraintFactory, GrammarSpec
from draftproof.core.history import History
from draftproof.core.params import SamplingParams
from draftproof.core.policy import target_law
from draftproof.core.protocols import Proposer
from draftproof.engine import GenerateRequest
from draftproof.evidence import JointLaw, Outcome
from draftproof.testing.faults.parts import CoinFactory, EngineParts

__all__ = ["PROMPT", "STUDIED", "STUDIED_SEED", "Scene", "reference_law"]

#: Every studied request begins with this.
PROMPT: Outcome = (0, 1, 0)
#: Name and seed of the request whose texts are studied.
STUDIED, STUDIED_SEED = "studied", 77


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A request on a small engine.

    Parameters
    ----------
    name : str
        Name of the scene.
    table : ProbabilityTable
        The target.
    drafter : callable
        Makes the drafter anew.
    rule : str, default "standard"
        The verification rule.
    kappa : int, default 2
        Most drafts of a round.
    horizon : int, default 4
        Tokens of a text.
    params : SamplingParams, optional
        The policy.
    eos_token_ids : frozenset of int
        Ids that end a text.
    store : callable, optional
        Makes the target's memory.
    room : int, default 0
        How much longer the request may grow than the text that is studied: the last
        rounds of a text would otherwise be too short for a tree.
    window : int, optional
        How many tokens the memory lets the target see; None for all.
    constraints : ConstraintFactory, optional
        Makes the state of the grammar; None for a request without one.
    before : tuple of GenerateRequest
        Requests that run to their end first, on the same engine.
    company : tuple of GenerateRequest
        Requests that run beside the studied one, in rows before it.
    """

    name: str
    table: ProbabilityTable
    drafter: Callable[[], Proposer]
    rule: str | None = "standard"
    kappa: int = 2
    horizon: int = 4
    params: SamplingParams = field(default_factory=SamplingParams)
    eos_token_ids: frozenset[int] = frozenset()
    store: Callable[[], TokenStore] = PagedStore
    room: int = 0
    window: int | None = None
    constraints: ConstraintFactory | None = None
    before: tuple[GenerateRequest, ...] = ()
    company: tuple[GenerateRequest, ...] = ()

    def parts(self, coins: CoinFactory) -> EngineParts:
        """Return fresh parts of the right engine.

        Parameters
        ----------
        coins : callable of (int, int)
            Makes the coins of a request.

        Returns
        -------
        EngineParts
            Parts that nothing has used yet.
        """
        return EngineParts(
            target=TableBackend(self.table, self.store()),
            proposer=self.drafter(),
            coins=coins,
            rule=self.rule,
            kappa=self.kappa,
            eos_token_ids=self.eos_token_ids,
            constraints=self.constraints,
        )

    def request(self, seed: int | None = STUDIED_SEED, name: str = STUDIED) -> GenerateRequest:
        """Return the request whose texts are studied.

        Parameters
        ----------
        seed : int, optional
            Its seed; None for a fresh one.
        name : str, default "studied"
            Its id.

        Returns
        -------
        GenerateRequest
            The request.
        """
        return GenerateRequest(
            PROMPT,
            self.params,
            max_tokens=self.horizon + self.room,
            seed=seed,
            request_id=name,
            grammar=None if self.constraints is None else GrammarSpec("choice", "[]"),
        )


@cache
def reference_law(scene: Scene) -> JointLaw:
    """Return the law of plain decoding: products of conditional laws, by no engine.

    Parameters
    ----------
    scene : Scene
        The scene.

    Returns
    -------
    JointLaw
        Its texts; with a grammar each ends where that is complete.
    """
    law: dict[Outcome, float] = {}

    def visit(output: Outcome, prob: float) -> None:
        for token, share in enumerate(_next_probs(scene, output)):
            text = (*output, token)
            if share == 0:
                continue
            is_last = len(text) == scene.horizon or (
                token in scene.eos_token_ids and len(text) >= scene.params.min_tokens
            )
            if is_last:
                law[text] = prob * float(share)
            else:
                visit(text, prob * float(share))

    visit((), 1.0)
    return JointLaw.from_mapping(law, scene.horizon, scene.eos_token_ids)


def _next_probs(scene: Scene, output: Outcome) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    context = np.array([*PROMPT, *output], dtype=np.int64)
    positions = np.arange(len(context), dtype=np.int64)
    first = 0 if scene.window is None else max(0, len(context) - scene.window)
    with np.errstate(divide="ignore"):
        logits = np.log(scene.table.probs(context[first:], positions[first:])).astype(np.float32)
    params = scene.params
    if params.min_tokens:
        params = replace(params, eos_token_ids=scene.eos_token_ids)
    allowed = None
    if scene.constraints is not None:
        allowed = scene.constraints(GrammarSpec("choice", "[]")).allowed(output)
    return target_law(logits, params, History(PROMPT), output, allowed).dense()
