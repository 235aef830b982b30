"""``draftproof audit openvino``: OpenVINO GenAI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli import values as v
from draftproof.cli.audit_worker import (
    ENGINE,
    Asked,
    Python,
    Timeout,
    audit_process,
    interpreter,
)
from draftproof.cli.context import CliContext
from draftproof.cli.flat_options import flat
from draftproof.cli.given_options import refuse
from draftproof.errors import ConfigError

__all__ = ["openvino"]


@flat
def openvino(
    ctx: typer.Context,
    model: Annotated[
        Path, typer.Argument(metavar="DIR|GGUF", help="A folder of OpenVINO IR, or a GGUF file.")
    ],
    python: Python = None,
    timeout: Timeout = 600.0,
    prompt_lookup: Annotated[
        int | None,
        typer.Option(
            "--prompt-lookup",
            metavar="N",
            help="Draft N tokens by prompt lookup.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    max_ngram_size: Annotated[
        int,
        typer.Option(
            "--max-ngram-size", help="Longest n-gram that is looked up.", rich_help_panel=ENGINE
        ),
    ] = 2,
    draft_model: Annotated[
        Path | None,
        typer.Option(
            "--draft-model", metavar="DIR", help="The draft model.", rich_help_panel=ENGINE
        ),
    ] = None,
    num_assistant_tokens: Annotated[
        int,
        typer.Option(
            "--num-assistant-tokens", help="Drafts of a draft model.", rich_help_panel=ENGINE
        ),
    ] = 3,
    properties: Annotated[
        str | None,
        typer.Option(
            "--properties",
            metavar="JSON",
            help="Properties of the device; float32 in passes and cache by default.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    common: a.Common = a.Common(),
    repetition_penalty: a.RepetitionPenalty = 1.0,
    presence_penalty: a.PresencePenalty = 0.0,
    frequency_penalty: a.FrequencyPenalty = 0.0,
    hands: a.Hands = a.Hands(),
) -> None:
    """Audit OpenVINO GenAI: plain, with prompt lookup or with a draft model."""
    from draftproof.audit.subjects import EngineProcessRecipe

    context: CliContext = ctx.obj
    outputs = common.outputs()
    size = common.size(is_sequential=hands.sequential)
    options: dict[str, Any] = {"model": str(model)}
    drafter = "no drafter"
    if prompt_lookup is not None and draft_model is not None:
        raise ConfigError("--prompt-lookup and --draft-model: expected one of them")
    for name, value in (
        ("--prompt-lookup", prompt_lookup),
        ("--max-ngram-size", max_ngram_size),
        ("--num-assistant-tokens", num_assistant_tokens),
    ):
        if value is not None and value < 1:
            raise ConfigError(f"{name} {value}: expected 1 or more")
    if prompt_lookup is None:
        refuse(ctx, ["max_ngram_size"], "expected --prompt-lookup beside it")
    if draft_model is None:
        refuse(ctx, ["num_assistant_tokens"], "expected --draft-model beside it")
    if prompt_lookup is not None:
        options |= {"prompt_lookup": prompt_lookup, "max_ngram_size": max_ngram_size}
        drafter = f"prompt lookup of {prompt_lookup} tokens"
    if draft_model is not None:
        options |= {"draft_model": str(draft_model), "num_assistant_tokens": num_assistant_tokens}
        drafter = f"the draft model {draft_model.name}, {num_assistant_tokens} drafts"
    if properties is not None:
        options["properties"] = v.json_object(properties, "--properties")
    asked = Asked(
        f"OpenVINO GenAI on {model.name} with {drafter}",
        common.stated(has_drafter=drafter != "no drafter"),
        common.horizon,
        common.knobs(
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
        ),
        common.named,
        hands,
        f"LLMPipeline on CPU, {drafter}, properties {options.get('properties') or 'float32'}",
    )
    recipe = EngineProcessRecipe("openvino_genai", options, interpreter(python), timeout)
    audit_process(context, outputs, size, recipe, asked)
