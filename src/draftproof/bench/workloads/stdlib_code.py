"""Functions of the installed interpreter's standard library, quoted at run time."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from draftproof.errors import ConfigError

__all__ = ["Quoted", "quoted_functions"]

_MODULES: Final = (
    "argparse",
    "calendar",
    "cmd",
    "colorsys",
    "configparser",
    "csv",
    "difflib",
    "fnmatch",
    "fractions",
    "gettext",
    "mailbox",
    "posixpath",
    "pprint",
    "random",
    "shlex",
    "shutil",
    "statistics",
    "tarfile",
    "textwrap",
    "zipfile",
)
#: Lines of a function that fits into a prompt and is worth editing.
_LINES: Final = range(6, 32)


@dataclass(frozen=True, slots=True)
class Quoted:
    """A function as it stands in its file, without indentation.

    Parameters
    ----------
    module : str
        Where it is from.
    name : str
        Its name.
    parameters : tuple of str
        Names of its parameters, without ``self`` and ``cls``.
    source : str
        Its text.
    """

    module: str
    name: str
    parameters: tuple[str, ...]
    source: str


def quoted_functions() -> tuple[Quoted, ...]:
    """Read the functions.

    Returns
    -------
    tuple of Quoted
        Those of a handy length with a parameter, by module and line.

    Raises
    ------
    ConfigError
        If this interpreter's library has no source files.
    """
    found = [quoted for module in _MODULES for quoted in _functions(module)]
    if len(found) < 40:
        raise ConfigError(
            f"found {len(found)} functions in the source of the standard library; expected 40 or "
            "more, choose another workload than code-edit"
        )
    return tuple(found)


def _functions(module: str) -> list[Quoted]:
    spec = importlib.util.find_spec(module)
    origin = None if spec is None else spec.origin
    if origin is None or not origin.endswith(".py"):
        return []
    try:
        text = Path(origin).read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    lines = text.splitlines()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        names = tuple(
            each.arg
            for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            if each.arg not in ("self", "cls")
        )
        length = node.end_lineno - node.lineno + 1
        if not names or length not in _LINES or node.name.startswith("__"):
            continue
        source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        found.append(Quoted(module, node.name, names, source))
    return sorted(found, key=lambda each: (each.name, each.source))
