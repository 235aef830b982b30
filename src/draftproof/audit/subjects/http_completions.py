"""Any server that answers OpenAI's completions: a black box."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.subjects.draws import Policy
from draftproof.audit.subjects.told_drafts import ToldDrafts, told_by, totals_between, totals_of
from draftproof.core.params import DEFAULT_ORDER, SamplingParams
from draftproof.errors import BackendError, ConfigError
from draftproof.evidence import JointLaw, Outcome
from draftproof.metrics import EngineSnapshot, is_metrics, read_snapshot

__all__ = [
    "FILTER_ORDERS",
    "Answers",
    "HttpCompletions",
    "RequestRefusedError",
    "Spelling",
    "TextLaw",
    "text_law",
]

#: Sampling parameters of the request, as most servers spell them.
_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
#: Those that are sent where they are set, under the names that servers who know them use.
_RARE_FIELDS = ("allowed_token_ids", "banned_token_ids")
_REQUEST_S = 120.0


class RequestRefusedError(BackendError):
    """The server answered that it will not do what was asked."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a request looks like beyond OpenAI's own fields.

    Parameters
    ----------
    model : str
        Name of the model at the server.
    extra : mapping of str to object
        Fields added to every request, such as a switch that turns speculation off. What
        the policy sets stands before them.
    sends_seed : bool, default True
        Whether every request has a seed of its own.
    """

    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    sends_seed: bool = True


class Answers(NamedTuple):
    """What a server gave.

    Parameters
    ----------
    texts : list of str
        In order of request.
    drafts : DraftTotals, optional
        What it told of its drafts: in its answers, or on its metrics page. None where it
        told nothing.
    """

    texts: list[str]
    drafts: DraftTotals | None


class HttpCompletions:
    """Draws texts from a server.

    Parameters
    ----------
    url : str
        Address of the server, with or without ``/v1``.
    spelling : Spelling
        How requests are written.
    connections : int, default 8
        Requests in flight.
    transport : httpx.BaseTransport, optional
        For tests.
    """

    def __init__(
        self,
        url: str,
        spelling: Spelling,
        *,
        connections: int = 8,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        base = url.rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise ConfigError(f"{url!r}: expected http://host:port")
        if connections < 1:
            raise ConfigError(f"connections {connections}: expected 1 or more")
        self._address = base if base.endswith("/v1") else f"{base}/v1"
        self._spelling = spelling
        self._connections = connections
        self._transport = transport

    def asks_the_same(self, other: HttpCompletions, policy: Policy) -> bool:
        """Return whether another one sends the same requests to the same place.

        Parameters
        ----------
        other : HttpCompletions
            To compare with.
        policy : Policy
            What both are asked for.

        Returns
        -------
        bool
            Seeds aside. Names of this machine are one place, and so is an address with
            and without its scheme's own port.
        """
        here = _place(self._address), self._body("", policy)
        return here == (_place(other._address), other._body("", policy))

    def seeds_from(self, first: int) -> str:
        """Return which seeds the requests send, in words."""
        return f"from {first}" if self._spelling.sends_seed else "none were sent"

    def answers(
        self, prompt: str | Sequence[int], policy: Policy, num: int, first_seed: int
    ) -> Answers:
        """Return the texts of independent requests, and what was drafted for them.

        Parameters
        ----------
        prompt : str or sequence of int
            The prompt, as text or token ids.
        policy : Policy
            Policy and length.
        num : int
            How many.
        first_seed : int
            Request ``i`` sends the seed ``first_seed + i``, in 31 bits.

        Returns
        -------
        Answers
            Counters of a metrics page are the server's: other requests count along.

        Raises
        ------
        BackendError
            If the server cannot be reached, or refuses.
        """
        body = self._body(prompt, policy)
        with httpx.Client(timeout=_REQUEST_S, transport=self._transport) as client:

            def one(index: int) -> tuple[str, ToldDrafts | None]:
                seed = {"seed": (first_seed + index) % 2**31} if self._spelling.sends_seed else {}
                return _answer(client, f"{self._address}/completions", body | seed)

            page = f"{self._address.removesuffix('/v1')}/metrics"
            before = _counters(client, page)
            with ThreadPoolExecutor(self._connections) as pool:
                answers = list(pool.map(one, range(num)))
            after = None if before is None else _counters(client, page)
        told = totals_of([each for _text, each in answers])
        if told is None:
            told = totals_between(before, after, num, policy.horizon)
        return Answers([text for text, _told in answers], told)

    def _body(self, prompt: str | Sequence[int], policy: Policy) -> dict[str, Any]:
        params = policy.params
        resting = SamplingParams()
        known = {name: getattr(params, name) for name in (*_FIELDS, *_RARE_FIELDS)}
        if SamplingParams(**known, logit_bias=params.logit_bias, order=params.order) != params:
            fields = ", ".join((*_FIELDS, *_RARE_FIELDS))
            raise ConfigError(f"policy {params}: expected {fields}, logit_bias only")
        changed = {k: v for k, v in known.items() if v != getattr(resting, k)}
        bias = {str(token): value for token, value in params.logit_bias.items()}
        return {
            **self._spelling.extra,  # first: what the policy sets is what is audited
            "model": self._spelling.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": policy.horizon,
            "temperature": params.temperature,
            "stream": False,
            **changed,
            **({"logit_bias": bias} if bias else {}),
        }


def _counters(client: httpx.Client, address: str) -> EngineSnapshot | None:
    """Read a metrics page; None where there is none, or of an engine that is not known."""
    try:
        response = client.get(address)
        if response.status_code == 200 and is_metrics(response.text):
            return read_snapshot(response.text, 0.0, address)
    except (httpx.HTTPError, ConfigError):
        pass  # a server need not have one
    return None


def _answer(
    client: httpx.Client, address: str, body: dict[str, Any]
) -> tuple[str, ToldDrafts | None]:
    try:
        response = client.post(address, json=body)
    except httpx.HTTPError as error:
        raise BackendError(f"{address}: {error!r}") from error
    if response.status_code != 200:
        message = f"{address}: status {response.status_code}: {response.text[:200]}"
        if 400 <= response.status_code < 500:
            raise RequestRefusedError(message)
        raise BackendError(message)
    try:
        held = response.json()
        return str(held["choices"][0]["text"]), told_by(held)
    except (ValueError, LookupError, TypeError) as error:
        raise BackendError(f"{address}: {response.text[:200]!r}; expected a completion") from error


def _place(address: str) -> tuple[str, str, int | None, str, bytes]:
    """Return an address such that equal ones are equal."""
    url = httpx.URL(address)
    host = "localhost" if url.host in ("127.0.0.1", "::1") else url.host
    return url.scheme, host, url.port, url.path.rstrip("/"), url.query


@dataclass(frozen=True, slots=True)
class TextLaw:
    """A law of token ids seen through their text.

    Parameters
    ----------
    law : JointLaw
        Outcome ``(i,)`` is text ``i``; horizon 1.
    texts : tuple of str
        The texts. Continuations that read alike are one outcome.
    """

    law: JointLaw
    texts: tuple[str, ...]

    def outcomes(self, drawn: Sequence[str]) -> list[Outcome]:
        """Return the outcome of each text; one that the law lacks gets a new number."""
        numbers = {text: number for number, text in enumerate(self.texts)}
        return [(numbers.setdefault(text, len(numbers)),) for text in drawn]


def text_law(
    law: JointLaw,
    decode: Callable[[Sequence[int]], str],
) -> TextLaw:
    """Push a law forward to texts.

    Parameters
    ----------
    law : JointLaw
        The law of token ids.
    decode : callable of sequence of int
        Turns ids into text; end tokens are left away.

    Returns
    -------
    TextLaw
        What a black box can be held to: a bias between continuations that read alike
        does not show.
    """
    masses: defaultdict[str, float] = defaultdict(float)
    for outcome, prob in zip(law.outcomes, law.probs.tolist(), strict=True):
        text = decode([token for token in outcome if token not in law.eos_token_ids])
        masses[text] += prob
    texts = tuple(sorted(masses))
    pooled: dict[Outcome, float] = {(number,): masses[text] for number, text in enumerate(texts)}
    return TextLaw(JointLaw.from_mapping(pooled, 1), texts)


#: Where servers are known to apply their filters in another order than ours.
FILTER_ORDERS: Mapping[str, tuple[str, ...]] = {
    "default": DEFAULT_ORDER,
    "llama.cpp": ("bias", "penalties", "allowed", "top_k", "top_p", "min_p", "temperature"),
    "vllm": ("bias", "allowed", "penalties", "temperature", "min_p", "top_k", "top_p"),
}
