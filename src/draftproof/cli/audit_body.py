"""Fields that ``draftproof audit http`` adds to its requests, held against what it audits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from draftproof.cli import values as v
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.core.params import SamplingParams

__all__ = ["request_fields"]

#: Fields that every request sets by itself.
_OURS = ("model", "prompt", "max_tokens", "seed", "stream")
#: Fields of the policy. Some servers need them also where they are at rest.
_POLICY = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty",
           "presence_penalty", "frequency_penalty")  # fmt: skip


def request_fields(text: str | None, option: str, params: SamplingParams) -> dict[str, Any]:
    """Read fields of requests, and refuse those that would change what is audited.

    Parameters
    ----------
    text : str, optional
        A JSON object; no fields when None.
    option : str
        The option it came from.
    params : SamplingParams
        The policy that is audited.

    Returns
    -------
    dict of str to object
        The fields.

    Raises
    ------
    ConfigError
        If it is no JSON object, or a field is one that the audit sets to another value.
    """
    fields = {} if text is None else v.json_object(text, option)
    for name in _OURS:
        if name in fields:
            raise ConfigError(f"{option} {name}: expected none, the audit sets it")
    for name in _POLICY:
        said = getattr(params, name)
        # Some servers write "all tokens" as -1.
        meant = 0 if name == "top_k" and fields.get(name) == -1 else fields.get(name, said)
        if meant != said:
            raise ConfigError(
                f"{option} {name} {meant!r}: the policy says {said:g}, "
                f"expected --{name.replace('_', '-')} in its place"
            )
    return fields
