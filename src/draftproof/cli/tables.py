"""Results as lines and tables for people. An undefined rate is "n/a", never 0."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

from draftproof.cli.compare import NEAR_TIE_NATS, Agreement, Comparison, Spread
from draftproof.cli.run import Run, Times
from draftproof.core.stats import SpecDecodeStats, format_rate

if TYPE_CHECKING:
    from rich.table import Table

    from draftproof.core.protocols import Tokenizer

__all__ = [
    "acceptance_per_position",
    "agreement_failure",
    "agreement_line",
    "comparison_table",
    "summary_line",
]


def summary_line(run: Run) -> str:
    """Return one line about a run.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    str
        Tokens, pace, acceptance, label and seed.
    """
    result, stats = run.result, run.result.stats
    reason: str = result.finish_reason
    if result.stop_reason is not None:
        kind = "token" if isinstance(result.stop_reason, int) else "text"
        reason += f" at {kind} {result.stop_reason!r}"
    parts = [
        f"{len(result.tokens)} tokens, {reason}",
        f"first after {run.times.first_token_s:.2f} s, then {format_rate(run.tokens_per_s, 1)} "
        "tokens/s",
    ]
    if stats.num_drafts:
        parts.append(
            f"mean acceptance length {format_rate(stats.mean_acceptance_length, 2)}, "
            f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted tokens accepted"
        )
    parts.append(f"exactness: {result.exactness}, seed {result.seed}")
    return "; ".join(parts)


def acceptance_per_position(stats: SpecDecodeStats) -> list[str]:
    """Return the acceptance at each draft position, with its denominator.

    Parameters
    ----------
    stats : SpecDecodeStats
        The counters.

    Returns
    -------
    list of str
        Such as ``"0.83 (25/30)"``.
    """
    return [
        f"{format_rate(rate, 2)} ({accepted}/{drafted})"
        for accepted, drafted, rate in zip(
            stats.num_accepted_tokens_per_pos,
            stats.num_drafted_per_pos,
            stats.acceptance_rate_per_pos,
            strict=True,
        )
    ]


def agreement_line(agreement: Agreement | None, tokenizer: Tokenizer) -> str:
    """Return one line about whether outputs agree.

    Parameters
    ----------
    agreement : Agreement, optional
        What was found; None where outputs need not agree.
    tokenizer : Tokenizer
        Shows the tokens at a fork.

    Returns
    -------
    str
        The line.
    """
    if agreement is None:
        return "need not be equal"
    if agreement.equal:
        return "equal"

    def shown(token: int | None) -> str:
        return "the end" if token is None else repr(tokenizer.decode([token]))

    fork = (
        f"fork at token {agreement.position}: plain {shown(agreement.plain_token)}, "
        f"speculative {shown(agreement.speculative_token)}"
    )
    if math.isnan(agreement.gap_nats):
        return fork
    kind = "a near-tie" if agreement.is_near_tie else "NOT a near-tie"
    return f"{fork}, gap {agreement.gap_nats:.2g} nats, {kind}"


def agreement_failure(agreement: Agreement | None, tokenizer: Tokenizer) -> str | None:
    """Return what is wrong with a pair of outputs.

    Parameters
    ----------
    agreement : Agreement, optional
        What was found.
    tokenizer : Tokenizer
        Shows the tokens at a fork.

    Returns
    -------
    str, optional
        A line for an error, where outputs part at a gap that rounding does not
        explain; None where all is well or nothing can be said.
    """
    if agreement is None or agreement.equal or not agreement.gap_nats >= NEAR_TIE_NATS:
        return None
    return f"greedy outputs differ: {agreement_line(agreement, tokenizer)}"


def comparison_table(columns: dict[str, Comparison], tokenizer: Tokenizer) -> Table:
    """Return comparisons side by side.

    Parameters
    ----------
    columns : dict of str to Comparison
        Comparisons by their heading.
    tokenizer : Tokenizer
        Shows the tokens at a fork.

    Returns
    -------
    Table
        One row per measure.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table("median of the pairs (lowest to highest)", *columns, pad_edge=False)
    measured = [_measures(comparison, tokenizer) for comparison in columns.values()]
    for name in measured[0]:
        # Text, not str: tokens may hold what would read as markup.
        table.add_row(name, *(Text(column[name]) for column in measured))
    return table


def _measures(comparison: Comparison, tokenizer: Tokenizer) -> dict[str, str]:
    run = _median_run(comparison)
    result, stats, times = run.result, _stats(comparison), run.times
    return {
        "tokens/s, plain": _spread_text(comparison.plain_tokens_per_s, 1),
        "tokens/s, speculative": _spread_text(comparison.speculative_tokens_per_s, 1),
        "ratio": _spread_text(comparison.ratio, 2) + _verdict(comparison.ratio),
        "tokens": f"{len(result.tokens)}, {result.finish_reason}",
        "committed tokens per round": format_rate(stats.committed_per_round, 2),
        "mean acceptance length": format_rate(stats.mean_acceptance_length, 2),
        "drafted per emitted token": format_rate(stats.drafted_per_emitted, 2),
        "acceptance per position": "\n".join(acceptance_per_position(stats)) or "n/a",
        "time: draft": _share(times.draft_s, times),
        "time: target passes": _share(times.target_s, times),
        "time: verify": _share(times.verify_s, times),
        "time: other": _share(times.other_s, times),
        "exactness": result.exactness,
        "outputs, plain and speculative": agreement_line(comparison.agreement, tokenizer),
    }


def _median_run(comparison: Comparison) -> Run:
    """Return the speculative run of median length, whose parts are shown."""
    runs = sorted(comparison.speculative, key=lambda run: run.times.total_s)
    return runs[len(runs) // 2]


def _stats(comparison: Comparison) -> SpecDecodeStats:
    """Return the counters behind the shown rates.

    Greedy runs repeat each other, so that pooling them would feign evidence.
    """
    runs = [run.result for run in comparison.speculative]
    if runs[0].exactness.startswith("greedy"):
        return runs[0].stats
    return reduce(SpecDecodeStats.merge, (result.stats for result in runs))


def _verdict(ratio: Spread) -> str:
    """Say that speculation loses only where every pair says so."""
    if math.isnan(ratio.median) or ratio.low >= 1.0:
        return ""
    return ", speculation loses" if ratio.high < 1.0 else ", no clear difference"


def _share(seconds: float, times: Times) -> str:
    return f"{seconds * 1e3:.1f} ms ({100 * seconds / times.total_s:.1f} %)"


def _spread_text(value: Spread, digits: int) -> str:
    median, low, high = (format_rate(x, digits) for x in (value.median, value.low, value.high))
    return "n/a" if median == "n/a" else f"{median} ({low} to {high})"
