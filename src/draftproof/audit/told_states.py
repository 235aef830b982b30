"""Hidden states of a text, told to a drafter as the engine tells them.

A drafter that reads the target's hidden states has nothing to say about a text that was
never passed through the target for it. An audit that asks it about a text tells it first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.forced import forced_passes
from draftproof.core.protocols import HiddenReader, HiddenStates, ModelBackend, Proposer

__all__ = ["ToldStates"]


class ToldStates:
    """What a fresh pass over a text says, for drafters that read it.

    Parameters
    ----------
    target : ModelBackend
        The model.
    text : sequence of int
        Prompt and output. The state of the last token is not computed.
    drafters : sequence of Proposer
        Who may be told. Where none of them reads states, no pass is made.

    Raises
    ------
    CapacityError
        If there is no room for the text.
    """

    def __init__(
        self, target: ModelBackend, text: Sequence[int], drafters: Sequence[Proposer]
    ) -> None:
        self._told: dict[str, int] = {}
        self._states: NDArray[np.float32] | None = None
        if any(isinstance(each, HiddenReader) for each in drafters):
            self._states = _states(target, text)

    def tell(self, drafter: Proposer, name: str, length: int) -> None:
        """Tell the states that are known once so many tokens are committed.

        Parameters
        ----------
        drafter : Proposer
            Nothing is told to one that reads none.
        name : str
            The request that it keeps them under.
        length : int
            Tokens of the text that are committed; the last one's state comes later.
        """
        begin, end = self._told.get(name, 0), length - 1
        if self._states is None or end <= begin or not isinstance(drafter, HiddenReader):
            return
        # What is new to a request comes at once, and then token by token, as in plain rounds.
        for at in range(begin, end) if begin else (0,):
            drafter.observe(name, at, self._states[at : at + 1 if begin else end])
        self._told[name] = end


def _states(target: ModelBackend, text: Sequence[int]) -> NDArray[np.float32] | None:
    if not target.info.hidden_size or not isinstance(target, HiddenStates):
        return None
    passes = forced_passes(target, text, len(text) - 1)
    found = [np.array(target.hidden()) for _logits in passes]
    return np.concatenate(found) if found else None
