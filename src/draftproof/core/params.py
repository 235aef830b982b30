"""The policy of a request, validated once, where it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real

from draftproof.errors import ConfigError

__all__ = ["DEFAULT_ORDER", "GREEDY_TEMPERATURE", "SamplingParams"]

#: Below this temperature a policy is greedy, on the draft side and the target side.
GREEDY_TEMPERATURE = 1e-5

#: What may be added to a logit or multiply it: sums with counts stay inside float32.
_LARGEST = 1e30

#: The stages in the order in which most engines apply them.
DEFAULT_ORDER = ("bias", "penalties", "allowed", "temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The policy of one request.

    Parameters
    ----------
    temperature : float
        Divisor of the logits, at least 0; below ``GREEDY_TEMPERATURE`` greedy.
    top_k : int
        How many tokens stay; 0 for all.
    top_p : float
        Mass that stays, in (0, 1].
    min_p : float
        Least probability relative to the largest, in [0, 1].
    repetition_penalty : float
        From 1e-30 to 1e30; 1 for none.
    presence_penalty : float
        Subtracted from the logit of every token of the output.
    frequency_penalty : float
        Subtracted once per occurrence in the output.
    logit_bias : mapping of int to float
        Added to the logits of single tokens.
    allowed_token_ids : tuple of int, optional
        The only tokens that may be emitted; None for all.
    banned_token_ids : tuple of int
        Tokens that may not be emitted.
    min_tokens : int
        End tokens are masked until that many tokens were generated.
    eos_token_ids : frozenset of int
        The tokens that ``min_tokens`` masks.
    order : tuple of str
        Stage names, each at most once. A stage that is left out must be idle.

    Raises
    ------
    ConfigError
        If a value lies outside its range, or the order leaves out an active stage.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    order: tuple[str, ...] = DEFAULT_ORDER
    stages: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())
    stages_under_a_mask: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        """Refuse what cannot be honoured and note which stages have work."""
        _check_range("temperature", self.temperature, 0.0, math.inf)
        _check_whole("top_k", self.top_k)
        _check_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, 1 / _LARGEST, _LARGEST)
        _check_range("presence_penalty", self.presence_penalty, -_LARGEST, _LARGEST)
        _check_range("frequency_penalty", self.frequency_penalty, -_LARGEST, _LARGEST)
        _check_whole("min_tokens", self.min_tokens)
        for name, ids in (
            ("logit_bias", self.logit_bias),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("banned_token_ids", self.banned_token_ids),
            ("eos_token_ids", self.eos_token_ids),
        ):
            _check_ids(name, ids)
        for token, bias in self.logit_bias.items():
            _check_range(f"logit_bias[{token}]", bias, -_LARGEST, _LARGEST)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ConfigError("allowed_token_ids (): expected at least one token id, or None")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        stages = self._working_stages()
        masked = tuple(name for name in self.order if name in stages or name == "allowed")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "stages_under_a_mask", masked)

    @property
    def is_greedy(self) -> bool:
        """Whether the policy takes the largest logit."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        """Whether the law depends on which tokens came before."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def _working_stages(self) -> tuple[str, ...]:
        unknown = [name for name in self.order if name not in DEFAULT_ORDER]
        if unknown or len(set(self.order)) != len(self.order):
            msg = f"order {self.order}: expected each of {DEFAULT_ORDER} at most once"
            raise ConfigError(msg)
        working = {
            "bias": bool(self.logit_bias),
            "penalties": self.has_penalties,
            "allowed": self.allowed_token_ids is not None
            or bool(self.banned_token_ids)
            or bool(self.min_tokens and self.eos_token_ids),
            "temperature": self.temperature != 1.0,
            "top_k": self.top_k > 0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0.0,
        }
        lost = [name for name, works in working.items() if works and name not in self.order]
        if lost:
            raise ConfigError(f"order {self.order}: expected {lost}, which the request sets")
        return tuple(name for name in self.order if working[name])


def _check_range(
    name: str, value: object, low: float, high: float, *, open_low: bool = False
) -> None:
    bracket = "(" if open_low else "["
    expected = f"expected a finite number in {bracket}{low}, {high}]"
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ConfigError(f"{name} {value!r}: {expected}")
    number = float(value)
    inside = (low < number if open_low else low <= number) and number <= high
    if not inside or math.isinf(number):
        raise ConfigError(f"{name} {value}: {expected}")


def _check_whole(name: str, value: int) -> None:
    if not _is_whole(value):
        raise ConfigError(f"{name} {value!r}: expected a whole number, 0 or more")


def _check_ids(name: str, ids: Iterable[int]) -> None:
    for token in ids:
        if not _is_whole(token):
            raise ConfigError(f"{name} holds {token!r}: expected token ids, 0 or more")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
