"""From a name or a folder to a draft head that fits a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from draftproof.backends.borrowed import borrow
from draftproof.backends.fingerprint import TARGET_FINGERPRINT, fingerprint, is_like
from draftproof.core.protocols import ModelBackend
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.models.eagle_config import read_eagle_config
from draftproof.models.head_files import find_head, is_own_head, read_head
from draftproof.proposers.draft_head import HeadRunner

__all__ = ["HiddenLayers", "head_layers", "load_head"]

#: Which hidden states a target has to tell: their numbers, or the usual three of EAGLE-3.
HiddenLayers = tuple[int, ...] | Literal["eagle3"]


def head_layers(ref: str) -> HiddenLayers | None:
    """Return which hidden states a head reads, before its target is loaded.

    Parameters
    ----------
    ref : str
        A built-in name or a folder.

    Returns
    -------
    tuple of int, "eagle3" or None
        What ``hidden_layers`` of `draftproof.backends.torch_hf.load_torch` takes; None for
        heads that read what the output layer reads.

    Raises
    ------
    ModelFileError
        If there is no head, or it has an option that is not known.
    """
    folder = find_head(ref)
    if is_own_head(folder):
        return None
    config = read_eagle_config(folder / "config.json")
    return None if config.kind == "eagle" else config.layers or "eagle3"


def load_head(
    ref: str,
    target: ModelBackend,
    *,
    precision: str | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> HeadRunner:
    """Load a draft head for a target that gives its hidden states.

    Parameters
    ----------
    ref : str
        A built-in name such as ``"smollm2-head"``, a folder that ``draftproof distill``
        made, or one with a published head in the format of speculators or of EAGLE-3.
    target : ModelBackend
        The model whose text is drafted; it lends embedding and output layer where the head
        has none.
    precision : {"int8", "f16", "f32"}, optional
        How the matrices of our own heads are kept, ``"int8"`` when None. Published heads
        have the type of the target. Drafts change with it, never the text's law.
    threads : int, optional
        Threads of OpenVINO, for our own heads; all physical cores when None.
    progress : callable, optional
        Told in one line where one of our own heads was trained for a model whose embedding is
        not that of the target: its drafts are exact and hardly ever kept.

    Returns
    -------
    HeadRunner
        Our own heads on OpenVINO's CPU runtime wherever the target runs, published ones on
        PyTorch beside it.

    Raises
    ------
    ConfigError
        If the precision is unknown, or a published head is asked for with a target on
        another runtime than PyTorch.
    ModelFileError
        If there is no head, or a damaged one.
    IncompatibleModelsError
        If the head was made for another vocabulary or another width.
    """
    folder = find_head(ref)
    if not is_own_head(folder):
        return _published(ref, target, precision)
    from draftproof.backends.openvino.head import OpenVINOHead
    from draftproof.backends.openvino.weights import Precision

    if precision is not None and precision not in get_args(Precision):
        raise ConfigError(
            f"precision is {precision!r}, expected one of {', '.join(get_args(Precision))}"
        )
    head = read_head(folder)
    info, shape = target.info, head.shape
    if (shape.vocab_size, shape.hidden_size) != (info.vocab_size, info.hidden_size):
        raise IncompatibleModelsError(
            f"the head {ref} is for {shape.vocab_size} tokens of width {shape.hidden_size}; "
            f"{info.name} has {info.vocab_size} of width {info.hidden_size}"
        )
    borrowed = borrow(target)
    trained_for = str(head.notes.get(TARGET_FINGERPRINT, ""))
    if progress and trained_for and not is_like(trained_for, fingerprint(borrowed.embedding)):
        progress(
            f"warning: the head {ref} was trained for {head.target}, whose weights are not those "
            f"of {info.name}: its drafts will hardly ever be kept"
        )
    kept: Precision = precision or "int8"  # type: ignore[assignment]  # a literal, as checked
    return OpenVINOHead(head, borrowed.embedding, borrowed.output, precision=kept, threads=threads)


def _published(ref: str, target: ModelBackend, precision: str | None) -> HeadRunner:
    """Load a published head beside its target."""
    if target.info.runtime != "torch":
        raise ConfigError(
            f"the head {ref} is a published one, which runs beside a target on torch; "
            f"{target.info.name} runs on {target.info.runtime}. Expected --backend torch"
        )
    from draftproof.backends.torch_hf import TorchBackend, load_torch_head

    if not isinstance(target, TorchBackend):
        raise ConfigError(f"the head {ref} needs a target in one process; expected no ranks")
    if precision is not None:
        raise ConfigError(
            f"precision {precision} has no effect on the head {ref}, which has the type of its "
            "target on torch; expected none"
        )
    return load_torch_head(find_head(ref), target)
