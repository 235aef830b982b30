"""Which options stand on the command line, so that none is accepted and ignored."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from draftproof.errors import ConfigError

__all__ = ["given", "refuse"]


def given(ctx: typer.Context, names: Sequence[str]) -> list[str]:
    """Return which of some options stand on the command line.

    Parameters
    ----------
    ctx : typer.Context
        The command's context.
    names : sequence of str
        Names of its parameters; those that it lacks are left out.

    Returns
    -------
    list of str
        As they are spelled.
    """
    spelled = {each.name: max(each.opts, key=len) for each in ctx.command.params}
    sources = {name: ctx.get_parameter_source(name) for name in names if name in spelled}
    return [
        spelled[name]
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    ]


def refuse(ctx: typer.Context, names: Sequence[str], why: str) -> None:
    """Refuse options that would do nothing.

    Parameters
    ----------
    ctx : typer.Context
        The command's context.
    names : sequence of str
        Names of its parameters.
    why : str
        What the message says after their spelling.

    Raises
    ------
    ConfigError
        If one of them stands on the command line.
    """
    found = given(ctx, names)
    if found:
        raise ConfigError(f"{', '.join(found)}: {why}")
