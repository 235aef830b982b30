"""From a name or a path to a model on one of the runtimes, and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from draftproof.backends.openvino import load_openvino, prepare
from draftproof.build.profiled import fastest_runtime
from draftproof.core.protocols import ModelBackend
from draftproof.errors import ConfigError
from draftproof.models import CATALOG, ModelSource, resolve
from draftproof.text import Tokenizer

__all__ = ["BACKENDS", "PRECISIONS", "Progress", "RuntimeOptions", "load_model"]

#: How OpenVINO may hold weights; the first is the default.
PRECISIONS = ("int8", "f16", "f32")
#: Names a user may give a runtime; ``"auto"`` looks at the files.
BACKENDS = ("auto", "openvino", "torch", "llamacpp")
#: Options that one runtime has alone, by the runtime.
_OPTIONS = {
    "openvino": ("precision",),
    "torch": ("device", "dtype", "attention", "linear", "cuda_graphs", "tensor_parallel"),
    "llamacpp": ("n_gpu_layers", "main_gpu", "flash_attn", "cache_type_k", "cache_type_v"),
}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Which runtime runs a model, and how. None leaves a choice to the runtime.

    Parameters
    ----------
    backend : {"auto", "openvino", "torch", "llamacpp"}
        ``"auto"`` takes PyTorch for Hugging Face folders and OpenVINO for the rest. Where
        ``draftproof calibrate`` has measured a GGUF file on several runtimes of this
        machine, it takes the fastest of them and says so.
    precision : {"int8", "f16", "f32"}, optional
        How OpenVINO holds the weights; ``"int8"`` when None. An IR folder keeps its own.
    device, dtype, attention, linear, cuda_graphs : str, optional
        For PyTorch; see `draftproof.backends.torch_hf.load_torch`.
    tensor_parallel : int, optional
        For PyTorch: processes of this machine over which a Hugging Face folder is cut; see
        `draftproof.backends.torch_hf.load_parallel`. None and 1 are this process alone.
    n_gpu_layers, main_gpu : int, optional
        For llama.cpp; see `draftproof.backends.llama_cpp.load_llama_cpp`.
    flash_attn : bool, optional
        The same.
    cache_type_k, cache_type_v : str, optional
        The same.

    Raises
    ------
    ConfigError
        If the backend or the precision is unknown.
    """

    backend: str = "auto"
    precision: str | None = None
    device: str | None = None
    dtype: str | None = None
    attention: str | None = None
    linear: str | None = None
    tensor_parallel: int | None = None
    cuda_graphs: str | None = None
    n_gpu_layers: int | None = None
    main_gpu: int | None = None
    flash_attn: bool | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None

    def __post_init__(self) -> None:
        """Refuse unknown names."""
        if self.backend not in BACKENDS:
            raise ConfigError(f"backend is {self.backend!r}; expected one of {', '.join(BACKENDS)}")
        if self.precision is not None and self.precision not in PRECISIONS:
            raise ConfigError(
                f"precision is {self.precision!r}; expected one of {', '.join(PRECISIONS)}"
            )
        if self.tensor_parallel is not None and self.tensor_parallel < 1:
            raise ConfigError(f"tensor_parallel is {self.tensor_parallel}; expected at least 1")

    def of(self, runtime: str) -> dict[str, Any]:
        """Return the options of one runtime that the user set."""
        return self.given(*_OPTIONS[runtime])

    def refuse_others(self, runtime: str, model: str) -> None:
        """Refuse what another runtime than the one that runs a model would heed.

        Parameters
        ----------
        runtime : str
            The runtime that runs it.
        model : str
            Name of the model.

        Raises
        ------
        ConfigError
            Naming the option, its runtime, and the one that runs.
        """
        for other, names in _OPTIONS.items():
            for name, value in self.given(*names).items() if other != runtime else ():
                raise ConfigError(
                    f"{name} {value} is an option of the {other} backend; {model} runs on {runtime}"
                )

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the named options that the user set."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def load_model(
    model: str | Path,
    *,
    precision: str | None = None,
    runtime: RuntimeOptions | None = None,
    context_length: int | None = None,
    kv_cache_bytes: int | None = None,
    threads: int | None = None,
    deterministic: bool = False,
    with_hidden: bool = False,
    hidden_layers: Sequence[int] | Literal["eagle3"] | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> tuple[ModelBackend, Tokenizer]:
    """Load one model and its tokenizer.

    Parameters
    ----------
    model : str or Path
        A name of the catalogue, a GGUF file, an OpenVINO IR folder, a Hugging Face folder,
        or with the PyTorch runtime a hub id.
    precision : str, optional
        Shorthand for a runtime option of the same name.
    runtime : RuntimeOptions, optional
        The runtime; chosen by the files when None.
    context_length, kv_cache_bytes, threads : int, optional
        Limits; see `load`.
    deterministic : bool, default False
        Let the runtime pad small passes, so that they round as larger ones do.
    with_hidden : bool, default False
        Keep the hidden states of each pass for a drafter that reads them.
    hidden_layers : sequence of int or "eagle3", optional
        Which ones, where it is not the last; see `draftproof.backends.torch_hf.load_torch`.
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
        If an option is unknown, or the chosen runtime has no such option.
    ModelFileError
        If a file is missing, damaged or of a kind that is not supported.
    """
    chosen = runtime or RuntimeOptions(precision=precision)
    say = progress or (lambda _line: None)
    source = _find(str(model), chosen, cache_dir, say)
    name = _runtime_of(source, chosen)
    if name == "openvino" and source.kind == "gguf" and not deterministic:
        name = _profiled(source, chosen, cache_dir, say, with_hidden=with_hidden)
    chosen.refuse_others(name, source.name)
    if name == "torch":
        told: dict[str, Any] = {"with_hidden": with_hidden, "hidden_layers": hidden_layers}
        if deterministic:
            # A replay is padded and rounds otherwise than the passes before its capture.
            if chosen.cuda_graphs == "on":
                raise ConfigError("cuda_graphs is 'on'; the deterministic mode runs without graphs")
            told["cuda_graphs"] = "off"
        return _load_torch(source, chosen, context_length, kv_cache_bytes, threads, told, say)
    if hidden_layers is not None:
        raise ConfigError(
            "heads of type 'eagle3' read hidden states between layers, which the "
            f"{name} backend does not give; expected --backend torch"
        )
    if name == "llamacpp":
        if with_hidden:
            raise ConfigError(
                "draft heads read hidden states, which the llamacpp backend does not give; "
                "expected openvino or torch"
            )
        return _load_llama_cpp(source, chosen, context_length, kv_cache_bytes, threads, say)
    folder = source.path
    if source.kind != "openvino-ir":
        folder = prepare(
            source.path, chosen.precision or PRECISIONS[0], cache_dir=cache_dir, progress=say
        )
    tokenizer = Tokenizer.from_source(source)
    backend = load_openvino(
        folder,
        name=source.name,
        vocab_size=tokenizer.vocab_size,
        kv_cache_bytes=kv_cache_bytes,
        context_length=context_length,
        threads=threads,
        deterministic=deterministic,
        with_hidden=with_hidden,
    )
    return backend, tokenizer


def _find(ref: str, chosen: RuntimeOptions, cache_dir: Path | None, say: Progress) -> ModelSource:
    """Return where a model is; PyTorch also takes ids of the hub."""
    if chosen.backend == "torch" and ref not in CATALOG and not Path(ref).expanduser().exists():
        folder = _torch_hf().model_folder(ref)
        return ModelSource("hf-folder", folder, ref)
    return resolve(ref, cache_dir=cache_dir, progress=say)


def _runtime_of(
    source: ModelSource, chosen: RuntimeOptions
) -> Literal["openvino", "torch", "llamacpp"]:
    wanted = chosen.backend
    if wanted == "llamacpp":
        if source.kind != "gguf":
            raise ConfigError(f"{source.path} is no GGUF file, which the llamacpp backend needs")
        return "llamacpp"
    if source.kind == "hf-folder":
        if wanted == "openvino":
            raise ConfigError(
                f"{source.path} is a Hugging Face folder; the openvino backend needs a GGUF file "
                "or an IR folder"
            )
        return "torch"
    if source.kind == "openvino-ir" and wanted == "torch":
        raise ConfigError(f"{source.path} is an OpenVINO folder; expected --backend openvino")
    return "torch" if wanted == "torch" else "openvino"


def _profiled(
    source: ModelSource,
    chosen: RuntimeOptions,
    cache_dir: Path | None,
    say: Progress,
    *,
    with_hidden: bool,
) -> Literal["openvino", "torch", "llamacpp"]:
    """Return the runtime that the user's calibrations found fastest, OpenVINO without any."""
    if chosen.backend != "auto" or chosen.given(*(n for names in _OPTIONS.values() for n in names)):
        return "openvino"
    able: dict[str, Literal["openvino", "torch", "llamacpp"]] = {"openvino": "openvino"}
    if find_spec("torch") and find_spec("transformers"):
        able["torch"] = "torch"
    if find_spec("llama_cpp") and not with_hidden:
        able["llamacpp"] = "llamacpp"
    ranked = fastest_runtime(source.name, able, precision=PRECISIONS[0], cache_dir=cache_dir)
    if len(ranked) < 2:
        return "openvino"
    say(f"runtime by your calibrations: {', then '.join(map(str, ranked))}")
    return able[ranked[0].name]


def _load_torch(
    source: ModelSource,
    chosen: RuntimeOptions,
    context_length: int | None,
    kv_cache_bytes: int | None,
    threads: int | None,
    told: Mapping[str, Any],
    say: Progress,
) -> tuple[ModelBackend, Tokenizer]:
    torch_hf = _torch_hf()
    tokenizer = Tokenizer.from_source(source)
    say(f"loading {source.name} on PyTorch")
    options = chosen.of("torch")
    num_ranks = options.pop("tensor_parallel", 1)
    options |= {
        "name": source.name,
        "vocab_size": tokenizer.vocab_size,
        "context_length": context_length,
        "kv_cache_bytes": kv_cache_bytes,
        "threads": threads,
        "host_logits": True,
        **told,
    }
    if num_ranks > 1:
        return torch_hf.load_parallel(source.path, num_ranks, **options), tokenizer
    backend = torch_hf.load_torch(source.path, **options)
    if note := backend.model.attention.note():
        say(f"attention: {note}")
    return backend, tokenizer


def _load_llama_cpp(
    source: ModelSource,
    chosen: RuntimeOptions,
    context_length: int | None,
    kv_cache_bytes: int | None,
    threads: int | None,
    say: Progress,
) -> tuple[ModelBackend, Tokenizer]:
    llama_cpp = _llama_cpp()
    tokenizer = Tokenizer.from_source(source)
    say(f"loading {source.name} on llama.cpp")
    backend = llama_cpp.load_llama_cpp(
        source.path,
        name=source.name,
        vocab_size=tokenizer.vocab_size,
        context_length=context_length,
        kv_cache_bytes=kv_cache_bytes,
        threads=threads,
        **chosen.of("llamacpp"),
    )
    return backend, tokenizer


def _torch_hf() -> ModuleType:
    try:
        from draftproof.backends import torch_hf
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the torch backend needs {error.name}: pip install 'draftproof[torch]'"
        ) from error
    return torch_hf


def _llama_cpp() -> ModuleType:
    try:
        from draftproof.backends import llama_cpp
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the llamacpp backend needs {error.name}: pip install 'draftproof[llamacpp]'"
        ) from error
    except (RuntimeError, OSError) as error:
        # llama-cpp-python raises these where its library is missing or does not load.
        raise ConfigError(f"llama-cpp-python cannot be imported: {error}") from error
    return llama_cpp
