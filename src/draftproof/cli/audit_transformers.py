"""``draftproof audit transformers``: Hugging Face's `generate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.context import CliContext, Notes
from draftproof.errors import ConfigError

__all__ = ["transformers"]


def transformers(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The target's folder.")],
    assistant: Annotated[
        Path | None, typer.Option("--assistant", metavar="DIR", help="The draft model's folder.")
    ] = None,
    prompt_lookup: Annotated[
        int | None,
        typer.Option("--prompt-lookup", metavar="N", help="Draft N tokens by prompt lookup."),
    ] = None,
    prompt: a.PromptText = None,
    prompt_ids: a.PromptIds = None,
    prompts: a.PromptsFile = None,
    horizon: a.Horizon = 3,
    temperature: a.Temperature = 1.0,
    top_k: a.TopK = 3,
    top_p: a.TopP = 1.0,
    min_p: a.MinP = 0.0,
    repetition_penalty: a.RepetitionPenalty = 1.0,
    draws: a.Draws = None,
    tv: a.Tv = 0.1,
    alpha: a.Alpha = 1e-3,
    power: a.PowerOf = 0.99,
    calibration_samples: a.Calibration = 20_000,
    seed: a.Seed = None,
    processes: a.Processes = 1,
    as_json: a.Json = False,
    html: a.Html = None,
    save: a.Save = None,
    quiet: a.Quiet = False,
) -> None:
    """Audit transformers: plain, assisted or with prompt lookup."""
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import draw_all, prompt_evidence
    from draftproof.audit.subjects.transformers_generate import (
        TransformersRecipe,
        generate_options,
        transformers_law,
    )

    context: CliContext = ctx.obj
    outputs = Outputs(as_json, html, save, Notes(quiet=quiet))
    size = a.AuditSize(draws, tv, alpha, power, calibration_samples, seed)
    plan = size.plan()
    policy = a.policy_of(
        horizon,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
    )
    generate_options(policy)
    recipe = TransformersRecipe(folder, assistant, prompt_lookup)
    outputs.notes.say(f"loading {folder}")
    subject = recipe()
    policy = replace(policy, eos_token_ids=_ends_of(subject.model))
    tokenizer = None if prompt_ids and not prompt and prompts is None else _Encoder(folder)
    asked = a.prompts_of(prompt, prompt_ids, prompts, tokenizer)  # type: ignore[arg-type]
    laws = [transformers_law(subject.model, p.ids, policy) for p in asked]
    num, first = size.draws_for(max(map(len, laws))), size.first_seed()
    outputs.notes.say(f"{num} draws of each of {len(laws)} prompts")
    drawn = draw_all(
        (lambda: subject) if processes == 1 else recipe,
        [p.ids for p in asked],
        policy,
        num,
        first_seed=first,
        processes=processes,
    )
    if prompt_lookup is not None:
        drafter = f"prompt lookup of {prompt_lookup} tokens"
    else:
        drafter = "no drafter" if assistant is None else f"the assistant {assistant.name}"
    evidence = Evidence(
        f"transformers' generate on {folder.name} with {drafter}",
        plan,
        tuple(
            prompt_evidence(p.name, law, draws)
            for p, law, draws in zip(asked, laws, drawn, strict=True)
        ),
        expects_speculation=recipe.has_drafter,
        notes={
            "policy": f"{horizon} tokens, temperature {temperature:g}, top_k {top_k}, "
            f"top_p {top_p:g}, min_p {min_p:g}, repetition_penalty {repetition_penalty:g}",
            "seeds": f"one of torch per process and prompt, from {first}",
            "versions": versions("torch", "transformers"),
        },
    )
    finish(context, evidence, outputs)


def _ends_of(model: Any) -> frozenset[int]:
    ends = model.generation_config.eos_token_id
    if ends is None:
        return frozenset()
    return frozenset({int(ends)} if isinstance(ends, int) else map(int, ends))


class _Encoder:
    """The tokenizer of the folder, loaded where text is given."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} has no tokenizer; expected --prompt-ids") from error

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids
