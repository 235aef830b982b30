"""Which tokens a head may draft: those that the target writes, and those that it would."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.distill.corpus import Corpus
from draftproof.distill.held_out import split

__all__ = ["draft_vocabulary", "expected_counts", "observed_counts"]

#: Positions whose whole law is counted, and how many of them at a time.
_POSITIONS, _AT_ONCE = 16_384, 128
#: A token that was never seen or expected: low ids are frequent ones in most tokenizers.
_SMALLEST: Final = 1e-12


def observed_counts(corpus: Corpus, vocab_size: int) -> NDArray[np.float64]:
    """Count every token of a corpus that may be trained on.

    Parameters
    ----------
    corpus : Corpus
        The corpus.
    vocab_size : int
        Number of token ids V.

    Returns
    -------
    ndarray of float64, shape (V,)
        How often each token stands in it.
    """
    counts = np.zeros(vocab_size)
    for path in split(corpus)[0]:
        for each in corpus.read(path).recordings:
            counts += np.bincount(each.token_ids, minlength=vocab_size)
    return counts


def expected_counts(
    corpus: Corpus, output: NDArray[np.float32], num_positions: int = _POSITIONS
) -> NDArray[np.float64]:
    """Add up the target's laws at some positions of a corpus that may be trained on.

    Rare tokens are many: a corpus holds few of those that the next text will need, while
    every law tells the probability of all of them.

    Parameters
    ----------
    corpus : Corpus
        The corpus.
    output : ndarray of float32, shape (V, E)
        The target's output layer.
    num_positions : int
        How many positions, evenly spread.

    Returns
    -------
    ndarray of float64, shape (V,)
        The sum of the laws.
    """
    counts = np.zeros(len(output))
    training, _held = split(corpus)
    stride = max(1, corpus.num_tokens(training) // num_positions)
    for path in training:
        recordings = corpus.read(path).recordings
        states = np.concatenate([each.hidden for each in recordings])[::stride]
        for begin in range(0, len(states), _AT_ONCE):
            logits = states[begin : begin + _AT_ONCE].astype(np.float32) @ output.T
            logits -= logits.max(axis=1, keepdims=True)
            np.exp(logits, out=logits)
            logits /= logits.sum(axis=1, keepdims=True)
            counts += logits.sum(axis=0)
    return counts


def draft_vocabulary(
    corpus: Corpus, output: NDArray[np.float32], size: int
) -> tuple[NDArray[np.int64], float]:
    """Choose the tokens that can be drafted.

    Parameters
    ----------
    corpus : Corpus
        Text of the target.
    output : ndarray of float32, shape (V, E)
        The target's output layer.
    size : int
        How many tokens; all when there are fewer.

    Returns
    -------
    ids : ndarray of int64, shape (min(size, V),)
        Rising token ids.
    coverage : float
        The probability that the target's laws give to them, on average.
    """
    expected = expected_counts(corpus, output)
    counts = expected + observed_counts(corpus, len(output))
    rank = counts - _SMALLEST * np.arange(len(counts))
    ids = np.sort(np.argsort(-rank, kind="stable")[:size]).astype(np.int64)
    return ids, float(expected[ids].sum() / expected.sum())
