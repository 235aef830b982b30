"""What drafters of several parts share: checks, options that are read, and forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftproof.core.protocols import OptionReader
from draftproof.errors import ConfigError

__all__ = ["Part", "PartsProposer"]


class Part(Protocol):
    """One drafter of several."""

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        ...


class PartsProposer:
    """Drafters without a model, and one with a model behind them.

    Parameters
    ----------
    draftless : sequence of Part
        Drafters without a model, the best first; at least one.
    model : Part
        Drafts behind them.
    max_model_tokens : int
        Most passes of the model in a round.
    enough : int
        From this many draftless tokens on the model is not asked.
    name : str
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or two parts have one name.
    """

    def __init__(
        self,
        draftless: Sequence[Part],
        model: Part,
        *,
        max_model_tokens: int,
        enough: int,
        name: str,
    ) -> None:
        if not draftless:
            raise ConfigError("a hybrid drafter has no draftless part; expected at least one")
        if max_model_tokens < 1 or enough < 1:
            raise ConfigError(
                f"max_model_tokens {max_model_tokens} and enough {enough}: expected 1 or more"
            )
        self._parts: tuple[Part, ...] = (*draftless, model)
        names = [part.name for part in self._parts]
        if len(set(names)) < len(names):
            raise ConfigError(f"parts are named {names}; expected a name of its own for each")
        self._max_model_tokens = max_model_tokens
        self._enough = enough
        self._name = name
        #: Options of requests that one of its parts reads.
        self.reads = frozenset[str]().union(
            *(part.reads for part in self._parts if isinstance(part, OptionReader))
        )

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return self._name

    def release(self, request_id: str) -> None:
        """Forget a request.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        errors = []
        for part in self._parts:
            try:
                part.release(request_id)
            except Exception as error:  # noqa: BLE001  the other parts must forget it too
                errors.append(error)
        if errors:
            raise errors[0]
