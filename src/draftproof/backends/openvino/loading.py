"""From a model folder to a backend that is ready to run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from draftproof.backends.openvino.backend import OpenVINOBackend
from draftproof.backends.openvino.branches import SCRATCH_PAGES
from draftproof.backends.openvino.manifest import Manifest, read_manifest
from draftproof.backends.openvino.runner import (
    IR_FILE,
    GraphRunner,
    KvPrecision,
    compile_paged,
)
from draftproof.errors import ConfigError, ModelFileError

__all__ = ["DEFAULT_KV_CACHE_BYTES", "load_openvino"]

#: Room for keys and values when nobody says: 1 GiB. Unused pages take no memory.
DEFAULT_KV_CACHE_BYTES: Final = 1 << 30
#: Memory that further copies of a graph may take, what one takes by the size of its weights on
#: disk, about, and most copies. A large model has one: there a change of shape takes a small
#: part of a pass.
_LANE_ROOM, _LANE_TIMES, _MOST_LANES = 512 << 20, 3, 4


def load_openvino(
    folder: Path,
    *,
    name: str | None = None,
    kv_cache_bytes: int | None = None,
    context_length: int | None = None,
    threads: int | None = None,
    kv_precision: KvPrecision = "f32",
    prefix_caching: bool = True,
    vocab_size: int | None = None,
    deterministic: bool = False,
    with_hidden: bool = False,
) -> OpenVINOBackend:
    """Load a prepared model, or a graph folder that optimum wrote.

    Parameters
    ----------
    folder : Path
        What `prepare` returned, or a folder with ``openvino_model.xml``.
    name : str, optional
        Name shown to people; the folder's or the source file's when None.
    kv_cache_bytes : int, optional
        Room for keys and values; `DEFAULT_KV_CACHE_BYTES` when None. Memory is
        touched only as it is used.
    context_length : int, optional
        Use less context than the model has. Required for a folder that does not say
        how much it has.
    threads : int, optional
        Threads of the runtime; all physical cores when None.
    kv_precision : {"f32", "f16"}, default "f32"
        How keys and values are kept.
    prefix_caching : bool, default True
        Whether committed pages are found again by later sequences.
    vocab_size : int, optional
        Number of real token ids; rows of the head past them are padding. All when None.
    deterministic : bool, default False
        Make decoding with and without speculation agree to the bit, for rows of at
        most 16 tokens, by padding passes of fewer tokens than threads. Rows that branch
        then take up to 32 pages past ``kv_cache_bytes``.
    with_hidden : bool, default False
        Keep the hidden states of each pass for a drafter that reads them. With
        ``deterministic`` rows cannot branch then.

    Returns
    -------
    OpenVINOBackend
        Ready to run.

    Raises
    ------
    ConfigError
        If an option is out of range.
    ModelFileError
        If the folder holds no graph, or one that cannot be run in pages.
    """
    folder = Path(folder)
    if not (folder / IR_FILE).is_file():
        raise ModelFileError(f"{folder}: no {IR_FILE} in this folder")
    if threads is not None and not 1 <= threads <= 4 * (os.cpu_count() or 1):
        raise ConfigError(f"threads is {threads}, expected 1 to {4 * (os.cpu_count() or 1)}")
    if kv_precision not in ("f32", "f16"):
        raise ConfigError(f"kv_precision is {kv_precision!r}, expected f32 or f16")
    manifest = read_manifest(folder)
    limit = _context_limit(folder, manifest, context_length)
    room = DEFAULT_KV_CACHE_BYTES if kv_cache_bytes is None else kv_cache_bytes

    def compile_graph() -> Any:
        return compile_paged(folder, kv_precision, threads, with_hidden=with_hidden)

    runner = GraphRunner(
        compile_graph(),
        room,
        SCRATCH_PAGES if deterministic else 0,
        compile_more=compile_graph,
        # What is promised to the bit was tested on one copy.
        most_lanes=1 if deterministic else _most_lanes(folder),
    )
    capacity = runner.num_pages * runner.page_size
    if context_length is not None and context_length > capacity:
        raise ConfigError(
            f"context_length is {context_length}, but {room} bytes hold keys and values of "
            f"{capacity} tokens; raise kv_cache_bytes"
        )

    def make_exit(num_layers: int, num_bytes: int) -> GraphRunner:
        first = compile_paged(folder, kv_precision, threads, num_layers=num_layers)
        return GraphRunner(first, num_bytes)

    return OpenVINOBackend(
        runner,
        name=name or (manifest.source_name if manifest else folder.resolve().name),
        precision=manifest.precision if manifest else "as exported",
        context_length=limit,
        prefix_caching=prefix_caching,
        vocab_size=vocab_size,
        deterministic=deterministic,
        graph=folder / IR_FILE,
        make_exit=make_exit if manifest else None,
    )


def _most_lanes(folder: Path) -> int:
    """Return how many copies of a graph may stand side by side, by what they take."""
    weights = (folder / IR_FILE).with_suffix(".bin")
    size = weights.stat().st_size if weights.is_file() else 0
    return min(1 + _LANE_ROOM // max(_LANE_TIMES * size, 1), _MOST_LANES)


def _context_limit(folder: Path, manifest: Manifest | None, wanted: int | None) -> int:
    """Return how many tokens a sequence may have."""
    known = manifest.context_length if manifest else _exported_context(folder)
    if wanted is None and known is None:
        raise ConfigError(f"{folder}: no config.json says the context length; pass context_length")
    if wanted is not None and (wanted < 1 or (known is not None and wanted > known)):
        most = "any number" if known is None else str(known)
        raise ConfigError(f"context_length is {wanted}, expected 1 to {most}")
    limit = wanted if wanted is not None else known
    assert limit is not None  # narrows the type: both None was refused above
    return limit


def _exported_context(folder: Path) -> int | None:
    """Read the context length from the configuration that an exporter writes."""
    path = folder / "config.json"
    if not path.is_file():
        return None
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
        value = config.get("max_position_embeddings")
    except (ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: is not a JSON object") from error
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ModelFileError(f"{path}: max_position_embeddings is {value!r}, expected a number")
    return value
