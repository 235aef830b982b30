"""From a name or a path to an engine: the one place where objects are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftproof.backends.openvino import load_openvino, prepare
from draftproof.build.drafters import make_proposers
from draftproof.build.grammars import lazy_constraints
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.protocols import ModelBackend
from draftproof.engine import Engine, EngineCore, SchedulerConfig
from draftproof.errors import ConfigError
from draftproof.models import ModelSource, resolve
from draftproof.text import Tokenizer, check_same_vocabulary

__all__ = ["PRECISIONS", "load", "load_model"]

#: How weights may be held.
PRECISIONS = ("f32", "f16", "int8")

Progress = Callable[[str], None]


def load(
    model: str | Path,
    *,
    speculative_config: str | Mapping[str, Any] | SpeculativeConfig | None = None,
    precision: str = "int8",
    draft_precision: str | None = None,
    context_length: int | None = None,
    kv_cache_bytes: int | None = None,
    threads: int | None = None,
    max_rows: int = 32,
    deterministic: bool = False,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Load a model and, if asked for, a drafter.

    Parameters
    ----------
    model : str or Path
        A name of the catalogue (``"smollm2"``), a GGUF file or an OpenVINO IR folder.
    speculative_config : str, mapping or SpeculativeConfig, optional
        The speculation; None is plain decoding.
    precision : {"int8", "f16", "f32"}, default "int8"
        How the weights are held. ``"int8"`` rounds them once more per output channel:
        the law that speculation keeps is then that of the rounded model.
    draft_precision : str, optional
        The same for the draft model; the target's when None.
    context_length : int, optional
        Use less context than the model has.
    kv_cache_bytes : int, optional
        Size of the target's KV cache.
    threads : int, optional
        Threads of the runtime; all physical cores when None.
    max_rows : int, default 32
        Most requests that run at once.
    deterministic : bool, default False
        Promise to the bit what else holds up to rounding: greedy text with drafts equals
        that without, and seed-identical rules give one text per seed. Tested at load and
        refused where runtime or machine do not keep it. Prompts are read in smaller
        chunks, passes have at most 96 tokens, and rounds at most 15 drafts.
    cache_dir : Path, optional
        Where downloads and prepared models are kept; the user's cache when None.
    progress : callable, optional
        Told in one line what is being done.

    Returns
    -------
    Engine
        Ready to generate.

    Raises
    ------
    ConfigError
        If an option is out of range.
    ModelFileError
        If a model file is missing, damaged or of a kind that is not supported.
    IncompatibleModelsError
        If the drafter has another vocabulary.
    """
    config = SpeculativeConfig.parse(speculative_config)
    say = progress or (lambda _line: None)
    target, tokenizer = load_model(
        model,
        precision=precision,
        kv_cache_bytes=kv_cache_bytes,
        deterministic=deterministic,
        cache_dir=cache_dir,
        progress=say,
        context_length=context_length,
        threads=threads,
    )
    draft: ModelBackend | None = None
    if config.model is not None:
        draft, draft_tokenizer = load_model(
            config.model,
            precision=draft_precision or precision,
            kv_cache_bytes=None,
            cache_dir=cache_dir,
            progress=say,
            context_length=context_length,
            threads=threads,
        )
        check_same_vocabulary(
            tokenizer, draft_tokenizer, target.info.vocab_size, draft.info.vocab_size
        )
    core = EngineCore(
        target,
        tokenizer=tokenizer,
        proposers=make_proposers(config, target.info.vocab_size, draft),
        kappa=config.kappa,
        rule=config.rule,
        allow_lossy=config.allow_lossy,
        constraints=lazy_constraints(tokenizer, target.info.vocab_size),
        scheduler=SchedulerConfig(max_rows=max_rows),
        deterministic=deterministic,
    )
    return Engine(core)


def load_model(
    model: str | Path,
    *,
    precision: str = "int8",
    context_length: int | None = None,
    kv_cache_bytes: int | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> tuple[ModelBackend, Tokenizer]:
    """Load one model and its tokenizer.

    Parameters
    ----------
    model : str or Path
        A name of the catalogue, a GGUF file or an OpenVINO IR folder.
    precision : {"int8", "f16", "f32"}
        How the weights are held; an IR folder keeps its own.
    context_length, kv_cache_bytes, threads : int, optional
        Limits; see `load`.
    deterministic : bool, default False
        Let the runtime pad small passes, so that they round as larger ones do.
    cache_dir : Path, optional
        Where downloads and prepared models are kept.
    progress : callable, optional
        Told in one line what is being done.

    Returns
    -------
    backend : ModelBackend
        The model.
    tokenizer : Tokenizer
        Its tokenizer.

    Raises
    ------
    ConfigError
        If the precision is unknown.
    ModelFileError
        If a file is missing, damaged or of a kind that is not supported.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    say = progress or (lambda _line: None)
    source = resolve(str(model), cache_dir=cache_dir, progress=say)
    folder = _prepared(source, precision, cache_dir, say)
    tokenizer = Tokenizer.from_source(source)
    backend = load_openvino(
        folder,
        name=source.name,
        vocab_size=tokenizer.vocab_size,
        kv_cache_bytes=kv_cache_bytes,
        context_length=context_length,
        threads=threads,
        deterministic=deterministic,
    )
    return backend, tokenizer


def _prepared(source: ModelSource, precision: str, cache_dir: Path | None, say: Progress) -> Path:
    """Return the folder of a model that the runtime can load, preparing it once."""
    if source.kind == "openvino-ir":
        return source.path
    return prepare(source.path, precision, cache_dir=cache_dir, progress=say)
