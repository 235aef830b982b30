"""Collect what an audit of state needs: forced rejections, silent drafters, rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.forced import PREFILL, draft_law_at, forced_laws, forced_logits
from draftproof.audit.state import DrafterCheck, Rollback, StateEvidence
from draftproof.audit.subjects.engine_core import tenant_of
from draftproof.audit.told_states import ToldStates
from draftproof.core.history import History
from draftproof.core.law import Law
from draftproof.core.params import SamplingParams
from draftproof.core.protocols import ModelBackend, Proposer
from draftproof.core.types import FlatBatch, Row
from draftproof.engine import EngineCore, GenerateRequest, GenerateResult, reads
from draftproof.errors import CapacityError, ConfigError
from draftproof.evidence.calibration import seed_of

__all__ = ["check_drafter", "check_rollbacks", "first_draft_rounds", "state_evidence"]

#: Rounds without a drafter before it is asked again.
_SILENT = (1, 4, 16)
#: Rounds with drafts before that, and drafts of each.
_ASKED, _KAPPA = 6, 4
#: Every so many passes the noise without rollbacks is measured, in rows of so many tokens.
_MEASURED, _WIDTH = 4, 3
#: Rules whose first draft is kept with probability ``sum min(p, q)``.
_KNOWN_RULES = ({"standard"}, {"block"}, {"block", "standard"})
#: What a certificate says where outputs are shared.
_SHARED_PROMISE = (
    "requests share their outputs, so kept drafts are held against the drafts that were made and "
    "a fresh target: whether a fresh drafter would have made them is not examined"
)


def check_rollbacks(
    target: ModelBackend, prompt_ids: Sequence[int], *, rounds: int = 24, seed: int = 0
) -> list[Rollback]:
    """Draft nonsense, keep some of it, take the rest back, and compare what follows.

    Parameters
    ----------
    target : ModelBackend
        The model.
    prompt_ids : sequence of int
        The prompt; drafts are made of its tokens.
    rounds : int, default 24
        Passes.
    seed : int, default 0
        Seed of drafts and of how many are kept.

    Returns
    -------
    list of Rollback
        One for each pass after the first.

    Raises
    ------
    CapacityError
        If the model has no room.
    ConfigError
        If a fresh prefill gives logits that are no numbers.
    """
    rng = seed_of(seed, "rollbacks", repr(tuple(prompt_ids)))
    pool = sorted(set(prompt_ids)) if len(set(prompt_ids)) > 1 else [prompt_ids[0], 0, 1]
    text = list(prompt_ids)
    found: list[Rollback] = []
    before: tuple[int, int, int, int] | None = None
    sequence_id = target.open(())
    try:
        if len(text) > 1:
            _feed(target, sequence_id, text[:-1], 0, 1)
            target.commit(sequence_id)
        for number in range(rounds):
            drafts = rng.choice(pool, _KAPPA).tolist()
            start = len(text) - 1
            logits = _feed(target, sequence_id, [text[-1], *drafts], start, len(drafts) + 1)
            if before is not None:
                ends = [*drafts, drafts[-1]]
                fresh = np.concatenate(
                    [rows.copy() for rows in forced_logits(target, text, ends, PREFILL)]
                )
                spread = _spread(fresh)
                noise = 0.0
                if number % _MEASURED == 0:
                    noise = _gap(_in_rows(target, prompt_ids, text, ends), fresh)
                drafted, kept, length, expected = before
                gap = _gap(logits, fresh)
                found.append(Rollback(start, drafted, kept, gap, noise, length, expected, spread))
            kept = int(rng.integers(0, _KAPPA + 1))
            refused = drafts[kept] if kept < _KAPPA else -1
            following = [token for token in pool if token != refused]
            expected = len(text) + kept
            target.truncate(sequence_id, expected)
            target.commit(sequence_id)
            text += [*drafts[:kept], int(rng.choice(following))]
            before = (_KAPPA, kept, target.length(sequence_id), expected)
    finally:
        target.close(sequence_id)
    return found


def _feed(
    target: ModelBackend, sequence_id: int, tokens: Sequence[int], start: int, wanted: int
) -> NDArray[np.float32]:
    if not target.reserve(sequence_id, len(tokens)):
        raise CapacityError(f"no room for {len(tokens)} tokens more")
    row = Row(sequence_id, tokens, start, wanted)
    return np.array(target.forward(FlatBatch.from_rows([row])))


def _in_rows(
    target: ModelBackend, prompt_ids: Sequence[int], text: Sequence[int], ends: Sequence[int]
) -> NDArray[np.float32]:
    """Score the last places of a text that was fed in short rows and never rolled back."""
    output = [*text[len(prompt_ids) :], *ends]
    rows = [rows.copy() for rows in forced_logits(target, prompt_ids, output, _WIDTH)]
    return np.concatenate(rows)[-len(ends) :]


def _spread(logits: NDArray[np.float32]) -> float:
    """Return the standard deviation of the finite logits of a row, the mean of the rows."""
    if not (logits < np.inf).all() or not np.isfinite(logits.max(axis=1)).all():
        raise ConfigError("a fresh prefill gives logits that are no numbers: expected finite ones")
    rows = [row[np.isfinite(row)].astype(np.float64) for row in logits]
    return float(np.mean([row.std() for row in rows]))


def _gap(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    """Return the largest difference; 0 where both are the same infinity."""
    with np.errstate(invalid="ignore"):
        gaps = np.where(left == right, 0.0, np.abs(left.astype(np.float64) - right))
    return float(gaps.max())


def check_drafter(
    proposer: Proposer,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    vocab_size: int,
    params: SamplingParams | None = None,
    target: ModelBackend | None = None,
) -> list[DrafterCheck]:
    """Ask a drafter, leave it alone for some rounds, ask again, and compare.

    Parameters
    ----------
    proposer : Proposer
        The drafter.
    prompt_ids : sequence of int
        The prompt.
    output_ids : sequence of int
        A text that follows it; a round commits one token of it.
    vocab_size : int
        Size of the target's rows.
    params : SamplingParams, optional
        The policy.
    target : ModelBackend, optional
        The model, for drafters that read its hidden states.

    Returns
    -------
    list of DrafterCheck
        For as many silent periods as the text is long enough for; none where neither the
        drafter nor a fresh one drafts, which compares nothing.
    """
    policy = SamplingParams() if params is None else params
    whole = [*prompt_ids, *output_ids]
    states = None if target is None else ToldStates(target, whole, (proposer,))
    found = []
    for silent in _SILENT:
        end = _ASKED + silent
        if end > len(output_ids):
            break
        names = (f"state audit {silent}", f"state audit {silent}, fresh")

        def law(name: str, count: int) -> Law | None:
            history = History(prompt_ids)
            for token in output_ids[:count]:
                history.append(token)
            text = [*prompt_ids, *output_ids[:count]]
            if states is not None:
                states.tell(proposer, name, len(text))
            return draft_law_at(proposer, name, text, policy, history, vocab_size, _KAPPA)

        try:
            for count in range(_ASKED):
                law(names[0], count)
            after, fresh = law(names[0], end), law(names[1], end)
        finally:
            for name in names:
                proposer.release(name)
        if after is not None or fresh is not None:
            found.append(DrafterCheck(proposer.name, silent, _law_gap(after, fresh)))
    return found


def _law_gap(left: Law | None, right: Law | None) -> float:
    if left is None or right is None:
        return 1.0
    return float(np.abs(left.dense() - right.dense()).sum() / 2)


def first_draft_rounds(
    core: EngineCore, result: GenerateResult, params: SamplingParams
) -> tuple[tuple[float, bool], ...]:
    """Hold every drafting round of a request against what target and drafter promise.

    Parameters
    ----------
    core : EngineCore
        The engine that wrote it.
    result : GenerateResult
        The request.
    params : SamplingParams
        Its policy.

    Returns
    -------
    tuple of (float, bool)
        In order: probability with which the first draft is kept, and whether it was. Empty
        where the rule keeps drafts with another probability than ``sum min(p, q)``, or
        drafts branch.

    Notes
    -----
    Where the request has traces the promise is that of the draft that was made, ``min(1, p /
    q)`` of it under a fresh target, and no drafter is asked. A drafter that shares outputs
    between requests has to be held so: what it knew at a place it does not know any more.
    """
    drafter = core.proposers.get(core.default_proposer)
    if drafter is None or set(result.rule.split("+")) not in _KNOWN_RULES:
        return ()
    prompt, text = result.prompt_ids, result.token_ids
    if result.traces:
        return _traced_rounds(core.target, result, params)
    starts = {
        record.position - len(prompt): record.num_accepted > 0
        for record in result.records
        if record.drafted and record.parents is None
    }
    rounds = []
    history = History(prompt)
    states = ToldStates(core.target, [*prompt, *text], (drafter,))
    name, at = f"state audit of {result.request_id}", 0
    try:
        for laws in forced_laws(core.target, prompt, text, params):
            for p in laws:
                if at in starts:
                    before = [*prompt, *text[:at]]
                    states.tell(drafter, name, len(before))
                    q = draft_law_at(drafter, name, before, params, history, len(p))
                    if q is not None:
                        kept = float(np.minimum(p, q.dense()).sum())
                        rounds.append((min(kept, 1.0), starts[at]))
                history.append(text[at])
                at += 1
    finally:
        drafter.release(name)
    return tuple(rounds)


def _traced_rounds(
    target: ModelBackend, result: GenerateResult, params: SamplingParams
) -> tuple[tuple[float, bool], ...]:
    """Hold the first drafts that were made against a fresh target; see `first_draft_rounds`."""
    prompt = result.prompt_ids
    laws = [p for rows in forced_laws(target, prompt, result.token_ids, params) for p in rows]
    rounds = []
    for trace in result.traces:
        if trace.draft_ids and trace.parents is None:
            prob = float(laws[trace.start - len(prompt)][trace.draft_ids[0]])
            drawn_with = trace.q[0]
            kept = prob if drawn_with is None else min(1.0, prob / drawn_with)
            rounds.append((kept, trace.num_accepted > 0))
    return tuple(rounds)


def state_evidence(
    core: EngineCore,
    subject: str,
    prompts: Sequence[tuple[str, Sequence[int]]],
    *,
    num_tokens: int,
    first_seed: int,
    alpha: float = 1e-3,
    power: float = 0.99,
    decay: float = 0.5,
    say: Callable[[str], None] = lambda _line: None,
) -> StateEvidence:
    """Ask all three questions of an engine.

    Parameters
    ----------
    core : EngineCore
        The engine.
    subject : str
        What it is called in the certificate.
    prompts : sequence of (str, sequence of int)
        Names and token ids.
    num_tokens : int
        Tokens of the request that is written after each prompt.
    first_seed : int
        Request ``i`` has the seed ``first_seed + i``.
    alpha : float, default 0.001
        False-alarm rate of the tests of acceptance.
    power, decay : float
        See `draftproof.audit.state.StateEvidence`.
    say : callable of str
        Gets a line for each prompt.

    Returns
    -------
    StateEvidence
        What was compared.

    Raises
    ------
    ConfigError
        If there is nothing to write, or the model cannot be rewound.
    """
    if not prompts or num_tokens < 1:
        raise ConfigError(f"{len(prompts)} prompts, {num_tokens} tokens: expected 1 or more")
    if not core.target.info.rewindable:
        raise ConfigError(f"the cache of {core.target.info.name} cannot be rewound")
    params = SamplingParams()
    rollbacks: list[Rollback] = []
    drafters: dict[str, list[DrafterCheck]] = {name: [] for name in core.proposers}
    rounds = []
    for number, (name, ids) in enumerate(prompts):
        rollbacks += check_rollbacks(core.target, ids, seed=first_seed + number)
        if core.proposers:  # without drafts a text would tell nothing
            result = _written(core, ids, params, num_tokens, first_seed + number)
            rounds.append(first_draft_rounds(core, result, params))
            size = core.target.info.vocab_size
            for key, proposer in core.proposers.items():
                # One prompt is enough where the drafter has something to say there.
                if not drafters[key]:
                    drafters[key] = check_drafter(
                        proposer, ids, result.token_ids, size, params, core.target
                    )
        say(f"checked {name!r}")
    return StateEvidence(
        subject,
        tuple(rollbacks),
        tuple(check for checks in drafters.values() for check in checks),
        tuple(rounds),
        tuple(name for name, _ in prompts) if rounds else (),
        tuple(key for key, checks in drafters.items() if not checks),
        alpha=alpha,
        power=power,
        decay=decay,
        notes={"promise": _SHARED_PROMISE} if _shares(core) else {},
    )


def _shares(core: EngineCore) -> bool:
    return reads(core.proposers.get(core.default_proposer), "tenant")


def _written(
    core: EngineCore, ids: Sequence[int], params: SamplingParams, num_tokens: int, seed: int
) -> GenerateResult:
    """Return a text of the engine, with traces where its requests share outputs."""
    request = GenerateRequest(
        tuple(ids),
        params,
        max_tokens=num_tokens,
        ignore_eos=True,
        seed=seed,
        tenant=tenant_of(core),
        trace=_shares(core),
    )
    request_id = core.submit(request)
    result = core.run()[request_id]
    if result.error is not None:
        raise result.error
    return result
