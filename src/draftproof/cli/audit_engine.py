"""``draftproof audit engine``: our own engine, on a model or on tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import audit_engine_modes as m
from draftproof.cli import audit_options as a
from draftproof.cli import options as o
from draftproof.cli import values as v
from draftproof.cli.audit_finish import Outputs, finish, versions
from draftproof.cli.audit_sequential import drawn_evidence
from draftproof.cli.context import CliContext, Loader
from draftproof.cli.flat_options import flat
from draftproof.cli.generate_checks import check_prediction
from draftproof.cli.given_options import given, refuse
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.audit import Evidence
    from draftproof.audit.sequential import SequentialEvidence
    from draftproof.audit.subjects import Draws, EngineSubject, TableRecipe
    from draftproof.engine import Engine

__all__ = ["engine"]

TABLE = "Tables in place of a model"
#: Options that say something of a model.
_NOT_OF_TABLES = (
    "model", "backend", "precision", "n_gpu_layers", "main_gpu", "flash_attn", "cache_type_k",
    "cache_type_v", "max_rows", "threads", "draft_model", "speculative_config",
    "prediction", "prompt", "prompt_ids", "prompts", "horizon", *m.POLICY,
)  # fmt: skip
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
    prediction: str = ""

    def engine(self) -> Engine:
        config = dict(self.config) or None
        return self.load(self.model, speculative_config=config, progress=self.say, **self.options)

    def __call__(self) -> EngineSubject:
        return self.subject(self.engine())

    def subject(self, engine: Engine) -> EngineSubject:
        from draftproof.audit.subjects import EngineSubject

        expected = self.prediction_ids(engine)
        return EngineSubject(engine.core, prediction=expected, num_tail=self._num_tail())

    def _num_tail(self) -> int:
        """Return how much is written past the horizon, so that trees branch up to it."""
        from draftproof.build.methods import DEFAULT_KAPPA, TREES

        method = str(self.config.get("method", "none")).replace("-", "_")
        if method not in TREES:
            return 0
        nodes = self.config.get("num_speculative_tokens")
        return nodes if isinstance(nodes, int) else DEFAULT_KAPPA[method]

    def prediction_ids(self, engine: Engine) -> tuple[int, ...]:
        from draftproof.engine.inputs import prediction_ids

        if not self.prediction:  # a model may have no tokenizer, and then needs none
            return ()
        return prediction_ids(self.prediction, lambda: engine.tokenizer)


def _silent(_line: str) -> None:
    """Say nothing; workers have no terminal of their own."""


@flat
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
    prediction: o.Prediction = None,
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
    stream: m.Stream = False,
    greedy: m.Greedy = False,
    state: m.State = False,
    matrix: m.Matrix = False,
    tokens: m.Tokens = None,
    common: a.Common = a.Common(tv=0.05),
    more: a.MoreKnobs = a.MoreKnobs(),
    sequential: a.Sequential = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            help="Processes that draw; 1 for a model, all cores for --table.",
            rich_help_panel=a.STATISTICS,
        ),
    ] = None,
    ray: a.RayAddress = None,
) -> None:
    """Audit our own engine: draws of many short requests against the enumerated law."""
    context: CliContext = ctx.obj
    outputs = common.outputs()
    mode = m.chosen_mode(
        ctx, is_table=table, stream=stream, greedy=greedy, state=state, matrix=matrix
    )
    if mode is m.Mode.MATRIX and not given(ctx, ["tv"]):
        common = replace(common, tv=0.1)  # every cell is an audit of its own
    if mode is m.Mode.STATE and not given(ctx, ["tv"]):
        common = replace(common, tv=0.5)  # lost drafts per round at the end of a request
    size = common.size(is_sequential=sequential)
    size.plan()  # refuses rates that are none before anything is loaded
    if table:
        refuse(
            ctx,
            _NOT_OF_TABLES,
            "--table brings its model, drafter, prompt and policy; expected --rule, "
            "--num-speculative-tokens and --plant beside it at most",
        )
        cores = 1 if ray is not None else os.cpu_count() or 1
        hands = a.Hands(sequential, cores if processes is None else processes, ray)
        recipe = _table_recipe(rule and rule.value, num_speculative_tokens, plant or "")
        drafts = _drafts(common.drafts, has_drafter=recipe.kappa > 0)
        finish(context, _of_tables(size, outputs, recipe, hands, drafts), outputs)
    if plant is not None:
        raise ConfigError(f"--plant {plant}: expected --table beside it")
    config = v.speculative_config(
        speculative_config,
        draft_model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        rule=rule and rule.value,
    )
    m.refuse_idle(ctx, mode, config)
    check_prediction(prediction, config.get("method"), is_needed=True)
    expected = "" if prediction is None else v.read_text_file(prediction, "--prediction")
    knobs = common.knobs(more)
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
    hands = a.Hands(sequential, 1 if processes is None else processes, ray)
    policy = a.policy_of(common.horizon, **knobs)  # refused before a model is loaded
    speaks_of_drafts = mode in (m.Mode.LAW, m.Mode.MATRIX)
    if speaks_of_drafts:
        _drafts(common.drafts, has_drafter=bool(config))
    loaded_by = _LoadedRecipe(context.load, model, config, options, _silent, expected)
    outputs.notes.say(f"loading {model}")
    with loaded_by.engine() as loaded:
        default = a.DEFAULT_PROMPTS[: 1 if mode is m.Mode.MATRIX else None]
        asked = a.prompts_of(*common.named, loaded.core.tokenizer, default)
        evidence: Any
        drafts = a.Drafts.SHOWN
        if speaks_of_drafts:  # a configuration may name no drafter
            drafts = _drafts(common.drafts, has_drafter=bool(loaded.core.proposers))
        if mode is m.Mode.LAW:
            evidence = _of_engine(size, outputs, loaded, loaded_by, asked, policy, hands, drafts)
        else:
            question = m.Question(
                loaded.core,
                _subject(loaded, loaded_by),
                asked,
                size,
                tokens,
                outputs.notes.say,
                loaded_by.prediction_ids(loaded),
                loaded_by.subject(loaded),
            )
            evidence = m.run_mode(mode, question, knobs, common.horizon)
            if mode is m.Mode.MATRIX:
                notes = {**evidence.notes, "drafts": drafts.value}
                evidence = replace(evidence, notes=notes, expects_speculation=drafts.must_show)
    finish(context, evidence, outputs)


def _drafts(asked: a.Drafts | None, *, has_drafter: bool) -> a.Drafts:
    """Return what is stated about speculation; plain decoding is audited where it is asked for."""
    if asked is a.Drafts.ASSUMED:
        raise ConfigError("--drafts assumed: our engine tells its drafts; expected shown or none")
    if not has_drafter and asked is not a.Drafts.NONE:
        raise ConfigError(
            "no drafter, so nothing would be drafted: expected --speculative-config or "
            "--draft-model, or --drafts none to audit plain decoding"
        )
    return asked or a.Drafts.SHOWN


def _table_recipe(rule: str | None, kappa: int | None, fault: str) -> TableRecipe:
    from draftproof.audit.fixtures import FIXTURE_KAPPA
    from draftproof.audit.subjects import TableRecipe
    from draftproof.audit.subjects.table_engine import rule_of

    if rule is None:
        rule = rule_of(fault) if fault else "standard"
    return TableRecipe(rule, FIXTURE_KAPPA if kappa is None else kappa, fault=fault)


def _of_tables(
    size: a.AuditSize, outputs: Outputs, recipe: TableRecipe, hands: a.Hands, drafts: a.Drafts
) -> Evidence | SequentialEvidence:
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import prompt_evidence
    from draftproof.audit.subjects.table_engine import PROMPT
    from draftproof.audit.watch import Watched

    law, rows, first = recipe.law(), recipe.model(), size.first_seed()
    planted = f", with the planted fault {recipe.fault!r}" if recipe.fault else ""
    name = f"draftproof's engine on tables, rule {recipe.rule}, {recipe.kappa} drafts{planted}"

    def evidence_of(drawn: Sequence[Draws]) -> Evidence:
        return Evidence(
            name,
            size.plan(),
            (prompt_evidence("table", law, drawn[0], rows),),
            rule=recipe.rule if recipe.rule in ("standard", "block") else "",
            expects_speculation=drafts.must_show,
            notes={"seeds": f"from {first}", "versions": versions()},
        )

    return drawn_evidence(
        recipe,
        [Watched("table", PROMPT, law, a.policy_of(law.horizon), rows)],
        size,
        evidence_of,
        first_seed=first,
        hands=hands,
        say=outputs.notes.say,
    )


def _subject(loaded: Engine, recipe: _LoadedRecipe) -> str:
    info = loaded.core.target.info
    told = f", prediction {recipe.prediction!r}" if recipe.prediction else ""
    return (
        f"draftproof's engine on {info.name} ({info.runtime}, {info.precision}), "
        f"speculation {dict(recipe.config) or 'none'}{told}"
    )


def _of_engine(
    size: a.AuditSize,
    outputs: Outputs,
    loaded: Engine,
    recipe: _LoadedRecipe,
    prompts: list[a.Prompt],
    policy: Any,
    hands: a.Hands,
    drafts: a.Drafts,
) -> Evidence | SequentialEvidence:
    from draftproof.audit import Evidence
    from draftproof.audit.subjects import prompt_evidence
    from draftproof.audit.watch import Watched
    from draftproof.evidence import enumerate_law

    core = loaded.core
    policy = replace(policy, eos_token_ids=core.eos_token_ids)
    laws = [
        enumerate_law(
            core.target, p.ids, policy.params, policy.horizon, eos_token_ids=policy.eos_token_ids
        )
        for p in prompts
    ]
    first = size.first_seed()

    def evidence_of(drawn: Sequence[Draws]) -> Evidence:
        return Evidence(
            _subject(loaded, recipe),
            size.plan(),
            tuple(
                prompt_evidence(p.name, law, draws)
                for p, law, draws in zip(prompts, laws, drawn, strict=True)
            ),
            expects_speculation=drafts.must_show,
            notes={
                "policy": f"{policy.horizon} tokens, {_shown(policy.params)}",
                "seeds": f"from {first}",
                "versions": versions("openvino"),
            },
        )

    return drawn_evidence(
        (lambda: recipe.subject(loaded)) if hands.are_here else recipe,
        [Watched(p.name, p.ids, law, policy) for p, law in zip(prompts, laws, strict=True)],
        size,
        evidence_of,
        first_seed=first,
        hands=hands,
        say=outputs.notes.say,
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
