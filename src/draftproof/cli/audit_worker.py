"""What the audits of foreign engines share: each runs in an environment of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.audit_sequential import drawn_evidence
from draftproof.cli.context import CliContext

if TYPE_CHECKING:
    from draftproof.audit.subjects import Draws
    from draftproof.audit.subjects.foreign_engine import EngineProcessRecipe

__all__ = ["ENGINE", "Asked", "Python", "Timeout", "audit_process", "interpreter"]

ENGINE = "Engine"

Python = Annotated[
    Path | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="The interpreter that has the engine; this one by default.",
        rich_help_panel=ENGINE,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="Longest wait for the engine's answer: to load, or for 256 draws.",
        rich_help_panel=ENGINE,
    ),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an audit of a foreign engine is asked for.

    Parameters
    ----------
    subject : str
        Engine, model and drafter, in words.
    drafts : Drafts
        What is stated about speculation.
    horizon : int
        Tokens of a continuation.
    knobs : mapping of str to object
        Fields of `SamplingParams`.
    prompts : tuple
        Prompts as texts, as token ids and as a file.
    hands : Hands
        Who draws.
    command : str
        What was asked of the engine, in words.
    """

    subject: str
    drafts: a.Drafts
    horizon: int
    knobs: Mapping[str, Any]
    prompts: a.NamedPrompts
    hands: a.Hands
    command: str

    @property
    def policy(self) -> str:
        """Horizon and sampling parameters in words."""
        knobs = ", ".join(f"{name} {value:g}" for name, value in self.knobs.items())
        return f"{self.horizon} tokens, {knobs}"


def interpreter(python: Path | None) -> Path:
    """Return the interpreter that was named, or this one."""
    return Path(sys.executable) if python is None else python


def audit_process(
    context: CliContext,
    outputs: Outputs,
    size: a.AuditSize,
    recipe: EngineProcessRecipe,
    asked: Asked,
) -> None:
    """Audit an engine against the law of its own logits; exits with the verdict's code.

    Parameters
    ----------
    context : CliContext
        The terminal.
    outputs : Outputs
        Where the result goes.
    size : AuditSize
        How much is drawn.
    recipe : EngineProcessRecipe
        How the engine is started.
    asked : Asked
        Policy, prompts and words.
    """
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import prompt_evidence
    from draftproof.audit.watch import Watched

    plan = size.plan()
    policy = a.policy_of(asked.horizon, **asked.knobs)
    outputs.notes.say(f"starting {asked.subject}")
    subject = recipe()
    try:
        policy = subject.in_its_order(policy)
        prompts = a.prompts_of(*asked.prompts, subject)
        laws = [subject.law(prompt.ids, policy) for prompt in prompts]
        first = size.first_seed()
        theirs = subject.description.versions

        def evidence_of(drawn: Sequence[Draws]) -> Evidence:
            return Evidence(
                asked.subject,
                plan,
                tuple(
                    prompt_evidence(prompt.name, law, draws)
                    for prompt, law, draws in zip(prompts, laws, drawn, strict=True)
                ),
                expects_speculation=asked.drafts.must_show,
                assumes_speculation=asked.drafts.is_assumed,
                notes={
                    "engine": asked.command,
                    "filter order": ", ".join(policy.params.stages),
                    "policy": asked.policy,
                    "seeds": f"a hash of {first} + number of the draw",
                    "versions": versions(),
                    "versions of the engine": ", ".join(f"{k} {v}" for k, v in theirs.items()),
                },
            )

        evidence = drawn_evidence(
            (lambda: subject) if asked.hands.are_here else recipe,
            [Watched(p.name, p.ids, law, policy) for p, law in zip(prompts, laws, strict=True)],
            size,
            evidence_of,
            first_seed=first,
            hands=asked.hands,
            say=outputs.notes.say,
        )
    finally:
        subject.close()
    finish(context, evidence, outputs)
