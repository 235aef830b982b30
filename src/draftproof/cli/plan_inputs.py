"""What ``draftproof plan`` rests on: costs, acceptance, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.planner.estimate import SurvivalEstimate
    from draftproof.planner.rounds import RoundCost

__all__ = ["Basis", "CostOptions", "batches_of", "costs_of", "survival_from"]


@dataclass(frozen=True, slots=True)
class CostOptions:
    """The options that choose the costs.

    Parameters
    ----------
    target, draft, draft_kind : str, optional
        Configurations, and how the drafter drafts.
    hardware, precision : str
        Device and precision of its arithmetic.
    tensor_parallel : int
        Devices.
    weight_bits, kv_bits, draft_weight_bits : float, optional
        Widths of numbers.
    bandwidth_efficiency, compute_efficiency : float
        Shares of the data sheet's rates.
    overhead_ms : float
        Milliseconds per step outside the passes.
    memory_gb : float, optional
        Memory of a device in place of the data sheet's.
    profile, drafter : str, optional
        A calibrated profile, and which of its drafters.
    published : str, optional
        Published step costs.
    context, max_kappa : int
        Cached tokens per row; most drafts.
    """

    target: str | None
    draft: str | None
    draft_kind: str | None
    hardware: str | None
    precision: str
    tensor_parallel: int
    weight_bits: float | None
    kv_bits: float | None
    draft_weight_bits: float | None
    bandwidth_efficiency: float
    compute_efficiency: float
    overhead_ms: float
    memory_gb: float | None
    profile: str | None
    drafter: str | None
    published: str | None
    context: int
    max_kappa: int


@dataclass(frozen=True, slots=True)
class Basis:
    """Costs, and what to say of them.

    Parameters
    ----------
    cost : RoundCost
        The costs.
    title : str
        Heading of reports.
    lines : tuple of str
        Where they come from.
    figures : dict
        Derived figures, for JSON.
    target, draft : str
        Names for emitted configurations; ``draft`` is None without a draft model.
    """

    cost: RoundCost
    title: str
    lines: tuple[str, ...]
    figures: dict[str, Any] = field(default_factory=dict)
    target: str = "TARGET"
    draft: str | None = None


def costs_of(options: CostOptions) -> Basis:
    """Return the costs that the options name: derived, calibrated or published.

    Parameters
    ----------
    options : CostOptions
        What was typed.

    Returns
    -------
    Basis
        Costs and their sources.

    Raises
    ------
    ConfigError
        If not exactly one source is named, or options contradict each other.
    """
    named = {
        "--target with --hardware": options.target,
        "--profile": options.profile,
        "--published": options.published,
    }
    chosen = [name for name, value in named.items() if value is not None]
    if len(chosen) != 1:
        got = " and ".join(chosen) or "nothing"
        raise ConfigError(f"costs from {got}; expected one of {', '.join(named)}")
    if options.target is None:
        _refuse_derived_options(options, chosen[0])
    if options.profile is not None:
        return _calibrated(options, options.profile)
    if options.drafter is not None:
        raise ConfigError(f"--drafter {options.drafter} needs --profile")
    return _published(options.published) if options.published else _derived(options)


def _refuse_derived_options(options: CostOptions, source: str) -> None:
    typed = {
        "--draft": options.draft,
        "--draft-kind": options.draft_kind,
        "--hardware": options.hardware,
        "--weight-bits": options.weight_bits,
        "--kv-bits": options.kv_bits,
        "--draft-weight-bits": options.draft_weight_bits,
        "--memory-gb": options.memory_gb,
        "--overhead-ms": options.overhead_ms or None,
        "--tensor-parallel": options.tensor_parallel if options.tensor_parallel != 1 else None,
        "--bandwidth-efficiency": _unless_one(options.bandwidth_efficiency),
        "--compute-efficiency": _unless_one(options.compute_efficiency),
    }
    for name, value in typed.items():
        if value is not None:
            raise ConfigError(f"{name} {value} has no effect with {source}; it needs --target")


def _unless_one(value: float) -> float | None:
    return value if value != 1.0 else None


def _calibrated(options: CostOptions, path: str) -> Basis:
    from draftproof.planner.profile import read_profile

    profile = read_profile(path)
    report = profile.report()
    drafter = options.drafter or next(iter(profile.drafters), "none")
    if drafter.endswith("-tree"):
        chains = [name for name in profile.drafters if not name.endswith("-tree")]
        raise ConfigError(
            f"--drafter {drafter} drafts trees, and plans count chains; expected "
            f"{' or '.join(chains)}"
        )
    return Basis(
        cost=profile.round_cost(options.drafter),
        title=f"{profile.model} with {drafter}",
        lines=(
            f"measured: {profile.model} ({profile.precision}, {profile.runtime}) on "
            f"{profile.machine.get('cpu', 'this machine')}, {len(profile.cells)} shapes of passes",
            f"outside them a straight law, off by {report.median_error:.0%} in the median",
        ),
        target=profile.model,
        draft=None if drafter == "ngram" else drafter,
    )


def _published(name: str) -> Basis:
    from draftproof.planner.catalogue import published_costs
    from draftproof.planner.rounds import published_round_cost

    entry = published_costs(name)
    return Basis(
        cost=published_round_cost(name),
        title=f"{entry['target']} on {entry['hardware']}",
        lines=(f"published: {entry['source']}",),
        target=_served_name(str(entry["target"])),
        draft=None if name.endswith("ngram") else "DRAFT",
    )


def _derived(options: CostOptions) -> Basis:
    from dataclasses import replace

    from draftproof.planner.derive import derive_costs
    from draftproof.planner.hardware import read_hardware
    from draftproof.planner.memory import max_concurrency
    from draftproof.planner.read_config import read_model

    if options.hardware is None:
        raise ConfigError("--target needs --hardware, for example h100-sxm")
    assert options.target is not None  # narrows the type: checked by the caller
    target = read_model(options.target).quantised(options.weight_bits, options.kv_bits)
    draft = None
    if options.draft is not None:
        bits = options.draft_weight_bits or options.weight_bits
        draft = read_model(options.draft).quantised(bits, options.kv_bits)
    elif options.draft_weight_bits is not None:
        raise ConfigError(f"--draft-weight-bits {options.draft_weight_bits} needs --draft")
    hardware = read_hardware(options.hardware, options.precision)
    if options.memory_gb is not None:
        hardware = replace(hardware, memory_bytes=options.memory_gb * 1e9)
    rates = hardware.derated(options.bandwidth_efficiency, options.compute_efficiency)
    kind: Any = options.draft_kind or ("none" if draft is None else "autoregressive")
    derived = derive_costs(
        target,
        rates,
        draft=draft,
        draft_kind=kind,
        tensor_parallel=options.tensor_parallel,
        context=options.context,
        overhead_s=options.overhead_ms * 1e-3,
    )
    figures: dict[str, Any] = {
        "streamed_bytes": target.streamed_bytes(),
        "streamed_params": target.streamed_params,
        "total_params": target.total_params,
        "stored_bytes": target.stored_bytes,
        "plain_floor_s": derived.plain_floor_s,
        "plain_ceiling_tokens_per_s": 1.0 / derived.plain_floor_s,
        "cost_ratio": derived.cost_ratio,
        "ridge_tokens": derived.ridge_tokens,
        "kv_bytes_per_token": target.kv_bytes_per_token,
        "kv_bytes_per_request": target.kv_bytes(options.context),
        "draft_streamed_bytes": draft.streamed_bytes() if draft is not None else 0.0,
    }
    lines = [
        f"derived from configuration files and the data sheet of {hardware.name}, not measured: "
        "floors, which real engines miss by a fifth or more",
        f"{hardware.source}",
        f"target streams {target.streamed_bytes() / 1e9:.2f} GB per pass at batch 1: "
        f"{derived.plain_floor_s * 1e3:.2f} ms, {1 / derived.plain_floor_s:.0f} tok/s; "
        f"ridge at {derived.ridge_tokens:.0f} tokens per pass; "
        f"cache {target.kv_bytes_per_token / 1024:.4g} KiB per token",
    ]
    if draft is not None:
        lines.append(
            f"draft streams {draft.streamed_bytes() / 1e9:.2f} GB, cost ratio "
            f"{derived.cost_ratio:.3f} ({kind})"
        )
    if options.tensor_parallel > 1 and not hardware.link_bytes_per_s:
        lines.append(f"{hardware.name} has no published link: communication counts as free")
    if hardware.memory_bytes and options.context:
        fits = max_concurrency(
            target,
            hardware,
            options.context,
            options.max_kappa,
            draft=draft,
            tensor_parallel=options.tensor_parallel,
        )
        figures["max_requests_plain"] = fits.plain
        figures["max_requests_speculative"] = fits.speculative
        lines.append(
            f"fits {fits.plain} requests of {options.context} tokens without speculation, "
            f"{fits.speculative} with up to {options.max_kappa} drafts (90 % of the memory)"
        )
    return Basis(
        cost=derived.cost,
        title=f"{target.name} on {hardware.name}",
        lines=tuple(lines),
        figures=figures,
        target=_served_name(options.target),
        draft=None if options.draft is None else _served_name(options.draft),
    )


def _served_name(ref: str) -> str:
    """Return the name under which engines find a model."""
    from draftproof.planner.catalogue import model_config, model_names

    if ref.lower() in model_names() and not Path(ref).exists():
        return str(model_config(ref)["hub"])
    return ref.removesuffix("/config.json")


def batches_of(text: str) -> tuple[int, ...]:
    """Read batch sizes: ``4``, ``1,8,32``, or ``1:512`` for powers of two.

    Parameters
    ----------
    text : str
        What was typed.

    Returns
    -------
    tuple of int
        Rising sizes.

    Raises
    ------
    ConfigError
        If it is none of these.
    """
    try:
        if ":" in text:
            low, high = (int(part) for part in text.split(":"))
            sizes = [] if low <= high else [0]
            while low < high:
                sizes.append(low)
                low *= 2
            found = (*sizes, high)
        else:
            found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or list(found) != sorted(set(found)) or found[0] < 1:
        raise ConfigError(f"--batch {text!r}: expected 4, 1,8,32 or 1:512")
    return found


def survival_from(
    acceptance: str, max_kappa: int | None, assume: str | None, confidence: float
) -> tuple[SurvivalEstimate, int, str]:
    """Return the acceptance, the most drafts to plan with, and its source.

    Parameters
    ----------
    acceptance : str
        A number, a file or an address.
    max_kappa : int, optional
        Most drafts; without it 8 for a number, and what was logged otherwise.
    assume : {"iid", "mixture"}, optional
        What to assume beyond the logged drafts.
    confidence : float
        Of the interval.

    Returns
    -------
    survival : SurvivalEstimate
        The curve, at least ``max_kappa`` long.
    max_kappa : int
        Most drafts.
    source : str
        Where it comes from.
    """
    from draftproof.planner.estimate import assumed_survival, survival_of
    from draftproof.planner.readers import read_acceptance

    try:
        alpha = float(acceptance)
    except ValueError:
        data = read_acceptance(acceptance)
        estimate = survival_of(data, confidence=confidence)
        most = max_kappa or len(estimate)
        model: Any = assume
        return estimate.extended(most, model), most, data.source
    if assume == "mixture":
        raise ConfigError(f"--assume mixture needs logged positions, not the number {acceptance}")
    most = max_kappa or 8
    return assumed_survival(alpha, most), most, f"assumed rate {alpha}"
