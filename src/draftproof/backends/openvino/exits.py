"""The graph that stops after its first layers: an early exit of a model.

The sum that runs through all layers is followed backwards from the final norm, and the
norm is given the sum of an earlier layer in its place. Norm and output layer stay as they
are. The constants are those of the whole graph, read from the same file.
"""

from __future__ import annotations

from typing import Any, Final

import openvino as ov

from draftproof.backends.openvino.paging import output_layer
from draftproof.errors import ConfigError, ModelFileError

__all__ = ["first_layers"]

#: What stands between the last sum and the output layer: the norm's two products.
_NORM: Final = ("Multiply", "Multiply")


def first_layers(model: Any, num_layers: int) -> Any:
    """Return the graph of the first layers, the final norm and the output layer.

    Parameters
    ----------
    model : openvino.Model
        A stateful graph of ours. It is changed and must not be used any more.
    num_layers : int
        Layers that stay.

    Returns
    -------
    openvino.Model
        With the same inputs and output, and the state of the layers that stay.

    Raises
    ------
    ConfigError
        If there are not that many layers.
    ModelFileError
        If the layers of the graph cannot be told apart.
    """
    sums = _sums(output_layer(model))
    sinks = model.get_sinks()
    count, odd = divmod(len(sums), 2)
    if odd or len(sinks) != 2 * count or count == 0:
        raise _unknown(f"{len(sums)} sums and {len(sinks)} states")
    if not 1 <= num_layers <= count:
        raise ConfigError(f"early exit after {num_layers} layers, expected 1 to {count}")
    last, kept = sums[0], sums[2 * (count - num_layers)]
    if kept is not last:
        for reader in last.output(0).get_target_inputs():
            reader.replace_source_output(kept.output(0))
    held = [sink for sink in sinks if _layer_of(sink) < num_layers]
    return ov.Model(model.get_results(), held, model.get_parameters(), model.get_friendly_name())


def _sums(head: Any) -> list[Any]:
    """Return the sums of the residual stream, the last first: two for each layer."""
    node = head.input_value(0).get_node()
    for kind in _NORM:
        if node.get_type_name() != kind:
            raise _unknown(f"{node.get_type_name()} before the output layer")
        node = node.input_value(0).get_node()
    sums: list[Any] = []
    while node.get_type_name() == "Add":
        sums.append(node)
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Gather":
        raise _unknown(f"{node.get_type_name()} before the first layer")
    return sums


def _layer_of(sink: Any) -> int:
    """Return the layer of a state named ``past_key_values.N.key`` or ``.value``."""
    name = str(sink.get_variable_id())
    parts = name.split(".")
    if len(parts) != 3 or not parts[1].isdigit():
        raise _unknown(f"a state named {name}")
    return int(parts[1])


def _unknown(found: str) -> ModelFileError:
    return ModelFileError(
        f"an early exit needs a graph that was prepared from a GGUF file; this one has {found}"
    )
