"""How far a training has come, in memory and in the file from which it goes on."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from draftproof.distill.network import DraftHead
from draftproof.distill.optimiser import Optimiser
from draftproof.errors import ModelFileError

__all__ = ["CHECKPOINT", "State"]

Tensor = Any
#: Name of the file from which an interrupted training goes on.
CHECKPOINT: Final = "training.pt"
#: The fusion layer starts where it is best: steps as large as those of the other matrices
#: undo the start.
_SLOW: Final = MappingProxyType({"fusion_fc.weight": 0.3})


#: What torch raises at a file that is no checkpoint, or one of another head.
_DAMAGED: Final = (
    OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, EOFError,
    IndexError, pickle.UnpicklingError, struct.error,
)  # fmt: skip


class State:
    """Everything a checkpoint holds.

    Parameters
    ----------
    head : DraftHead
        The head that is trained.
    rate : float
        Scale of all learning rates.
    """

    def __init__(self, head: DraftHead, rate: float) -> None:
        self.head = head
        self.optimiser = Optimiser(head, rate, _SLOW)
        self.seconds = 0.0
        self.num_updates = 0
        self.num_positions = 0
        self.num_vain = 0
        self.best: dict[str, Tensor] = {}
        self.best_score = 0.0
        #: What the best score was measured on, see `draftproof.distill.measure.text_hash`;
        #: empty after a version that did not tell.
        self.best_on = ""
        #: The best of this run: one that goes on starts at a high rate again, and is worse
        #: than where it started for a while.
        self.run_score = 0.0

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        draft = path.with_suffix(".part")
        held = {name: value for name, value in vars(self).items() if name != "optimiser"}
        held["head"] = self.head.state_dict()
        torch.save(held | {"optimiser": self.optimiser.state_dict()}, draft)
        draft.rename(path)

    def load(self, path: Path) -> None:
        """Read a checkpoint; what an earlier version did not keep stays as it is."""
        try:
            held = torch.load(path, weights_only=True)
            self.head.load_state_dict(held.pop("head"))
            self.optimiser.load_state_dict(held.pop("optimiser"))
        except _DAMAGED as error:
            raise ModelFileError(
                f"{path}: does not fit this training; remove it to start afresh"
            ) from error
        for name in held.keys() & vars(self).keys():
            setattr(self, name, held[name])
