"""Whether long texts repeat: a seed that is ignored or comes again, a cache of answers.

Two independent texts after one prompt begin alike for as long as chance has it. Token by
token, the inverse of the probability of what they share is a bet that on average does not
grow, so by Ville's inequality it ever reaches W with a probability of at most 1 / W, for
each pair of texts. A text whose law is near certain proves nothing by coming again.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from draftproof.errors import ConfigError
from draftproof.evidence.independence import DependenceTest

__all__ = ["Beginning", "TextMarks", "repeated_text"]

#: Tokens of the shortest beginning that is compared; each next is twice as long.
_SHORTEST = 8


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a text.

    Parameters
    ----------
    num_tokens : int
        Its length.
    digest : str
        Names its tokens: 16 hexadecimal digits.
    log_prob : float
        Logarithm of its probability, or of an upper bound.
    """

    num_tokens: int
    digest: str
    log_prob: float

    def __post_init__(self) -> None:
        """Refuse what is no length, and no logarithm of a probability."""
        if type(self.num_tokens) is not int or self.num_tokens < 1 or not self.log_prob <= 0:
            msg = f"{self.num_tokens!r} tokens of log probability {self.log_prob!r}"
            raise ConfigError(f"{msg}: expected 1 or more, of 0 or less")


@dataclass(frozen=True, slots=True)
class TextMarks:
    """What tells whether a text came before.

    Parameters
    ----------
    prompt : str
        Name of its prompt.
    beginnings : tuple of Beginning
        8, 16, 32 tokens and so on, the whole text last.
    """

    prompt: str
    beginnings: tuple[Beginning, ...]

    @classmethod
    def of(
        cls, prompt: str, token_ids: Sequence[int], probs: Sequence[float], tolerance: float
    ) -> TextMarks:
        """Mark a text.

        Parameters
        ----------
        prompt : str
            Name of its prompt.
        token_ids : sequence of int, length T
            The text.
        probs : sequence of float, length T
            Reference probability of each token.
        tolerance : float
            How far laws may be off, in total variation: a probability may be larger by it.

        Returns
        -------
        TextMarks
            Of its beginnings.
        """
        bounds = [min(1.0, prob + tolerance) for prob in probs]
        logs = list(accumulate(math.log(b) if b > 0 else -math.inf for b in bounds))
        lengths, length = [], _SHORTEST
        while length < len(token_ids):
            lengths.append(length)
            length *= 2
        raw = np.asarray(token_ids, dtype="<i8")
        return cls(
            prompt,
            tuple(
                Beginning(n, hashlib.blake2b(raw[:n].tobytes(), digest_size=8).hexdigest(), x)
                for n in (*lengths, len(token_ids))
                if n and math.isfinite(x := logs[n - 1])
            ),
        )


def repeated_text(texts: Sequence[TextMarks], level: float) -> tuple[DependenceTest, int | None]:
    """Test whether texts repeat earlier ones after the same prompt.

    Parameters
    ----------
    texts : sequence of TextMarks
        In order of request.
    level : float
        False-alarm rate.

    Returns
    -------
    test : DependenceTest
        Of the most surprising repetition; the statistic is its length in tokens.
    first : int, optional
        The first text that repeats an earlier one, at the level; None where none does.
    """
    sizes = Counter(text.prompt for text in texts)
    pairs = sum(math.comb(size, 2) for size in sizes.values())
    seen: dict[tuple[str, int, str], int] = {}
    found = DependenceTest("no text begins like an earlier one", pairs, 0.0, math.nan, 1.0)
    first = None
    for index, text in enumerate(texts):
        for part in text.beginnings:
            before = seen.setdefault((text.prompt, part.num_tokens, part.digest), index)
            if before == index:
                continue
            p = min(1.0, pairs * math.exp(part.log_prob))
            if p <= level and first is None:
                first = index
            if p < found.p_value:
                is_whole = part is text.beginnings[-1]
                like = f"is text {before} again" if is_whole else f"begins like text {before}"
                name = f"text {index} after {text.prompt!r} {like}, {part.num_tokens} tokens"
                found = DependenceTest(name, pairs, float(part.num_tokens), math.nan, p)
    return found, first
