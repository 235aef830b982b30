"""The tree drafter with a piece exchanged: what the kit and the enumeration must see."""

from dataclasses import replace

from draftproof.core.types import TreeDraft
from draftproof.proposers import DraftModelTreeProposer


def renumbered(tree, order):
    """Return a tree with its nodes in another order; parents come first in it."""
    place = {node: at for at, node in enumerate(order)} | {-1: -1}
    laws = tree.child_laws or (None,) * (len(tree) + 1)
    return TreeDraft(
        tuple(tree.token_ids[node] for node in order),
        tuple(place[tree.parents[node]] for node in order),
        (laws[0], *(laws[node + 1] for node in order)),
        tree.proposer,
        tree.note,
    )


class SortsSiblings(DraftModelTreeProposer):
    """Siblings are ordered by confidence after they were drawn."""

    def _finished(self, row):
        tree = super()._finished(row)

        def key(node):
            parent = tree.parents[node]
            law = tree.child_law(parent)
            weight = 0.0 if law is None else -law.prob(tree.token_ids[node])
            return (len(tree.path(node)), parent, weight, node)

        return renumbered(tree, sorted(range(len(tree)), key=key))


class DropsDoubtfulNodes(DraftModelTreeProposer):
    """A drawn leaf is left out where the drafter thinks little of it."""

    def _finished(self, row):
        tree = super()._finished(row)
        inner = set(tree.parents)
        kept = [
            node
            for node in range(len(tree))
            if node in inner
            or (law := tree.child_law(tree.parents[node])) is None
            or law.prob(tree.token_ids[node]) > 0.3
        ]
        return renumbered(tree, kept)


class RecordsTheParentsLaw(DraftModelTreeProposer):
    """A node's children carry the law that the node itself was drawn from."""

    def _finished(self, row):
        tree = super()._finished(row)
        if tree.child_laws is None:
            return tree
        laws = list(tree.child_laws)
        for node in range(len(tree)):
            if laws[node + 1] is not None:
                laws[node + 1] = tree.child_law(tree.parents[node])
        return replace(tree, child_laws=tuple(laws))


class GoesOnBelowItsSibling(DraftModelTreeProposer):
    """The sequence of one sibling feeds another's token: text and branch disagree."""

    def _draw(self, branch, logits):
        super()._draw(branch, logits)
        new = [other for other in branch.row.branches if other.text[:-1] == branch.text]
        if len(new) > 1:
            new[0].pending, new[1].pending = new[1].pending, new[0].pending
