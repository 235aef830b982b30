"""From a name or a folder to a draft head that fits a target."""

from __future__ import annotations

from typing import get_args

from draftproof.backends.borrowed import borrow
from draftproof.core.protocols import ModelBackend
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.models.head_files import find_head, read_head
from draftproof.proposers.draft_head import HeadRunner

__all__ = ["load_head"]


def load_head(
    ref: str, target: ModelBackend, *, precision: str = "int8", threads: int | None = None
) -> HeadRunner:
    """Load a draft head for a target that gives its hidden states.

    Parameters
    ----------
    ref : str
        A built-in name such as ``"smollm2-head"``, or a folder that
        ``draftproof distill`` made.
    target : ModelBackend
        The model whose text is drafted; it lends embedding and output layer.
    precision : {"int8", "f16", "f32"}, default "int8"
        How the head's matrices are kept. Drafts change with it, never the text's law.
    threads : int, optional
        Threads of the runtime; all physical cores when None.

    Returns
    -------
    HeadRunner
        The head, on OpenVINO's CPU runtime wherever the target runs.

    Raises
    ------
    ConfigError
        If the precision is unknown.
    ModelFileError
        If there is no head, or a damaged one.
    IncompatibleModelsError
        If the head was made for another vocabulary or another width.
    """
    from draftproof.backends.openvino.head import OpenVINOHead
    from draftproof.backends.openvino.weights import Precision

    if precision not in get_args(Precision):
        raise ConfigError(
            f"precision is {precision!r}, expected one of {', '.join(get_args(Precision))}"
        )
    head = read_head(find_head(ref))
    info, shape = target.info, head.shape
    if (shape.vocab_size, shape.hidden_size) != (info.vocab_size, info.hidden_size):
        raise IncompatibleModelsError(
            f"the head {ref} is for {shape.vocab_size} tokens of width {shape.hidden_size}; "
            f"{info.name} has {info.vocab_size} of width {info.hidden_size}"
        )
    borrowed = borrow(target)
    kept: Precision = precision  # type: ignore[assignment]  # one of the literals, as checked
    return OpenVINOHead(head, borrowed.embedding, borrowed.output, precision=kept, threads=threads)
