"""``draftproof audit python``: any decoder that Python can call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli import options as o
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.audit_sequential import drawn_evidence
from draftproof.cli.context import CliContext, Notes
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit.subjects import Draws, LawFile, Policy

__all__ = ["python", "reference_laws"]

Reference = Annotated[
    str,
    typer.Option(
        "--reference",
        metavar="MODEL|LAWS.json",
        help="The model whose law it must keep, or a file of laws.",
    ),
]


def python(
    ctx: typer.Context,
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="(prompt_ids, policy, n) -> samples.")
    ],
    reference: Reference,
    precision: o.PrecisionOf = o.Precision.INT8,
    speculates: Annotated[
        bool,
        typer.Option(
            "--speculates/--plain", help="Whether it is said to speculate; then drafts must show."
        ),
    ] = True,
    prompt: a.PromptText = None,
    prompt_ids: a.PromptIds = None,
    prompts: a.PromptsFile = None,
    horizon: a.Horizon = 3,
    temperature: a.Temperature = 1.0,
    top_k: a.TopK = 3,
    top_p: a.TopP = 1.0,
    min_p: a.MinP = 0.0,
    repetition_penalty: a.RepetitionPenalty = 1.0,
    presence_penalty: a.PresencePenalty = 0.0,
    frequency_penalty: a.FrequencyPenalty = 0.0,
    draws: a.Draws = None,
    tv: a.Tv = 0.05,
    alpha: a.Alpha = 1e-3,
    power: a.PowerOf = 0.99,
    calibration_samples: a.Calibration = 20_000,
    seed: a.Seed = None,
    sequential: a.Sequential = False,
    processes: a.Processes = 1,
    as_json: a.Json = False,
    html: a.Html = None,
    save: a.Save = None,
    quiet: a.Quiet = False,
) -> None:
    """Audit a function of Python."""
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import PythonRecipe, prompt_evidence
    from draftproof.audit.watch import Watched

    context: CliContext = ctx.obj
    outputs = Outputs(as_json, html, save, Notes(quiet=quiet))
    size = a.AuditSize(draws, tv, alpha, power, calibration_samples, seed, sequential)
    plan = size.plan()
    recipe = PythonRecipe(function)
    recipe()  # a function that cannot be found is refused before a model is loaded
    policy = a.policy_of(
        horizon,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    named = (prompt, prompt_ids, prompts)
    laws = reference_laws(context, reference, precision.value, policy, named, outputs)
    first = size.first_seed()

    def evidence_of(drawn: Sequence[Draws]) -> Evidence:
        return Evidence(
            f"the function {function}",
            plan,
            tuple(
                prompt_evidence(each.name, each.law, draws)
                for each, draws in zip(laws, drawn, strict=True)
            ),
            expects_speculation=speculates,
            notes={"seeds": f"from {first}", "reference": reference, "versions": versions()},
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
        processes=processes,
        say=outputs.notes.say,
    )
    finish(context, evidence, outputs)


def reference_laws(
    context: CliContext,
    reference: str,
    precision: str,
    policy: Policy,
    named: tuple[Any, Any, Any],
    outputs: Outputs,
) -> list[LawFile]:
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
    list of LawFile
        One per prompt.

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
        return read_laws(Path(reference))
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
        return [
            LawFile(
                p.name,
                p.ids,
                enumerate_law(
                    core.target, p.ids, policy.params, policy.horizon, eos_token_ids=ends
                ),
            )
            for p in a.prompts_of(*named, core.tokenizer)
        ]
