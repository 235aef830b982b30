"""``draftproof plan --validate``: predicted tokens per second against measured ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.errors import ConfigError, DraftproofError

if TYPE_CHECKING:
    from draftproof.planner.profile import Profile
    from draftproof.planner.validate import Validation

__all__ = ["validate_profile"]

#: Largest median error that counts as a good prediction.
PROMISED_MEDIAN = 0.10
#: From this share on a machine's pace is told to be another than at calibration.
_OTHER_PACE = 0.15
#: Texts of several kinds: prose, lists, code, questions. None is used by calibration.
_TEXTS = (
    "The history of the printing press begins in the fifteenth century, when",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Shopping list: apples, pears, apples, pears, apples, pears,",
    "Question: Why is the sky blue? Answer: The sky is blue because",
    "Once upon a time there was a small village at the foot of a mountain, and",
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k in",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday,",
    "The three laws of thermodynamics state that energy",
)


def validate_profile(
    context: CliContext,
    path: str,
    drafter: str | None,
    draft: str | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run held-out settings of a profile's model and print predicted against measured.

    Parameters
    ----------
    context : CliContext
        The outside.
    path : str
        The profile.
    drafter : str, optional
        Which of its drafters; the n-grams when None.
    draft : str, optional
        The draft model, for the drafter that is one.
    as_json, quiet : bool
        How to print.

    Raises
    ------
    ConfigError
        If the drafter and the draft model do not fit.
    DraftproofError
        If the median error is above what is promised; exit code 1.
    """
    from draftproof.planner.profile import read_profile
    from draftproof.planner.validate import validate

    profile = read_profile(path)
    name = drafter or "ngram"
    config = _config_of(name, draft)
    notes = Notes(quiet=quiet)
    engine = context.load(
        profile.model,
        speculative_config=config,
        **_runtime_of(profile),
        draft_precision=None,
        threads=profile.machine.get("threads"),
        cache_dir=context.cache_dir,
        progress=notes.say,
    )
    try:
        prompts = [engine.tokenizer.encode(text) for text in _TEXTS]
        found = validate(
            engine.core,
            engine.core.default_proposer,
            profile.round_cost(name),
            prompts,
            repeats=2,
            progress=notes.say,
        )
    finally:
        engine.close()
    _show(context, found, as_json=as_json)
    if found.pace is not None and abs(found.pace - 1.0) > _OTHER_PACE:
        notes.say(
            f"plain decoding runs at {found.pace:.2f} of the pace that the profile knows: other "
            "work on this machine, or calibration met some. Predictions of tokens per second are "
            "off by that; those of what drafts gain are not"
        )
    if found.median_error_at_pace > PROMISED_MEDIAN:
        raise DraftproofError(
            f"the median error is {found.median_error_at_pace:.1%} at the machine's pace now; "
            f"expected at most {PROMISED_MEDIAN:.0%}. hint: calibrate again on an idle machine"
        )


def _runtime_of(profile: Profile) -> dict[str, Any]:
    """Return how the model of a profile is loaded as it was measured."""
    if profile.runtime == "openvino":
        return {"backend": "openvino", "precision": profile.precision}
    return {"backend": profile.runtime} if profile.runtime in ("torch", "llamacpp") else {}


def _config_of(name: str, draft: str | None) -> dict[str, Any]:
    """Return the configuration of a profile's drafter."""
    exit_of, colon, layers = name.partition(":")
    if draft is None:
        if name == "ngram":
            return {"method": "ngram"}
        if exit_of == "early-exit" and colon and layers.isdecimal():
            return {"method": "early_exit", "num_layers": int(layers)}
    elif name in ("draft-model", "draft-head"):
        return {"method": name.replace("-", "_"), "model": draft}
    raise ConfigError(f"--drafter {name} with --draft {draft}; they do not fit")


def _show(context: CliContext, found: Validation, *, as_json: bool) -> None:
    from draftproof.planner.validate import quantile

    if as_json:
        from draftproof.cli.json_lines import json_line

        points = [
            {
                "batch": point.batch,
                "kappa": point.kappa,
                "predicted_tokens_per_s": point.predicted,
                "measured_tokens_per_s": point.measured,
                "error": point.error,
            }
            for point in found.points
        ]
        document = {
            "median_error": found.median_error,
            "median_error_at_pace": found.median_error_at_pace,
            "pace": found.pace,
            "survival": list(found.survival.curve.rates),
            "points": points,
        }
        write_data(json_line(document))
        return
    from rich.table import Table

    table = Table("rows", "drafts", "predicted tok/s", "measured", "error", box=None)
    for point in found.points:
        table.add_row(
            str(point.batch),
            str(point.kappa),
            f"{point.predicted:.1f}",
            f"{point.measured:.1f}",
            f"{point.error:+.0%}",
        )
    console = context.stdout_console()
    console.print(table)
    console.print(f"median error {found.median_error:.1%}, worst {found.worst.error:+.0%}")
    if found.pace is not None:
        console.print(
            f"at the machine's pace now ({found.pace:.2f} of the profile's): median error "
            f"{found.median_error_at_pace:.1%}, 90th percentile "
            f"{quantile(found.errors_at_pace(), 0.9):.1%}"
        )
