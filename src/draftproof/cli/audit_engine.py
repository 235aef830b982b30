"""``draftproof audit engine``: our own engine, on a model or on tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import audit_options as a
from draftproof.cli import options as o
from draftproof.cli import values as v
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.context import CliContext, Loader, Notes
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import EngineSubject
    from draftproof.engine import Engine

__all__ = ["engine"]

TABLE = "Tables in place of a model"
#: Packages of runtimes that are called otherwise.
_PACKAGES = {"llamacpp": "llama-cpp-python"}


@dataclass(frozen=True, slots=True)
class _LoadedRecipe:
    """How a worker loads the engine."""

    load: Loader
    model: str
    config: Mapping[str, Any]
    options: Mapping[str, Any]
    say: Callable[[str], None]

    def engine(self) -> Engine:
        config = dict(self.config) or None
        return self.load(self.model, speculative_config=config, progress=self.say, **self.options)

    def __call__(self) -> EngineSubject:
        from draftproof.audit.subjects import EngineSubject

        return EngineSubject(self.engine().core)


def _silent(_line: str) -> None:
    """Say nothing; workers have no terminal of their own."""


def engine(
    ctx: typer.Context,
    model: o.Model = "smollm2",
    backend: o.BackendOf = o.Backend.AUTO,
    precision: o.PrecisionOrNone = None,
    n_gpu_layers: o.GpuLayers = None,
    main_gpu: o.MainGpu = None,
    flash_attn: o.FlashAttn = None,
    cache_type_k: o.CacheTypeK = None,
    cache_type_v: o.CacheTypeV = None,
    max_rows: o.MaxRows = 32,
    threads: o.Threads = None,
    draft_model: o.DraftModel = None,
    speculative_config: o.SpeculativeConfigJson = None,
    num_speculative_tokens: o.NumSpeculativeTokens = None,
    rule: o.RuleOf = None,
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="Run the engine over the shipped tables: fast, and every fault can be named.",
            rich_help_panel=TABLE,
        ),
    ] = False,
    plant: Annotated[
        str | None,
        typer.Option(
            "--plant",
            metavar="FAULT",
            help="With --table: plant this fault in the engine, to see that it is found.",
            rich_help_panel=TABLE,
        ),
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
    presence_penalty: a.PresencePenalty = 0.0,
    frequency_penalty: a.FrequencyPenalty = 0.0,
    draws: a.Draws = None,
    tv: a.Tv = 0.05,
    alpha: a.Alpha = 1e-3,
    power: a.PowerOf = 0.99,
    calibration_samples: a.Calibration = 20_000,
    seed: a.Seed = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="Processes that draw; 1 for a model, all cores for --table.",
            rich_help_panel=a.STATISTICS,
        ),
    ] = None,
    as_json: a.Json = False,
    html: a.Html = None,
    save: a.Save = None,
    quiet: a.Quiet = False,
) -> None:
    """Audit our own engine: draws of many short requests against the enumerated law."""
    context: CliContext = ctx.obj
    outputs = Outputs(as_json, html, save, Notes(quiet=quiet))
    size = a.AuditSize(draws, tv, alpha, power, calibration_samples, seed)
    size.plan()  # refuses rates that are none before anything is loaded
    if table:
        given = [
            ctx.get_parameter_source(name)
            for name in ("model", "backend", "precision", "n_gpu_layers", "main_gpu", "flash_attn",
                         "cache_type_k", "cache_type_v", "draft_model", "speculative_config",
                         "prompt", "prompt_ids", "prompts", "horizon", "temperature", "top_k",
                         "top_p", "min_p", "repetition_penalty", "presence_penalty",
                         "frequency_penalty")
        ]  # fmt: skip
        if any(source is not None and source.name == "COMMANDLINE" for source in given):
            raise ConfigError(
                "--table brings its model, drafter, prompt and policy; expected --rule, "
                "--num-speculative-tokens and --plant beside it at most"
            )
        name = "standard" if rule is None else rule.value
        workers = processes if processes is not None else os.cpu_count() or 1
        evidence = _of_tables(size, outputs, name, num_speculative_tokens, plant or "", workers)
        finish(context, evidence, outputs)
    if plant is not None:
        raise ConfigError(f"--plant {plant}: expected --table beside it")
    config = v.speculative_config(
        speculative_config,
        draft_model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        rule=rule and rule.value,
    )
    knobs: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    options = {
        "backend": backend.value,
        "precision": precision and precision.value,
        "n_gpu_layers": n_gpu_layers,
        "main_gpu": main_gpu,
        "flash_attn": flash_attn,
        "cache_type_k": cache_type_k,
        "cache_type_v": cache_type_v,
        "threads": threads,
        "max_rows": max_rows,
        "cache_dir": context.cache_dir,
    }
    policy = a.policy_of(horizon, **knobs)  # refused before a model is loaded
    recipe = _LoadedRecipe(context.load, model, config, options, _silent)
    outputs.notes.say(f"loading {model}")
    workers = 1 if processes is None else processes
    with recipe.engine() as loaded:
        asked = a.prompts_of(prompt, prompt_ids, prompts, loaded.core.tokenizer)
        evidence = _of_engine(size, outputs, loaded, recipe, asked, policy, workers)
    finish(context, evidence, outputs)


def _of_tables(
    size: a.AuditSize, outputs: Outputs, rule: str, kappa: int | None, fault: str, processes: int
) -> Evidence:
    from draftproof.audit import Evidence
    from draftproof.audit.fixtures import FIXTURE_KAPPA
    from draftproof.audit.subjects import TableRecipe, draw_all, prompt_evidence
    from draftproof.audit.subjects.table_engine import PROMPT

    recipe = TableRecipe(rule, FIXTURE_KAPPA if kappa is None else kappa, fault=fault)
    law = recipe.law()
    num, first = size.draws_for(len(law)), size.first_seed()
    outputs.notes.say(f"{num} draws of {len(law)} outcomes in {processes} processes")
    policy = a.policy_of(law.horizon)
    (drawn,) = draw_all(recipe, [PROMPT], policy, num, first_seed=first, processes=processes)
    planted = f", with the planted fault {fault!r}" if fault else ""
    return Evidence(
        f"draftproof's engine on tables, rule {rule}, {recipe.kappa} drafts{planted}",
        size.plan(),
        (prompt_evidence("table", law, drawn, recipe.model()),),
        rule=rule if rule in ("standard", "block") else "",
        notes={"seeds": f"from {first}", "versions": versions()},
    )


def _of_engine(
    size: a.AuditSize,
    outputs: Outputs,
    loaded: Engine,
    recipe: _LoadedRecipe,
    prompts: list[a.Prompt],
    policy: Any,
    processes: int,
) -> Evidence:
    from dataclasses import replace

    from draftproof.audit import Evidence
    from draftproof.audit.subjects import EngineSubject, draw_all, prompt_evidence
    from draftproof.evidence import enumerate_law

    core = loaded.core
    policy = replace(policy, eos_token_ids=core.eos_token_ids)
    laws = [
        enumerate_law(
            core.target, p.ids, policy.params, policy.horizon, eos_token_ids=policy.eos_token_ids
        )
        for p in prompts
    ]
    num, first = size.draws_for(max(map(len, laws))), size.first_seed()
    shapes = "/".join(str(len(law)) for law in laws)
    outputs.notes.say(f"{num} draws of each of {len(laws)} prompts, {shapes} outcomes")
    drawn = draw_all(
        (lambda: EngineSubject(core)) if processes == 1 else recipe,
        [p.ids for p in prompts],
        policy,
        num,
        first_seed=first,
        processes=processes,
    )
    info = core.target.info
    return Evidence(
        f"draftproof's engine on {info.name} ({info.runtime}, {info.precision}), "
        f"speculation {dict(recipe.config) or 'none'}",
        size.plan(),
        tuple(
            prompt_evidence(p.name, law, draws)
            for p, law, draws in zip(prompts, laws, drawn, strict=True)
        ),
        notes={
            "policy": f"{policy.horizon} tokens, {_shown(policy.params)}",
            "seeds": f"from {first}",
            "versions": versions(_PACKAGES.get(info.runtime, info.runtime)),
        },
    )


def _shown(params: Any) -> str:
    from draftproof.core.params import SamplingParams

    resting = SamplingParams()
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty",
             "presence_penalty", "frequency_penalty")  # fmt: skip
    return ", ".join(
        f"{name} {getattr(params, name):g}"
        for name in names
        if name == "temperature" or getattr(params, name) != getattr(resting, name)
    )
