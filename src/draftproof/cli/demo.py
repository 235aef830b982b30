"""``draftproof demo``: see a real model decode, with and without speculation.

Two fixed prompts: one whose answer copies from its context, where looking drafts up
pays, and one of free text, which a trained draft head goes on with. Both are shown as they
are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from draftproof.cli import options as o
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.cli.prompts import as_chat
from draftproof.errors import ConfigError, DraftproofError

if TYPE_CHECKING:
    from draftproof.cli.compare import Comparison
    from draftproof.cli.run import Run
    from draftproof.cli.sources import SourcePainter

__all__ = ["demo"]

MODEL, HEAD = "smollm2", "smollm2-head"


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt of the demonstration.

    Parameters
    ----------
    name : str
        Heading of its column.
    prompt : str
        What the user says.
    max_tokens : int
        Most tokens to generate.
    method : str
        What drafts, by the name of the configuration.
    drafter : str
        The same, by the name of the records.
    num_drafts : int
        Most drafts per round.
    """

    name: str
    prompt: str
    max_tokens: int
    method: str
    drafter: str
    num_drafts: int


SAMPLES = (
    Sample(
        "copying",
        "Rewrite this text. Change the name Anna to Maria and keep every other word.\n\n"
        "Text: Anna lives in a small house by the sea. Every morning she walks along the beach "
        "with her dog and looks for shells. In the afternoon she paints the boats in the "
        "harbour, and in the evening she reads a book by the fire.",
        72,
        "ngram",
        "ngram",
        7,
    ),
    Sample(
        "free text",
        "Explain in a few sentences why the sky is blue.",
        72,
        "draft_head",
        "draft-head",
        2,
    ),
)


def demo(
    ctx: typer.Context,
    precision: o.PrecisionOf = o.Precision.INT8,
    repeats: o.Repeats = None,
    as_json: o.JsonOutput = False,
    quiet: o.Quiet = False,
) -> None:
    """Decode two prompts with a small model, plain and speculative, and compare."""
    repeats = 3 if repeats is None else repeats
    if repeats < 1:
        raise ConfigError(f"--repeats is {repeats}; expected at least 1")
    context: CliContext = ctx.obj
    notes = Notes(quiet=quiet)
    from draftproof.cli.compare import compare
    from draftproof.cli.tables import agreement_failure
    from draftproof.core.rng import fresh_seed

    engine = context.load(
        MODEL,
        speculative_config={"method": "draft_head", "model": HEAD},
        also=["ngram"],
        precision=precision.value,
        cache_dir=context.cache_dir,
        progress=notes.say,
    )
    try:
        comparisons: dict[str, Comparison] = {}
        for sample in SAMPLES:
            comparisons[sample.name] = compare(
                engine,
                as_chat(sample.prompt, None),
                {
                    "max_tokens": sample.max_tokens,
                    "temperature": 0.0,
                    "proposer": sample.drafter,
                    "num_speculative_tokens": sample.num_drafts,
                },
                seed=fresh_seed(),
                repeats=repeats,
                progress=partial(_say_of, notes, sample.name),
            )
        if as_json:
            _write_json(comparisons)
        else:
            _write_text(context, comparisons, engine.tokenizer)
        failures = [
            agreement_failure(comparison.agreement, engine.tokenizer)
            for comparison in comparisons.values()
        ]
    finally:
        engine.close()
    for failure in failures:
        if failure is not None:
            raise DraftproofError(failure)


def _say_of(notes: Notes, name: str, line: str) -> None:
    notes.say(f"{name}: {line}")


def _write_text(context: CliContext, comparisons: dict[str, Comparison], tokenizer: Any) -> None:
    from draftproof.cli.sources import SourcePainter
    from draftproof.cli.tables import comparison_table

    console = context.stdout_console()
    painter = SourcePainter(console)
    for sample in SAMPLES:
        run = comparisons[sample.name].speculative[0]
        write_data(_shown(sample, run, painter))
    write_data(f"Tokens: {painter.legend()}\n\n")
    console.print(comparison_table(comparisons, tokenizer))
    drafts = ", ".join(
        f"{each.name} {each.drafter} (at most {each.num_drafts})" for each in SAMPLES
    )
    write_data(
        f"\nModel {MODEL}; drafts per round: {drafts}. Pace is tokens after the first by seconds "
        "after the first; ratios are taken within pairs of neighbouring runs. Committed tokens per "
        "round counts every round, the mean acceptance length only those that drafted. Times are "
        "those of one speculative run.\n"
    )


def _shown(sample: Sample, run: Run, painter: SourcePainter) -> str:
    asked = "\n".join(f"> {line}".rstrip() for line in sample.prompt.split("\n"))
    return f"── {sample.name} ──\n{asked}\n\n{painter.paint(run.result.tokens).strip()}\n\n"


def _write_json(comparisons: dict[str, Comparison]) -> None:
    from draftproof.cli.documents import comparison_document, run_document
    from draftproof.cli.json_lines import json_line

    samples = [
        {
            "name": sample.name,
            "prompt": sample.prompt,
            "method": sample.method,
            "num_speculative_tokens": sample.num_drafts,
            "result": run_document(comparisons[sample.name].speculative[0]),
            "compare": comparison_document(comparisons[sample.name]),
        }
        for sample in SAMPLES
    ]
    write_data(json_line({"model": MODEL, "head": HEAD, "samples": samples}))
