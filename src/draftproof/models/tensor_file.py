"""Read and write safetensors with numpy: a length, a JSON header, the bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ModelFileError

__all__ = ["read_tensors", "write_tensors"]

_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {"F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "?"}
)
#: Longest header that is read, in bytes.
_MOST_HEADER: Final = 1 << 24


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read all tensors of a file.

    Parameters
    ----------
    path : Path
        A safetensors file.

    Returns
    -------
    dict of str to ndarray
        By name. Arrays are read-only views of the file's bytes.

    Raises
    ------
    ModelFileError
        If the file is missing or damaged, or holds an element type that is not known.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    size = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or size > min(_MOST_HEADER, len(raw) - 8):
        raise ModelFileError(f"{path}: is cut off or no safetensors file")
    found: dict[str, NDArray[Any]] = {}
    try:
        header: dict[str, Any] = json.loads(raw[8 : 8 + size])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            kind = np.dtype(_TYPES[entry["dtype"]])
            count = int(np.prod(entry["shape"], dtype=np.int64))
            if not 0 <= begin <= end <= len(raw) - 8 - size or count * kind.itemsize != end - begin:
                raise ValueError(name)
            flat = np.frombuffer(raw, kind, count, 8 + size + begin)
            found[name] = flat.reshape(entry["shape"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: the header is damaged near {error}") from error
    return found


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors as a safetensors file, whole or not at all.

    Parameters
    ----------
    path : Path
        The file, replaced when it exists.
    tensors : mapping of str to ndarray
        float32, float16, int64, int32 or bool.
    """
    names = {np.dtype(kind): name for name, kind in _TYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, array in tensors.items():
        end = begin + array.nbytes
        header[name] = {
            "dtype": names[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    draft = path.with_suffix(".part")
    with draft.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for array in tensors.values():
            stream.write(np.ascontiguousarray(array).tobytes())
    draft.rename(path)
