"""``draftproof models``: list, pull and locate the models that have a name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.errors import ModelFileError

__all__ = ["app", "list_models", "path", "pull"]

app = typer.Typer(help="List, pull and locate the models that have a name.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name of the catalogue.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("list")
def list_models(ctx: typer.Context, as_json: Json = False) -> None:
    """List the models that have a name, and whether they are here."""
    from draftproof.models import CATALOG, cached_path

    context: CliContext = ctx.obj
    found = []
    for entry in CATALOG.values():
        place = cached_path(entry.name, cache_dir=context.cache_dir)
        found.append((entry, place, place.is_file()))
    if as_json:
        document = [
            {
                "name": entry.name,
                "summary": entry.summary,
                "package": entry.requirement,
                "licence": entry.licence,
                "file_bytes": entry.file_bytes,
                "path": str(place) if is_here else None,
            }
            for entry, place, is_here in found
        ]
        write_data(json.dumps(document, ensure_ascii=False) + "\n")
        return
    from rich.table import Table

    table = Table("name", "size", "here", "licence", "what it is", box=None, pad_edge=False)
    for entry, _place, is_here in found:
        size = f"{entry.file_bytes / 1e6:.0f} MB"
        table.add_row(entry.name, size, "yes" if is_here else "no", entry.licence, entry.summary)
    context.stdout_console().print(table)


@app.command("pull")
def pull(
    ctx: typer.Context,
    name: Name,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the checksum of a file that is here already.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Fetch a model's weights if they are not here, and print their path."""
    from draftproof.models import pull as pull_model

    context: CliContext = ctx.obj
    say = Notes(quiet=quiet).say
    place = pull_model(name, cache_dir=context.cache_dir, verify=verify, progress=say)
    write_data(f"{place}\n")


@app.command("path")
def path(ctx: typer.Context, name: Name) -> None:
    """Print the path of a model's weights; fails when they are not here."""
    from draftproof.models import cached_path

    context: CliContext = ctx.obj
    place = cached_path(name, cache_dir=context.cache_dir)
    if not place.is_file():
        raise ModelFileError(
            f"{name} is not here, expected {place}; hint: draftproof models pull {name}"
        )
    write_data(f"{place}\n")
