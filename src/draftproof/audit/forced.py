"""Teacher forcing: what target and drafter say at every place of a given text.

The text is what a decoder emitted. Nothing here looks at how: laws depend on the text
before a place alone, so they may be used for bets on the token there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.core.history import History
from draftproof.core.law import DenseLaw, Law, OneHotLaw
from draftproof.core.params import SamplingParams
from draftproof.core.policy import target_law
from draftproof.core.protocols import ModelBackend, ProposalRequest, Proposer
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft, FlatBatch, Row, TreeDraft
from draftproof.errors import CapacityError

__all__ = ["draft_law_at", "forced_laws", "forced_logits", "forced_passes", "law_distance"]

#: Tokens of a row where nobody says: a plain prefill.
PREFILL = 64


def forced_passes(
    target: ModelBackend, text: Sequence[int], first: int, width: int = PREFILL
) -> Iterator[NDArray[np.float32]]:
    """Pass a text through the model, in a sequence that nothing else has touched.

    Parameters
    ----------
    target : ModelBackend
        The model.
    text : sequence of int
        The text. Its last token is not passed.
    first : int
        Position of the first token whose logits are wanted; those before it go in rows of 64.
    width : int, default 64
        Tokens of a row from there on.

    Yields
    ------
    ndarray of float32, shape (n, V)
        Logits of a pass, none before ``first``; a view that is valid until the next is
        asked for.

    Raises
    ------
    CapacityError
        If the model has no room for the text.
    """
    sequence_id, at = target.open(()), 0
    try:
        while at < len(text) - 1:
            end = min(at + PREFILL, first) if at < first else at + width
            end = min(end, len(text) - 1)
            if not target.reserve(sequence_id, end - at):
                raise CapacityError(f"no room for {len(text)} tokens beside what is open")
            row = Row(sequence_id, text[at:end], at, end - at if at >= first else 0)
            logits = target.forward(FlatBatch.from_rows([row]))
            target.truncate(sequence_id, end)
            yield logits
            at = end
    finally:
        target.close(sequence_id)


def forced_logits(
    target: ModelBackend, prompt_ids: Sequence[int], output_ids: Sequence[int], width: int = PREFILL
) -> Iterator[NDArray[np.float32]]:
    """Score a text in a sequence that nothing else has touched.

    Parameters
    ----------
    target : ModelBackend
        The model.
    prompt_ids : sequence of int
        The prompt, not empty.
    output_ids : sequence of int
        What follows it.
    width : int, default 64
        Tokens of a row behind the prompt: 1 is the shape of plain decoding, kappa + 1
        that of a round with drafts. The prompt itself goes in rows of 64.

    Yields
    ------
    ndarray of float32, shape (n, V)
        Logits of the next ``n`` tokens of the output, each given the text before it; a
        view that is valid until the next is asked for.

    Raises
    ------
    CapacityError
        If the model has no room for the text.
    """
    text = [*prompt_ids, *output_ids]
    for logits in forced_passes(target, text, len(prompt_ids) - 1, width):
        if len(logits):
            yield logits


def forced_laws(
    target: ModelBackend,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    params: SamplingParams,
    width: int = PREFILL,
) -> Iterator[NDArray[np.float64]]:
    """Return the target's law at every place of a text under a policy.

    Parameters
    ----------
    target : ModelBackend
        The model.
    prompt_ids : sequence of int
        The prompt.
    output_ids : sequence of int
        What follows it.
    params : SamplingParams
        The policy.
    width : int, default 64
        See `forced_logits`.

    Yields
    ------
    ndarray of float64, shape (n, V)
        Laws of the next ``n`` tokens.
    """
    history = History(prompt_ids)
    at = 0
    for logits in forced_logits(target, prompt_ids, output_ids, width):
        rows = []
        for row in logits:
            rows.append(target_law(row, params, history, is_stable=True).dense())
            history.append(output_ids[at])
            at += 1
        yield np.array(rows)


def draft_law_at(
    proposer: Proposer,
    name: str,
    text: Sequence[int],
    params: SamplingParams,
    history: History,
    vocab_size: int,
    kappa: int = 1,
) -> Law | None:
    """Ask a drafter what it would draft first after a text.

    Parameters
    ----------
    proposer : Proposer
        The drafter; what it keeps is kept under ``name``, which the caller releases.
    name : str
        Name of the request.
    text : sequence of int
        The text.
    params : SamplingParams
        The policy.
    history : History
        The text's tokens.
    vocab_size : int
        Size of the target's rows.
    kappa : int, default 1
        Tokens that it may draft.

    Returns
    -------
    Law, optional
        What the first draft is drawn from: certain for one deterministic draft, uniform
        over several of a tree. None where nothing is drafted.
    """
    coins = CoinSource(0).round(len(text))
    request = ProposalRequest(name, list(text), kappa, params, history, coins)
    draft = proposer.propose([request])[0]
    if not draft.token_ids:
        return None
    if isinstance(draft, Draft):
        return OneHotLaw(draft.token_ids[0], vocab_size) if draft.laws is None else draft.laws[0]
    return _root_law(draft, vocab_size)


def _root_law(draft: TreeDraft, vocab_size: int) -> Law:
    law = draft.child_law(-1)
    if law is not None:
        return law
    weights = np.zeros(vocab_size)
    roots = [t for t, p in zip(draft.token_ids, draft.parents, strict=True) if p == -1]
    weights[roots] = 1.0
    return OneHotLaw(roots[0], vocab_size) if len(roots) == 1 else DenseLaw(weights)


def law_distance(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the total variation distance of laws, row by row.

    Parameters
    ----------
    left, right : ndarray of float64, shape (n, V)
        Laws.

    Returns
    -------
    ndarray of float64, shape (n,)
        In [0, 1].
    """
    found: NDArray[np.float64] = np.abs(left - right).sum(axis=-1) / 2
    return found
