"""From a subject and its laws to evidence: a fixed number of draws, or until an alarm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from draftproof.cli import audit_options as a

if TYPE_CHECKING:
    from draftproof.audit import Evidence
    from draftproof.audit.sequential import SequentialEvidence
    from draftproof.audit.subjects import Draws, Subject
    from draftproof.audit.watch import Watched

__all__ = ["drawn_evidence"]


def drawn_evidence(
    recipe: Callable[[], Subject],
    prompts: Sequence[Watched],
    size: a.AuditSize,
    evidence_of: Callable[[Sequence[Draws]], Evidence],
    *,
    first_seed: int,
    hands: a.Hands,
    say: Callable[[str], None],
) -> Evidence | SequentialEvidence:
    """Draw a fixed number, or until the evidence decides.

    Parameters
    ----------
    recipe : callable
        Makes the subject; picklable for several processes.
    prompts : sequence of Watched
        Prompts with laws and policies.
    size : AuditSize
        Rates and draws; the budget of a sequential audit is larger by what looking costs.
    evidence_of : callable
        Makes the evidence of the draws of each prompt.
    first_seed : int
        Draw ``i`` of prompt ``j`` has the seed ``first_seed + j * draws + i``.
    hands : Hands
        Who draws.
    say : callable of str
        For remarks.

    Returns
    -------
    Evidence or SequentialEvidence
        What was counted.
    """
    from draftproof.audit.subjects.fan_out import draw_in_looks
    from draftproof.audit.watch import BUDGET_FACTOR, watch

    most = max(len(each.law) for each in prompts)
    num = size.draws_for(most)
    if size.is_sequential and size.draws is None:
        num = math.ceil(BUDGET_FACTOR * num)
    shapes = "/".join(str(len(each.law)) for each in prompts)
    bound = "up to " if size.is_sequential else ""
    where = f" in {hands.processes} processes" if hands.processes > 1 else ""
    if hands.ray is not None:
        where = f" on the Ray cluster {hands.ray}"
    say(f"{bound}{num} draws of each of {len(prompts)} prompts, {shapes} outcomes{where}")
    if size.is_sequential:
        return watch(
            recipe,
            prompts,
            evidence_of,
            num,
            plan=size.plan(),
            first_seed=first_seed,
            processes=hands.processes,
            ray=hands.ray,
            say=say,
        )
    jobs = [(each.prompt_ids, each.policy) for each in prompts]
    (drawn,) = draw_in_looks(
        recipe,
        jobs,
        [num],
        first_seed=first_seed,
        processes=hands.processes,
        ray=hands.ray,
    )
    return evidence_of(drawn)
