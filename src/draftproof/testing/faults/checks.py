"""The checks that every engine passes and every faulty one must fail.

``law``: the joint law of the texts, every branch of every coin taken, against products
of conditional laws. ``length``: the mean number of tokens of a pass, from the same
enumeration, against the right engine. ``ends``: real runs in which all coins stand at an
end of [0, 1); every token must be possible. ``text``: seed for seed, texts with drafts
against plain decoding. ``seeds``: texts of different seeds must differ. ``redraw``: what
a drafter drew against what its reported law gives for the same coin. ``logprobs``:
reported log probabilities against the law.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.core.history import History
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.engine import EngineCore
from draftproof.engine.request import TokenEvent
from draftproof.evidence import JointLaw, Outcome
from draftproof.testing.branching import Brancher, BranchingCoins, exact_law
from draftproof.testing.drafts import redrawn
from draftproof.testing.faults.fault import EngineFault, nothing_wrong
from draftproof.testing.faults.parts import CoinFactory, EngineParts
from draftproof.testing.faults.scene import PROMPT, STUDIED, STUDIED_SEED, Scene, reference_law

__all__ = ["CHECKS", "Enumeration", "Finding", "check_fault", "enumerate_engine", "run_scene"]

Plant = Callable[[EngineParts], EngineParts]

#: Largest total variation that float32 logits leave, and largest relative gap of lengths.
TOLERANCE = 1e-6
#: Seeds of the checks that run real texts.
_NUM_SEEDS = 24
#: Rounds that are drawn again.
_NUM_REDRAWN = 1500
#: The largest coin: the generator has 53 bits.
_LAST_COIN = 1 - 2.0**-53


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Parameters
    ----------
    check : str
        Its name.
    size : float
        How far the engine is off: a total variation, a relative gap of tokens per pass,
        or the share of runs that were wrong.
    is_caught : bool
        Whether the check fails the engine.
    """

    check: str
    size: float
    is_caught: bool


@dataclass(frozen=True, slots=True, eq=False)
class Enumeration:
    """The exact law of the texts of an engine, and how many passes they take.

    Parameters
    ----------
    law : mapping of tuple of int to float
        Probabilities by text.
    tokens_per_pass : float
        Mean tokens of a text over mean passes.
    """

    law: Mapping[Outcome, float]
    tokens_per_pass: float

    def row_over(self, reference: JointLaw) -> NDArray[np.float64]:
        """Return the law over the outcomes of a reference, and the mass outside them.

        Parameters
        ----------
        reference : JointLaw
            K outcomes.

        Returns
        -------
        ndarray of float64, shape (K + 1,)
            Sums to 1.
        """
        row = np.array([self.law.get(outcome, 0.0) for outcome in reference.outcomes])
        return np.append(row, max(0.0, 1.0 - math.fsum(row)))

    def total_variation(self, reference: JointLaw) -> float:
        """Return the distance from a reference.

        Parameters
        ----------
        reference : JointLaw
            The law that the texts should have.

        Returns
        -------
        float
            In [0, 1].
        """
        gaps = self.row_over(reference) - np.append(reference.probs, 0.0)
        return float(np.maximum(gaps, 0.0).sum())


@dataclass(frozen=True, slots=True)
class Run:
    """One text of the studied request.

    Parameters
    ----------
    tokens : tuple of TokenEvent
        Everything that was committed, perhaps past the horizon.
    num_passes : int
        Passes that it took.
    text : tuple of int
        The tokens up to the horizon.
    """

    tokens: tuple[TokenEvent, ...]
    num_passes: int
    text: Outcome


def run_scene(
    scene: Scene, plant: Plant, coins: CoinFactory, seed: int = STUDIED_SEED, **options: Any
) -> Run:
    """Run the studied request once.

    Parameters
    ----------
    scene : Scene
        The scene.
    plant : callable of EngineParts
        The defect.
    coins : callable of (int, int)
        Makes the coins of a request.
    seed : int
        Seed of the studied request.
    **options : object
        More fields of the request.

    Returns
    -------
    Run
        Its text; the engine is left as soon as that is long enough.
    """
    core = plant(scene.parts(coins)).build()
    for request in scene.before:
        core.submit(request)
        core.run()
    for request in scene.company:
        core.submit(request)
    core.submit(replace(scene.request(seed), **options))
    return _drive(core, scene.horizon)


def _drive(core: EngineCore, horizon: int) -> Run:
    tokens: list[TokenEvent] = []
    num_passes = 0
    is_open = True
    while is_open and len(tokens) < horizon:
        for output in core.step():
            if output.error is not None:
                raise output.error
            if output.request_id == STUDIED:
                tokens += output.tokens
                num_passes += 1
                is_open = output.finish_reason is None
    return Run(tuple(tokens), num_passes, tuple(event.token_id for event in tokens[:horizon]))


def enumerate_engine(scene: Scene, plant: Plant = nothing_wrong) -> Enumeration:
    """Return the exact law of an engine's texts.

    Parameters
    ----------
    scene : Scene
        The scene.
    plant : callable of EngineParts, optional
        The defect.

    Returns
    -------
    Enumeration
        From every branch of every coin of the studied request.
    """

    def program(brancher: Brancher) -> tuple[Outcome, int, int]:
        def coins(seed: int, stream: int) -> Any:
            if seed == STUDIED_SEED:
                return BranchingCoins(brancher)
            return CoinSource(seed, stream)

        run = run_scene(scene, plant, coins)
        return run.text, len(run.tokens), run.num_passes

    law: dict[Outcome, float] = {}
    tokens = passes = 0.0
    for (text, num_tokens, num_passes), prob in exact_law(program).items():
        law[text] = law.get(text, 0.0) + float(prob)
        tokens += float(prob) * num_tokens
        passes += float(prob) * num_passes
    return Enumeration(law, tokens / passes)


@cache
def right_enumeration(scene: Scene) -> Enumeration:
    """Return the law and the length of the right engine.

    Parameters
    ----------
    scene : Scene
        The scene.

    Returns
    -------
    Enumeration
        Made once per scene.
    """
    return enumerate_engine(scene)


def _enumeration(scene: Scene, plant: Plant) -> Enumeration:
    return right_enumeration(scene) if plant is nothing_wrong else enumerate_engine(scene, plant)


def _check_law(scene: Scene, plant: Plant) -> Finding:
    tv = _enumeration(scene, plant).total_variation(reference_law(scene))
    return Finding("law", tv, tv > TOLERANCE)


def _check_length(scene: Scene, plant: Plant) -> Finding:
    found = _enumeration(scene, plant).tokens_per_pass
    gap = abs(found / right_enumeration(scene).tokens_per_pass - 1)
    return Finding("length", gap, gap > TOLERANCE)


class _EndCoins:
    """Coins of a source that all stand at chosen ends."""

    def __init__(self, ends: tuple[float, ...], start: int = 0) -> None:
        self._ends = ends
        self.start = start

    def round(self, start: int) -> _EndCoins:
        return _EndCoins(self._ends, start)

    def draft(self, i: int) -> float:
        del i
        return self._ends[0]

    def accept(self, i: int) -> float:
        del i
        return self._ends[1]

    def sample(self, i: int) -> float:
        del i
        return self._ends[2]


def _all_at(ends: tuple[float, ...]) -> CoinFactory:
    return lambda _seed, _stream: _EndCoins(ends)


def _check_ends(scene: Scene, plant: Plant) -> Finding:
    reference = reference_law(scene)
    wrong = 0
    corners = list(itertools.product((0.0, 0.5, _LAST_COIN), repeat=3))
    for ends in corners:
        text = run_scene(scene, plant, _all_at(ends)).text
        wrong += reference.prob(text) == 0
    return Finding("ends", wrong / len(corners), wrong > 0)


def _check_text(scene: Scene, plant: Plant) -> Finding:
    plain = replace(scene, kappa=0, company=())
    wrong = 0
    for seed in range(_NUM_SEEDS):
        text = run_scene(scene, plant, CoinSource, seed).text
        wrong += text != run_scene(plain, nothing_wrong, CoinSource, seed).text
    return Finding("text", wrong / _NUM_SEEDS, wrong > 0)


def _check_seeds(scene: Scene, plant: Plant) -> Finding:
    long = replace(scene, horizon=60, constraints=None)
    texts = [run_scene(long, plant, CoinSource, seed).text for seed in range(_NUM_SEEDS)]
    repeated = len(texts) - len(set(texts))
    return Finding("seeds", repeated / len(texts), repeated > 0)


def _check_redraw(scene: Scene, plant: Plant) -> Finding:
    proposer = plant(scene.parts(CoinSource)).proposer
    drawn = wrong = 0
    for seed in range(_NUM_REDRAWN):
        request = ProposalRequest(
            STUDIED, PROMPT, scene.kappa, scene.params, History(PROMPT),
            CoinSource(seed).round(len(PROMPT)), scene.rule == "coupled",
        )  # fmt: skip
        (draft,) = proposer.propose([request])
        for _, token, again in redrawn(request, draft):
            drawn += 1
            wrong += token != again
    return Finding("redraw", wrong / drawn, wrong > 0)


def _check_logprobs(scene: Scene, plant: Plant) -> Finding:
    wrong = total = 0
    for seed in range(_NUM_SEEDS):
        run = run_scene(scene, plant, CoinSource, seed, logprobs=0, logprobs_mode="processed")
        reference = reference_law(scene)
        text: Outcome = ()
        for event in run.tokens:
            before = _prefix_mass(reference, text)
            text = (*text, event.token_id)
            expected = math.log(_prefix_mass(reference, text) / before)
            total += 1
            wrong += event.logprob is None or abs(event.logprob - expected) > 1e-5
    return Finding("logprobs", wrong / total, wrong > 0)


def _prefix_mass(law: JointLaw, prefix: Outcome) -> float:
    size = len(prefix)
    return math.fsum(
        prob for text, prob in zip(law.outcomes, law.probs, strict=True) if text[:size] == prefix
    )


#: Checks by name; each takes a scene and a defect.
CHECKS: Mapping[str, Callable[[Scene, Plant], Finding]] = MappingProxyType(
    {
        "law": _check_law,
        "length": _check_length,
        "ends": _check_ends,
        "text": _check_text,
        "seeds": _check_seeds,
        "redraw": _check_redraw,
        "logprobs": _check_logprobs,
    }
)


def check_fault(fault: EngineFault) -> Finding:
    """Run the check that must see a fault.

    Parameters
    ----------
    fault : EngineFault
        The fault.

    Returns
    -------
    Finding
        What the check found.
    """
    return CHECKS[fault.check](fault.scene, fault.plant)
