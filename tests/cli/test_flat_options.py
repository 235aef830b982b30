"""Options written once: a dataclass among a verb's parameters becomes one option per field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from draftproof.cli.flat_options import flat


@dataclass(frozen=True)
class Size:
    width: Annotated[int, typer.Option("--width", "-w", help="How wide.")] = 3
    name: Annotated[str | None, typer.Option("--name")] = None


@dataclass(frozen=True)
class Colour:
    loud: Annotated[bool, typer.Option("--loud")] = False


def verb_of(default):
    app = typer.Typer()

    @app.command()
    @flat
    def verb(
        ctx: typer.Context,
        what: Annotated[str, typer.Argument()],
        size: Size = default,
        depth: Annotated[int, typer.Option("--depth")] = 1,
        colour: Colour = Colour(),
    ) -> None:
        """Say what was given."""
        sources = {name: ctx.get_parameter_source(name).name for name in ("width", "depth")}
        typer.echo(" ".join(map(str, (what, size, depth, colour, *sources.values()))))

    return app


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "a Size(width=3, name=None) 1 Colour(loud=False) DEFAULT DEFAULT"),
        (
            ["a", "-w", "7", "--loud", "--depth", "2"],
            "a Size(width=7, name=None) 2 Colour(loud=True) COMMANDLINE COMMANDLINE",
        ),
    ],
)
def test_fields_are_options(words, said):
    found = CliRunner().invoke(verb_of(Size()), words)
    assert found.output == said + "\n"


def test_a_verb_may_have_defaults_of_its_own():
    app = verb_of(Size(width=9))
    assert "width=9, name=None" in CliRunner().invoke(app, ["a"]).output
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "90", "NO_COLOR": "1"}).output
    assert "[default: 9]" in shown
    assert "How wide." in shown
    assert "Say what was given." in shown


def test_two_options_of_one_name_are_no_command():
    def verb(size: Size = Size(), width: int = 1) -> None:
        pass

    with pytest.raises(ValueError, match="width"):
        flat(verb)
