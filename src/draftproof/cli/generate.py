"""``draftproof generate``: one prompt to the terminal, or many to a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftproof.cli import options as o
from draftproof.cli import values as v
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.cli.generate_checks import check_combination, check_prediction
from draftproof.cli.prompts import as_chat, read_prompt, wants_chat
from draftproof.cli.tracing import TraceFile, TraceText, tracing
from draftproof.errors import DraftproofError

if TYPE_CHECKING:
    from draftproof.engine import Engine, Prompt, StepOutput

__all__ = ["generate"]

EPILOG = (
    "Generated text and JSON go to stdout, everything else to stderr. "
    "Exit codes: 0 done, 1 failed, 2 wrong usage."
)


@dataclass(frozen=True, slots=True)
class _Task:
    """What one call of the verb has to do."""

    load: Callable[[], Engine]
    options: Mapping[str, Any]
    context: CliContext
    notes: Notes
    show_sources: bool | None
    has_drafter: bool

    def shows_sources(self, is_terminal: bool) -> bool:
        """Whether tokens are marked; plain decoding has nothing to tell apart."""
        if self.show_sources is None:
            return is_terminal and self.has_drafter
        return self.show_sources


def generate(
    ctx: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; - or nothing reads it from stdin.")
    ] = None,
    model: o.Model = "smollm2",
    backend: o.BackendOf = o.Backend.AUTO,
    precision: o.PrecisionOrNone = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    attention: o.Attention = None,
    linear: o.Linear = None,
    cuda_graphs: o.CudaGraphs = None,
    tensor_parallel: o.TensorParallel = None,
    n_gpu_layers: o.GpuLayers = None,
    main_gpu: o.MainGpu = None,
    flash_attn: o.FlashAttn = None,
    cache_type_k: o.CacheTypeK = None,
    cache_type_v: o.CacheTypeV = None,
    context_length: o.ContextLength = None,
    kv_cache_mb: o.KvCacheMb = None,
    max_rows: o.MaxRows = 32,
    threads: o.Threads = None,
    deterministic: o.Deterministic = False,
    draft_model: o.DraftModel = None,
    draft: o.Draft = None,
    draft_precision: o.DraftPrecision = None,
    speculative_config: o.SpeculativeConfigJson = None,
    num_speculative_tokens: o.NumberOrAuto = None,
    rule: o.RuleOf = None,
    prediction: o.Prediction = None,
    chat: o.Chat = None,
    system: o.System = None,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    logit_bias: o.LogitBias = None,
    seed: o.Seed = None,
    max_tokens: o.MaxTokens = 128,
    min_tokens: o.MinTokens = 0,
    ignore_eos: o.IgnoreEos = False,
    stop: o.Stop = None,
    json_schema: o.JsonSchema = None,
    json_object: o.JsonObject = False,
    regex: o.Regex = None,
    choice: o.Choice = None,
    grammar: o.Grammar = None,
    n: o.Completions = 1,
    logprobs: o.Logprobs = None,
    logprobs_mode: o.LogprobsModeOf = None,
    as_json: o.JsonOutput = False,
    show_sources: o.ShowSources = None,
    compare: o.Compare = False,
    repeats: o.Repeats = None,
    quiet: o.Quiet = False,
    prompts: o.Prompts = None,
    output: o.Output = None,
    trace: TraceFile = None,
    trace_text: TraceText = False,
) -> None:
    """Generate text, with or without speculation."""
    context: CliContext = ctx.obj
    notes = Notes(quiet=quiet)
    config = v.speculative_config(
        speculative_config,
        draft_model=draft_model,
        draft=draft,
        num_speculative_tokens=num_speculative_tokens,
        rule=rule and rule.value,
    )
    check_combination(
        prompt=prompt,
        prompts=prompts,
        output=output,
        compare=compare,
        repeats=repeats,
        as_json=as_json,
        logprobs=logprobs,
        show_sources=show_sources,
        has_drafter=v.has_drafter(config),
        has_draft_model=config.get("model") is not None,
        draft_precision=draft_precision,
        n=n,
        rule=config.get("rejection_sample_method"),
        logprobs_mode=logprobs_mode,
        trace=trace,
    )
    check_prediction(prediction, config.get("method"))
    is_chat = wants_chat(chat, system)
    request: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": v.bias_option(logit_bias),
        "min_tokens": min_tokens,
        "stop": tuple(stop or ()),
        "ignore_eos": ignore_eos,
        "seed": seed,
        "logprobs": logprobs,
        "logprobs_mode": "raw" if logprobs_mode is None else logprobs_mode.value,
        "prediction": "" if prediction is None else v.read_text_file(prediction, "--prediction"),
        "grammar": v.grammar_option(
            json_schema=json_schema,
            json_object=json_object,
            regex=regex,
            choice=choice,
            grammar=grammar,
        ),
    }
    v.check_request(request)
    limits: dict[str, Any] = {
        "backend": backend.value,
        "precision": precision and precision.value,
        "device": device,
        "dtype": dtype,
        "attention": attention,
        "linear": linear,
        "cuda_graphs": cuda_graphs,
        "tensor_parallel": tensor_parallel,
        "n_gpu_layers": n_gpu_layers,
        "main_gpu": main_gpu,
        "flash_attn": flash_attn,
        "cache_type_k": cache_type_k,
        "cache_type_v": cache_type_v,
        "draft_precision": draft_precision and draft_precision.value,
        "context_length": context_length,
        "deterministic": deterministic,
    }

    told = {"speculative_config": config, "max_rows": max_rows}
    with tracing(trace, holds_text=trace_text, settings=limits | told, threads=threads) as traced:

        def load() -> Engine:
            engine = context.load(
                model,
                speculative_config=config or None,
                kv_cache_bytes=None if kv_cache_mb is None else kv_cache_mb * 1_000_000,
                threads=threads,
                max_rows=max_rows,
                cache_dir=context.cache_dir,
                progress=notes.say,
                **limits,
            )
            return traced(engine)

        task = _Task(load, request, context, notes, show_sources, v.has_drafter(config))
        if prompts is not None:
            settings = {"model": model, "speculative_config": config, "system": system} | limits
            _generate_many(task, prompts, output, settings, is_chat, window=2 * max_rows)
            return
        text = read_prompt(prompt)
        what: Prompt = as_chat(text, system) if is_chat else text
        if compare:
            _compare(task, what, repeats=5 if repeats is None else repeats, as_json=as_json)
        elif n > 1:
            _generate_n(task, what, n, as_json=as_json)
        else:
            _generate_one(task, what, as_json=as_json)


def _generate_one(task: _Task, prompt: Prompt, *, as_json: bool) -> None:
    from draftproof.cli.documents import run_document
    from draftproof.cli.json_lines import json_line
    from draftproof.cli.run import run_request
    from draftproof.cli.sources import SourcePainter, printable
    from draftproof.cli.tables import summary_line

    engine = task.load()
    try:
        if as_json:
            run = run_request(engine, prompt, task.options)
            write_data(json_line({"model": engine.core.target.info.name} | run_document(run)))
        else:
            console = task.context.stdout_console()
            wanted = task.shows_sources(console.is_terminal)
            painter = SourcePainter(console)
            if wanted:
                task.notes.legend(painter.legend())
            plain = printable if console.is_terminal else str
            has_text = False

            def show(output: StepOutput) -> None:
                nonlocal has_text
                has_text = True
                write_data(painter.paint(output.tokens) if wanted else plain(output.text))

            try:
                run = run_request(engine, prompt, task.options, on_output=show)
            finally:
                # Also after an error or Ctrl-C: the next line must not join the text.
                if has_text:
                    write_data("\n")
        for note in run.result.notes:
            task.notes.say(f"note: {note}")
        task.notes.say(summary_line(run))
    finally:
        engine.close()


def _generate_n(task: _Task, prompt: Prompt, n: int, *, as_json: bool) -> None:
    from draftproof.cli.documents import result_document
    from draftproof.cli.json_lines import json_line
    from draftproof.cli.sources import printable

    engine = task.load()
    try:
        results = engine.generate_n(prompt, n, **task.options)
        if as_json:
            name = engine.core.target.info.name
            completions = [result_document(result) for result in results]
            write_data(json_line({"model": name, "completions": completions}))
        is_terminal = task.context.stdout_console().is_terminal
        for index, result in enumerate(results):
            if not as_json:
                task.notes.say(f"completion {index + 1} of {n}")
                write_data((printable(result.text) if is_terminal else result.text) + "\n")
            for note in result.notes:
                task.notes.say(f"note: {note}")
        first = results[0]
        num_tokens = sum(len(result.tokens) for result in results)
        task.notes.say(
            f"{num_tokens} tokens, {first.exactness}, seed {first.seed}, streams 0..{n - 1}"
        )
    finally:
        engine.close()


def _compare(task: _Task, prompt: Prompt, *, repeats: int, as_json: bool) -> None:
    from draftproof.cli.compare import compare
    from draftproof.cli.documents import comparison_document, run_document
    from draftproof.cli.json_lines import json_line
    from draftproof.cli.sources import SourcePainter, printable
    from draftproof.cli.tables import agreement_failure, comparison_table
    from draftproof.core.rng import fresh_seed

    options = {key: value for key, value in task.options.items() if key != "seed"}
    seed = task.options["seed"]
    engine = task.load()
    try:
        comparison = compare(
            engine,
            prompt,
            options,
            seed=fresh_seed() if seed is None else seed,
            repeats=repeats,
            progress=task.notes.say,
        )
        first = comparison.speculative[0]
        if as_json:
            document = {"model": engine.core.target.info.name} | run_document(first)
            write_data(json_line(document | {"compare": comparison_document(comparison)}))
        else:
            console = task.context.stdout_console()
            painter = SourcePainter(console)
            if task.shows_sources(console.is_terminal):
                task.notes.legend(painter.legend())
                write_data(painter.paint(first.result.tokens) + "\n")
            else:
                text = first.result.text
                write_data((printable(text) if console.is_terminal else text) + "\n")
        task.notes.show(comparison_table({"this prompt": comparison}, engine.tokenizer))
        failure = agreement_failure(comparison.agreement, engine.tokenizer)
    finally:
        engine.close()
    if failure is not None:
        raise DraftproofError(failure)


def _generate_many(
    task: _Task,
    prompts: Path,
    output: Path | None,
    settings: Mapping[str, Any],
    is_chat: bool,
    *,
    window: int,
) -> None:
    from draftproof.cli.batch import run_batch
    from draftproof.cli.batch_input import read_lines

    system = settings["system"]
    lines = read_lines(
        prompts, task.options, {**settings, "chat": is_chat}, chat=is_chat, system=system
    )
    counts = run_batch(task.load, lines, output, task.notes, window=window)
    where = "stdout" if output is None else str(output)
    task.notes.say(f"{counts.done} of {counts.total} lines are in {where}")
    if counts.failed:
        raise DraftproofError(
            f"{counts.failed} of {counts.total} lines failed; each holds its error in {where}"
        )
