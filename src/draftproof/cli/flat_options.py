"""Options that several verbs share, written once as a dataclass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any, get_type_hints

__all__ = ["flat"]


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """Spread the dataclasses among a command's parameters into one option per field.

    Typer reads a command's options from its signature and knows no groups of them. Names,
    help and panels of a field are those of its annotation. Its default is that of the
    parameter's own default where there is one, so that a verb may have defaults of its own.

    Parameters
    ----------
    command : callable
        A command; some of its parameters are annotated with dataclasses of options.

    Returns
    -------
    callable
        The same command, as Typer takes it. No two options may have one name.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    parameters: list[Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += _options(groups[name], parameter.default)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def spread(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        command(**given)

    spread.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return spread


def _options(group: Any, default: Any) -> Iterator[Parameter]:
    """Yield a parameter for each field of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        rest = each.default if default is Parameter.empty else getattr(default, each.name)
        yield Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=rest, annotation=hints[each.name]
        )
