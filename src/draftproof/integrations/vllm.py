"""Our drafters without a model, for vLLM's custom proposer class.

vLLM imports a class by its path, makes it with its own configuration and asks it for drafts
after every step. Here nothing of vLLM is imported::

    vllm.LLM(
        model,
        speculative_config={
            "method": "custom_class",
            "model": "draftproof.integrations.vllm.SuffixProposer",
            "num_speculative_tokens": 8,
        },
        additional_config={"draftproof": {"suffix_min_score": 0.1}},
    )
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.core.history import History
from draftproof.core.params import SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource, RoundCoins
from draftproof.core.types import Draft
from draftproof.errors import ConfigError
from draftproof.integrations._row_texts import RowText, RowTexts
from draftproof.proposers import ngram, suffix

__all__ = ["NgramProposer", "SuffixProposer", "VllmConfig"]

_LOG = logging.getLogger(__name__)

#: Where ``additional_config`` holds our options.
_SECTION = "draftproof"


class VllmConfig(Protocol):
    """What is read of vLLM's configuration, as of vLLM 0.32."""

    @property
    def speculative_config(self) -> Any:
        """Holds ``num_speculative_tokens``."""
        ...

    @property
    def model_config(self) -> Any:
        """Holds ``max_model_len``."""
        ...

    @property
    def additional_config(self) -> Any:
        """What the user passed beside vLLM's own options."""
        ...


class _Drafter(Protocol):
    """A drafter that reads the tokens of a request and nothing else of it."""

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]: ...

    def release(self, request_id: str) -> None: ...


class _RowProposer:
    """Answers vLLM's hook with a drafter that needs the tokens alone.

    Parameters
    ----------
    config : VllmConfig
        vLLM's configuration.
    drafter : _Drafter
        Drafts.
    """

    def __init__(self, config: VllmConfig, drafter: _Drafter) -> None:
        self._drafter = drafter
        self._kappa = int(config.speculative_config.num_speculative_tokens)
        self._max_length = int(config.model_config.max_model_len)
        self._texts = RowTexts()
        self._num_failures = 0
        # The hook tells neither policy nor coins, and these drafters look at neither.
        self._params = SamplingParams()
        self._history = History()
        self._coins = RoundCoins(CoinSource(0), 0)

    @property
    def num_texts(self) -> int:
        """How many texts are indexed now."""
        return len(self._texts)

    @property
    def num_failures(self) -> int:
        """How many drafts came to nothing because of an error."""
        return self._num_failures

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: there is no model to load. vLLM passes its own."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,  # noqa: ARG002  part of the hook; for drafters with a cache
    ) -> list[list[int]]:
        """Draft for every row of the batch.

        Parameters
        ----------
        sampled_token_ids : sequence of sequence of int, length B
            What each row has just sampled; empty where its prompt is not read yet.
        num_tokens_no_spec : ndarray of int32, shape (at least B,)
            How many tokens each row has, what it sampled included.
        token_ids_cpu : ndarray of int32, shape (at least B, at least T)
            The tokens of each row.
        slot_mappings : object
            Where vLLM's cache holds the tokens. Nothing here has a cache.

        Returns
        -------
        list of list of int, length B
            The drafts of each row, possibly none. An error costs a row its drafts and never
            its request; the first one is logged.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        try:
            lengths = {
                number: int(num_tokens_no_spec[number])
                for number, sampled in enumerate(sampled_token_ids)
                if len(sampled)
            }
            rows = {n: token_ids_cpu[n, :length] for n, length in lengths.items()}
            texts, ended = self._texts.follow(rows)
            for name in ended:
                self._drafter.release(name)
        except Exception as error:  # noqa: BLE001  decoding goes on without drafts
            self._fail(error)
            return drafts
        for number, text in texts.items():
            try:
                drafts[number] = self._draft(text)
            except Exception as error:  # noqa: BLE001  the other rows go on
                self._fail(error)
                self._texts.forget(number)
                self._drafter.release(text.name)
        return drafts

    def _draft(self, text: RowText) -> list[int]:
        """Draft behind a text, as far as the model's context goes."""
        kappa = min(self._kappa, self._max_length - 1 - len(text.tokens))
        if kappa < 1:
            return []
        request = ProposalRequest(
            text.name, text.tokens, kappa, self._params, self._history, self._coins
        )
        (draft,) = self._drafter.propose([request])
        # Tokens below 0 hold a place in a text; no model can score one.
        return list(takewhile(lambda token: token >= 0, draft.token_ids))

    def _fail(self, error: Exception) -> None:
        if not self._num_failures:
            _LOG.warning("no drafts for a row: %r; further errors are counted only", error)
        self._num_failures += 1


class NgramProposer(_RowProposer):
    """`draftproof.proposers.NgramProposer` inside vLLM.

    Parameters
    ----------
    vllm_config : VllmConfig
        vLLM's configuration. ``additional_config["draftproof"]`` may hold
        ``prompt_lookup_min`` (default 2) and ``prompt_lookup_max`` (8).

    Raises
    ------
    ConfigError
        If an option is unknown or out of range; vLLM quotes it.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        names = {"prompt_lookup_min": "min_n", "prompt_lookup_max": "max_n"}
        super().__init__(vllm_config, ngram.NgramProposer(**_options(vllm_config, names)))


class SuffixProposer(_RowProposer):
    """`draftproof.proposers.SuffixProposer` inside vLLM.

    Parameters
    ----------
    vllm_config : VllmConfig
        vLLM's configuration. ``additional_config["draftproof"]`` may hold
        ``suffix_min_match`` (default 1), ``suffix_max_match`` (32), ``suffix_min_score``
        (0.1) and ``suffix_window`` (131072).

    Raises
    ------
    ConfigError
        If an option is unknown or out of range; vLLM quotes it.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        names = {
            "suffix_min_match": "min_match",
            "suffix_max_match": "max_match",
            "suffix_min_score": "min_score",
            "suffix_window": "window",
        }
        super().__init__(vllm_config, suffix.SuffixProposer(**_options(vllm_config, names)))


def _options(config: VllmConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's options under the names of the drafter."""
    held = config.additional_config
    section = held.get(_SECTION, {}) if isinstance(held, Mapping) else {}
    if not isinstance(section, Mapping):
        raise ConfigError(f"additional_config[{_SECTION!r}] is {section!r}; expected an object")
    options: dict[str, Any] = {}
    for key, value in section.items():
        if key not in names:
            expected = ", ".join(names)
            raise ConfigError(
                f"additional_config[{_SECTION!r}] has the key {key!r}; expected one of {expected}"
            )
        kind = (int, float) if key == "suffix_min_score" else int
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ConfigError(f"{key} {value!r}: expected a number")
        options[names[key]] = value
    return options
