"""``draftproof bench`` on an engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftproof.cli import values as v
from draftproof.cli.bench_setup import MeasuredSubject
from draftproof.cli.context import CliContext
from draftproof.errors import ConfigError, DraftproofError

if TYPE_CHECKING:
    from draftproof.bench.run_record import Arm
    from draftproof.engine import Engine

__all__ = ["EngineWords", "open_engine"]


@dataclass(frozen=True, slots=True)
class EngineWords:
    """What was typed about the engine.

    Parameters
    ----------
    model : str
        The model.
    config : mapping
        The speculative configuration; empty for none.
    sweep : str or None
        The sweep.
    chat : bool or None
        Whether prompts go through the chat template; None asks the model.
    ignore_eos : bool
        Whether texts go on past their end.
    max_rows : int
        Requests that run at once.
    options : mapping
        As for `draftproof.build.load`.
    """

    model: str
    config: Mapping[str, Any]
    sweep: str | None
    chat: bool | None
    ignore_eos: bool
    max_rows: int
    options: Mapping[str, Any]


@contextmanager
def open_engine(
    context: CliContext, words: EngineWords, say: Callable[[str], None]
) -> Iterator[MeasuredSubject]:
    """Load an engine for as long as it is measured.

    Parameters
    ----------
    context : CliContext
        The outside.
    words : EngineWords
        What was typed.
    say : callable
        Told in one line what is being done.

    Yields
    ------
    MeasuredSubject
        What to measure.

    Raises
    ------
    ConfigError
        If drafts are asked for without a drafter.
    """
    from draftproof.bench.engine_runner import EngineRunner
    from draftproof.bench.run_record import Subject

    arms = _arms(words)
    engine = context.load(
        words.model,
        speculative_config=dict(words.config) or None,
        max_rows=words.max_rows,
        cache_dir=context.cache_dir,
        progress=say,
        **words.options,
    )
    try:
        core = engine.core
        info = core.target.info
        is_chat = _has_chat(engine) if words.chat is None else words.chat
        preemptions = core.num_preemptions

        def finish() -> tuple[str, ...]:
            count = core.num_preemptions - preemptions
            if not count:
                return ()
            return (f"{count} requests gave their pages back for want of KV cache",)

        yield MeasuredSubject(
            Subject("engine", info.name, info.runtime, info.precision, dict(words.config)),
            EngineRunner(engine, is_chat, words.ignore_eos),
            arms,
            is_chat,
            shares_cache=True,
            warnings=_warnings(words.config),
            finish=finish,
        )
    finally:
        engine.close()


def _arms(words: EngineWords) -> tuple[Arm, ...]:
    from draftproof.bench.settings import arms_of, kappas_of
    from draftproof.build import SpeculativeConfig

    drafts = v.has_drafter(words.config)
    if words.sweep is None:
        if not drafts:
            return arms_of([0])
        chooses = "num_speculative_tokens_per_batch_size" in words.config
        chooses |= words.config.get("num_speculative_tokens") == "auto"
        return arms_of([None if chooses else SpeculativeConfig.parse(words.config).kappa])
    kappas = kappas_of(words.sweep)
    if any(kappa != 0 for kappa in kappas) and not drafts:
        raise ConfigError(
            f"--sweep {words.sweep} needs a drafter; expected --speculative-config, for example "
            '\'{"method": "ngram"}\''
        )
    if None in kappas and words.config.get("num_speculative_tokens") != "auto":
        raise ConfigError(f"--sweep {words.sweep}: auto needs -k auto")
    return arms_of(kappas)


def _has_chat(engine: Engine) -> bool:
    """Say whether the model has a chat template that renders."""
    try:
        engine.tokenizer.encode_chat([{"role": "user", "content": "Hello."}])
    except DraftproofError:
        return False
    return True


def _warnings(config: Mapping[str, Any]) -> tuple[str, ...]:
    if not config.get("suffix_tenant_tokens"):
        return ()
    return (
        "this drafter remembers outputs per tenant (suffix_tenant_tokens); requests here have no "
        "tenant, so that no arm learns from another and the memory's gain is not in these figures",
    )
