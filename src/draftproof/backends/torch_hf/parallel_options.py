"""What a model must be to be cut over several ranks, and how transformers is asked to."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftproof.errors import ConfigError

__all__ = ["cut_over", "refuse_parallel"]


def refuse_parallel(model: object, *, device: str, linear: str, with_hidden: bool) -> None:
    """Refuse what a model over several ranks cannot have.

    Parameters
    ----------
    model : object
        What is to be loaded.
    device, linear : str
        Options of `load_torch`.
    with_hidden : bool
        Whether a drafter reads hidden states.

    Raises
    ------
    ConfigError
        Naming the option and what was expected.
    """
    if not isinstance(model, str | Path) or Path(model).suffix == ".gguf":
        raise ConfigError(f"{model} cannot be cut over ranks; expected a Hugging Face folder")
    if device != "auto":
        raise ConfigError(f"device is {device!r}; expected 'auto': each rank takes its own")
    if linear not in ("auto", "plain"):
        raise ConfigError(f"linear is {linear!r}; layers over several ranks are 'plain'")
    if with_hidden:
        raise ConfigError("draft heads read hidden states, expected a model in one process")


def cut_over(num_ranks: int) -> dict[str, Any]:
    """Return the arguments with which transformers cuts a model by its own plan.

    Parameters
    ----------
    num_ranks : int
        Ranks of the default process group.

    Returns
    -------
    dict
        Empty for one rank.

    Raises
    ------
    ConfigError
        If this transformers has no such arguments.
    """
    if num_ranks == 1:
        return {}
    if find_spec("accelerate") is None:
        raise ConfigError("a model over ranks needs accelerate: pip install 'draftproof[torch]'")
    try:
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(tp_size=num_ranks)}
    except (ImportError, TypeError) as error:
        raise ConfigError(
            "this transformers cannot cut a model over ranks; expected 5.20 or newer"
        ) from error
