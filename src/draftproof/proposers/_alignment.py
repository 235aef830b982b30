"""Where an output stands in a prediction of it, kept up token by token."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from draftproof.proposers._contexts import ContextIndex, context_bytes

__all__ = ["Alignment", "PredictionText"]

#: Tokens of the output that are compared with a place of the prediction.
DEPTH = 32
#: How far before and behind the place of a divergence every place is tried.
_BEFORE, _BEHIND = 32, 128
#: Places beside the best one that are kept in mind.
_MOST_OTHERS = 7
#: After this many tokens that fit nowhere, no place is guessed any more.
_MOST_GUESSES = 16
#: Hits and misses that are assumed at first, what is left of them a token later, and what
#: is added to both, so that nothing is ever certain.
_TRUST, _FADING, _FLOOR = (6.0, 1.0), 0.9, 0.05


class PredictionText:
    """A prediction, indexed so that any of its places is found by what stands before it.

    Parameters
    ----------
    token_ids : tuple of int
        The predicted output.
    """

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        self.token_ids = token_ids
        self._index = ContextIndex(DEPTH, max(1, len(token_ids)))
        self._index.extend(token_ids)

    def __len__(self) -> int:
        """Return the number of predicted tokens."""
        return len(self.token_ids)

    def agreement(self, place: int, output: Sequence[int]) -> int:
        """Return how many tokens before a place equal the end of an output, up to 32."""
        most = min(DEPTH, place, len(output))
        for length in range(most):
            if self.token_ids[place - 1 - length] != output[-1 - length]:
                return length
        return most

    def best_places(self, output: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Return the longest agreement with the end of an output, and places that have it."""
        match = self._index.longest(context_bytes(output[-DEPTH:]))
        return (0, ()) if match is None else (match.length, match.places)


class Alignment:
    """The place in a prediction that an output has reached.

    While the output follows the prediction the place moves along. Where it diverges, the
    place is looked for again with every token, among

    * all places near the divergence, from one agreeing token on: that finds the end of
      an insertion, of a deletion and of an edit;
    * all places of the prediction whose context agrees longest, from ``min_context``
      tokens on: that finds text that was moved.

    The longest agreement wins. Of equal ones the place nearest to where the output would
    stand after an insertion or a replacement wins, then the earlier one. Where nothing
    agrees the output is taken to replace the prediction token by token, for a few
    tokens; after that the place is unknown until something agrees. Places that lost are
    kept in mind as long as the output goes on as they say.

    Parameters
    ----------
    prediction : PredictionText
        The prediction.
    min_context : int
        Agreeing tokens from which on a place is settled.

    Notes
    -----
    The state is a function of the output alone, however often it was asked for. A token
    that follows costs O(1); one that does not costs one look-up, O(log N) in a prediction
    of N tokens, and a scan of at most 192 places.
    """

    def __init__(self, prediction: PredictionText, min_context: int) -> None:
        self._prediction = prediction
        self._min_context = min_context
        #: Index of the predicted token that should come next; None when it is not known.
        self.place: int | None = 0
        #: Agreeing tokens before the place.
        self.run = 0
        #: Other places that it may have reached, likelier ones first, and how many tokens
        #: before each agree.
        self.others: list[tuple[int, int]] = []
        #: The output so far.
        self.output: list[int] = []
        # How often the token that should have come did come, and how often not; the past
        # fades, so that a stretch that was written anew does not count for ever.
        self._hits, self._misses = _TRUST
        # The last settled place, and how many tokens came after it.
        self._anchor = 0
        self._since = 0

    @property
    def is_settled(self) -> bool:
        """Whether enough tokens agree, or nothing has diverged yet."""
        return self.place is not None and self._since == 0

    @property
    def trust(self) -> float:
        """How often the output followed the prediction lately, in (0, 1)."""
        hits, misses = self._hits + _FLOOR, self._misses + _FLOOR
        return hits / (hits + misses)

    def worthwhile(self, least: float) -> int:
        """Return how many tokens may be drafted until the next is hardly accepted.

        Parameters
        ----------
        least : float
            Least probability that a token and all before it are accepted, in (0, 1), if
            each follows the prediction as often as those before did.

        Returns
        -------
        int
            0 where not even one is worth it.
        """
        return int(math.log(least) / math.log(self.trust))

    def append(self, token: int) -> None:
        """Move on by one token of the output."""
        self.output.append(token)
        tokens, place = self._prediction.token_ids, self.place
        self._since += 1
        is_hit = place is not None and place < len(tokens) and tokens[place] == token
        if place is not None:
            self._hits = _FADING * self._hits + is_hit
            self._misses = _FADING * self._misses + (not is_hit)
        if place is not None and is_hit:
            self.place, self.run = place + 1, self.run + 1
            if self.others:
                self.others = [
                    (other + 1, agreeing + 1)
                    for other, agreeing in self.others
                    if other < len(tokens) and tokens[other] == token
                ]
        else:
            self.place, self.run, self.others = self._find()
        never_diverged = self.run == len(self.output) == self.place
        if self.place is not None and (self.run >= self._min_context or never_diverged):
            self._anchor, self._since = self.place, 0

    def _find(self) -> tuple[int | None, int, list[tuple[int, int]]]:
        """Return the best place for the output as it stands, its agreement, and other places."""
        output, size = self.output, len(self._prediction)
        reach = min(self._since, DEPTH)
        first = max(1, self._anchor - _BEFORE)
        last = min(size - 1, self._anchor + reach + _BEHIND)
        tokens, token = self._prediction.token_ids, output[-1]
        found = [p for p in range(first, last + 1) if tokens[p - 1] == token]
        lengths = {place: self._prediction.agreement(place, output) for place in found}
        longest, places = self._prediction.best_places(output)
        if longest >= self._min_context:
            lengths |= dict.fromkeys(places, longest)
        ranked = heapq.nsmallest(
            1 + _MOST_OTHERS,
            lengths.items(),
            key=lambda item: (-item[1], self._distance(item[0]), item[0]),
        )
        # Nothing of these agrees: a replacement so far, then an insertion.
        guesses = (self._anchor + self._since, self._anchor)
        is_guessed = self._since <= _MOST_GUESSES
        fitting = [g for g in guesses if is_guessed and g < size and g not in lengths]
        others = [*ranked[1:], *((guess, 0) for guess in fitting)]
        if ranked:
            return *ranked[0], others
        # An insertion alone was never the best guess.
        if not fitting or fitting[0] != guesses[0]:
            return None, 0, others
        return guesses[0], 0, others[1:]

    def _distance(self, place: int) -> int:
        """Return how far a place is from those that an insertion or a replacement leads to."""
        return max(self._anchor - place, place - self._anchor - self._since, 0)
