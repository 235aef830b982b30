"""``draftproof audit llama-cpp``: llama-cpp-python, its high-level interface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli.audit_finish import Outputs
from draftproof.cli.audit_worker import (
    ENGINE,
    Asked,
    Python,
    Timeout,
    audit_process,
    interpreter,
)
from draftproof.cli.context import CliContext, Notes
from draftproof.errors import ConfigError

__all__ = ["llama_cpp"]


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
    prompt: a.PromptText = None,
    prompt_ids: a.PromptIds = None,
    prompts: a.PromptsFile = None,
    horizon: a.Horizon = 3,
    temperature: a.Temperature = 1.0,
    top_k: a.TopK = 3,
    top_p: a.TopP = 1.0,
    min_p: a.MinP = 0.0,
    presence_penalty: a.PresencePenalty = 0.0,
    frequency_penalty: a.FrequencyPenalty = 0.0,
    draws: a.Draws = None,
    tv: a.Tv = 0.1,
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
    """Audit llama-cpp-python: plain or with prompt lookup."""
    from draftproof.audit.subjects import EngineProcessRecipe

    context: CliContext = ctx.obj
    outputs = Outputs(as_json, html, save, Notes(quiet=quiet))
    size = a.AuditSize(draws, tv, alpha, power, calibration_samples, seed, sequential)
    options: dict[str, Any] = {"model": str(model)}
    drafter = "no drafter"
    if prompt_lookup is not None:
        if prompt_lookup < 1 or max_ngram_size < 1:
            raise ConfigError(
                f"--prompt-lookup {prompt_lookup}, --max-ngram-size {max_ngram_size}: "
                "expected 1 or more"
            )
        options |= {"prompt_lookup": prompt_lookup, "max_ngram_size": max_ngram_size}
        drafter = f"prompt lookup of {prompt_lookup} tokens"
    asked = Asked(
        f"llama-cpp-python on {model.name} with {drafter}",
        prompt_lookup is not None,
        horizon,
        {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
        },
        (prompt, prompt_ids, prompts),
        processes,
        f"Llama.generate, {drafter}, n-grams up to {max_ngram_size}"
        if prompt_lookup
        else "Llama.generate",
    )
    recipe = EngineProcessRecipe("llama_cpp", options, interpreter(python), timeout)
    audit_process(context, outputs, size, recipe, asked)
