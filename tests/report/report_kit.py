"""Traces whose truth is known: acceptance that is drawn from given rates."""

from __future__ import annotations

import math

import numpy as np

from draftproof.bench.run_record import Environment
from draftproof.bench.trace_record import (
    TRACE_FORMAT,
    Trace,
    TracedRequest,
    TracedRound,
    TraceHeader,
    TraceRun,
)
from draftproof.core.trace import RoundTrace

PLACE = Environment(
    "a processor", 2, 2, "Linux x86_64", "3.11", {"numpy": "2.0"}, None, "draftproof", "now"
)
HEADER = TraceHeader(TRACE_FORMAT, PLACE, {"name": "simulated"}, {"max_rows": 8})


def round_of(draws, *, kappa, alpha, number, step=1, drafter="ngram", batch=1, **times):
    """One round whose drafts are kept at a constant rate, each by its own coin."""
    coins = draws.random(kappa).tolist()
    kept = next((i for i, coin in enumerate(coins) if not coin < alpha), kappa)
    seconds = {"draft_s": 0.001, "target_s": 0.02, "verify_s": 0.002, "other_s": 0.001} | times
    return RoundTrace(
        step=step,
        round=number,
        start=10 + number,
        kappa=kappa,
        rule="standard" if kappa else "none",
        drafter=drafter if kappa else "none",
        sources=(drafter,) * kappa,
        draft_ids=tuple(range(kappa)),
        parents=None,
        p=tuple(alpha if i <= kept else None for i in range(kappa)),
        q=(None,) * kappa,
        coins=tuple(coin if i <= kept else None for i, coin in enumerate(coins)),
        path=tuple(range(kept)),
        committed=(*range(kept), 99),
        token_id=99,
        token_source="recovered" if kept < kappa else "bonus" if kappa else "sampled",
        token_p=0.5 if kappa else math.nan,
        batch=batch,
        pass_tokens=batch * (1 + kappa),
        **seconds,
    )


def ended(name, rounds, at_s):
    return TracedRequest(
        request=name,
        begun_s=0.0,
        at_s=at_s,
        policy={},
        seed=1,
        stream=0,
        rule="standard",
        exactness="exact-in-law",
        num_prompt_tokens=10,
        num_tokens=sum(len(each.committed) for each in rounds),
        finish_reason="length",
        stats={},
    )


def simulated(alphas, *, rounds=200, kappa=4, seed=0, **more):
    """A run with one request per rate, one after the other."""
    draws = np.random.default_rng(seed)
    held, requests, at_s, step = [], [], 0.0, 0
    for place, alpha in enumerate(alphas):
        mine = []
        for number in range(rounds):
            step += 1
            width = kappa[number % len(kappa)] if isinstance(kappa, tuple) else kappa
            each = round_of(
                draws, kappa=width if number else 0, alpha=alpha, number=number, step=step, **more
            )
            at_s += each.total_s
            mine.append(each)
            held.append(TracedRound(f"r{place}", at_s, each))
        requests.append(ended(f"r{place}", mine, at_s))
    return Trace((TraceRun(HEADER, tuple(held), tuple(requests)),))


def table_of(report, name):
    """The rows of a table of a report, as mappings."""
    (table,) = [table for table in report.tables if table.name == name]
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def figure_of(report, name):
    (figure,) = [figure for figure in report.figures if figure.name == name]
    return figure
