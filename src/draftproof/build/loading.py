"""From a name or a path to an engine: the one place where objects are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftproof.build.draft_links import DraftLink, early_exit, link_vocabularies
from draftproof.build.drafters import make_more_proposers, make_proposers
from draftproof.build.grammars import lazy_constraints
from draftproof.build.heads import head_layers, load_head
from draftproof.build.lengths import make_policy
from draftproof.build.runtimes import PRECISIONS, Progress, RuntimeOptions, load_model
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.protocols import ModelBackend
from draftproof.engine import Engine, EngineCore, SchedulerConfig
from draftproof.engine.exactness import SEED_IDENTICAL_RULES
from draftproof.errors import ConfigError
from draftproof.proposers.draft_head import HeadRunner

__all__ = ["PRECISIONS", "load", "load_model"]


def load(
    model: str | Path,
    *,
    speculative_config: str | Mapping[str, Any] | SpeculativeConfig | None = None,
    also: Sequence[str] = (),
    backend: str = "auto",
    precision: str | None = None,
    draft_precision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    attention: str | None = None,
    linear: str | None = None,
    tensor_parallel: int | None = None,
    cuda_graphs: str | None = None,
    n_gpu_layers: int | None = None,
    main_gpu: int | None = None,
    flash_attn: bool | None = None,
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
    context_length: int | None = None,
    kv_cache_bytes: int | None = None,
    threads: int | None = None,
    max_rows: int = 32,
    deterministic: bool = False,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Load a model and, if asked for, a drafter.

    Parameters
    ----------
    model : str or Path
        A name of the catalogue (``"smollm2"``), a GGUF file, an OpenVINO IR folder, a
        Hugging Face folder, or with ``backend="torch"`` a hub id.
    speculative_config : str, mapping or SpeculativeConfig, optional
        The speculation; None is plain decoding.
    also : sequence of str
        Drafters that requests may choose beside the configured one: ``"ngram"``,
        ``"suffix"`` and ``"prediction"``, which need no model.
    backend : {"auto", "openvino", "torch", "llamacpp"}, default "auto"
        The runtime; ``"auto"`` takes PyTorch for Hugging Face folders, OpenVINO for the
        rest, and for a GGUF file that was calibrated on several runtimes the fastest.
    precision : {"int8", "f16", "f32"}, optional
        How OpenVINO holds the weights; ``"int8"`` when None, which rounds them once more
        per output channel: the law that speculation keeps is that of the rounded model.
    draft_precision : str, optional
        The same for the draft model; the target's when None.
    device, dtype, attention, linear : str, optional
        For PyTorch; see `draftproof.backends.torch_hf.load_torch`. The draft model gets
        the same.
    tensor_parallel : int, optional
        For PyTorch: processes of this machine over which the target, a Hugging Face
        folder, is cut. The draft model runs in this process.
    cuda_graphs : {"auto", "on", "off"}, optional
        For PyTorch; see `draftproof.backends.torch_hf.load_torch`. The draft model gets
        the same.
    n_gpu_layers, main_gpu : int, optional
        For llama.cpp; see `draftproof.backends.llama_cpp.load_llama_cpp`. The draft model
        gets the same.
    flash_attn : bool, optional
        The same.
    cache_type_k, cache_type_v : str, optional
        The same.
    context_length : int, optional
        Use less context than the model has.
    kv_cache_bytes : int, optional
        Size of the target's KV cache.
    threads : int, optional
        Threads of the runtime; all physical cores when None.
    max_rows : int, default 32
        Most requests that run at once.
    deterministic : bool, default False
        Promise to the bit what else holds up to rounding: greedy text with drafts equals
        that without, and seed-identical rules give one text per seed. Tested at load and
        refused where runtime or machine do not keep it. Prompts are read in smaller
        chunks, passes have at most 64 tokens, and rounds at most 15 drafts.
    cache_dir : Path, optional
        Where downloads and prepared models are kept; the user's cache when None.
    progress : callable, optional
        Told in one line what is being done.

    Returns
    -------
    Engine
        Ready to generate.

    Raises
    ------
    ConfigError
        If an option is out of range.
    ModelFileError
        If a model file is missing, damaged or of a kind that is not supported.
    IncompatibleModelsError
        If the drafter has another vocabulary and ``vocab_mapping`` does not join them.
    """
    config = SpeculativeConfig.parse(speculative_config)
    more = make_more_proposers(also, config)
    _refuse_idle(config, draft_precision, drafts=config.method != "none" or bool(more))
    say = progress or (lambda _line: None)
    runtime = RuntimeOptions(
        backend,
        precision,
        device,
        dtype,
        attention,
        linear,
        tensor_parallel,
        cuda_graphs=cuda_graphs,
        n_gpu_layers=n_gpu_layers,
        main_gpu=main_gpu,
        flash_attn=flash_attn,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
    )
    head_name = config.model if config.has_head else None
    target, tokenizer = load_model(
        model,
        runtime=runtime,
        kv_cache_bytes=kv_cache_bytes,
        deterministic=deterministic,
        with_hidden=config.has_head,
        hidden_layers=head_layers(head_name) if head_name is not None else None,
        cache_dir=cache_dir,
        progress=say,
        context_length=context_length,
        threads=threads,
    )
    draft: ModelBackend | None = None
    link: DraftLink | None = None
    if config.num_layers is not None:
        draft = early_exit(target, config.num_layers)
    head: HeadRunner | None = None
    if head_name is not None:
        chosen = draft_precision or precision
        head = load_head(head_name, target, precision=chosen, threads=threads, progress=say)
    elif config.model is not None:
        draft, draft_tokenizer = load_model(
            config.model,
            runtime=replace(runtime, precision=draft_precision or precision, tensor_parallel=None),
            kv_cache_bytes=None,
            cache_dir=cache_dir,
            progress=say,
            context_length=context_length,
            threads=threads,
        )
        sizes = (target.info.vocab_size, draft.info.vocab_size)
        link = link_vocabularies(config, (tokenizer, draft_tokenizer), sizes, say)
    proposers = make_proposers(config, target.info.vocab_size, draft, link=link, head=head)
    policy, note = make_policy(config, target.info, proposers[0].name if proposers else "none")
    core = EngineCore(
        target,
        tokenizer=tokenizer,
        proposers=[*proposers, *more],
        default_proposer=proposers[0].name if proposers else "none",
        kappa=config.kappa,
        kappa_policy=policy,
        policy_note=note,
        rule=config.rule,
        allow_lossy=config.allow_lossy,
        constraints=lazy_constraints(tokenizer, target.info.vocab_size),
        scheduler=SchedulerConfig(max_rows=max_rows),
        deterministic=deterministic,
    )
    return Engine(core)


def _refuse_idle(config: SpeculativeConfig, draft_precision: str | None, *, drafts: bool) -> None:
    """Refuse what would change nothing: a rule without drafts, a precision without a model."""
    if config.draft_sample_method == "greedy" and config.draft_temperature:
        raise ConfigError(
            f"draft_temperature {config.draft_temperature} has no effect with "
            "draft_sample_method 'greedy'; expected 'probabilistic'"
        )
    rule = config.rule
    # The seed-identical rules say how plain tokens are drawn, too.
    if not drafts and rule is not None and rule not in SEED_IDENTICAL_RULES:
        raise ConfigError(
            f"rejection_sample_method {config.rejection_sample_method!r} has no effect with "
            "method 'none'; expected a method that drafts, or the rule 'coupled' or 'sample-match'"
        )
    if draft_precision is not None and config.model is None:
        raise ConfigError(
            f"draft_precision {draft_precision!r} has no effect without a draft model; "
            f"expected a speculative config with model, got method {config.method!r}"
        )
