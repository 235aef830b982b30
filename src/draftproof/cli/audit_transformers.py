"""``draftproof audit transformers``: Hugging Face's `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.audit_sequential import drawn_evidence
from draftproof.cli.audit_worker import Asked, Python, Timeout, audit_process
from draftproof.cli.context import CliContext
from draftproof.cli.flat_options import flat
from draftproof.cli.given_options import refuse
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit.subjects import Draws
    from draftproof.audit.subjects.transformers_generate import TransformersRecipe

__all__ = ["transformers"]


@flat
def transformers(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The target's folder.")],
    assistant: Annotated[
        Path | None, typer.Option("--assistant", metavar="DIR", help="The draft model's folder.")
    ] = None,
    own_tokenizers: Annotated[
        bool,
        typer.Option("--own-tokenizers", help="The assistant's tokenizer is another one."),
    ] = False,
    prompt_lookup: Annotated[
        int | None,
        typer.Option("--prompt-lookup", metavar="N", help="Draft N tokens by prompt lookup."),
    ] = None,
    early_exit: Annotated[
        int | None,
        typer.Option("--early-exit", metavar="LAYERS", help="Draft after so many layers."),
    ] = None,
    num_assistant_tokens: Annotated[
        int | None,
        typer.Option(
            "--num-assistant-tokens", help="Drafts of an assistant or an early exit, all of them."
        ),
    ] = None,
    python: Python = None,
    timeout: Timeout = 600.0,
    common: a.Common = a.Common(),
    min_p: a.MinP = 0.0,
    repetition_penalty: a.RepetitionPenalty = 1.0,
    hands: a.Hands = a.Hands(),
) -> None:
    """Audit transformers: plain, or assisted in one of its ways."""
    from draftproof.audit.subjects import EngineProcessRecipe
    from draftproof.audit.subjects.transformers_generate import TransformersRecipe

    context: CliContext = ctx.obj
    outputs = common.outputs()
    size = common.size(is_sequential=hands.sequential)
    size.plan()  # refuses rates that are none before anything is loaded
    if python is None:
        refuse(ctx, ["timeout"], "expected --python beside it")
    recipe = TransformersRecipe(
        folder, assistant, prompt_lookup, early_exit, own_tokenizers, num_assistant_tokens
    )
    asked = Asked(
        f"transformers' generate on {folder.name} with {recipe.drafter}",
        common.stated(has_drafter=recipe.has_drafter),
        common.horizon,
        common.knobs(
            min_p=min_p,
            repetition_penalty=repetition_penalty,
        ),
        common.named,
        hands,
        f"generate, {recipe.drafter}",
    )
    if python is not None:
        theirs = EngineProcessRecipe("transformers", recipe.options(), python, timeout)
        audit_process(context, outputs, size, theirs, asked)
    _audit_here(context, outputs, size, recipe, asked)


def _audit_here(
    context: CliContext,
    outputs: Outputs,
    size: a.AuditSize,
    recipe: TransformersRecipe,
    asked: Asked,
) -> None:
    """Audit in this process, with transformers' own filters in the reference."""
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import prompt_evidence
    from draftproof.audit.subjects.transformers_generate import known_options, transformers_law
    from draftproof.audit.watch import Watched

    folder = recipe.folder
    policy = a.policy_of(asked.horizon, **asked.knobs)
    known_options(policy)
    outputs.notes.say(f"loading {folder}")
    subject = recipe()
    policy = replace(policy, eos_token_ids=_ends_of(subject.model))
    texts, ids, file = asked.prompts
    encoder = None if ids and not texts and file is None else _Encoder(folder)
    prompts = a.prompts_of(texts, ids, file, encoder)
    laws = [transformers_law(subject.model, prompt.ids, policy) for prompt in prompts]
    first = size.first_seed()

    def evidence_of(drawn: Sequence[Draws]) -> Evidence:
        return Evidence(
            asked.subject,
            size.plan(),
            tuple(
                prompt_evidence(prompt.name, law, draws)
                for prompt, law, draws in zip(prompts, laws, drawn, strict=True)
            ),
            expects_speculation=asked.drafts.must_show,
            assumes_speculation=asked.drafts.is_assumed,
            notes={
                "policy": asked.policy,
                "seeds": f"a hash of {first} + number of the draw",
                "versions": versions("torch", "transformers"),
            },
        )

    evidence = drawn_evidence(
        (lambda: subject) if asked.hands.are_here else recipe,
        [Watched(p.name, p.ids, law, policy) for p, law in zip(prompts, laws, strict=True)],
        size,
        evidence_of,
        first_seed=first,
        hands=asked.hands,
        say=outputs.notes.say,
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
