"""Kernels of other packages: found, or refused with what is missing."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from draftproof.backends.torch_hf.attention_kernels.protocol import LayerFacts, Place
from draftproof.errors import ConfigError

__all__ = ["call_of", "import_package", "refuse_place", "refuse_shapes"]

#: Names of the types that tensor cores multiply and that packages are built for.
_HALF = ("float16", "bfloat16")


def import_package(module: str, distribution: str) -> tuple[Any, str]:
    """Import the module of a kernel.

    Parameters
    ----------
    module : str
        Name of the module.
    distribution : str
        Name of the package that installs it.

    Returns
    -------
    module : module
        The module.
    version : str
        Version of the package, or of the module where the package is not registered.

    Raises
    ------
    ConfigError
        If it is not installed, or cannot be imported here.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = distribution if error.name == module else f"{error.name}, for {distribution}"
        raise ConfigError(f"{missing} is not installed") from error
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
        line = " ".join(str(error).split())[:200]
        raise ConfigError(f"{distribution} cannot be imported: {line}") from error
    try:
        return found, version(distribution)
    except PackageNotFoundError:
        return found, str(getattr(found, "__version__", "of an unknown version"))


def call_of(owner: Any, name: str, arguments: Sequence[str], package: str) -> Callable[..., Any]:
    """Return a function of a package that takes all arguments that we shall give.

    Parameters
    ----------
    owner : object
        Module or class.
    name : str
        Name of the function.
    arguments : sequence of str
        Names of the arguments.
    package : str
        Name and version, for the message.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    ConfigError
        If there is no such function, or it lacks an argument: another version.
    """
    found = getattr(owner, name, None)
    if not callable(found):
        raise ConfigError(f"{package} has no {name}")
    known = inspect.signature(found).parameters
    lacking = [argument for argument in arguments if argument not in known]
    if lacking:
        raise ConfigError(f"{package}: {name} has no argument {lacking[0]}; expected a newer one")
    return found  # type: ignore[no-any-return]


def refuse_place(place: Place, package: str, least: tuple[int, int]) -> None:
    """Refuse a device or a type of numbers that a package has no kernels for.

    Parameters
    ----------
    place : Place
        Where the model computes.
    package : str
        Name for the message.
    least : tuple of int
        The lowest compute capability.

    Raises
    ------
    ConfigError
        Naming the device or the type, and what was expected.
    """
    if place.kind != "cuda":
        raise ConfigError(f"{package} needs a CUDA device, this is {place.kind}")
    if place.type_name not in _HALF:
        raise ConfigError(
            f"{package} has no kernels for {place.type_name}; expected float16 or bfloat16"
        )
    if place.capability is not None and place.capability < least:
        have, need = (".".join(map(str, pair)) for pair in (place.capability, least))
        raise ConfigError(f"{package} needs compute capability {need}, this device has {have}")


def refuse_shapes(layer: LayerFacts) -> str | None:
    """Return why no packaged kernel carries out a layer, or None.

    Parameters
    ----------
    layer : LayerFacts
        The layer.

    Returns
    -------
    str or None
        Heads that do not divide, or values of another width than keys.
    """
    kv = layer.kv
    if layer.num_heads % kv.num_heads:
        return f"{layer.num_heads} query heads over {kv.num_heads} key heads"
    if kv.key_dim != kv.value_dim:
        return f"keys of width {kv.key_dim} and values of width {kv.value_dim}"
    return None
