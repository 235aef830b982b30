"""``draftproof plan``: does speculation pay, how far to draft, and up to which batch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import options as o
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.cli.plan_inputs import CostOptions, batches_of, costs_of, survival_from
from draftproof.cli.plan_validate import validate_profile
from draftproof.errors import ConfigError

__all__ = ["plan"]

COSTS = "Costs"
ACCEPTANCE = "Acceptance"


class DraftKind(StrEnum):
    """How a drafter makes its tokens."""

    AUTOREGRESSIVE = "autoregressive"
    PARALLEL = "parallel"
    NONE = "none"


class Assume(StrEnum):
    """What to believe beyond the logged drafts."""

    IID = "iid"
    MIXTURE = "mixture"


class EngineName(StrEnum):
    """Engines whose configuration can be written."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMA_CPP = "llama.cpp"
    DRAFTPROOF = "draftproof"


def _cost(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=COSTS)


def plan(
    ctx: typer.Context,
    acceptance: Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            metavar="RATE|FILE|URL",
            help="A constant rate; or a trace, log, metrics page or records of aiperf.",
            rich_help_panel=ACCEPTANCE,
        ),
    ] = None,
    target: Annotated[
        str | None,
        _cost("--target", help="config.json, .gguf or a name of the catalogue."),
    ] = None,
    draft: Annotated[str | None, _cost("--draft", help="The draft model, likewise.")] = None,
    draft_kind: Annotated[
        DraftKind | None, _cost("--draft-kind", help="One pass per draft, one for all, or none.")
    ] = None,
    hardware: Annotated[
        str | None, _cost("--hardware", help="A device, for example h100-sxm.")
    ] = None,
    precision: Annotated[
        str, _cost("--compute-precision", help="Precision of the device's arithmetic.")
    ] = "bf16",
    tensor_parallel: Annotated[
        int, _cost("--tensor-parallel", "-tp", help="Devices that share each layer.")
    ] = 1,
    weight_bits: Annotated[
        float | None, _cost("--weight-bits", help="Bits per weight, scales included.")
    ] = None,
    draft_weight_bits: Annotated[
        float | None, _cost("--draft-weight-bits", help="The draft's; the target's if not given.")
    ] = None,
    kv_bits: Annotated[float | None, _cost("--kv-bits", help="Bits per cached number.")] = None,
    bandwidth_efficiency: Annotated[
        float, _cost("--bandwidth-efficiency", help="Share of the data sheet's bandwidth.")
    ] = 1.0,
    compute_efficiency: Annotated[
        float, _cost("--compute-efficiency", help="Share of the data sheet's arithmetic rate.")
    ] = 1.0,
    overhead_ms: Annotated[
        float, _cost("--overhead-ms", help="Milliseconds per step outside the passes.")
    ] = 0.0,
    memory_gb: Annotated[
        float | None, _cost("--memory-gb", help="Memory of one device, in 10^9 bytes.")
    ] = None,
    profile: Annotated[
        str | None, _cost("--profile", help="Costs measured by draftproof calibrate.")
    ] = None,
    drafter: Annotated[str | None, _cost("--drafter", help="Which drafter of the profile.")] = None,
    published: Annotated[
        str | None,
        _cost("--published", help="Published step costs, e.g. llama-3.1-8b-h100-eagle."),
    ] = None,
    assume: Annotated[
        Assume | None,
        typer.Option(
            "--assume",
            help="What to believe of drafts longer than the logged ones.",
            rich_help_panel=ACCEPTANCE,
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence", help="Of the acceptance interval.", rich_help_panel=ACCEPTANCE
        ),
    ] = 0.95,
    batch: Annotated[
        str, typer.Option("--batch", metavar="SIZES", help="4, 1,8,32 or 1:512.")
    ] = "1:512",
    context: Annotated[int, typer.Option("--context", help="Cached tokens per request.")] = 1000,
    max_kappa: Annotated[
        int | None, typer.Option("--max-kappa", help="Most drafts; by default what was logged.")
    ] = None,
    emit: Annotated[
        EngineName | None, typer.Option("--emit", help="Write an engine's configuration instead.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page too; needs plotly.")
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate", help="Run settings the profile has not seen; predicted against measured."
        ),
    ] = False,
    as_json: o.JsonOutput = False,
    quiet: o.Quiet = False,
) -> None:
    """Say whether speculation pays, how far to draft, and up to which batch."""
    from draftproof.planner.emit import Emission
    from draftproof.planner.emit import emit as write_configuration
    from draftproof.planner.plan import make_plan

    if as_json and emit is not None:
        raise ConfigError(f"--json and --emit {emit}; expected one of them")
    if not 0.5 <= confidence < 1.0:
        raise ConfigError(f"--confidence {confidence}: expected a number from 0.5 to below 1")
    if context < 0:
        raise ConfigError(f"--context {context}: expected 0 or more")
    cli: CliContext = ctx.obj
    if validate:
        if profile is None or acceptance is not None or emit is not None or html is not None:
            raise ConfigError(
                "--validate needs --profile and counts acceptance itself; expected no "
                "--acceptance, --emit or --html"
            )
        validate_profile(cli, profile, drafter, draft, as_json=as_json, quiet=quiet)
        return
    if acceptance is None:
        raise ConfigError("no --acceptance; expected a rate such as 0.7, a file or an address")
    sizes = batches_of(batch)
    survival, most, source = survival_from(
        acceptance, max_kappa, None if assume is None else assume.value, confidence
    )
    basis = costs_of(
        CostOptions(
            target=target,
            draft=draft,
            draft_kind=draft_kind and draft_kind.value,
            hardware=hardware,
            precision=precision,
            tensor_parallel=tensor_parallel,
            weight_bits=weight_bits,
            kv_bits=kv_bits,
            draft_weight_bits=draft_weight_bits,
            bandwidth_efficiency=bandwidth_efficiency,
            compute_efficiency=compute_efficiency,
            overhead_ms=overhead_ms,
            memory_gb=memory_gb,
            profile=profile,
            drafter=drafter,
            published=published,
            context=context,
            max_kappa=most,
        )
    )
    made = make_plan(basis.cost, survival, sizes, max_kappa=most, context=context)
    lines = (*basis.lines, f"acceptance: {source}", f"{context} cached tokens per request")
    if html is not None:
        from draftproof.planner.report_html import plan_page

        page = plan_page(made, basis.cost, title=basis.title, basis=lines)
        html.write_text(page, encoding="utf-8")
        Notes(quiet=quiet).say(f"wrote {html}")
    if emit is not None:
        text = write_configuration(made, emit.value, Emission(basis.target, basis.draft))
        write_data(text)
    elif as_json:
        from draftproof.cli.json_lines import json_line
        from draftproof.planner.documents import plan_document

        document = {"title": basis.title, "basis": list(lines), "figures": basis.figures}
        write_data(json_line(document | plan_document(made)))
    else:
        from draftproof.planner.report_text import plan_renderables

        console = cli.stdout_console()
        for part in plan_renderables(made):
            console.print(part)
        for line in lines:
            console.print(line, style="dim", markup=False)
