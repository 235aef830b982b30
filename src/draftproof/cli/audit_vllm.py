"""``draftproof audit vllm``: vLLM, its offline interface."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli import values as v
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

__all__ = ["vllm"]


def vllm(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="DIR", help="The model's folder.")],
    python: Python = None,
    timeout: Timeout = 600.0,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            metavar="JSON",
            help="vLLM's own, such as "
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}.',
            rich_help_panel=ENGINE,
        ),
    ] = None,
    engine_args: Annotated[
        str | None,
        typer.Option(
            "--engine-args",
            metavar="JSON",
            help='More arguments of vllm.LLM, such as {"max_model_len": 256}.',
            rich_help_panel=ENGINE,
        ),
    ] = None,
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
    """Audit vLLM: plain or with any of its drafters."""
    from draftproof.audit.subjects import EngineProcessRecipe

    context: CliContext = ctx.obj
    outputs = Outputs(as_json, html, save, Notes(quiet=quiet))
    size = a.AuditSize(draws, tv, alpha, power, calibration_samples, seed, sequential)
    options: dict[str, Any] = {"model": str(model)}
    drafter = "no drafter"
    if speculative_config is not None:
        config = v.json_object(speculative_config, "--speculative-config")
        options["speculative_config"] = config
        drafter = f"speculation {config}"
    if engine_args is not None:
        options["engine"] = v.json_object(engine_args, "--engine-args")
    asked = Asked(
        f"vLLM on {model.name} with {drafter}",
        speculative_config is not None,
        horizon,
        {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
        },
        (prompt, prompt_ids, prompts),
        processes,
        f"vllm.LLM in float32, {options.get('engine') or 'no more arguments'}",
    )
    recipe = EngineProcessRecipe("vllm", options, interpreter(python), timeout)
    audit_process(context, outputs, size, recipe, asked)
