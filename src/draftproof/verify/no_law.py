"""What a rule meets where the target has no law."""

from __future__ import annotations

__all__ = ["NoLawError"]


class NoLawError(Exception):
    """The target has no law after a draft, so nothing can be drawn there.

    A grammar may be complete there or lead nowhere, or the policy may leave no token. Plain
    decoding meets this one step later, and only if it goes there: a rule keeps such a
    draft with the probability it has, and lets this error out only where the draft is
    kept and a token after it is wanted.

    Parameters
    ----------
    node : int
        The draft after which there is none; -1 for the committed text.
    reason : Exception
        Why not.
    """

    def __init__(self, node: int, reason: Exception) -> None:
        super().__init__(f"no law after draft {node}: {reason}")
        self.node = node
        self.reason = reason
