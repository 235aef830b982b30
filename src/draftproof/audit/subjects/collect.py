"""From draws and a reference law to the evidence of one prompt."""

from __future__ import annotations

from draftproof.audit.draw_order import MOST_KEPT, DrawOrder
from draftproof.audit.evidence_file import ModelRows, PromptEvidence
from draftproof.audit.subjects.draws import Draws
from draftproof.evidence import JointLaw, RoundSample, count_draws, draw_slots
from draftproof.evidence.joint_law import Outcome

__all__ = ["prompt_evidence"]


def prompt_evidence(
    name: str, law: JointLaw, draws: Draws, model: ModelRows | None = None
) -> PromptEvidence:
    """Count draws against a law.

    Parameters
    ----------
    name : str
        Name of the prompt.
    law : JointLaw
        The reference.
    draws : Draws
        The continuations.
    model : ModelRows, optional
        Target and drafter, where they are known.

    Returns
    -------
    PromptEvidence
        With the order of the draws.
    """
    counts = count_draws(law, draws.tokens)
    slots = draw_slots(law, draws.tokens[:MOST_KEPT])
    samples = tuple(sorted(draws.samples.items(), key=_place))
    return PromptEvidence(
        name,
        law,
        counts,
        draws.log(),
        model,
        totals=draws.totals,
        samples=samples,
        num_overlong=draws.num_overlong,
        order=DrawOrder.of([len(law) if slot < 0 else slot for slot in slots]),
    )


def _place(pair: tuple[RoundSample, int]) -> tuple[Outcome, Outcome, int, Outcome]:
    sample = pair[0]
    return sample.prefix, sample.emitted, sample.num_accepted, sample.drafted or ()
