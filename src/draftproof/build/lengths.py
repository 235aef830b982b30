"""From a speculative configuration to the policy that chooses draft lengths.

The planner is imported where it is needed: plain decoding does not pay for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from draftproof.build.drafters import enough_copied, tree_acceptance
from draftproof.build.methods import DRAWN_TREES, HEADS, TREES
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.kappa_policy import KappaPolicy
from draftproof.core.types import ModelInfo
from draftproof.errors import ConfigError
from draftproof.models.head_files import is_head

if TYPE_CHECKING:
    from draftproof.planner.cost import Floats
    from draftproof.planner.profile import Profile
    from draftproof.planner.rounds import CopyCost, RoundCost

__all__ = [
    "BUILT_IN_MS",
    "BUILT_IN_TOKENS",
    "PassesByTokens",
    "built_in_cost",
    "drafter_key",
    "make_policy",
    "tree_key",
]

#: Tokens of a pass, and its milliseconds by precision: SmolLM2-135M on OpenVINO, 2 cores
#: with AVX2, the faster median of either shape (one row, or one token per row) in
#: ``benchmarks/results/verify_cost.json``; passes that have the shape of the one before.
BUILT_IN_TOKENS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
BUILT_IN_MS: Final = MappingProxyType(
    {
        "int8": (21.36, 24.49, 26.93, 29.57, 41.63, 46.01, 52.99, 65.53, 79.23, 119.02),
        "f32": (36.48, 39.36, 41.92, 42.16, 44.11, 45.68, 55.15, 63.06, 70.74, 106.07),
        "f16": (33.94, 38.43, 39.25, 41.26, 41.68, 45.08, 55.56, 62.02, 70.81, 107.5),
    }
)
#: Looking drafts up, per row; a step beside its pass; a scored token beside it. Seconds of
#: ``draftless.json`` and ``engine_overhead.json`` in the same folder, rounded up.
_LOOKUP_S, _STEP_S, _TOKEN_S = 1e-4, 4e-4, 1e-4
#: What a pass takes longer behind one of another shape, with one copy of the graph; 8 to 14 ms
#: in ``shape_change.json``.
_CHANGE_S = 0.01
#: Drafters that were not measured by themselves and the measured one that costs the same.
_PRICED_AS: Final = MappingProxyType(
    dict.fromkeys(("suffix", "prediction", "ngram_tree", "suffix_tree", "prediction_tree"), "ngram")
)


@dataclass(frozen=True, slots=True)
class PassesByTokens:
    """Seconds of passes by their tokens alone; cached tokens are not priced.

    Parameters
    ----------
    tokens : tuple of int
        Rising numbers of tokens.
    seconds : tuple of float
        Seconds of a pass over as many; the last slope goes on behind them.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def many(self, batch: float, tokens: Floats, kv_tokens: float) -> Floats:  # noqa: ARG002
        """Return the seconds of passes; see `draftproof.planner.cost.StepCost.many`."""
        last = self.tokens[-1]
        slope = (self.seconds[-1] - self.seconds[-2]) / (last - self.tokens[-2])
        found = np.interp(tokens, self.tokens, self.seconds)
        return np.asarray(found + np.maximum(tokens - last, 0.0) * slope, dtype=np.float64)


def built_in_cost(precision: str) -> RoundCost:
    """Return the costs that stand for a machine that was not calibrated.

    Parameters
    ----------
    precision : str
        How the target's weights are held; an unknown one is priced as ``"f32"``.

    Returns
    -------
    RoundCost
        Costs of a small model on two cores, with drafts that are looked up.
    """
    from draftproof.planner.rounds import ParallelDraft, RoundCost

    held = BUILT_IN_MS.get(precision, BUILT_IN_MS["f32"])
    # Noise must not make a larger pass cheaper than a smaller one.
    rising = np.minimum.accumulate(np.asarray(held)[::-1])[::-1] / 1e3
    passes = PassesByTokens(BUILT_IN_TOKENS, tuple(rising.tolist()))
    draft = ParallelDraft(per_row_s=_LOOKUP_S)
    return RoundCost(passes, draft, _STEP_S, _TOKEN_S, change_s=_CHANGE_S)


def drafter_key(config: SpeculativeConfig) -> str:
    """Return the name under which a profile holds what a drafter costs.

    Parameters
    ----------
    config : SpeculativeConfig
        The configuration.

    Returns
    -------
    str
        ``"early-exit:8"`` after the first 8 layers, ``"draft-head"``, ``"draft-model"``, or the
        name of a drafter without a model. A hybrid is priced as what drafts in it with a model.
    """
    if config.num_layers is not None:
        return f"early-exit:{config.num_layers}"
    if config.model is None:
        return config.method
    is_told = config.method in HEADS or is_head(config.model)
    return "draft-head" if is_told else "draft-model"


def tree_key(config: SpeculativeConfig) -> str:
    """Return the name under which a profile holds what drafting trees took, by their nodes.

    Parameters
    ----------
    config : SpeculativeConfig
        A configuration of a method that drafts trees.

    Returns
    -------
    str
        For example ``"draft-head-tree"``. Empty where no measured text would stand for others:
        what a hybrid takes depends on what it copies, predictions are the caller's, and an
        early exit has no name that tells how many layers.
    """
    if config.method in ("hybrid_tree", "prediction_tree") or config.num_layers is not None:
        return ""
    return config.method.replace("_", "-")


def make_policy(
    config: SpeculativeConfig, target: ModelInfo, proposer: str
) -> tuple[KappaPolicy | None, str]:
    """Make the policy that a configuration asks for.

    Parameters
    ----------
    config : SpeculativeConfig
        The configuration.
    target : ModelInfo
        The model whose passes are paid.
    proposer : str
        Name of the drafter.

    Returns
    -------
    policy : KappaPolicy or None
        None where every round drafts the same number.
    note : str
        What a user should know about its costs; empty when nothing.

    Raises
    ------
    ConfigError
        If the profile is missing, damaged or without the drafter, or the drafter runs a
        model and there is no profile.
    """
    schedule = config.num_speculative_tokens_per_batch_size
    if schedule is not None:
        from draftproof.planner.simulate import SchedulePolicy

        return SchedulePolicy(schedule, proposer), ""
    if config.method in TREES and config.profile is not None:
        return _tree_sizes(config, config.profile, target, proposer)
    if not config.is_auto:
        return None, ""
    from draftproof.planner.controller import ControllerConfig, GoodputController

    limits = ControllerConfig(max_kappa=config.kappa)
    if config.profile is not None:
        from draftproof.planner.profile import read_profile

        profile = read_profile(config.profile)
        cost = _measured(profile, config)
        copies = {proposer: _copying(profile, config)} if config.method == "hybrid" else None
        controller = GoodputController(cost, config=limits, copies=copies)
        return controller, _doubt(profile, target)
    if config.model is not None or config.num_layers is not None:
        key = drafter_key(config)
        option = f"--draft {key}" if config.num_layers is not None else "-md DRAFT"
        raise ConfigError(
            f"num_speculative_tokens 'auto' needs to know what drafting by {key} costs; expected "
            f"profile: the path that 'draftproof calibrate -m MODEL {option}' prints"
        )
    note = (
        f"draft lengths follow built-in costs (SmolLM2-135M in {_priced(target.precision)}, "
        "OpenVINO, 2 cores); 'draftproof calibrate' measures those of this machine"
    )
    return GoodputController(built_in_cost(target.precision), config=limits), note


def _tree_sizes(
    config: SpeculativeConfig, path: str, target: ModelInfo, proposer: str
) -> tuple[KappaPolicy, str]:
    """Return the policy that chooses how many nodes trees have, and the doubt about its costs."""
    from draftproof.planner.profile import read_profile
    from draftproof.planner.tree_sizes import TreeSizePolicy

    profile = read_profile(path)
    is_measured = tree_key(config) in profile.drafters
    policy = TreeSizePolicy(
        profile.round_cost(tree_key(config)) if is_measured else _measured(profile, config),
        proposer,
        config.kappa,
        tree_acceptance(config),
        config.tree_widths,
        has_model=config.method in DRAWN_TREES,
        is_by_nodes=is_measured,
    )
    return policy, _doubt(profile, target)


def _priced(precision: str) -> str:
    return precision if precision in BUILT_IN_MS else "f32"


def _measured(profile: Profile, config: SpeculativeConfig) -> RoundCost:
    """Return the profile's costs with the drafter, or with one that costs the same."""
    key = drafter_key(config)
    names = (key, _PRICED_AS.get(key, key))
    return profile.round_cost(next((name for name in names if name in profile.drafters), key))


def _copying(profile: Profile, config: SpeculativeConfig) -> CopyCost:
    """Return what copies of a hybrid cost: looking up, and its model behind short ones."""
    from draftproof.planner.rounds import CopyCost, CopyThenModel, ParallelDraft

    measured = profile.drafters
    lookup = measured["ngram"] if "ngram" in measured else ParallelDraft(per_row_s=_LOOKUP_S)
    depths, enough = 0, enough_copied(config)
    if enough > 1:
        # A head reads what was copied token by token, a model at once.
        depths = config.hybrid_model_tokens + (enough - 1) * config.has_head
    model = measured[drafter_key(config)]
    return CopyCost(CopyThenModel(lookup, model, depths), config.hybrid_model_tokens)


def _doubt(profile: Profile, target: ModelInfo) -> str:
    """Say that a profile is of something else; empty when it is not."""
    measured = (profile.model, profile.runtime, profile.precision)
    running = (target.name, target.runtime, target.precision)
    if measured == running:
        return ""
    return f"drafts follow a profile of {' '.join(measured)}; what runs is {' '.join(running)}"
