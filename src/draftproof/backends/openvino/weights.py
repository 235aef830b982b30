"""Weights as graph constants, in the precision they are kept in.

The int8 form is one signed byte per weight and one float32 scale per output row,
written as Constant, Convert, Multiply. The CPU runtime recognises that chain and
multiplies from the bytes; nothing is expanded in memory. Zero points were tried:
they cost time and brought the law no closer.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

from draftproof.errors import ModelFileError

__all__ = ["PRECISIONS", "Precision", "quantize_rows", "weight_node"]

#: How weights are kept. Arithmetic is float32 in every case.
Precision = Literal["f32", "f16", "int8"]
PRECISIONS: Final[tuple[Precision, ...]] = ("f32", "f16", "int8")

_LARGEST_F16: Final = float(np.finfo(np.float16).max)


def quantize_rows(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Round a matrix to signed bytes with one scale per row.

    Parameters
    ----------
    matrix : ndarray of float32, shape (rows, columns)
        One row per output channel.

    Returns
    -------
    codes : ndarray of int8, shape (rows, columns)
        Between -127 and 127.
    scales : ndarray of float32, shape (rows, 1)
        ``codes * scales`` is the rounded matrix.
    """
    scales = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(127)
    # A subnormal scale would overflow the quotient; such a row is zero for all purposes.
    scales = np.where(scales < np.finfo(np.float32).tiny, np.float32(1), scales)
    codes = np.clip(np.rint(matrix / scales), -127, 127).astype(np.int8)
    return codes, scales.astype(np.float32)


def weight_node(matrix: NDArray[np.float32], precision: Precision) -> Any:
    """Return a node that yields a weight matrix in float32.

    Parameters
    ----------
    matrix : ndarray of float32, shape (rows, columns)
        The weight.
    precision : {"f32", "f16", "int8"}
        How it is kept.

    Returns
    -------
    openvino.Node
        Its output has the shape of ``matrix``.

    Raises
    ------
    ModelFileError
        If a value does not fit the precision.
    """
    if precision == "f32":
        return ops.constant(np.ascontiguousarray(matrix, dtype=np.float32))
    if precision == "f16":
        largest = float(np.abs(matrix).max())
        if largest > _LARGEST_F16:
            raise ModelFileError(f"a weight of {largest:g} does not fit f16; use f32 or int8")
        return ops.convert(ops.constant(matrix.astype(np.float16)), ov.Type.f32)
    codes, scales = quantize_rows(matrix)
    return ops.multiply(ops.convert(ops.constant(codes), ov.Type.f32), ops.constant(scales))
