"""From a stateful decoder graph to one that reads and writes pages.

The runtime's own transformation turns each attention with its variables into one paged
attention over flat tokens. A gather is then put before the last matrix product, so that
only the rows somebody wants go through the output layer.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from draftproof.errors import ModelFileError

__all__ = ["BATCH_INPUTS", "TREE_INPUTS", "last_line", "make_paged", "output_layer"]

#: Inputs of the paged graph besides the key and value pages.
BATCH_INPUTS: Final = (
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "rows",
)
#: Inputs that say which tokens of a row see which others, where the runtime has them.
TREE_INPUTS: Final = ("qq_bias", "qq_bias_begins")
#: First runtime whose CPU kernels were seen to heed those inputs.
_TREES_SINCE: Final = (2026, 4)
#: What may stand between the output layer and the logits, acting on each entry alone.
_POINTWISE: Final = ("Convert", "Add", "Multiply", "Divide", "Tanh", "Reshape", "Squeeze")


def make_paged(model: Any, *, with_hidden: bool = False) -> None:
    """Rewrite a stateful decoder graph in place.

    Afterwards the inputs are `BATCH_INPUTS`, `TREE_INPUTS` where the runtime knows them,
    and one ``key_cache.N`` and ``value_cache.N`` per layer, and the only output is
    ``logits`` (M, V), one row per entry of ``rows``.

    Parameters
    ----------
    model : openvino.Model
        A stateful graph, ours or one that optimum wrote.
    with_hidden : bool, default False
        Add the output ``hidden`` (N, E): what the output layer reads, of all tokens.

    Raises
    ------
    ModelFileError
        If the graph is not of a form that can be paged.
    """
    try:
        if _has_trees():
            paged_attention_transformation(model, allow_qq_bias=True)
        else:
            paged_attention_transformation(model)
    except RuntimeError as error:
        raise ModelFileError(f"the graph cannot be paged: {last_line(error)}") from error
    head = output_layer(model)
    _gather_rows(model, head, with_hidden=with_hidden)
    _check_inputs(model)


def _has_trees() -> bool:
    """Say whether the runtime masks the tokens of a row from each other, as tried out.

    Older ones have no such input, or might have one that the CPU ignores.
    """
    numbers = ov.__version__.split("-")[0].split(".")[:2]
    return all(part.isdigit() for part in numbers) and tuple(map(int, numbers)) >= _TREES_SINCE


def last_line(error: Exception) -> str:
    """Return the last line of a runtime's message, which says the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def output_layer(model: Any) -> Any:
    """Find the matrix product that yields the logits.

    Parameters
    ----------
    model : openvino.Model
        A decoder graph with one output.

    Returns
    -------
    openvino.Node
        The product of hidden states and the output layer's weights.

    Raises
    ------
    ModelFileError
        If there is another output, or something unknown before it.
    """
    if len(model.outputs) != 1:
        names = ", ".join(sorted(str(port.get_any_name()) for port in model.outputs))
        raise ModelFileError(f"the graph has the outputs {names}, expected one, the logits")
    node = model.outputs[0].get_node()
    while node.get_type_name() != "MatMul":
        if node.get_type_name() not in ("Result", *_POINTWISE):
            raise ModelFileError(
                f"no output layer found: {node.get_type_name()} stands before the logits"
            )
        node = node.input_value(0).get_node()
    return node


def _gather_rows(model: Any, head: Any, *, with_hidden: bool) -> None:
    """Let only the wanted rows reach the output layer, and flatten the logits."""
    hidden = head.input_value(0)
    extents = hidden.get_partial_shape()
    vocab = head.output(0).get_partial_shape()
    if extents.rank.is_dynamic or extents[len(extents) - 1].is_dynamic:
        raise ModelFileError(f"the hidden state has the shape {extents}, expected a fixed width")
    if vocab[len(vocab) - 1].is_dynamic:
        raise ModelFileError(f"the logits have the shape {vocab}, expected a fixed vocabulary")
    rows = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name="rows")
    rows.output(0).get_tensor().set_names({"rows"})
    width = extents[len(extents) - 1].get_length()
    flat = ops.reshape(hidden, ops.constant(np.array([-1, width], dtype=np.int64)), False)
    wanted = ops.gather(flat, rows, ops.constant(np.array(0, dtype=np.int64)))
    head.input(0).replace_source_output(wanted.output(0))
    result = model.get_results()[0]
    size = vocab[len(vocab) - 1].get_length()
    logits = result.input_value(0)
    shaped = ops.reshape(logits, ops.constant(np.array([-1, size], dtype=np.int64)), False)
    if logits.get_element_type() != ov.Type.f32:
        shaped = ops.convert(shaped, ov.Type.f32)
    result.input(0).replace_source_output(shaped.output(0))
    shaped.output(0).get_tensor().set_names({"logits"})
    model.add_parameters([rows])
    if with_hidden:
        states = flat
        if flat.get_element_type() != ov.Type.f32:
            states = ops.convert(flat, ov.Type.f32)
        states.output(0).get_tensor().set_names({"hidden"})
        model.add_results([ops.result(states)])
    model.validate_nodes_and_infer_types()


def _check_inputs(model: Any) -> None:
    """Refuse a graph that wants something we would not know how to fill."""
    found = {str(port.get_any_name()) for port in model.inputs}
    pages = {name for name in found if name.startswith(("key_cache.", "value_cache."))}
    for name in sorted(found - pages - {*BATCH_INPUTS, *TREE_INPUTS}):
        raise ModelFileError(f"the graph has an input {name} that is not supported")
    for name in sorted(set(BATCH_INPUTS) - found):
        raise ModelFileError(f"the paged graph has no input {name}")
    if not pages:
        raise ModelFileError("the paged graph has no key and value pages")
