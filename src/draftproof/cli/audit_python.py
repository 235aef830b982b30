"""``draftproof audit python``: any decoder that Python can call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli import audit_options as a
from draftproof.cli import options as o
from draftproof.cli.audit_engine_modes import POLICY
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.audit_sequential import drawn_evidence
from draftproof.cli.context import CliContext
from draftproof.cli.flat_options import flat
from draftproof.cli.given_options import refuse
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit.subjects import Draws, LawFile, Policy

__all__ = ["python", "reference_laws"]

#: Options that shape the law of a model.
_OF_A_MODEL = ("precision", "horizon", *POLICY)

Reference = Annotated[
    str,
    typer.Option(
        "--reference",
        metavar="MODEL|LAWS.json",
        help="The model whose law it must keep, or a file of laws.",
    ),
]


@flat
def python(
    ctx: typer.Context,
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="(prompt_ids, policy, n) -> samples.")
    ],
    reference: Reference,
    precision: a.ReferencePrecision = o.Precision.F32,
    speculates: Annotated[
        bool,
        typer.Option(
            "--speculates/--plain",
            help="Whether it is said to speculate; then drafts must show. Plain: --drafts none.",
        ),
    ] = True,
    common: a.Common = a.Common(tv=0.05),
    more: a.MoreKnobs = a.MoreKnobs(),
    hands: a.Hands = a.Hands(),
) -> None:
    """Audit a function of Python."""
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import PythonRecipe, prompt_evidence
    from draftproof.audit.watch import Watched

    context: CliContext = ctx.obj
    outputs = common.outputs()
    size = common.size(is_sequential=hands.sequential)
    plan = size.plan()
    drafts = common.stated() if speculates else a.Drafts.NONE
    if common.drafts not in (None, drafts):
        raise ConfigError(f"--drafts {common.drafts.value} and --plain: expected one of them")
    recipe = PythonRecipe(function)
    recipe()  # a function that cannot be found is refused before a model is loaded
    if reference.endswith(".json"):
        refuse(ctx, _OF_A_MODEL, f"of no use with {reference}, whose laws are fixed")
        policy = a.policy_of(1)  # the file says how long its laws are, and nobody else does
    else:
        policy = a.policy_of(common.horizon, **common.knobs(more))
    laws, held = reference_laws(context, reference, precision.value, policy, common.named, outputs)
    first = size.first_seed()

    def evidence_of(drawn: Sequence[Draws]) -> Evidence:
        return Evidence(
            f"the function {function}",
            plan,
            tuple(
                prompt_evidence(each.name, each.law, draws)
                for each, draws in zip(laws, drawn, strict=True)
            ),
            expects_speculation=drafts.must_show,
            assumes_speculation=drafts.is_assumed,
            notes={"seeds": f"from {first}", "reference": held, "versions": versions()},
        )

    # A file of laws may hold laws of several lengths.
    watched = [
        Watched(
            each.name,
            each.prompt_ids,
            each.law,
            replace(policy, horizon=each.law.horizon, eos_token_ids=each.law.eos_token_ids),
        )
        for each in laws
    ]
    evidence = drawn_evidence(
        recipe,
        watched,
        size,
        evidence_of,
        first_seed=first,
        hands=hands,
        say=outputs.notes.say,
    )
    finish(context, evidence, outputs)


def reference_laws(
    context: CliContext,
    reference: str,
    precision: str,
    policy: Policy,
    named: a.NamedPrompts,
    outputs: Outputs,
) -> tuple[list[LawFile], str]:
    """Read laws from a file, or enumerate those of a model.

    Parameters
    ----------
    context : CliContext
        Loads the model.
    reference : str
        A file that ends with ``.json``, or a model.
    precision : str
        How the model's weights are held.
    policy : Policy
        The policy.
    named : tuple
        Prompts as texts, as ids and as a file.
    outputs : Outputs
        For remarks.

    Returns
    -------
    laws : list of LawFile
        One per prompt.
    held : str
        What they are the laws of, and in which precision.

    Raises
    ------
    ConfigError
        If prompts are given beside a file of laws, which has its own.
    """
    from draftproof.audit.subjects import LawFile, read_laws
    from draftproof.evidence import enumerate_law

    if reference.endswith(".json"):
        if any(each is not None for each in named):
            raise ConfigError(f"{reference} has prompts of its own; expected none beside it")
        return read_laws(Path(reference)), reference
    outputs.notes.say(f"loading {reference}")
    with context.load(
        reference,
        speculative_config=None,
        precision=precision,
        cache_dir=context.cache_dir,
        progress=outputs.notes.say,
    ) as engine:
        core = engine.core
        ends = core.eos_token_ids
        laws = [
            LawFile(
                p.name,
                p.ids,
                enumerate_law(
                    core.target, p.ids, policy.params, policy.horizon, eos_token_ids=ends
                ),
            )
            for p in a.prompts_of(*named, core.tokenizer)
        ]
        return laws, a.reference_note(reference, core.target.info)
