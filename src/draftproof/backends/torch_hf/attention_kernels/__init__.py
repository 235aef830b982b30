"""Kernels of attention over pages, and the choice among them.

``protocol`` says what a kernel is. ``dense`` is torch's own attention, which carries out
everything; ``flash``, ``flash_infer`` and ``flex`` are kernels that carry out less, faster.
``trial`` holds a kernel against plain products before it is trusted, and ``choose`` decides.
"""

from draftproof.backends.torch_hf.attention_kernels.choose import (
    ATTENTIONS,
    Attention,
    AttentionName,
    choose_attention,
)
from draftproof.backends.torch_hf.attention_kernels.dense import ExplicitKernel, SdpaKernel
from draftproof.backends.torch_hf.attention_kernels.protocol import (
    AttentionKernel,
    LayerFacts,
    Place,
    PreparedPass,
)

__all__ = [
    "ATTENTIONS",
    "Attention",
    "AttentionKernel",
    "AttentionName",
    "ExplicitKernel",
    "LayerFacts",
    "Place",
    "PreparedPass",
    "SdpaKernel",
    "choose_attention",
]
