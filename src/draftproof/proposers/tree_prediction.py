"""Predicted drafts that branch where the output has left the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import TreeDraft
from draftproof.proposers._alignment import DEPTH, Alignment
from draftproof.proposers._candidates import Candidates, likeliest_paths
from draftproof.proposers._following import DOUBT
from draftproof.proposers.prediction import PredictionProposer

__all__ = ["PredictionTreeProposer"]


class PredictionTreeProposer:
    """Drafts a tree of how the output may go on in the request's prediction.

    While the output follows the prediction the tree is the chain that
    `draftproof.proposers.PredictionProposer` drafts. Behind a divergence it branches: one
    branch for each place that the output may have reached, which are those where the
    prediction agrees with the output's end, and where it would go on after a replacement
    and after an insertion. A branch stays until the output contradicts it.

    A place that agrees in M tokens is guessed to be the right one with
    ``(M + 1) / (M + 3.5)`` of what longer agreements leave; of places that agree in as
    many the nearest has half of that, the next half of the rest. A token and all before
    it on its branch are guessed to be kept with that, times the share of recent output
    tokens that followed the prediction to the power of their number. Guesses of branches
    that begin alike add up, and the `kappa` nodes with the largest make the tree. So the
    best place has the branch that a chain would be, and leaves what it has least use for.

    The candidates are deterministic: every tree rule judges them by the target's law
    alone, no coin is used, and how they are ranked and cut does not matter for the law of
    the output.

    Parameters
    ----------
    min_context : int, default 3
        As of `draftproof.proposers.PredictionProposer`.
    min_score : float, default 0.1
        Nodes are left out whose guess is below this share of that for the best place; in
        (0, 1).

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Cost, memory, and which predictions keep the law are those of
    `draftproof.proposers.PredictionProposer`; at most ten places are kept in mind.
    """

    def __init__(self, *, min_context: int = 3, min_score: float = 0.1) -> None:
        self._predictions = PredictionProposer(min_context=min_context, min_score=min_score)
        self._min_context = min_context
        self._min_score = min_score

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "prediction-tree"

    @property
    def reads(self) -> frozenset[str]:
        """Options of requests that it reads."""
        return self._predictions.reads

    @property
    def num_requests(self) -> int:
        """How many requests with a prediction are followed now."""
        return self._predictions.num_requests

    def propose(self, requests: Sequence[ProposalRequest]) -> list[TreeDraft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of TreeDraft
            One per row, without laws: at most ``kappa`` nodes, or none with a note.
        """
        return [self._propose_one(request) for request in requests]

    def release(self, request_id: str) -> None:
        """Forget a request and its prediction.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._predictions.release(request_id)

    def candidates(self, request: ProposalRequest) -> Candidates:
        """Return the likeliest nodes for one row, with what was guessed of each.

        Parameters
        ----------
        request : ProposalRequest
            The row that may draft.

        Returns
        -------
        Candidates
            At most ``kappa`` nodes, or none with a note.
        """
        alignment = self._predictions.look_up(request)
        if alignment is None:
            return Candidates(note="the request has no prediction")
        if alignment.place is None:
            return Candidates(note="the output has left the prediction")
        scores: dict[tuple[int, ...], float] = {}
        shares = _shares(alignment)
        for place, agreeing, share in shares:
            most = self._predictions.trusted(alignment, agreeing)
            said = request.prediction[place : place + min(request.kappa, most)]
            for length in range(1, len(said) + 1):
                path = tuple(said[:length])
                scores[path] = scores.get(path, 0.0) + share * alignment.trust**length
        tree = likeliest_paths(scores, request.kappa, self._min_score * shares[0][2])
        if tree.token_ids:
            return tree
        if alignment.place >= len(request.prediction):
            return replace(tree, note="the prediction is used up")
        return replace(tree, note="the output hardly follows the prediction")

    def _propose_one(self, request: ProposalRequest) -> TreeDraft:
        return self.candidates(request).draft(self.name)


def _shares(alignment: Alignment) -> list[tuple[int, int, float]]:
    """Return places with the tokens that agree before each, and the guess that it is right."""
    assert alignment.place is not None  # narrows the type: asked where a place is known
    places = [(alignment.place, min(alignment.run, DEPTH))]
    if alignment.is_settled and not alignment.others:
        return [(*places[0], 1.0)]
    places += [(place, min(agreeing, DEPTH)) for place, agreeing in alignment.others]
    shares, left = [], 1.0
    ranked = sorted(places, key=lambda item: -item[1])
    for agreeing, group in groupby(ranked, key=lambda item: item[1]):
        share = left * (agreeing + 1) / (agreeing + 1 + DOUBT)
        left -= share
        for place, _ in group:
            share /= 2
            shares.append((place, agreeing, share))
    return shares
