"""``draftproof audit``: is this decoder exact, how sure is that, and if not, why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli import (
    audit_engine,
    audit_http,
    audit_llama_cpp,
    audit_openvino,
    audit_python,
    audit_transformers,
    audit_vllm,
)
from draftproof.cli.audit_finish import show_facts
from draftproof.cli.audit_options import Json, Quiet
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.cli.groups import AuditVerbs
from draftproof.cli.json_lines import json_line
from draftproof.errors import ConfigError

__all__ = ["app", "show"]

app = typer.Typer(
    help=(
        "Is a decoder exact, how sure is that, and if not, why. "
        "Exit codes: 0 exact, 1 biased, 2 the audit could not be made, 3 not enough evidence."
    ),
    cls=AuditVerbs,
    invoke_without_command=True,
)
app.command("engine")(audit_engine.engine)
app.command("python")(audit_python.python)
app.command("transformers")(audit_transformers.transformers)
app.command("openvino")(audit_openvino.openvino)
app.command("llama-cpp")(audit_llama_cpp.llama_cpp)
app.command("vllm")(audit_vllm.vllm)
app.command("http")(audit_http.http)


@app.callback()
def _root(
    ctx: typer.Context,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Audit every fault of the catalogue.")
    ] = False,
    draws: Annotated[
        int, typer.Option("--draws", help="With --self-test: draws of one audit.")
    ] = 20_000,
    repeats: Annotated[
        int, typer.Option("--repeats", help="With --self-test: audits of each fault.")
    ] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --self-test: no search for the draws needed.")
    ] = False,
) -> None:
    given = [ctx.get_parameter_source(name) for name in ("draws", "repeats", "quick")]
    if not self_test and any(source is not None and source.name != "DEFAULT" for source in given):
        raise ConfigError(
            "--draws, --repeats and --quick stand before a verb; expected --self-test"
        )
    if self_test and ctx.invoked_subcommand is None:
        _score(ctx.obj, draws, repeats, needs_draws=not quick)
    elif self_test:
        raise ConfigError(f"--self-test runs alone, not with {ctx.invoked_subcommand}")
    elif ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit


def _score(context: CliContext, draws: int, repeats: int, *, needs_draws: bool) -> None:
    """Print the auditor's own score; fail where a fault is missed or misnamed too often."""
    from draftproof.audit import self_test

    console = context.stdout_console()
    missed = []
    named, total = 0.0, 0
    for score in self_test(num_draws=draws, repeats=repeats, needs_draws=needs_draws):
        in_law = score.tv > 1e-9
        expected = 1.0 if in_law else 0.0
        if score.alarms != expected:
            missed.append(score.name)
        if in_law:
            total += 1
            named += score.diagnosed
        needed = "" if score.draws is None else f", {score.draws} draws needed"
        length = (
            f", {score.tokens_per_pass:.3f} tokens per pass of {score.tokens_promised:.3f}"
            if score.shows == "length"
            else ""
        )
        line = (
            f"{score.name}: TV {score.tv:.4f}{needed}, alarms {score.alarms:.0%}, "
            f"named {score.diagnosed:.0%}{length}"
        )
        console.print(line, markup=False, soft_wrap=True)
    share = named / total if total else 0.0
    line = (
        f"{total} faults of the law, named {share:.1%}; wrong alarms: {', '.join(missed) or 'none'}"
    )
    console.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(1 if missed or share < 0.95 else 0)


@app.command("show")
def show(
    ctx: typer.Context,
    certificate: Annotated[Path, typer.Argument(metavar="CERT.json", help="A certificate.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recompute every statistic of a certificate of any kind from its evidence.

    Exits with the code of the verdict that follows from it, and with 1 where the
    stored one does not follow.
    """
    from draftproof.audit.kinds import check

    context: CliContext = ctx.obj
    notes = Notes(quiet=quiet)
    checked = check(certificate)
    if as_json:
        again = checked.verdict.to_json()
        write_data(json_line({"verdict": again, "differences": list(checked.differences)}))
    else:
        show_facts(context, checked.facts)
    if checked.differences:
        named = ", ".join(checked.differences)
        notes.say(f"{certificate}: does not follow from the evidence: {named}")
        raise typer.Exit(1)
    notes.say("every stored statistic follows from the evidence")
    raise typer.Exit(checked.verdict.exit_code)
