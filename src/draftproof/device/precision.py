"""How far an executor's numbers may lie from the definition's, and where that can show.

The definition weighs a token with a float32 exponential of float32 differences. The
differences are the same bits everywhere. The exponential is not: numpy, torch and a
GPU round it differently. So a decision can differ from the definition's only where a
coin lies next to an edge: next to ``p / q`` when a draft is judged, next to a step of a
cumulative law when a token is drawn, next to the runner-up in a race. The functions of
this room bound that distance for every decision they make. A row with a coin inside it
is *near an edge*, and is handed to the definition.
"""

from __future__ import annotations

__all__ = ["BLOCK", "ROUNDING", "TINY", "WEIGHT_ERROR"]

#: Entries whose sum a draw looks at first; the definition's block, so that sums of the
#: same weights differ only by the order of additions inside a block.
BLOCK = 256

#: Largest relative difference of two float32 exponentials of one argument: 6 units in
#: the last place. numpy states 2.52 for its vector code, CUDA 2 (1 since 12), the
#: polynomial of the kernels has 1.5, the vector library of torch 1.
WEIGHT_ERROR = 6 * 2.0**-23

#: Weights below this may be flushed to 0 on a device: the least normal float32.
TINY = 2.0**-126

#: Rounding of one float64 addition; V of them stay below ``V * ROUNDING`` of the total.
ROUNDING = 2.0**-52
