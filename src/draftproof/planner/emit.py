"""A plan as the configuration of an engine, ready to paste.

"Do not speculate" has its own output: the plain command, with the reason.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from draftproof.errors import ConfigError
from draftproof.planner.plan import Plan

__all__ = ["EMITTERS", "Emission", "emit"]


@dataclass(frozen=True, slots=True)
class Emission:
    """Whose configuration it is.

    Parameters
    ----------
    target : str
        The target, as the engine names it.
    draft : str, optional
        The draft model; None for n-gram lookup; ``"early-exit:8"`` and ``"draft-head"`` as a
        profile names them.
    """

    target: str
    draft: str | None = None


def emit(plan: Plan, engine: str, names: Emission) -> str:
    """Write the configuration of an engine.

    Parameters
    ----------
    plan : Plan
        The decision.
    engine : str
        One of ``EMITTERS``.
    names : Emission
        The models.

    Returns
    -------
    str
        Text with a line break at its end.

    Raises
    ------
    ConfigError
        If the engine is unknown, or has no such drafter.
    """
    writer = EMITTERS.get(engine)
    if writer is None:
        raise ConfigError(f"no output for engine {engine!r}; expected {', '.join(EMITTERS)}")
    ours = names.draft is not None and names.draft.partition(":")[0] in ("early-exit", "draft-head")
    if ours and engine != "draftproof":
        raise ConfigError(f"{engine} has no drafter {names.draft}; expected --emit draftproof")
    return writer(plan, names)


def _ranges(plan: Plan) -> list[tuple[int, int, int]]:
    return [(low, high, kappa) for low, high, kappa in plan.schedule]


def _most(plan: Plan) -> int:
    return max((kappa for _low, _high, kappa in plan.schedule), default=0)


def _refusal(plan: Plan, mark: str = "#") -> str:
    return f"{mark} do not speculate: {plan.reason}\n"


def _vllm(plan: Plan, names: Emission) -> str:
    command = ["vllm", "serve", names.target]
    most = _most(plan)
    if not most:
        return _refusal(plan) + shlex.join(command) + "\n"
    config: dict[str, object] = {"method": "ngram"}
    if names.draft is not None:
        config = {"method": "draft_model", "model": names.draft}
    config["num_speculative_tokens"] = most
    ranges = _ranges(plan)
    if len(ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = [list(each) for each in ranges]
    return shlex.join([*command, "--speculative-config", json.dumps(config)]) + "\n"


def _sglang(plan: Plan, names: Emission) -> str:
    command = ["python", "-m", "sglang.launch_server", "--model-path", names.target]
    most = _most(plan)
    if not most:
        return _refusal(plan) + shlex.join(command) + "\n"
    kappa = plan.schedule[0][2] or most
    if names.draft is None:
        command += ["--speculative-algorithm", "NGRAM"]
        command += ["--speculative-num-draft-tokens", str(kappa + 1)]
    else:
        command += ["--speculative-algorithm", "STANDALONE"]
        command += ["--speculative-draft-model-path", names.draft]
        command += ["--speculative-num-steps", str(kappa), "--speculative-eagle-topk", "1"]
        # The verified window holds the pending token too.
        command += ["--speculative-num-draft-tokens", str(kappa + 1)]
    return _no_schedule(plan, "SGLang") + shlex.join(command) + "\n"


def _trtllm(plan: Plan, names: Emission) -> str:
    most = _most(plan)
    if not most:
        return _refusal(plan) + "speculative_config: null\n"
    lines = ["speculative_config:"]
    if names.draft is None:
        lines += ["  decoding_type: NGram"]
    else:
        lines += ["  decoding_type: DraftTarget", f"  speculative_model: {names.draft}"]
    lines += [f"  max_draft_len: {most}"]
    gaining = [(high, kappa) for _low, high, kappa in _ranges(plan) if kappa]
    if len(_ranges(plan)) > 1:
        lines += ["  # keys are the largest batch of each length (older releases: the smallest)"]
        lines += ["  draft_len_schedule:"]
        lines += [f"    {high}: {kappa}" for high, kappa in gaining]
        lines += [f"  max_concurrency: {gaining[-1][0]}"] if not _ranges(plan)[-1][2] else []
    return "\n".join(lines) + "\n"


def _llama_cpp(plan: Plan, names: Emission) -> str:
    command = ["llama-server", "-m", names.target]
    most = _most(plan)
    if not most:
        return _refusal(plan) + shlex.join(command) + "\n"
    kappa = plan.schedule[0][2] or most
    if names.draft is None:
        command += ["--spec-type", "ngram-simple"]
    else:
        command += ["-md", names.draft]
    command += ["--spec-draft-n-max", str(kappa)]
    note = "# releases before 2026: --draft-max in place of --spec-draft-n-max\n"
    return _no_schedule(plan, "llama.cpp") + note + shlex.join(command) + "\n"


def _draftproof(plan: Plan, names: Emission) -> str:
    most = _most(plan)
    if not most:
        return json.dumps({"method": "none"}) + "\n"
    config = _ours(names.draft)
    config["num_speculative_tokens"] = most
    ranges = _ranges(plan)
    if len(ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = [list(each) for each in ranges]
    return json.dumps(config) + "\n"


def _ours(draft: str | None) -> dict[str, object]:
    if draft is None:
        return {"method": "ngram"}
    kind, _colon, layers = draft.partition(":")
    if kind == "early-exit":
        return {"method": "early_exit", "num_layers": int(layers)}
    if kind == "draft-head":
        return {"method": "draft_head", "model": "HEAD"}
    return {"method": "draft_model", "model": draft}


def _no_schedule(plan: Plan, engine: str) -> str:
    """Say what an engine without a schedule gives away."""
    if len(plan.schedule) < 2:
        return ""
    parts = [f"{low} to {high}: {kappa}" for low, high, kappa in plan.schedule]
    return f"# {engine} takes one length; the best by batch size: {', '.join(parts)}\n"


#: How each engine's configuration is written.
EMITTERS: Final = MappingProxyType[str, Callable[[Plan, Emission], str]](
    {
        "vllm": _vllm,
        "sglang": _sglang,
        "trtllm": _trtllm,
        "llama.cpp": _llama_cpp,
        "draftproof": _draftproof,
    }
)
