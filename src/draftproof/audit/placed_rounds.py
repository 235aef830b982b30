"""Drafting rounds at their place in the text: their stored form, and what certain drafts promise.

A draft that its drafter had no choice about is kept with the target's probability of it, under
every rule that keeps the law: nothing may be drawn in its place more often, and no rule of
ours keeps it less. So the promise follows from the reference law alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftproof.audit.acceptance import RoundLog, check_whole
from draftproof.errors import ConfigError
from draftproof.evidence.joint_law import JointLaw, Outcome
from draftproof.evidence.localise import NextTokenLaw, RoundSample, next_token_laws

__all__ = ["PlacedRounds", "certain_promises", "samples_from_json", "samples_to_json"]

#: Rounds and how often each was played.
PlacedRounds = tuple[tuple[RoundSample, int], ...]


def samples_to_json(samples: PlacedRounds) -> list[list[Any]]:
    """Return the stored form: prefix, emitted, kept, times, and the drafts where they are known.

    Parameters
    ----------
    samples : tuple of (RoundSample, int)
        The rounds.

    Returns
    -------
    list of list
        Of lists and numbers.
    """
    return [
        [list(each.prefix), list(each.emitted), each.num_accepted, times]
        + ([] if each.drafted is None else [list(each.drafted)])
        for each, times in samples
    ]


def samples_from_json(stored: Iterable[Sequence[Any]]) -> PlacedRounds:
    """Return the rounds of a stored form.

    Parameters
    ----------
    stored : iterable of sequence
        What `samples_to_json` gave.

    Returns
    -------
    tuple of (RoundSample, int)
        Equal content.

    Raises
    ------
    ConfigError
        If a number or a round cannot be.
    """
    found = []
    for prefix, emitted, accepted, times, *drafts in stored:
        check_whole("number of kept drafts", (accepted,), 0)
        check_whole("number of equal rounds", (times,), 1)
        if not emitted:
            raise ConfigError("a round that emitted nothing: expected one token or more")
        drafted = tuple(drafts[0]) if drafts else None
        found.append((RoundSample(tuple(prefix), tuple(emitted), accepted, drafted), times))
    return tuple(found)


def certain_promises(
    law: JointLaw, log: RoundLog | None, samples: PlacedRounds
) -> list[float] | None:
    """Return how many drafts each drafting round keeps on average, where all were certain.

    Parameters
    ----------
    law : JointLaw
        The reference.
    log : RoundLog, optional
        All rounds.
    samples : tuple of (RoundSample, int)
        The drafting rounds among them.

    Returns
    -------
    list of float, or None
        One for each drafting round of the log, in its order; None where the drafts of one
        are not known. Drafts behind an end, the horizon or an impossible token, whose law
        nobody enumerated, are promised as they came.

    Raises
    ------
    ConfigError
        If the two tell of other rounds.
    """
    if log is None or not samples or any(each.drafted is None for each, _times in samples):
        return None
    laws = next_token_laws(law)
    told = sorted(
        (len(each.drafted or ()), each.num_accepted, len(each.emitted), _kept(laws, each))
        for each, times in samples
        for _ in range(times)
    )
    rows = list(zip(log.drafted, log.accepted, log.emitted, strict=True))
    order = sorted((i for i, row in enumerate(rows) if row[0]), key=rows.__getitem__)
    if [rows[i] for i in order] != [row[:3] for row in told]:
        raise ConfigError("rounds of the log and rounds with tokens: expected the same ones")
    promised = {i: row[3] for i, row in zip(order, told, strict=True)}
    return [promised[i] for i in sorted(promised)]


def _kept(laws: Mapping[Outcome, NextTokenLaw], sample: RoundSample) -> float:
    prefix, weight, total = sample.prefix, 1.0, 0.0
    for place, token in enumerate(sample.drafted or ()):
        known = laws.get(prefix)
        if known is None:
            return total + max(0, sample.num_accepted - place)
        if token not in known.token_ids:
            break
        weight *= float(known.probs[known.token_ids.index(token)])
        total += weight
        prefix = (*prefix, token)
    return total
