"""Verification where the logits live: executors for torch tensors and CUDA kernels.

The definition of every rule and policy stays in `draftproof.verify` and
`draftproof.core`. What is here decides the same on the same coins, for many rows at
once, and leaves the logits where they are. Importing this room needs torch.
"""

from __future__ import annotations

from draftproof.device.device_law import DeviceLaw, draw_drafts
from draftproof.device.executor import ExecutorCounts, TorchExecutor
from draftproof.device.places import Place

__all__ = ["DeviceLaw", "ExecutorCounts", "Place", "TorchExecutor", "draw_drafts"]
