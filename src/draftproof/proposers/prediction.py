"""Drafts from what the caller expects the output to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import Draft, StepRecord
from draftproof.errors import ConfigError
from draftproof.proposers._alignment import DEPTH, Alignment, PredictionText

__all__ = ["PredictionProposer", "PredictionUsage", "prediction_usage"]

#: Drafts where the output has just left the prediction and nothing agrees yet, and how
#: many more each agreeing token buys until the place is settled.
_UNSETTLED = 2
#: Share of the output's last tokens that followed the prediction, from which on the next is
#: told to be backed firmly.
_FIRM = 0.7
#: Who drafts from predictions, in records.
_NAMES = frozenset({"prediction", "prediction-tree"})


@dataclass(slots=True)
class _Followed:
    """One request, its prediction as given and as read, and the token list as last seen."""

    given: Sequence[int]
    prediction: PredictionText
    alignment: Alignment
    num_prompt_tokens: int
    source: Sequence[int] = ()

    def read(self, token_ids: Sequence[int]) -> Alignment:
        """Return where the output stands, with all of these tokens read."""
        self.source = token_ids
        for token in token_ids[self.num_prompt_tokens + len(self.alignment.output) :]:
            self.alignment.append(token)
        return self.alignment


class PredictionProposer:
    """Drafts copied from the request's prediction, from the place that the output has reached.

    A request carries the token ids that its caller expects, ``ProposalRequest.prediction``.
    As long as the output follows them the draft is the next ``kappa`` of them. Where it
    leaves them the drafter finds its place again, after an insertion, a deletion, an edit
    or a move. It ranks candidate places by how many tokens before them agree with the
    output's end, nearest first among equals. Drafts are as long as they deserve: shorter
    where the output kept leaving the prediction lately, and until ``min_context`` tokens
    agree.

    Parameters
    ----------
    min_context : int, default 3
        Agreeing tokens from which on a place is trusted with a whole draft.
    min_score : float, default 0.1
        The draft ends where the guessed probability, that it and all before it are
        accepted, falls below this: the share of recent output tokens that followed the
        prediction, to the power of the length. In (0, 1); 1e-9 drafts ``kappa`` tokens
        nearly always.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Drafts are deterministic functions of prompt, output and prediction: each law is
    one-hot and no coin is used. They keep the law for any prediction that was not made
    with the request's own coins. The output of an earlier request with the same seed is
    such a one: take another seed, or a rule that is seed-identical.

    The prediction is indexed once, in O(N log N). A token that follows costs O(1), one
    that does not O(log N). Memory is at most 32 bytes per token of the prediction, and
    ends with ``release``.
    """

    def __init__(self, *, min_context: int = 3, min_score: float = 0.1) -> None:
        if not 1 <= min_context <= DEPTH:
            raise ConfigError(f"min_context {min_context}: expected 1 to {DEPTH}")
        if not 0.0 < min_score < 1.0:
            raise ConfigError(f"min_score {min_score}: expected a number in (0, 1)")
        self._min_context = min_context
        self._min_score = min_score
        self._followed: dict[str, _Followed] = {}
        #: Requests that were asked for drafts and have no prediction.
        self._without: set[str] = set()

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "prediction"

    @property
    def reads(self) -> frozenset[str]:
        """Options of requests that it reads."""
        return frozenset({"prediction"})

    @property
    def num_requests(self) -> int:
        """How many requests with a prediction are followed now."""
        return len(self._followed)

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One per row, without laws; an empty one has a note.
        """
        return [self._propose_one(request) for request in requests]

    def foretell(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Tell how firmly the output follows the prediction.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens.

        Returns
        -------
        int
            -1 before the request's first draft, which brings the prediction. 0 where
            nothing would be drafted; 1 where the output has just left the prediction; 3
            where the place is settled and seven of ten tokens followed lately; else 2.
        """
        if request_id in self._without:
            return 0
        followed = self._followed.get(request_id)
        if followed is None or not _extends(followed, token_ids):
            return -1
        alignment = followed.read(token_ids)
        place = alignment.place
        if place is None or place >= len(followed.prediction):
            return 0
        if not self.trusted(alignment, alignment.run):
            return 0
        if not alignment.is_settled:
            return 2 if alignment.run else 1
        return 3 if alignment.trust >= _FIRM else 2

    def look_up(self, request: ProposalRequest) -> Alignment | None:
        """Find where the output stands in the prediction, without drafting.

        Parameters
        ----------
        request : ProposalRequest
            The row that may draft.

        Returns
        -------
        Alignment or None
            With all of the output read; None where the request has no prediction.
        """
        if request.prediction:
            return self._follow(request)
        self._followed.pop(request.request_id, None)
        self._without.add(request.request_id)
        return None

    def trusted(self, alignment: Alignment, agreeing: int) -> int:
        """Return how many tokens of a place are drafted at most.

        Parameters
        ----------
        alignment : Alignment
            Where the output stands.
        agreeing : int
            Tokens before the place that agree.

        Returns
        -------
        int
            What recent output bears out, and few as long as hardly a token agrees.
        """
        most = alignment.worthwhile(self._min_score)
        is_settled = alignment.is_settled and agreeing == alignment.run
        if is_settled or agreeing >= self._min_context:
            return most
        return min(most, _UNSETTLED * (1 + agreeing))

    def release(self, request_id: str) -> None:
        """Forget a request and its prediction.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._followed.pop(request_id, None)
        self._without.discard(request_id)

    def _propose_one(self, request: ProposalRequest) -> Draft:
        alignment = self.look_up(request)
        if alignment is None:
            return Draft(proposer=self.name, note="the request has no prediction")
        place = alignment.place
        if place is None:
            return Draft(proposer=self.name, note="the output has left the prediction")
        kappa = min(request.kappa, self.trusted(alignment, alignment.run))
        if kappa == 0:
            return Draft(proposer=self.name, note="the output hardly follows the prediction")
        tokens = tuple(request.prediction[place : place + kappa])
        note = "" if tokens else "the prediction is used up"
        return Draft(tokens, proposer=self.name, note=note)

    def _follow(self, request: ProposalRequest) -> Alignment:
        """Return where the request stands, with all of its output read."""
        followed = self._followed.get(request.request_id)
        if followed is None or not _continues(followed, request):
            prediction = PredictionText(tuple(request.prediction))
            alignment = Alignment(prediction, self._min_context)
            start = _prompt_length(request)
            followed = _Followed(request.prediction, prediction, alignment, start)
            self._followed[request.request_id] = followed
            self._without.discard(request.request_id)
        return followed.read(request.token_ids)


@dataclass(frozen=True, slots=True)
class PredictionUsage:
    """How much of a prediction was used, under the names of OpenAI's usage object.

    Parameters
    ----------
    accepted_prediction_tokens : int
        Predicted tokens that were drafted, kept by the verifier and committed.
    rejected_prediction_tokens : int
        Predicted tokens that were drafted and did not reach the output in that round:
        turned down, behind one that was, or behind the end of the output. A token that
        is drafted again in a later round counts again, since it costs again.
    """

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


def prediction_usage(records: Iterable[StepRecord]) -> PredictionUsage:
    """Count the predicted tokens of some rounds.

    Parameters
    ----------
    records : iterable of StepRecord
        Rounds of one request or of many, of any drafter. Where a record names the source
        of each draft, those from ``"prediction"`` or ``"prediction-tree"`` count; otherwise
        the drafter's name decides.

    Returns
    -------
    PredictionUsage
        Their sum is the number of predicted tokens that were verified. Predicted tokens
        that were never drafted are in neither.
    """
    accepted = rejected = 0
    for record in records:
        sources = record.draft_sources or (record.proposer,) * len(record.drafted)
        committed = sum(source == "accepted" for source in record.sources)
        drafted = [i for i, source in enumerate(sources) if source in _NAMES]
        reached_output = set(record.kept[:committed])
        kept = sum(i in reached_output for i in drafted)
        accepted += kept
        rejected += len(drafted) - kept
    return PredictionUsage(accepted, rejected)


def _prompt_length(request: ProposalRequest) -> int:
    return len(request.token_ids) - request.history.num_generated


def _continues(followed: _Followed, request: ProposalRequest) -> bool:
    """Say whether the output only adds to what was read, under the same prediction.

    The same list object is trusted to have grown at its end, up to a look at the tokens
    that were read last; another object is compared in full.
    """
    if followed.num_prompt_tokens != _prompt_length(request):
        return False
    if request.prediction is not followed.given:
        if tuple(request.prediction) != followed.prediction.token_ids:
            return False
        followed.given = request.prediction
    return _extends(followed, request.token_ids)


def _extends(followed: _Followed, tokens: Sequence[int]) -> bool:
    """Say whether the tokens only add to the output that was read."""
    start, output = followed.num_prompt_tokens, followed.alignment.output
    end = start + len(output)
    if end > len(tokens):
        return False
    begin = start if tokens is not followed.source else max(start, end - DEPTH)
    return list(tokens[begin:end]) == output[begin - start :]
