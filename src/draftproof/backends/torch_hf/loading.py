"""From a folder, a hub id or a model object to a backend that is ready to run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
import transformers

from draftproof.backends.torch_hf.attention_kernels import (
    ATTENTIONS,
    AttentionName,
    Place,
    choose_attention,
)
from draftproof.backends.torch_hf.backend import TorchBackend
from draftproof.backends.torch_hf.check import check_law
from draftproof.backends.torch_hf.cuda_graphs import GraphsName, choose_graphs
from draftproof.backends.torch_hf.folder import check_folder, model_folder, read_config
from draftproof.backends.torch_hf.from_gguf import model_from_gguf
from draftproof.backends.torch_hf.inspect import describe_layers, refuse_by_config
from draftproof.backends.torch_hf.model import PagedModel
from draftproof.backends.torch_hf.packing import LinearName, pack_linears
from draftproof.backends.torch_hf.parallel_options import cut_over, refuse_parallel
from draftproof.backends.torch_hf.taps import check_layers, eagle3_layers
from draftproof.errors import ConfigError, ModelFileError

__all__ = ["DEFAULT_KV_CACHE_BYTES", "DTYPES", "DtypeName", "load_torch"]

#: Room for keys and values when nobody says: 1 GiB. On the CPU unused pages take no memory.
DEFAULT_KV_CACHE_BYTES: Final = 1 << 30

#: How weights are held and computed with. ``auto``: float32 on the CPU, else as stored.
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: Final[tuple[DtypeName, ...]] = get_args(DtypeName)


def load_torch(
    model: str | Path | Any,
    *,
    name: str | None = None,
    device: str = "auto",
    dtype: DtypeName = "auto",
    attention: AttentionName = "auto",
    linear: LinearName = "auto",
    kv_cache_bytes: int | None = None,
    context_length: int | None = None,
    vocab_size: int | None = None,
    threads: int | None = None,
    page_size: int | None = None,
    prefix_caching: bool = True,
    host_logits: bool | None = None,
    with_hidden: bool = False,
    hidden_layers: Sequence[int] | Literal["eagle3"] | None = None,
    num_ranks: int = 1,
    cuda_graphs: GraphsName = "auto",
) -> TorchBackend:
    """Load a causal language model of transformers.

    Parameters
    ----------
    model : str, Path or transformers.PreTrainedModel
        A folder with ``config.json`` and safetensors, a hub id, a GGUF file (its weights
        are expanded), or a model object. An object is taken over: it is put into
        evaluation mode and attends through us from then on. Its device and type stay as
        they are.
    name : str, optional
        Name shown to people; the folder's when None.
    device : str, default "auto"
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; ``"auto"`` takes CUDA where there is one.
    dtype : {"auto", "float32", "bfloat16", "float16"}
        How weights are held and computed with. ``"auto"`` is float32 on the CPU, and
        as stored elsewhere.
    attention : {"auto", "sdpa", "explicit", "flash-attn", "flashinfer", "flex"}
        How scores are computed: by torch's fused attention, by matrix products with the
        softmax in float32, or by a kernel of another package or of FlexAttention.
        ``"auto"`` is ``"sdpa"`` on the CPU, and on CUDA the best kernel that is installed
        and carries out the model; ``backend.model.attention.note()`` tells.
    linear : {"auto", "plain", "packed", "f16"}
        How linear layers are held on the CPU, see `draftproof.backends.torch_hf.packing`.
        ``"auto"`` is float16 weights where that is a small rounding, and float32
        arithmetic; it rounds nothing when ``dtype`` is named, and leaves a model object
        as it is.
    kv_cache_bytes : int, optional
        Room for keys and values; `DEFAULT_KV_CACHE_BYTES` when None.
    context_length : int, optional
        Use less context than the model has. Required where the configuration does not
        say how much it has.
    vocab_size : int, optional
        Number of real token ids; rows of the head past them are padding. All when None.
    threads : int, optional
        Threads of torch on the CPU, for the whole process; left alone when None.
    page_size : int, optional
        Token slots of a page. None: 16, or as many as a kernel that is named needs to
        read a page in place.
    prefix_caching : bool, default True
        Whether committed pages are found again by later sequences.
    host_logits : bool, optional
        Return logits as numpy arrays. None: on the CPU yes, elsewhere tensors stay on
        the device.
    with_hidden : bool, default False
        Keep the hidden states of each pass for a drafter that reads them.
    hidden_layers : sequence of int or "eagle3", optional
        Keep these hidden states, joined, in place of what the output layer reads: 0 is the
        embedding, ``i`` what layer ``i`` reads. ``"eagle3"`` is 2, n // 2 and n - 3 of n.
    num_ranks : int, default 1
        Ranks of the default process group over which the model is cut by its own plan;
        each of them makes this call. See `load_parallel`, which starts them.
    cuda_graphs : {"auto", "on", "off"}
        Replay decode and verify passes as CUDA graphs, in shapes that are padded to a few
        sizes. ``"auto"`` does on CUDA, for a model of one rank. ``"on"`` is an error where
        ``"auto"`` would not. A replay rounds otherwise than a pass as it is: what runs in
        the deterministic mode needs ``"off"``.

    Returns
    -------
    TorchBackend
        Ready to run; the share of this rank where there are several.

    Raises
    ------
    ConfigError
        If an option is out of range.
    ModelFileError
        If the model cannot be loaded, or cannot be run in pages.
    """
    if attention not in ATTENTIONS:
        raise ConfigError(f"attention is {attention!r}, expected one of {', '.join(ATTENTIONS)}")
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, expected one of {', '.join(DTYPES)}")
    if page_size is not None and page_size < 1:
        raise ConfigError(f"page_size is {page_size}, expected at least 1")
    if threads is not None:
        most = 4 * (os.cpu_count() or 1)
        if not 1 <= threads <= most:
            raise ConfigError(f"threads is {threads}, expected 1 to {most}")
        torch.set_num_threads(threads)
    if num_ranks > 1:
        with_hidden = with_hidden or hidden_layers is not None
        refuse_parallel(model, device=device, linear=linear, with_hidden=with_hidden)
        linear = "plain"
    if isinstance(model, str | Path):
        target = _device(device)
        choose_graphs(cuda_graphs, target, num_ranks)  # refuses before weights are read
        name, model = _load(model, name, target, dtype, num_ranks)
    else:
        linear = "plain" if linear == "auto" else linear
        if device != "auto" or dtype != "auto":
            raise ConfigError("device and dtype are those of the model object, expected 'auto'")
    config = model.config.get_text_config()
    limit = _context_limit(config, context_length)
    refuse_by_config(config, limit)
    model.eval()
    precision = pack_linears(model, linear, may_round=dtype == "auto")
    layers = describe_layers(model, limit)
    chosen = choose_attention(attention, layers, Place.of(model), page_size)
    if not chosen.is_plain:
        precision = f"{precision}, attention by {chosen.kernel.name}"
    paged = PagedModel(model, [layer.kv for layer in layers], chosen)
    check_law(paged)
    if hidden_layers == "eagle3":
        hidden_layers = eagle3_layers(paged.num_layers)
    elif hidden_layers is not None:
        hidden_layers = check_layers([int(i) for i in hidden_layers], paged.num_layers)
    on_cpu = model.device.type == "cpu"
    return TorchBackend(
        paged,
        name=name or config.model_type,
        precision=precision,
        context_length=limit,
        kv_cache_bytes=DEFAULT_KV_CACHE_BYTES if kv_cache_bytes is None else kv_cache_bytes,
        page_size=chosen.page_size() if page_size is None else page_size,
        prefix_caching=prefix_caching,
        vocab_size=vocab_size,
        host_logits=on_cpu if host_logits is None else host_logits,
        with_hidden=with_hidden,
        window=_widest([layer.window for layer in layers]),
        hidden_layers=hidden_layers or (),
        make_graphs=choose_graphs(cuda_graphs, model.device, num_ranks, paged.attention),
    )


def _device(name: str) -> Any:
    """Return the device of a name."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        line = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used: {line}") from error
    return device


def _widest(windows: Sequence[int | None]) -> int | None:
    """Return the widest window of the layers; None where a layer has none."""
    widths = [window for window in windows if window is not None]
    return max(widths) if widths and len(widths) == len(windows) else None


def _load(
    source: str | Path, name: str | None, device: Any, dtype: DtypeName, num_ranks: int
) -> tuple[str, Any]:
    """Load a GGUF file, a folder or what a hub id names."""
    path = Path(source)
    if path.suffix == ".gguf" and path.is_file():
        model = model_from_gguf(path)
        kind = torch.float32 if dtype == "auto" else getattr(torch, dtype)
        return name or path.stem, model.to(device=device, dtype=kind)
    folder = model_folder(source)
    return name or folder.resolve().name, _load_folder(folder, device, dtype, num_ranks)


def _load_folder(folder: Path, device: Any, dtype: DtypeName, num_ranks: int) -> Any:
    """Load the weights of a folder, refusing what is missing or left over."""
    raw = read_config(folder)
    known = raw.get("model_type") in transformers.models.auto.configuration_auto.CONFIG_MAPPING
    check_folder(folder, raw, known)
    wanted: Any = "auto" if dtype == "auto" else getattr(torch, dtype)
    if dtype == "auto" and device.type == "cpu":
        wanted = torch.float32
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        refuse_by_config(config.get_text_config(), 1)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=wanted,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            **cut_over(num_ranks),
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        line = " ".join(str(error).split())[:300]
        raise ModelFileError(f"{folder}: cannot be loaded: {line}") from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = sorted(map(str, info.get(what) or ()))
        if names:
            shown = ", ".join(names[:3])
            raise ModelFileError(
                f"{folder}: {len(names)} {what.removesuffix('_keys')} weights: {shown}"
            )
    return model if num_ranks > 1 else model.to(device)  # a share is where it belongs


def _context_limit(config: Any, wanted: int | None) -> int:
    """Return how many tokens a sequence may have."""
    known: int | None = getattr(config, "max_position_embeddings", None)
    if wanted is None and known is None:
        raise ConfigError(
            f"the configuration of {config.model_type} does not say the context length; "
            "pass context_length"
        )
    if wanted is not None and (wanted < 1 or (known is not None and wanted > known)):
        most = "any number" if known is None else str(known)
        raise ConfigError(f"context_length is {wanted}, expected 1 to {most}")
    limit = known if wanted is None else wanted
    assert limit is not None  # narrows the type: both None was refused above
    return limit
