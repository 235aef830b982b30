"""From a name to a folder, and what its ``config.json`` already says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from draftproof.errors import ModelFileError

__all__ = ["check_folder", "model_folder", "read_config"]

#: What is fetched from the hub: configuration, tokenizer and safetensors weights.
_WANTED: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


def model_folder(name: str | Path) -> Path:
    """Return the folder of a model, fetching it from the hub when it is a hub id.

    Parameters
    ----------
    name : str or Path
        A folder, or ``"owner/name"``.

    Returns
    -------
    Path
        Holds ``config.json``.

    Raises
    ------
    ModelFileError
        If it is neither, or the hub cannot be reached.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    parts = str(name).split("/")
    if len(parts) != 2 or not all(parts) or str(name).startswith((".", "~")):
        raise ModelFileError(f"{name}: no such folder, and no hub id of the form owner/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(_WANTED)))
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise ModelFileError(
            f"{name}: no such folder, and it could not be fetched from the hub: "
            f"{type(error).__name__}: {line}"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json``.

    Parameters
    ----------
    folder : Path
        A model folder.

    Returns
    -------
    dict
        The configuration.

    Raises
    ------
    ModelFileError
        If it is missing or no JSON object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelFileError(f"{path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{path}: is not a JSON object")
    return config


def check_folder(folder: Path, config: Mapping[str, Any], known: bool) -> None:
    """Refuse a folder whose model needs code of its own, or has no safetensors.

    Parameters
    ----------
    folder : Path
        A model folder.
    config : mapping
        Its configuration.
    known : bool
        Whether transformers has code for its ``model_type``.

    Raises
    ------
    ModelFileError
        Saying what is missing.
    """
    kind = config.get("model_type")
    if not known:
        if "auto_map" in config:
            raise ModelFileError(
                f"{folder}: model type {kind!r} needs Python code from its own folder "
                f"({config['auto_map']}), which is never run"
            )
        raise ModelFileError(f"{folder}: model type {kind!r} is not known to transformers")
    if not any(folder.glob("*.safetensors")):
        raise ModelFileError(f"{folder}: no .safetensors file in this folder")
