"""``draftproof serve``: the engine behind OpenAI's API."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from draftproof.cli import options as o
from draftproof.cli import values as v
from draftproof.cli.context import CliContext, Notes
from draftproof.cli.tracing import TraceFile, TraceText, tracing
from draftproof.errors import ConfigError

__all__ = ["serve"]

SERVER = "Server"
LIMITS = "Limits"


class Allowed(StrEnum):
    """Drafters that need no model, and none of them."""

    NGRAM = "ngram"
    SUFFIX = "suffix"
    PREDICTION = "prediction"
    NONE = "none"


def _option(panel: str, *names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


Host = Annotated[str, _option(SERVER, "--host", help="Address to listen on; loopback by default.")]
Port = Annotated[int, _option(SERVER, "--port", help="Port to listen on; 0 takes a free one.")]
ApiKey = Annotated[
    str | None,
    _option(
        SERVER,
        "--api-key",
        help="Ask clients for this key; better in the environment, where ps does not show it.",
        envvar="DRAFTPROOF_API_KEY",
        show_envvar=True,
    ),
]
ServedName = Annotated[
    str | None,
    _option(SERVER, "--served-model-name", help="What requests call the model; as -m by default."),
]
AllowedHost = Annotated[
    list[str] | None,
    _option(SERVER, "--allowed-host", help="Accept this Host header too; several may be given."),
]
CorsOrigin = Annotated[
    list[str] | None,
    _option(SERVER, "--cors-origin", help="Let pages of this site call; several may be given."),
]
AllowDrafter = Annotated[
    list[Allowed] | None,
    _option(
        SERVER,
        "--allow-drafter",
        help="Let requests choose this drafter too; several may be given. All three by default.",
    ),
]
LogPrompts = Annotated[
    bool, _option(SERVER, "--log-prompts", help="Write prompts and outputs to the log.")
]
MaxQueue = Annotated[int, _option(LIMITS, "--max-queue", help="Most completions that wait.")]
MaxChoices = Annotated[
    int, _option(LIMITS, "--max-choices", help="Most completions of one request: prompts times n.")
]
MostTokens = Annotated[
    int | None, _option(LIMITS, "--max-tokens", help="Most tokens that a request may ask for.")
]
MaxBodyMb = Annotated[
    float, _option(LIMITS, "--max-body-mb", help="Longest request body in MB (10^6 bytes).")
]
TimeoutS = Annotated[
    float, _option(LIMITS, "--timeout", help="Deadline of a request in seconds, waiting included.")
]
DrainS = Annotated[
    float, _option(LIMITS, "--drain", help="Seconds that requests get to end after SIGTERM.")
]
WedgeS = Annotated[
    float, _option(LIMITS, "--wedge", help="Report a step that takes longer, in seconds.")
]


def serve(
    ctx: typer.Context,
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
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
    served_model_name: ServedName = None,
    allowed_host: AllowedHost = None,
    cors_origin: CorsOrigin = None,
    allow_drafter: AllowDrafter = None,
    log_prompts: LogPrompts = False,
    max_queue: MaxQueue = 128,
    max_choices: MaxChoices = 16,
    max_tokens: MostTokens = None,
    max_body_mb: MaxBodyMb = 4.0,
    timeout: TimeoutS = 600.0,
    drain: DrainS = 30.0,
    wedge: WedgeS = 60.0,
    quiet: o.Quiet = False,
    trace: TraceFile = None,
    trace_text: TraceText = False,
) -> None:
    """Serve a model through OpenAI's API until a signal ends it."""
    _check_extra()
    from draftproof.build import SpeculativeConfig
    from draftproof.server import ServerConfig, Service
    from draftproof.server import serve as run

    context: CliContext = ctx.obj
    notes = Notes(quiet=quiet)
    speculation = v.speculative_config(
        speculative_config,
        draft_model=draft_model,
        draft=draft,
        num_speculative_tokens=num_speculative_tokens,
        rule=rule and rule.value,
    )
    if draft_precision is not None and speculation.get("model") is None:
        raise ConfigError(f"--draft-precision {draft_precision} needs --draft-model")
    also = _allowed(allow_drafter)
    config = ServerConfig(
        # A path of this machine is nobody else's business.
        model_name=served_model_name or Path(model).name,
        default_kappa=SpeculativeConfig.parse(speculation).kappa,
        host=host,
        port=port,
        api_key=api_key,
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        max_running=max_rows,
        max_queue=max_queue,
        max_choices=max_choices,
        max_tokens=max_tokens,
        max_body_bytes=int(max_body_mb * 1_000_000),
        timeout_s=timeout,
        drain_s=drain,
        wedge_s=wedge,
        log_prompts=log_prompts,
    )
    if not config.is_local and api_key is None:
        notes.say(f"note: {host} is open to others and there is no --api-key")
    if speculation.get("suffix_tenant_tokens"):
        notes.say(
            "note: suffix_tenant_tokens shares earlier outputs between requests of one `user`, a "
            "name that nobody checks: whoever sends another's may see parts of her outputs"
        )
    told = {
        "speculative_config": speculation,
        "max_rows": max_rows,
        "deterministic": deterministic,
        "backend": backend.value,
    }
    with tracing(trace, holds_text=trace_text, settings=told, threads=threads) as traced:
        engine = context.load(
            model,
            speculative_config=speculation or None,
            also=also,
            backend=backend.value,
            precision=precision and precision.value,
            device=device,
            dtype=dtype,
            attention=attention,
            linear=linear,
            cuda_graphs=cuda_graphs,
            tensor_parallel=tensor_parallel,
            n_gpu_layers=n_gpu_layers,
            main_gpu=main_gpu,
            flash_attn=flash_attn,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            draft_precision=draft_precision and draft_precision.value,
            context_length=context_length,
            kv_cache_bytes=None if kv_cache_mb is None else kv_cache_mb * 1_000_000,
            threads=threads,
            max_rows=max_rows,
            deterministic=deterministic,
            cache_dir=context.cache_dir,
            progress=notes.say,
        )
        try:
            traced(engine)
            shown = f"[{host}]" if ":" in host else host
            run(
                Service(engine, config),
                on_start=lambda at: notes.say(
                    f"serving {config.model_name} on http://{shown}:{at}"
                ),
            )
        finally:
            engine.close()


def _check_extra() -> None:
    """Say what is missing before a model is loaded."""
    missing = [
        name
        for name in ("starlette", "uvicorn", "prometheus_client")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise ConfigError(
            f"serving needs {', '.join(missing)}, not installed: pip install 'draftproof[server]'"
        )


def _allowed(given: list[Allowed] | None) -> tuple[str, ...]:
    """Return the drafters that requests may choose beside the configured one."""
    if given and Allowed.NONE in given and len(given) > 1:
        raise ConfigError("--allow-drafter none stands beside others; expected it alone")
    return tuple(one.value for one in given or Allowed if one is not Allowed.NONE)
