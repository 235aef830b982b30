"""``--sequential``: draw until an alarm or the budget, whichever comes first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli import audit_options as a

if TYPE_CHECKING:
    from draftproof.audit import Evidence
    from draftproof.audit.sequential import SequentialEvidence
    from draftproof.audit.subjects import Draws, Subject
    from draftproof.audit.watch import Watched

__all__ = ["Sequential", "drawn_evidence"]

Sequential = Annotated[
    bool,
    typer.Option(
        "--sequential",
        help="Stop at the first alarm; the false-alarm rate holds for the whole run. "
        "--draws is the budget.",
        rich_help_panel=a.STATISTICS,
    ),
]


def drawn_evidence(
    recipe: Callable[[], Subject],
    prompts: Sequence[Watched],
    size: a.AuditSize,
    evidence_of: Callable[[Sequence[Draws]], Evidence],
    *,
    first_seed: int,
    processes: int,
    is_sequential: bool,
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
    processes : int
        Processes that draw.
    is_sequential : bool
        Whether to stop at an alarm.
    say : callable of str
        For remarks.

    Returns
    -------
    Evidence or SequentialEvidence
        What was counted.
    """
    from draftproof.audit.looks import draw_in_looks
    from draftproof.audit.watch import BUDGET_FACTOR, watch

    most = max(len(each.law) for each in prompts)
    num = size.draws_for(most)
    if is_sequential and size.draws is None:
        num = math.ceil(BUDGET_FACTOR * num)
    shapes = "/".join(str(len(each.law)) for each in prompts)
    bound = "up to " if is_sequential else ""
    where = f" in {processes} processes" if processes > 1 else ""
    say(f"{bound}{num} draws of each of {len(prompts)} prompts, {shapes} outcomes{where}")
    if is_sequential:
        return watch(
            recipe,
            prompts,
            evidence_of,
            num,
            plan=size.plan(),
            first_seed=first_seed,
            processes=processes,
            say=say,
        )
    jobs = [(each.prompt_ids, each.policy) for each in prompts]
    (drawn,) = draw_in_looks(recipe, jobs, [num], first_seed=first_seed, processes=processes)
    return evidence_of(drawn)
