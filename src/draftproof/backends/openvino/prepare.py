"""Prepare a GGUF file once: build the graph, check its law, keep it.

A graph is kept only when its next-token laws agree with those of a plain numpy
forward pass over the same file. A converter that breaks one weight format would
otherwise go unnoticed: the text stays fluent, the law is another one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args

import numpy as np
import openvino as ov
import platformdirs
from numpy.typing import NDArray

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino.graph import build_graph
from draftproof.backends.openvino.manifest import (
    Manifest,
    file_sha256,
    read_manifest,
    write_manifest,
)
from draftproof.backends.openvino.runner import IR_FILE, GraphRunner, PassTables, compile_paged
from draftproof.backends.openvino.weights import Precision
from draftproof.backends.reference import next_token_laws, reference_logits, total_variation
from draftproof.errors import ConfigError, ModelFileError

__all__ = ["FORMAT", "TV_LIMITS", "prepare"]

#: Raised whenever the graph builder changes what it writes.
FORMAT: Final = 1
#: Largest mean total variation from the reference. f32 and f16 must be the same law up to
#: rounding. int8 is another law by design, and is refused when it is too far away.
TV_LIMITS: Final[Mapping[str, float]] = MappingProxyType({"f32": 0.001, "f16": 0.01, "int8": 0.15})

_SEQUENCES: Final = 4
_TOKENS: Final = 24
_KV_BYTES: Final = 64 << 20

Progress = Callable[[str], None]


def prepare(
    model_path: Path,
    precision: str,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return a folder that `load_openvino` loads, making it on the first call.

    Parameters
    ----------
    model_path : Path
        A GGUF file of a llama, qwen2 or qwen3 model.
    precision : {"f32", "f16", "int8"}
        How the weights are kept. Arithmetic is float32 in every case.
    cache_dir : Path, optional
        Where prepared models are kept; the user's cache folder when None.
    progress : callable, optional
        Receives one line of text before each slow step.

    Returns
    -------
    Path
        The folder. It is checked by checksum on every call; a damaged one is made again.

    Raises
    ------
    ConfigError
        If the precision is unknown.
    ModelFileError
        If the file is damaged or of a kind that is not supported, or if the law of the
        graph is too far from that of the file.
    """
    known = get_args(Precision)
    if precision not in known:
        raise ConfigError(f"precision is {precision!r}, expected one of {', '.join(known)}")
    kept: Precision = precision  # type: ignore[assignment]  # one of the literals, as checked
    say = progress or (lambda _line: None)
    path = Path(model_path)
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file")
    root = platformdirs.user_cache_path("draftproof") if cache_dir is None else Path(cache_dir)
    digest = file_sha256(path)
    target = root / "prepared" / f"{path.stem}-{precision}-{digest[:16]}"
    if target.exists():
        fault = _fault(target, digest)
        if fault is None:
            return target
        say(f"preparing {path.name} again: {fault}")
    else:
        say(f"preparing {path.name} in {precision}, once")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".preparing-", dir=target.parent))
    try:
        _build(path, kept, digest, work, say)
        return _publish(work, target, digest)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _versions() -> dict[str, str]:
    """Return the packages whose change makes a prepared model stale."""
    return {package: version(package) for package in ("openvino", "gguf")}


def _fault(folder: Path, digest: str) -> str | None:
    """Say why a prepared folder cannot be used; None when it can."""
    try:
        manifest = read_manifest(folder)
    except ModelFileError:
        return "its record is damaged"
    if manifest is None:
        return "its record is missing"
    if manifest.format != FORMAT or manifest.versions != _versions():
        return "it was made by other versions"
    if manifest.source_sha256 != digest:
        return "the source has changed"
    for name, expected in manifest.files.items():
        file = folder / name
        if not file.is_file() or file_sha256(file) != expected:
            return f"{name} is damaged"
    return None


def _build(path: Path, precision: Precision, digest: str, work: Path, say: Progress) -> None:
    """Write graph and record of a file into a folder."""
    weights = DecoderWeights(path)
    try:
        ov.save_model(build_graph(weights, precision), work / IR_FILE, compress_to_fp16=False)
    except (OSError, RuntimeError) as error:
        raise ModelFileError(f"{work}: the graph cannot be written: {error}") from error
    say("comparing its next-token laws with a reference")
    distances = _distances(weights, work)
    mean, limit = float(distances.mean()), TV_LIMITS[precision]
    if not mean <= limit:
        raise ModelFileError(
            f"{path}: the {precision} graph is {mean:.4f} of total variation away from the "
            f"reference law, expected at most {limit}"
        )
    files = {file.name: file_sha256(file) for file in sorted(work.iterdir())}
    write_manifest(
        work,
        Manifest(
            format=FORMAT,
            source_name=path.stem,
            source_sha256=digest,
            architecture=weights.shape.architecture,
            precision=precision,
            context_length=weights.shape.context_length,
            vocab_size=weights.shape.vocab_size,
            versions=_versions(),
            files=files,
            mean_tv=mean,
            max_tv=float(distances.max()),
            num_laws=int(distances.size),
            tv_limit=limit,
        ),
    )
    say(f"mean total variation {mean:.2g} over {distances.size} laws")


def _distances(weights: DecoderWeights, folder: Path) -> NDArray[np.float64]:
    """Return the total variation of the laws at every position of some sequences.

    Half the sequences are uniform over the vocabulary. The others draw from its first
    part, where tokenizers keep the frequent pieces.
    """
    vocab = weights.shape.vocab_size
    length = min(_TOKENS, weights.shape.context_length)
    generator = np.random.Generator(np.random.Philox(key=2023))
    bounds = np.array([vocab, max(vocab // 16, 1)] * (_SEQUENCES // 2))
    token_ids = (generator.random((_SEQUENCES, length)) * bounds[:, None]).astype(np.int32)
    expected = next_token_laws(reference_logits(weights, token_ids))
    runner = GraphRunner(compile_paged(folder, "f32", None), _KV_BYTES)
    return total_variation(next_token_laws(_graph_logits(runner, token_ids)), expected)


def _graph_logits(runner: GraphRunner, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Score some sequences in three cuts, so that cached keys and values are read too."""
    count, length = token_ids.shape
    pages = -(-length // runner.page_size)
    cuts = sorted({0, length // 2, length - 1, length})
    scored = []
    for begin, end in pairwise(cuts):
        width = end - begin
        used = -(-end // runner.page_size)
        table = np.arange(count)[:, None] * pages + np.arange(used)
        logits = runner.run(
            PassTables(
                token_ids=token_ids[:, begin:end].ravel(),
                positions=np.tile(np.arange(begin, end, dtype=np.int32), count),
                past_lens=np.full(count, begin, dtype=np.int32),
                row_begins=np.arange(count + 1, dtype=np.int32) * np.int32(width),
                block_indices=table.ravel().astype(np.int32),
                block_begins=np.arange(count + 1, dtype=np.int32) * np.int32(used),
                max_context_len=end,
                logits_rows=np.arange(count * width, dtype=np.int32),
            )
        )
        scored.append(logits.reshape(count, width, -1).copy())
    return np.concatenate(scored, axis=1)


def _publish(work: Path, target: Path, digest: str) -> Path:
    """Move a finished folder to its place, in one step for every reader."""
    for _ in range(8):
        try:
            work.rename(target)
        except OSError:
            # Somebody else was faster, or the folder there is damaged or stale.
            if not target.exists():
                raise
            if _fault(target, digest) is None:
                return target
            retired = Path(tempfile.mkdtemp(prefix=".retired-", dir=target.parent))
            target.rename(retired / target.name)
            shutil.rmtree(retired, ignore_errors=True)
        else:
            return target
    raise ModelFileError(f"{target}: cannot be put in place, something keeps writing there")
