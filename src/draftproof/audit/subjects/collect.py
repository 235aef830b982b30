"""From draws and a reference law to the evidence of one prompt."""

from __future__ import annotations

from draftproof.audit.evidence_file import ModelRows, PromptEvidence
from draftproof.audit.subjects.draws import Draws
from draftproof.evidence import JointLaw, RoundSample, count_draws, draw_slots
from draftproof.evidence.joint_law import Outcome

__all__ = ["prompt_evidence"]

#: Draws whose order is kept to test whether they depend on each other.
_SERIAL = 5000


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
        With the order of the first draws.
    """
    counts = count_draws(law, draws.tokens)
    serial = draw_slots(law, draws.tokens[:_SERIAL])
    samples = tuple(sorted(draws.samples.items(), key=_place))
    return PromptEvidence(
        name,
        law,
        counts,
        draws.log(),
        model,
        serial,
        draws.totals,
        samples,
        draws.num_overlong,
    )


def _place(pair: tuple[RoundSample, int]) -> tuple[Outcome, Outcome, int, Outcome]:
    sample = pair[0]
    return sample.prefix, sample.emitted, sample.num_accepted, sample.drafted or ()
