"""The embedding table and the output layer of a graph, as numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from draftproof.backends.openvino.paging import last_line, output_layer
from draftproof.errors import ModelFileError

__all__ = ["read_matrices"]

Matrix = NDArray[np.float32]


def read_matrices(path: Path) -> tuple[Matrix, Matrix]:
    """Read what turns tokens into vectors, and vectors into logits.

    Parameters
    ----------
    path : Path
        A stateful graph, ours or one that optimum wrote.

    Returns
    -------
    embedding : ndarray of float32, shape (V, E)
        One row per token.
    output : ndarray of float32, shape (V, E)
        One row per logit; the very same array where both are one constant.

    Raises
    ------
    ModelFileError
        If they are not where decoders have them.
    """
    model = ov.Core().read_model(path)
    head = output_layer(model)
    table = _embedding_source(model, path)
    weight = head.input_value(1)
    attributes = head.get_attributes()
    if attributes.get("transpose_a") or not attributes.get("transpose_b"):
        raise ModelFileError(f"{path}: the output layer is transposed, expected one row per logit")
    output = _value(weight, path)
    is_same = table.get_node().get_friendly_name() == weight.get_node().get_friendly_name()
    return (output, output) if is_same else (_value(table, path), output)


def _embedding_source(model: Any, path: Path) -> Any:
    """Return what the gather of the token ids reads."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Gather":
            continue
        indices = node.input_value(1).get_node()
        while indices.get_type_name() in ("Convert", "Reshape"):
            indices = indices.input_value(0).get_node()
        if indices.get_type_name() == "Parameter" and "input_ids" in indices.output(0).names:
            return node.input_value(0)
    raise ModelFileError(f"{path}: no table of embeddings is gathered by input_ids")


def _value(output: Any, path: Path) -> Matrix:
    """Compute a constant part of the graph."""
    try:
        part = ov.Model([ops.result(ops.convert(output, ov.Type.f32))], [], "constant")
        compiled = ov.Core().compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found: Matrix = np.array(compiled([])[0], dtype=np.float32)
    except RuntimeError as error:
        raise ModelFileError(f"{path}: no constant matrix: {last_line(error)}") from error
    if found.ndim != 2:
        raise ModelFileError(f"{path}: a matrix of shape {found.shape}, expected two axes")
    return found
