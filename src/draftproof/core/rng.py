"""Counter-based coins: every random number is a pure function of what it is for.

A coin is named by the seed and stream of its request, its purpose and its place.
Nothing is consumed: asking twice gives the same number, not asking changes
nothing, and neither batch mates nor the history of a process can shift it.

Two kinds of place exist, and the difference is part of the exactness proof:

* ``sample`` and ``noise`` belong to an *absolute position* of the text. Each
  position is emitted once, so its coin decides at most one emitted token, and
  plain decoding, sample-and-match and the coupled rule agree on it.
* ``draft`` and ``accept`` belong to a *round* and an offset inside it. Block
  verification looks at all drafts of a round before it decides how many survive,
  so the number of survivors tells something about the coins of the drafts that
  were thrown away. A later round that drafted from those coins again would draft
  from a law that is no longer the declared one, and the output would be biased.
  A tree keys them by its nodes, numbered in order of drawing: a round drafts one
  chain or one tree, so node ``i`` and draft ``i`` never meet, and a tree without
  branches has the coins of the chain it is.

The generator is Philox 4x64 with ten rounds (Salmon et al., SC 2011), read through
its raw 64-bit words, whose stream numpy keeps stable between versions. For ``noise``
it gives the two keys of a position; `draftproof.core.noise` makes the rest of them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import DTypeLike, NDArray

from draftproof.core.noise import PositionNoise
from draftproof.errors import InvariantError

__all__ = ["CoinSource", "RoundCoins", "fresh_seed", "seed_beside"]

_WORD_MASK = (1 << 64) - 1
#: Third counter word: one value per purpose, so that no two purposes share a coin.
_ROUND_PURPOSE, _SAMPLE_PURPOSE, _NOISE_PURPOSE = 1, 2, 3
#: Coins made in one go: ``sample`` for this many positions ...
_SAMPLE_BLOCK = 64
#: ... and ``draft`` and ``accept`` for this many starts times this many offsets.
_START_BLOCK, _OFFSET_BLOCK = 32, 8
#: ... and the two keys of the noise for this many positions.
_NOISE_BLOCK = 32


def fresh_seed() -> int:
    """Return a seed that no other request has.

    Returns
    -------
    int
        64 bits from the operating system's entropy. There is no state to restart,
        so neither a new process nor an idle server repeats itself; two of ``n``
        seeds coincide with probability below ``n**2 / 2**65``.
    """
    return secrets.randbits(64)


def seed_beside(seed: int, token_ids: Sequence[int]) -> int:
    """Return a seed whose coins are independent of what the seed itself would make.

    Parameters
    ----------
    seed : int
        Any Python integer.
    token_ids : sequence of int
        Tokens that the caller expects, perhaps because this very seed made them.

    Returns
    -------
    int
        64 bits of a digest of both.

    Notes
    -----
    A text made with some coins tells where they lie. Drafted again and judged with the
    same coins by a rule that divides by the draft's law, it would be kept too often.
    """
    digest = hashlib.blake2b((seed % 2**64).to_bytes(8, "little"), digest_size=8)
    digest.update(np.asarray(token_ids, dtype="<i8").tobytes())
    return int.from_bytes(digest.digest(), "little")


class CoinSource:
    """All coins of one request.

    Parameters
    ----------
    seed : int
        Any Python integer; taken modulo 2**64.
    stream : int
        Index of the completion when one request asks for several.

    Raises
    ------
    InvariantError
        If ``stream`` is negative.

    Notes
    -----
    The last block of each purpose is memoised. That changes no value.
    """

    __slots__ = ("_key", "_memo", "_noise_memo", "seed", "stream")

    def __init__(self, seed: int, stream: int = 0) -> None:
        if stream < 0:
            raise InvariantError(f"stream {stream}: expected 0 or more")
        self.seed = seed & _WORD_MASK
        self.stream = stream
        self._key = _Key(np.array([self.seed, stream & _WORD_MASK], dtype=np.uint64))
        self._memo: dict[int, tuple[tuple[int, int], NDArray[np.uint64]]] = {}
        self._noise_memo: tuple[int, list[int]] | None = None

    def __repr__(self) -> str:
        """Return the call that makes an equal source."""
        return f"CoinSource({self.seed}, stream={self.stream})"

    def round(self, start: int) -> RoundCoins:
        """Return the coins of the round that emits position ``start`` first.

        Parameters
        ----------
        start : int
            Absolute position of the first token the round will emit, 0 or more.

        Returns
        -------
        RoundCoins
            A view; making it costs no random number.
        """
        return RoundCoins(self, start)

    def _words(self, purpose: int, place: tuple[int, int], count: int) -> NDArray[np.uint64]:
        # The lowest counter word is left to the generator, which counts it up.
        counter = np.array([0, place[0], purpose, place[1]], dtype=np.uint64)
        # numpy takes any ISeedSequence here; its type stubs name one class only.
        seed = cast("np.random.SeedSequence", self._key)
        return np.random.Philox(seed, counter=counter).random_raw(count)

    def _block(self, purpose: int, place: tuple[int, int], count: int) -> NDArray[np.uint64]:
        held = self._memo.get(purpose)
        if held is not None and held[0] == place:
            return held[1]
        words = self._words(purpose, place, count)
        self._memo[purpose] = (place, words)
        return words

    def _round_coin(self, start: int, offset: int, which: int) -> float:
        start_block, start_slot = divmod(start, _START_BLOCK)
        offset_block, offset_slot = divmod(offset, _OFFSET_BLOCK)
        count = _START_BLOCK * _OFFSET_BLOCK * 2
        block = self._block(_ROUND_PURPOSE, (start_block, offset_block), count)
        return _uniform(block.item((start_slot * _OFFSET_BLOCK + offset_slot) * 2 + which))

    def _sample_coin(self, position: int) -> float:
        block, slot = divmod(position, _SAMPLE_BLOCK)
        return _uniform(self._block(_SAMPLE_PURPOSE, (block, 0), _SAMPLE_BLOCK).item(slot))

    def _noise_keys(self, position: int) -> tuple[int, int]:
        block, slot = divmod(position, _NOISE_BLOCK)
        if self._noise_memo is None or self._noise_memo[0] != block:
            words: list[int] = self._words(_NOISE_PURPOSE, (block, 0), 2 * _NOISE_BLOCK).tolist()
            self._noise_memo = (block, words)
        words = self._noise_memo[1]
        return words[2 * slot], words[2 * slot + 1]


class _Key(ISeedSequence):
    """The key of a generator, in the place of a seed that it would be hashed from.

    A generator that is given its key as a key asks the operating system for a seed first,
    which it then drops; that takes three times as long as the words themselves.
    """

    __slots__ = ("_words",)

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(
        self, n_words: int, dtype: DTypeLike = np.uint32
    ) -> NDArray[np.uint32 | np.uint64]:
        """Return the key; Philox asks for its two words and for nothing else."""
        del n_words, dtype
        return self._words


def _uniform(word: int) -> float:
    # 53 bits: the largest coin is 1 - 2**-53, and 1.0 itself cannot appear.
    return (word >> 11) * 2.0**-53


class RoundCoins:
    """The coins of one round of one request; all uniforms lie in [0, 1).

    Parameters
    ----------
    source : CoinSource
        The request's coins.
    start : int
        Absolute position of the first token the round will emit.

    Raises
    ------
    InvariantError
        If ``start`` is negative.
    """

    __slots__ = ("_noise", "_source", "start")

    def __init__(self, source: CoinSource, start: int) -> None:
        if start < 0:
            raise InvariantError(f"round at position {start}: expected 0 or more")
        self.start = start
        self._source = source
        self._noise: dict[tuple[int, int], PositionNoise] = {}

    def draft(self, i: int) -> float:
        """Return the coin that draws draft or tree node ``i``, keyed by ``(start, i)``."""
        return self._source._round_coin(self.start, i, 0)

    def accept(self, i: int) -> float:
        """Return the coin that accepts draft or tree node ``i``, keyed by ``(start, i)``."""
        return self._source._round_coin(self.start, i, 1)

    def sample(self, i: int) -> float:
        """Return the coin that draws the token at position ``start + i``."""
        return self._source._sample_coin(self.start + i)

    def noise(self, i: int, vocab_size: int) -> PositionNoise:
        """Return the exponential noise of position ``start + i``.

        Parameters
        ----------
        i : int
            Offset inside the round.
        vocab_size : int
            Number of entries V.

        Returns
        -------
        PositionNoise
            Independent, positive, unit-rate exponentials, one per token id, made as
            they are asked for. A shorter vocabulary gets a prefix of the same noise.
        """
        held = self._noise.get((i, vocab_size))
        if held is None:
            held = PositionNoise(self._source._noise_keys(self.start + i), vocab_size)
            self._noise[i, vocab_size] = held
        return held
