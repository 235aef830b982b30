"""``draftproof audit vllm``: vLLM, its offline interface."""

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

__all__ = ["vllm"]


@flat
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
    common: a.Common = a.Common(),
    more: a.MoreKnobs = a.MoreKnobs(),
    hands: a.Hands = a.Hands(),
) -> None:
    """Audit vLLM: plain or with any of its drafters."""
    from draftproof.audit.subjects import EngineProcessRecipe

    context: CliContext = ctx.obj
    outputs = common.outputs()
    size = common.size(is_sequential=hands.sequential)
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
        common.stated(has_drafter=speculative_config is not None),
        common.horizon,
        common.knobs(more),
        common.named,
        hands,
        f"vllm.LLM in float32, {options.get('engine') or 'no more arguments'}",
    )
    recipe = EngineProcessRecipe("vllm", options, interpreter(python), timeout)
    audit_process(context, outputs, size, recipe, asked)
