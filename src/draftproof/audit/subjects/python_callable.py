"""Any decoder that Python can call."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from draftproof.audit.subjects.draws import Draws, Policy, RoundKind, overlong, padded
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError, DraftproofError

__all__ = ["CallableSubject", "PythonRecipe", "find_callable"]


class CallableSubject:
    """A function as a decoder under test.

    Parameters
    ----------
    decode : callable
        ``decode(prompt_ids, policy, n)``. ``prompt_ids`` is a tuple of int, ``policy`` a
        dict with the fields of `draftproof.core.params.SamplingParams` that are not at
        rest, and ``max_tokens``, ``eos_token_ids`` and ``seed``. It returns ``n`` lists of
        token ids; or a dict of them as ``samples``, and ``rounds``: tuples (drafted,
        accepted, emitted), with a fourth entry True where a stop cut the round.
    """

    def __init__(self, decode: Callable[..., Any]) -> None:
        self._decode = decode

    def draw(self, prompt_ids: Sequence[int], policy: Policy, num: int, first_seed: int) -> Draws:
        """Return continuations; see `draftproof.audit.subjects.Subject`."""
        wanted = policy_dict(policy) | {"seed": first_seed}
        found = self._called(tuple(prompt_ids), wanted, num)
        rounds: Counter[RoundKind] = Counter()
        reported = None
        if isinstance(found, dict):
            if found.keys() != {"samples", "rounds"}:
                raise BackendError(f"keys {sorted(found)}: expected samples and rounds")
            found, reported = found["samples"], found["rounds"]
        if reported is not None:
            rounds.update(map(_round, _listed(reported)))
        tokens = padded(found, policy.horizon)
        if len(tokens) != num:
            raise BackendError(f"{len(tokens)} samples were returned, {num} were asked for")
        too_long = overlong(found, policy)
        return Draws(tokens, dict(rounds), reported is not None, num_overlong=too_long)

    def _called(self, *arguments: Any) -> Any:
        """Call the function; whatever it raises is its failure and not ours."""
        try:
            return self._decode(*arguments)
        except DraftproofError:
            raise
        except (Exception, SystemExit) as error:
            raise BackendError(f"the function failed: {error!r}") from error


def _listed(reported: Any) -> list[Any]:
    try:
        return list(reported)
    except TypeError as error:
        raise BackendError(f"rounds {reported!r}: expected a list of tuples") from error


def _round(entry: Any) -> RoundKind:
    try:
        drafted, accepted, emitted, *rest = entry
        if len(rest) > 1:
            raise ValueError(f"{len(entry)} numbers")
        return RoundKind(int(drafted), int(accepted), int(emitted), bool(rest and rest[0]))
    except (TypeError, ValueError, OverflowError) as error:
        raise BackendError(f"a round {entry!r}: expected (drafted, accepted, emitted)") from error


def policy_dict(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain values; parameters at rest are left out.

    Parameters
    ----------
    policy : Policy
        The policy.

    Returns
    -------
    dict of str to object
        Sampling parameters, ``max_tokens`` and ``eos_token_ids``.
    """
    resting = asdict(SamplingParams())
    given = {
        key: value
        for key, value in asdict(policy.params).items()
        if value != resting[key] and not key.startswith("stages")
    }
    return given | {
        "max_tokens": policy.horizon,
        "eos_token_ids": sorted(policy.eos_token_ids),
    }


def find_callable(name: str) -> Callable[..., Any]:
    """Import a function.

    Parameters
    ----------
    name : str
        ``package.module:function``; the working folder is searched as well.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    ConfigError
        If it cannot be found.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{name!r}: expected package.module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name}: {error}") from error
    except (Exception, SystemExit) as error:  # of the module's own code
        raise ConfigError(f"{name}: its module cannot be loaded: {error!r}") from error
    if not callable(found):
        raise ConfigError(f"{name} is {type(found).__name__}: expected a function")
    function: Callable[..., Any] = found
    return function


@dataclass(frozen=True, slots=True)
class PythonRecipe:
    """How to find the function, in this process or another.

    Parameters
    ----------
    name : str
        See `find_callable`.
    """

    name: str

    def __call__(self) -> CallableSubject:
        """Make the subject."""
        return CallableSubject(find_callable(self.name))
