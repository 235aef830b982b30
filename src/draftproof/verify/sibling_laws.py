"""The law of each sibling, given that the siblings before it were rejected."""

from __future__ import annotations

from draftproof.core.law import Law, OneHotLaw
from draftproof.core.siblings import law_without
from draftproof.core.types import TreeDraft
from draftproof.errors import InvariantError

__all__ = ["SiblingLaw"]


class SiblingLaw:
    """Follows the law of the next sibling below one node.

    Sampled siblings come from q, then from q without the first, and so on. Each
    deterministic sibling is certain.

    Parameters
    ----------
    tree : TreeDraft
        The draft.
    parent : int
        Number of the node above the siblings.
    vocab_size : int
        Number of token ids of the target.
    """

    __slots__ = ("_left", "_parent", "_sampled", "_tree", "_vocab_size")

    def __init__(self, tree: TreeDraft, parent: int, vocab_size: int) -> None:
        self._tree = tree
        self._parent = parent
        self._vocab_size = vocab_size
        self._left: Law | None = tree.child_law(parent)
        self._sampled = self._left is not None

    def of(self, node: int) -> tuple[Law, float]:
        """Return the law that a sibling was drawn from and its probability there.

        Parameters
        ----------
        node : int
            Number of the sibling.

        Returns
        -------
        law : Law
            Over the target's vocabulary.
        prob : float
            Positive.

        Raises
        ------
        InvariantError
            If the probability is 0: such a token cannot have been drawn.
        """
        token = self._tree.token_ids[node]
        law = self._left if self._sampled else OneHotLaw(token, self._vocab_size)
        prob = 0.0 if law is None else law.prob(token)
        if law is None or not prob > 0:
            msg = (
                f"node {node} of {self._tree.proposer} is token {token}: expected a token of "
                f"positive mass under the law of its siblings below node {self._parent}"
            )
            raise InvariantError(msg)
        return law, prob

    def drop(self, node: int) -> None:
        """Take a rejected sibling's token out of the law of the siblings after it."""
        if self._left is not None:
            self._left = law_without(self._left, self._tree.token_ids[node])
