"""``draftproof audit llama-cpp``: llama-cpp-python, its high-level interface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import audit_options as a
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

__all__ = ["llama_cpp"]


@flat
def llama_cpp(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="GGUF", help="The model.")],
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
    common: a.Common = a.Common(),
    min_p: a.MinP = 0.0,
    presence_penalty: a.PresencePenalty = 0.0,
    frequency_penalty: a.FrequencyPenalty = 0.0,
    hands: a.Hands = a.Hands(),
) -> None:
    """Audit llama-cpp-python: plain or with prompt lookup."""
    from draftproof.audit.subjects import EngineProcessRecipe

    context: CliContext = ctx.obj
    outputs = common.outputs()
    size = common.size(is_sequential=hands.sequential)
    options: dict[str, Any] = {"model": str(model)}
    drafter = "no drafter"
    if prompt_lookup is None:
        refuse(ctx, ["max_ngram_size"], "expected --prompt-lookup beside it")
    else:
        if prompt_lookup < 1 or max_ngram_size < 1:
            raise ConfigError(
                f"--prompt-lookup {prompt_lookup}, --max-ngram-size {max_ngram_size}: "
                "expected 1 or more"
            )
        options |= {"prompt_lookup": prompt_lookup, "max_ngram_size": max_ngram_size}
        drafter = f"prompt lookup of {prompt_lookup} tokens"
    asked = Asked(
        f"llama-cpp-python on {model.name} with {drafter}",
        common.stated(has_drafter=prompt_lookup is not None),
        common.horizon,
        common.knobs(
            min_p=min_p,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
        ),
        common.named,
        hands,
        f"Llama.generate, {drafter}, n-grams up to {max_ngram_size}"
        if prompt_lookup
        else "Llama.generate",
    )
    recipe = EngineProcessRecipe("llama_cpp", options, interpreter(python), timeout)
    audit_process(context, outputs, size, recipe, asked)
