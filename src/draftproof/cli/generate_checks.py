"""Options of ``draftproof generate`` that would be ignored beside each other."""

from __future__ import annotations

from pathlib import Path

from draftproof.cli import options as o
from draftproof.errors import ConfigError

__all__ = ["check_combination", "check_prediction"]


def check_combination(
    *,
    prompt: str | None,
    prompts: Path | None,
    output: Path | None,
    compare: bool,
    repeats: int | None,
    as_json: bool,
    n: int,
    rule: str | None,
    logprobs_mode: o.LogprobsMode | None,
    logprobs: int | None,
    show_sources: bool | None,
    has_drafter: bool,
    has_draft_model: bool,
    draft_precision: o.Precision | None,
    trace: Path | None,
) -> None:
    """Refuse options that would be ignored together.

    The parameters are the options of those names.

    Raises
    ------
    ConfigError
        Naming the first option that has no effect, and what it needs.
    """
    if trace is not None and compare:
        raise ConfigError(f"--compare times both ways to decode; expected no --trace {trace}")
    if trace is not None and any(
        other is not None and _is_same(trace, other) for other in (prompts, output)
    ):
        raise ConfigError(f"--trace {trace} is the input or the output; expected another file")
    if repeats is not None and (repeats < 1 or not compare):
        raise ConfigError(
            f"--repeats is {repeats}; expected "
            + ("at least 1" if compare else "--compare beside it")
        )
    # The other rules say how plain tokens are drawn, too.
    if rule not in (None, o.Rule.COUPLED, o.Rule.SAMPLE_MATCH) and not has_drafter:
        raise ConfigError(f"rule {rule} needs a drafter; plain decoding has nothing to verify")
    if n < 1:
        raise ConfigError(f"--n is {n}; expected at least 1")
    if n > 1 and (compare or prompts is not None or show_sources):
        raise ConfigError(f"--n {n} is for one prompt; no --compare, --prompts or --show-sources")
    if logprobs_mode is not None and logprobs is None:
        raise ConfigError(f"--logprobs-mode {logprobs_mode} needs --logprobs")
    if draft_precision is not None and not has_draft_model:
        raise ConfigError(f"--draft-precision {draft_precision} needs --draft-model")
    if compare and not has_drafter:
        raise ConfigError(
            "--compare needs a drafter; "
            'expected --draft-model or --speculative-config \'{"method": "ngram"}\''
        )
    if as_json and show_sources:
        raise ConfigError("--show-sources is for text; --json holds the sources anyway")
    if logprobs is not None and not as_json and prompts is None:
        raise ConfigError(f"--logprobs {logprobs} needs --json or --prompts")
    if prompts is None:
        if output is not None:
            raise ConfigError(f"--output {output} needs --prompts; a single result goes to stdout")
        return
    if prompt is not None:
        raise ConfigError(f"PROMPT {prompt!r} and --prompts {prompts}; expected one of them")
    if compare:
        raise ConfigError(f"--compare times one prompt; expected no --prompts {prompts} beside it")
    if as_json or show_sources:
        raise ConfigError("--prompts writes one JSON object per line; no --json, no --show-sources")
    if output is not None and output.exists() and prompts.exists() and output.samefile(prompts):
        raise ConfigError(f"--output {output} is the input; expected another file")


def check_prediction(path: Path | None, method: str | None, *, is_needed: bool = False) -> None:
    """Refuse a prediction that the drafter would not read.

    Parameters
    ----------
    path : Path, optional
        What ``--prediction`` says.
    method : str, optional
        The configured method.
    is_needed : bool, default False
        Whether a method that drafts nothing else has to have one.

    Raises
    ------
    ConfigError
        If another method is needed, or there is nothing to draft from.
    """
    from draftproof.build.methods import PREDICTED

    spelled = str(method).replace("-", "_")
    if path is None:
        if is_needed and spelled.startswith("prediction"):
            raise ConfigError(f"method {method} drafts from a prediction; expected --prediction")
        return
    if spelled not in PREDICTED:
        raise ConfigError(
            f"--prediction {path} needs a method that reads it; "
            'expected --speculative-config \'{"method": "prediction"}\''
        )


def _is_same(one: Path, other: Path) -> bool:
    return one == other or (one.exists() and other.exists() and one.samefile(other))
