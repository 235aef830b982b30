"""Collect what a greedy audit needs: texts, fresh prefills, the noise of pass shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.forced import PREFILL, forced_logits
from draftproof.audit.greedy import GreedyEvidence, GreedyText
from draftproof.audit.subjects.engine_core import tenant_of
from draftproof.core.params import SamplingParams
from draftproof.core.protocols import ModelBackend
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError

__all__ = ["DEFAULT_KAPPAS", "check_greedy_text", "greedy_evidence"]

#: Draft lengths at which the engine is compared with itself.
DEFAULT_KAPPAS = (1, 2, 4, 7)


def check_greedy_text(
    target: ModelBackend,
    prompt: str,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    kappa: int,
    *,
    drafted: int = 0,
) -> GreedyText:
    """Force a model along a text and note how each token stands.

    Parameters
    ----------
    target : ModelBackend
        The model that plain decoding runs; any decoder's text may be held against it.
    prompt : str
        Name of the prompt.
    prompt_ids : sequence of int
        The prompt.
    tokens : sequence of int
        The text.
    kappa : int
        Most drafts of a round; 0 for plain decoding. Rows of kappa + 1 tokens are one of
        the shapes whose noise is measured.
    drafted : int, default 0
        Drafts of the rounds that wrote it.

    Returns
    -------
    GreedyText
        Figures of a fresh prefill, and how they move in rows of one token, of two, and of
        kappa + 1.

    Raises
    ------
    ConfigError
        If the model's logits are no numbers at a place: NaN, infinite above, or minus
        infinity in passes of one shape and not of another.
    """
    emitted = np.array(tokens, dtype=np.int64)
    best, second, gaps, lower, leads = [], [], [], [], []
    at = 0
    for logits in forced_logits(target, prompt_ids, tokens, PREFILL):
        here = emitted[at : at + len(logits)]
        rows = np.arange(len(logits))
        top = logits.argmax(axis=1)
        rest = logits.copy()
        rest[rows, top] = -np.inf
        runner = rest.argmax(axis=1)
        peak = logits[rows, top].astype(np.float64)
        if not np.isfinite(peak).all() or np.isnan(logits).any():
            raise ConfigError(
                f"the model's logits after {prompt!r} are no numbers: nothing is best"
            )
        gap = peak - logits[rows, here]
        best.append(top)
        second.append(np.where(here == top, runner, here))
        gaps.append(gap)
        lower.append((gap == 0) & (top < here))
        leads.append(peak - logits[rows, runner])
        at += len(logits)
    pair = np.concatenate(best), np.concatenate(second)
    base = _differences(target, prompt_ids, tokens, PREFILL, pair)
    noise = np.zeros(len(emitted))
    for width in sorted({1, 2, kappa + 1}):
        moved = _differences(target, prompt_ids, tokens, width, pair)
        same = (moved == base) | (np.isinf(moved) & np.isinf(base))
        with np.errstate(invalid="ignore"):
            noise = np.maximum(noise, np.where(same, 0.0, np.abs(moved - base)))
    return GreedyText(
        prompt,
        kappa,
        tuple(emitted.tolist()),
        tuple(np.concatenate(gaps).tolist()),
        tuple(np.concatenate(lower).tolist()),
        tuple(np.concatenate(leads).tolist()),
        tuple(noise.tolist()),
        drafted,
    )


def _differences(
    target: ModelBackend,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    width: int,
    pair: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.float64]:
    """Return the difference of two logits at every place, in rows of one width."""
    found = []
    at = 0
    for logits in forced_logits(target, prompt_ids, tokens, width):
        rows = np.arange(len(logits))
        first, other = (each[at : at + len(logits)] for each in pair)
        found.append(logits[rows, first].astype(np.float64) - logits[rows, other])
        at += len(logits)
    return np.concatenate(found)


def greedy_evidence(
    core: EngineCore,
    subject: str,
    prompts: Sequence[tuple[str, Sequence[int]]],
    *,
    num_tokens: int,
    kappas: Sequence[int] = DEFAULT_KAPPAS,
    prediction: Sequence[int] = (),
    say: Callable[[str], None] = lambda _line: None,
) -> GreedyEvidence:
    """Write greedy texts with our engine, plain and with drafts, and check every token.

    Parameters
    ----------
    core : EngineCore
        The engine, with its default drafter.
    subject : str
        What it is called in the certificate.
    prompts : sequence of (str, sequence of int)
        Names and token ids.
    num_tokens : int
        Tokens of a text.
    kappas : sequence of int
        Most drafts of a round; each writes a text of its own.
    prediction : sequence of int
        Tokens that every text is expected to be, for drafters that read it.
    say : callable of str
        Gets a line for each prompt.

    Returns
    -------
    GreedyEvidence
        Texts with their figures.

    Raises
    ------
    ConfigError
        If there is nothing to write, a draft length is below 1, or a drafter shares outputs:
        the texts of a prompt would be copied from each other, and nothing be rejected.
    """
    if not prompts or num_tokens < 1 or not kappas or min(kappas) < 1:
        raise ConfigError(
            f"{len(prompts)} prompts, {num_tokens} tokens, draft lengths {list(kappas)}: expected "
            "1 or more of each"
        )
    if tenant_of(core):
        raise ConfigError(
            "a drafter shares outputs between requests, and greedy texts of one prompt would be "
            "copied from each other; expected suffix_tenant_tokens to be 0"
        )
    texts = []
    for name, ids in prompts:
        for kappa in (0, *sorted(set(kappas))):
            expected = tuple(prediction) if kappa else ()
            result = _write(core, tuple(ids), kappa, num_tokens, expected)
            texts.append(
                check_greedy_text(core.target, name, ids, result[0], kappa, drafted=result[1])
            )
        say(f"checked {name!r}")
    return GreedyEvidence(subject, tuple(texts))


def _write(
    core: EngineCore,
    prompt_ids: tuple[int, ...],
    kappa: int,
    num_tokens: int,
    prediction: tuple[int, ...],
) -> tuple[list[int], int]:
    """Return the text that the engine writes alone, and how many tokens were drafted."""
    request = GenerateRequest(
        prompt_ids,
        SamplingParams(temperature=0.0),
        max_tokens=num_tokens,
        ignore_eos=True,
        kappa=kappa,
        prediction=prediction,
    )
    name = core.submit(request)
    result = core.run()[name]
    if result.error is not None:
        raise result.error
    return result.token_ids, result.stats.num_draft_tokens
