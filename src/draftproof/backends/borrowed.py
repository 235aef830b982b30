"""What a draft head borrows from its target, checked against the target itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import HiddenStates, ModelBackend
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import IncompatibleModelsError

__all__ = ["Borrowed", "borrow"]

#: Tokens that the check scores.
_TOKENS: Final = 8
#: Largest difference of logits that rounding explains, as a share of their spread.
_TOLERANCE: Final = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Borrowed:
    """Matrices of a target.

    Parameters
    ----------
    embedding : ndarray of float32, shape (V, E)
        One row per token.
    output : ndarray of float32, shape (V, E)
        One row per logit; the same object as ``embedding`` where the target ties them.
    states : ndarray of float32, shape (n, E)
        Hidden states of the first n token ids as a text, which all layers have part in.
    """

    embedding: NDArray[np.float32]
    output: NDArray[np.float32]
    states: NDArray[np.float32]


def borrow(target: ModelBackend) -> Borrowed:
    """Return the matrices of a target whose logits they explain.

    Parameters
    ----------
    target : ModelBackend
        A backend with hidden states.

    Returns
    -------
    Borrowed
        Its embedding and output layer.

    Raises
    ------
    IncompatibleModelsError
        If the target gives no hidden states, or its logits are more than their product
        with the output layer.
    """
    info = target.info
    if not info.hidden_size or not isinstance(target, HiddenStates):
        raise IncompatibleModelsError(
            f"{info.name} on {info.runtime} gives no hidden states, which a draft head reads"
        )
    embedding, output = target.matrices()
    ids = np.arange(min(_TOKENS, info.vocab_size)).tolist()
    sequence = target.open()
    try:
        logits = target.forward(FlatBatch.from_rows([Row(sequence, ids, 0, len(ids))])).copy()
        states = np.array(target.hidden(), dtype=np.float32)
        product = states @ output.T
    finally:
        target.close(sequence)
    gap = float(np.abs(logits - product).max())
    if gap > _TOLERANCE * float(logits.std()):
        raise IncompatibleModelsError(
            f"the logits of {info.name} differ by {gap:.3g} from hidden states times output "
            "layer; a draft head needs a model whose logits are just that product"
        )
    return Borrowed(embedding, output, states)
