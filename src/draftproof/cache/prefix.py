"""The prefix cache: which page holds which full page of which prefix.

Every full page of final tokens has a node. Nodes form a chain from the root, and a
node is found by the pair (serial number of the parent, tokens of the page). The
dictionary compares that pair itself, not a digest of it, and serial numbers are never
reused, so two prefixes can never be taken for each other, whatever their hashes.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.errors import InvariantError

__all__ = ["PrefixIndex", "PrefixNode"]

#: Page of a node whose contents are nowhere.
NO_PAGE = -1


@dataclass(slots=True, eq=False)
class PrefixNode:
    """One full page of one prefix.

    Parameters
    ----------
    serial : int
        Number of the node, never reused; 0 is the root, the empty prefix.
    parent : PrefixNode, optional
        The prefix without its last page. None for the root.
    tokens : bytes
        The int32 token ids of the page.
    page : int
        The page that holds them, or -1 after an eviction.
    num_children : int
        Nodes whose parent this is.
    num_users : int
        Open sequences whose final full pages end here.
    """

    serial: int
    parent: PrefixNode | None
    tokens: bytes
    page: int = NO_PAGE
    num_children: int = 0
    num_users: int = 0


class PrefixIndex:
    """Nodes by parent and tokens, and nodes by page.

    A node lives while it has a page, a child or a user. A node that lost its page but
    has descendants stays, so that publishing the page again makes them reachable.
    """

    def __init__(self) -> None:
        self.root = PrefixNode(serial=0, parent=None, tokens=b"")
        self.nodes: dict[tuple[int, bytes], PrefixNode] = {}
        self.by_page: dict[int, PrefixNode] = {}
        self._next_serial = 1

    def key(self, parent: PrefixNode, tokens: bytes) -> tuple[int, bytes]:
        """Return the name of a page's contents."""
        return parent.serial, tokens

    def find(self, parent: PrefixNode, tokens: bytes) -> PrefixNode | None:
        """Return the node of a page, or None."""
        return self.nodes.get(self.key(parent, tokens))

    def extend(self, parent: PrefixNode, tokens: bytes) -> PrefixNode:
        """Return the node of a page, made when there is none."""
        key = self.key(parent, tokens)
        node = self.nodes.get(key)
        if node is None:
            node = PrefixNode(self._next_serial, parent, tokens)
            self._next_serial += 1
            self.nodes[key] = node
            parent.num_children += 1
        return node

    def is_published(self, page: int) -> bool:
        """Say whether a page can be found by its contents."""
        return page in self.by_page

    def publish(self, node: PrefixNode, page: int) -> None:
        """Say that a page holds the contents of a node; the first page stays."""
        if node.page != NO_PAGE:
            return
        if page in self.by_page:
            raise InvariantError(f"page {page} published under two prefixes")
        node.page = page
        self.by_page[page] = node

    def forget(self, page: int) -> None:
        """Take a page out of the index."""
        node = self.by_page.pop(page)
        node.page = NO_PAGE
        self._prune(node)

    def move_user(self, old: PrefixNode, new: PrefixNode) -> None:
        """Move one user from a node to another."""
        # In this order: the new node may live through the old one only.
        new.num_users += 1
        self.leave(old)

    def leave(self, node: PrefixNode) -> None:
        """Take one user away from a node."""
        node.num_users -= 1
        self._prune(node)

    def _prune(self, node: PrefixNode) -> None:
        """Remove nodes that nothing needs, from this one towards the root."""
        while (
            node.parent is not None
            and node.page == NO_PAGE
            and node.num_children == 0
            and node.num_users == 0
        ):
            del self.nodes[self.key(node.parent, node.tokens)]
            node = node.parent
            node.num_children -= 1
