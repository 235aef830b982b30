"""What a request may not ask for, refused before it is queued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from draftproof.core.constraint import Constraint, ConstraintFactory
from draftproof.core.protocols import OptionReader, Proposer
from draftproof.core.types import ModelInfo
from draftproof.engine.deterministic import MAX_ROW_TOKENS
from draftproof.engine.request import GenerateRequest
from draftproof.errors import ConfigError, PromptError
from draftproof.verify import RULES, AllowLossy, SyntheticAcceptance, refuse_lossy

__all__ = ["check_read", "check_speculation", "check_vocabulary", "open_constraint", "reads"]


def check_vocabulary(request: GenerateRequest, vocab_size: int) -> None:
    """Refuse token ids that the model does not have, naming where they stand.

    Parameters
    ----------
    request : GenerateRequest
        The request.
    vocab_size : int
        Number of token ids of the model.

    Raises
    ------
    PromptError
        If the prompt holds another one.
    ConfigError
        If an option does.
    """
    params = request.params
    for name, ids, kind in (
        ("prompt", request.prompt_ids, PromptError),
        ("stop_token_ids", request.stop_token_ids, ConfigError),
        ("logit_bias", params.logit_bias, ConfigError),
        ("allowed_token_ids", params.allowed_token_ids or (), ConfigError),
        ("banned_token_ids", params.banned_token_ids, ConfigError),
        ("prediction", request.prediction, ConfigError),
    ):
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            bad = next(token for token in ids if not 0 <= token < vocab_size)
            raise kind(f"{name} holds token id {bad}; expected ids from 0 to {vocab_size - 1}")


def check_speculation(
    kappa: int,
    proposer: str,
    rule: str | AllowLossy | None,
    *,
    target: ModelInfo,
    proposers: Sequence[str],
    allow_lossy: bool,
    deterministic: bool,
) -> None:
    """Refuse drafts that nobody can make, judge or take back.

    Parameters
    ----------
    kappa : int
        Most drafts per round.
    proposer : str
        Who makes them.
    rule : str or AllowLossy, optional
        Who judges them.
    target : ModelInfo
        The model that scores them.
    proposers : sequence of str
        Drafters of the engine.
    allow_lossy : bool
        Whether the engine takes rules that change the law.
    deterministic : bool
        Whether rows are limited so that kernels round alike.

    Raises
    ------
    ConfigError
        Naming what cannot be honoured.
    """
    if kappa < 0:
        raise ConfigError(f"num_speculative_tokens is {kappa}; expected 0 or more")
    if deterministic and kappa >= MAX_ROW_TOKENS:
        raise ConfigError(
            f"num_speculative_tokens is {kappa}; the deterministic mode allows at most "
            f"{MAX_ROW_TOKENS - 1}"
        )
    if isinstance(rule, AllowLossy):
        if not allow_lossy:
            refuse_lossy(rule, target.vocab_size)
    elif rule is not None and rule not in RULES:
        raise ConfigError(f"rule {rule!r} is unknown; expected one of {', '.join(RULES)}")
    if proposer not in proposers and (kappa or proposer != "none"):
        known = ", ".join(proposers) or "none is configured"
        raise ConfigError(f"drafter {proposer!r} is unknown; configured: {known}")
    if kappa and not target.rewindable:
        raise ConfigError(
            f"{target.name} cannot rewind its state, so drafts that are rejected "
            f"could not be taken back; expected num_speculative_tokens=0, got {kappa}"
        )


def reads(proposer: Proposer | None, option: str) -> bool:
    """Say whether a drafter reads an option of requests that most ignore.

    Parameters
    ----------
    proposer : Proposer, optional
        The drafter; None reads nothing.
    option : str
        ``"prediction"`` or ``"tenant"``.
    """
    return isinstance(proposer, OptionReader) and option in proposer.reads


def check_read(
    request: GenerateRequest, kappa: int, names: Sequence[str], proposers: Mapping[str, Proposer]
) -> str:
    """Refuse a prediction that nobody would read, and tell of a tenant that has no effect.

    Parameters
    ----------
    request : GenerateRequest
        The request.
    kappa : int
        Its most drafts per round.
    names : sequence of str
        Who may draft for it.
    proposers : mapping of str to Proposer
        Drafters of the engine.

    Returns
    -------
    str
        A note about the tenant, or nothing.

    Raises
    ------
    ConfigError
        If the prediction has no effect.
    """
    drafters = [proposers.get(name) for name in names]
    if request.prediction:
        is_read = any(reads(drafter, "prediction") for drafter in drafters)
        if request.kappa == 0 or (is_read and not kappa):
            raise ConfigError(
                "prediction has no effect with num_speculative_tokens 0; expected more"
            )
        if not is_read:
            raise ConfigError(
                f"prediction has no effect with the drafter {' or '.join(map(repr, names))}; "
                "expected 'prediction', 'hybrid' or a tree of them"
            )
    if not request.tenant or (kappa and any(reads(drafter, "tenant") for drafter in drafters)):
        return ""
    return "tenant has no effect: no drafter of this request keeps earlier outputs"


def open_constraint(
    request: GenerateRequest, rule: str | AllowLossy | None, factory: ConstraintFactory | None
) -> Constraint | None:
    """Return the state of a request's grammar, None without one.

    Parameters
    ----------
    request : GenerateRequest
        The request.
    rule : str or AllowLossy, optional
        Who judges its drafts.
    factory : ConstraintFactory, optional
        Makes the state.

    Raises
    ------
    ConfigError
        If the engine has no grammars, or the rule would not keep to one.
    """
    if request.grammar is None:
        return None
    if factory is None:
        raise ConfigError(
            f"a {request.grammar.kind} grammar was asked for; this engine has no grammars"
        )
    if isinstance(rule, AllowLossy) and isinstance(rule.rule, SyntheticAcceptance):
        raise ConfigError(
            "synthetic acceptance keeps drafts that a grammar forbids; expected no grammar"
        )
    return factory(request.grammar)
