"""Trees of drafts from a smaller model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from draftproof.core.policy import SamplingParams, target_law
from draftproof.core.protocols import ModelBackend, ProposalRequest
from draftproof.core.siblings import TreeBuilder
from draftproof.core.types import FlatBatch, Row, TreeDraft
from draftproof.errors import (
    ConfigError,
    ContextOverflowError,
    DraftproofError,
    IncompatibleModelsError,
)
from draftproof.proposers._chosen_siblings import finishers, likeliest
from draftproof.proposers._feeding import draft_params, groups, is_behind, piece
from draftproof.proposers._sequences import DraftSequence, DraftSequences
from draftproof.proposers.draft_model import failure_note
from draftproof.proposers.tree_shapes import Shape, check_shape, depth_of, shape_of
from draftproof.proposers.vocabularies import DraftVocabulary, SameVocabulary

__all__ = ["DraftModelTreeProposer"]


@dataclass(slots=True)
class _Branch:
    """A node that will get children, and the sequence that ends with it."""

    row: _Growing
    sequence: DraftSequence
    shape: Shape
    #: Tokens to feed before the children are drawn.
    pending: list[int]
    #: The node's number, and the tokens from the root's child to it.
    node: int = -1
    text: tuple[int, ...] = ()


@dataclass(slots=True)
class _Growing:
    """One row while its tree grows."""

    request: ProposalRequest
    params: SamplingParams
    main: DraftSequence
    #: The node that the model goes on below, -1 for the committed text, and the ids of that text.
    leaf: int
    num_committed: int
    builder: TreeBuilder
    note: str = ""
    is_failed: bool = False
    #: The nodes of the current depth that will get children.
    branches: list[_Branch] = field(default_factory=list)


class DraftModelTreeProposer:
    """Drafts trees from a model, all rows in step, one pass for each depth.

    The children of a node are drawn without replacement from the drafter's law after it,
    under the request's policy, and the tree carries that very law. Which nodes get how
    many children is fixed before anything is drawn, by ``kappa``, and no drawn node is
    left out. Greedy requests get the likeliest tokens in place of draws, the greedy one
    first. So do all requests whose drafts are greedy; these candidates are
    deterministic and carry no law.

    Under the coupled rule the children are the first finishers of the drafter's race
    over the noise of their position, in order. The rule follows the target's winner of
    the same race, whatever the tree, so that no law is needed.

    Each request has a sequence in the drafter's model, and forks of it where the tree
    branches. The one that agrees longest with what was committed is gone on with in the
    next round. A row stops early as `draftproof.proposers.DraftModelProposer` does: the
    nodes it has by then are kept.

    Parameters
    ----------
    backend : ModelBackend
        The drafter's model. It need not score trees.
    widths : sequence of int, optional
        Most children of a node by depth, the committed text first: (2, 2, 1) makes ten
        nodes. Any shape that ``kappa`` allows when not given.
    acceptance : float
        Chance that the first child of a node is kept, in (0, 1); the second gets that
        share of what is left, and so on. It decides which nodes the tree has, where
        ``kappa`` is smaller than what the widths allow.
    target_vocab_size : int, optional
        Size of a target's logits row; the drafter's own when not given. Drafter ids
        beyond it are masked before anything is drawn; target ids that the drafter
        lacks have probability 0.
    vocabulary : DraftVocabulary, optional
        How its ids and the request's belong together, in place of ``target_vocab_size``;
        the same ids when not given.
    temperature : float, optional
        Temperature of drafts in requests that sample; the request's own when not given.
        0 drafts the likeliest tokens.
    max_tokens_per_pass : int, default 256
        Longest piece in which a sequence catches up, and the size of a pass.
    name : str, default "draft-model-tree"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    References
    ----------
    Chen et al. (Sequoia), 2402.12374, algorithm 2; Jeon et al. (RSD), 2402.14160.
    """

    def __init__(
        self,
        backend: ModelBackend,
        *,
        widths: Sequence[int] | None = None,
        acceptance: float = 0.6,
        target_vocab_size: int | None = None,
        vocabulary: DraftVocabulary | None = None,
        temperature: float | None = None,
        max_tokens_per_pass: int = 256,
        name: str = "draft-model-tree",
    ) -> None:
        check_shape(acceptance, widths)
        if max_tokens_per_pass < 1:
            raise ConfigError(f"max_tokens_per_pass {max_tokens_per_pass}: expected 1 or more")
        if temperature is not None:
            SamplingParams(temperature=temperature)  # refuses what is out of range
        if target_vocab_size is not None and target_vocab_size < 1:
            raise ConfigError(f"target_vocab_size {target_vocab_size}: expected 1 or more")
        if target_vocab_size is not None and vocabulary is not None:
            raise ConfigError(
                f"target_vocab_size {target_vocab_size} beside a vocabulary: expected one of them"
            )
        self._backend = backend
        self._widths = None if widths is None else tuple(widths)
        self._acceptance = acceptance
        self._vocabulary: DraftVocabulary = vocabulary or SameVocabulary(
            target_vocab_size or backend.info.vocab_size
        )
        self._temperature = temperature
        self._max_tokens = max_tokens_per_pass
        self._name = name
        self._sequences = DraftSequences(backend)

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return self._name

    @property
    def num_requests(self) -> int:
        """How many requests hold sequences now."""
        return len(self._sequences)

    def propose(self, requests: Sequence[ProposalRequest]) -> list[TreeDraft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of TreeDraft
            One per row, in order, of at most ``kappa`` nodes.
        """
        return self.propose_below(requests, [TreeDraft()] * len(requests), [-1] * len(requests))

    def propose_below(
        self,
        requests: Sequence[ProposalRequest],
        trees: Sequence[TreeDraft],
        leaves: Sequence[int],
        levels: int | None = None,
    ) -> list[TreeDraft]:
        """Go on below a node of trees that another drafter has drafted, in the same round.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft; ``kappa`` counts what is drafted already.
        trees : sequence of TreeDraft
            What is drafted already, for each row.
        leaves : sequence of int
            The node of each that the model goes on below; it has no children. -1 for an
            empty tree. The tokens down to it are read as text, but never offered to the
            drafter's prefix cache.
        levels : int, optional
            Most levels that the model adds, and passes that it runs.

        Returns
        -------
        list of TreeDraft
            One per row, in order: the given nodes first, and drawn ones behind them.
        """
        names = [request.request_id for request in requests]
        started = [
            self._start(request, tree, leaf, levels, names)
            for request, tree, leaf in zip(requests, trees, leaves, strict=True)
        ]
        rows = [row for row in started if isinstance(row, _Growing)]
        while behind := [b for row in rows for b in row.branches if is_behind(b, self._max_tokens)]:
            for group in groups(behind, self._max_tokens):
                self._feed(group, is_last=False)
        while frontier := [branch for row in rows for branch in row.branches]:
            for row in rows:
                row.branches = []
            for group in groups(frontier, self._max_tokens):
                self._feed(group, is_last=True)
        return [row if isinstance(row, TreeDraft) else self._finished(row) for row in started]

    def release(self, request_id: str) -> None:
        """Close the request's sequences.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._sequences.drop(request_id)
        self._vocabulary.release(request_id)

    def _start(
        self,
        request: ProposalRequest,
        given: TreeDraft,
        leaf: int,
        levels: int | None,
        names: Sequence[str],
    ) -> _Growing | TreeDraft:
        """Roll the row's sequence back and reserve its slots, or say why it cannot draft."""
        name, limit = request.request_id, self._backend.info.context_length
        path = tuple(given.token_ids[node] for node in given.path(leaf))
        shape = shape_of(request.kappa - len(given), self._acceptance, self._widths, levels)
        if not shape:
            return replace(given, proposer=self._name)
        try:
            tokens, kept = self._vocabulary.context(name, request.token_ids)
            read = self._vocabulary.head(path)
            # The deepest drafts are never fed, so that a full context still drafts one level.
            room = limit - len(tokens) - len(read) + 1
            if room < 1:
                raise ContextOverflowError(f"past the drafter's context of {limit} tokens")
            if kept is not None:
                self._sequences.changed(name, kept)
            main = self._sequences.rewind(name, tokens)
            pending = [*tokens[len(main.cached) :], *read]
            if max(pending) >= self._backend.info.vocab_size:
                raise IncompatibleModelsError(f"the drafter lacks token {max(pending)}")
            depth = min(room, depth_of(shape))
            depth = self._sequences.reserve_draft(name, len(pending), depth, names)
        except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
            self._sequences.drop(name)
            return replace(given, proposer=self._name, note=failure_note(error))
        params = draft_params(request, self._temperature)
        builder = TreeBuilder(self._name, given)
        row = _Growing(request, params, main, leaf, len(tokens), builder)
        row.branches = [_Branch(row, main, _cut(shape, depth), pending, leaf, path)]
        if depth < depth_of(shape):
            row.note = f"no room in the drafter for drafts deeper than {depth}"
        return row

    def _feed(self, group: Sequence[_Branch], *, is_last: bool) -> None:
        """Feed one piece of each branch; draw children from the last piece's logits."""
        group = [branch for branch in group if not branch.row.is_failed]
        if not group:
            return
        pieces = [piece(branch, self._max_tokens) for branch in group]
        batch = FlatBatch.from_rows(
            [
                Row(branch.sequence.sequence_id, part, len(branch.sequence.cached), int(is_last))
                for branch, part in zip(group, pieces, strict=True)
            ]
        )
        try:
            logits = self._backend.forward(batch)
        except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
            if len(group) == 1:
                self._fail(group[0].row, error)
                return
            for branch in group:  # alone, only the rows at fault fail again
                self._feed([branch], is_last=is_last)
            return
        for index, (branch, part) in enumerate(zip(group, pieces, strict=True)):
            branch.sequence.cached.extend(part)
            del branch.pending[: len(part)]
            row, num_cached = branch.row, len(branch.sequence.cached)
            if branch.node == row.leaf:
                branch.sequence.num_agreed = min(num_cached, row.num_committed)
                if num_cached <= row.num_committed:
                    self._backend.commit(branch.sequence.sequence_id)
            if is_last:
                self._draw(branch, logits[index])

    def _draw(self, branch: _Branch, logits: NDArray[np.float32]) -> None:
        """Draw the children of a node, and go on below those that shall have some."""
        row, shape = branch.row, branch.shape
        try:
            nodes = self._children(row, branch, logits)
        except DraftproofError as error:
            row.note = failure_note(error)
            return
        sequence: DraftSequence | None = branch.sequence
        for node, below in zip(nodes, shape, strict=False):
            if not below:
                continue
            # The first goes on in the sequence itself, which is not fed before the others
            # have forked from it.
            if sequence is None:
                sequence = self._fork(branch, depth_of(below))
            if sequence is None:
                row.note = "no room in the drafter for another branch"
                continue
            token = row.builder.token(node)
            text = (*branch.text, token)
            fed = [self._vocabulary.fed(token)]
            row.branches.append(_Branch(row, sequence, below, fed, node, text))
            sequence = None

    def _children(
        self, row: _Growing, branch: _Branch, logits: NDArray[np.float32]
    ) -> tuple[int, ...]:
        """Add the children of a node to the tree and return their numbers."""
        request, count = row.request, len(branch.shape)
        scores = self._vocabulary.scores(logits)
        mask = request.mask(branch.text)
        law = target_law(scores, row.params, request.history, branch.text, mask)
        if row.params.is_greedy:
            warm_params = replace(row.params, temperature=1.0)
            warm = target_law(scores, warm_params, request.history, branch.text, mask)
            return row.builder.fix(branch.node, likeliest(law.draw(0.0), warm, count))
        if request.coupled:
            noise = request.coins.noise(len(branch.text), self._vocabulary.vocab_size)
            return row.builder.fix(
                branch.node, finishers(law, lambda rest: rest.race(noise), count)
            )
        return row.builder.sample(branch.node, law, count, request.coins)

    def _fork(self, branch: _Branch, depth: int) -> DraftSequence | None:
        """Fork a branch's sequence with room for a path below it; None without room."""
        fork = self._sequences.fork(branch.row.main, branch.sequence)
        if self._backend.reserve(fork.sequence_id, depth):
            return fork
        self._sequences.prune(branch.row.main, fork)
        return None

    def _fail(self, row: _Growing, error: Exception) -> None:
        """End a row whose pass failed; what its sequences hold is not known."""
        self._sequences.drop(row.request.request_id)
        row.note, row.branches, row.is_failed = failure_note(error), [], True

    def _finished(self, row: _Growing) -> TreeDraft:
        tree = row.builder.build()
        laws = tree.child_laws
        if laws is not None and all(law is None or law.is_one_hot for law in laws):
            laws = None
        return replace(tree, child_laws=laws, note=row.note)


def _cut(shape: Shape, depth: int) -> Shape:
    """Return the first levels of a shape."""
    return tuple(_cut(below, depth - 1) for below in shape) if depth > 0 else ()
