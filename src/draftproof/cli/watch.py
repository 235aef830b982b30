"""``draftproof watch``: an engine's speculation, live, from its metrics page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from draftproof.cli import options as o
from draftproof.cli.context import CliContext, Notes, write_data
from draftproof.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from draftproof.metrics import EngineSnapshot, Monitor, Sight, Window
    from draftproof.planner.rounds import RoundCost

__all__ = ["watch"]

#: Seconds that a metrics page may take.
_TIMEOUT_S = 10.0


def watch(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(help="The engine, or its metrics page.")],
    interval: Annotated[float, typer.Option("--interval", help="Seconds between readings.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Two readings, what happened between them, and an end.")
    ] = False,
    crossing: Annotated[
        float | None,
        typer.Option("--crossing", help="Warn from this many running requests on."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Warn where plain decoding is as fast by the costs of draftproof calibrate, at "
            "the acceptance that is seen.",
        ),
    ] = None,
    drafter: Annotated[
        str | None, typer.Option("--drafter", help="Which drafter of the profile.")
    ] = None,
    context_tokens: Annotated[
        int, typer.Option("--context", help="With --profile: cached tokens per request.")
    ] = 500,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            help="Sent as a bearer token.",
            envvar="DRAFTPROOF_API_KEY",
            show_envvar=True,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per reading on stdout.")
    ] = False,
    quiet: o.Quiet = False,
) -> None:
    """Watch acceptance, pace and load of vLLM, SGLang, llama.cpp or draftproof serve."""
    from draftproof.metrics import Monitor

    if not interval > 0:
        raise ConfigError(f"--interval {interval}: expected more than 0 seconds")
    if crossing is not None and profile is not None:
        raise ConfigError("--crossing and --profile; expected one of them")
    if crossing is not None and not crossing > 0:
        raise ConfigError(f"--crossing {crossing}: expected more than 0")
    if drafter is not None and profile is None:
        raise ConfigError(f"--drafter {drafter} needs --profile")
    page = _page_address(url)
    profile_crossing = (
        None if profile is None else _ProfileCrossing.read(profile, drafter, context_tokens)
    )
    readings = _Readings(page, interval, api_key)
    monitor = Monitor(crossing)
    sights = _sights(readings, monitor, profile_crossing, once=once)
    context: CliContext = ctx.obj
    console = context.stdout_console()
    if as_json or once or not console.is_terminal:
        _print(sights, page, context, as_json=as_json)
        return
    _draw(sights, page, context, Notes(quiet=quiet))


def _page_address(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r}: expected an address such as http://127.0.0.1:8000")
    if urlsplit(url).path.rstrip("/") in ("", "/v1"):
        return url.rstrip("/").removesuffix("/v1") + "/metrics"
    return url


@dataclass(slots=True)
class _Readings:
    """Fetches a page again and again."""

    page: str
    interval_s: float
    api_key: str | None
    sleep: Callable[[float], None] = time.sleep

    def fetch(self) -> EngineSnapshot:
        """Read the page once.

        Raises
        ------
        BackendError
            If nobody answers.
        ConfigError
            If what answers is no engine.
        """
        import httpx

        from draftproof.metrics import read_snapshot

        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        try:
            answer = httpx.get(self.page, timeout=_TIMEOUT_S, headers=headers, trust_env=False)
        except httpx.HTTPError as error:
            raise BackendError(
                f"{self.page}: no answer: {str(error) or type(error).__name__}"
            ) from error
        if answer.status_code >= 500:
            raise BackendError(f"{self.page}: no answer: status {answer.status_code}")
        if answer.status_code != 200:
            raise ConfigError(f"{self.page}: status {answer.status_code}; expected a metrics page")
        return read_snapshot(answer.text, time.monotonic(), self.page)


@dataclass(slots=True)
class _ProfileCrossing:
    """The batch at which plain decoding is as fast, at the acceptance that is seen."""

    context: int
    cost: RoundCost
    _held: dict[tuple[int, float], float | None] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str, drafter: str | None, context: int) -> _ProfileCrossing:
        """Read a profile of ``draftproof calibrate``."""
        from draftproof.planner.profile import read_profile

        return cls(context, read_profile(path).round_cost(drafter))

    def at(self, window: Window) -> float | None:
        """Return the crossing; None where nothing is known or speculation always pays."""
        from draftproof.planner.acceptance import iid_alpha_for_accepted, iid_survival
        from draftproof.planner.search import RoundTimes, crossing_batch

        stats = window.stats
        if stats is None or not stats.num_drafts:
            return None
        kappa = max(1, round(stats.num_draft_tokens / stats.num_drafts))
        accepted = min(stats.num_accepted_tokens / stats.num_drafts, float(kappa))
        alpha = round(iid_alpha_for_accepted(accepted, kappa), 2)
        key = (kappa, alpha)
        if key not in self._held:
            times = RoundTimes(self.cost, kappa, float(self.context))
            self._held[key] = crossing_batch(times, iid_survival(alpha, kappa), kappa=kappa)
        return self._held[key]


def _sights(
    readings: _Readings, monitor: Monitor, profile: _ProfileCrossing | None, *, once: bool
) -> Iterator[tuple[Sight, Window] | BackendError]:
    """Yield readings; an error where nobody answers, after which it is tried again."""
    from draftproof.metrics import EngineSnapshot, between

    while True:
        try:
            snapshot = readings.fetch()
        except BackendError as error:
            if once:
                raise
            yield error
        else:
            since_start = between(EngineSnapshot(snapshot.engine, snapshot.at_s), snapshot)
            if profile is not None:
                monitor.crossing = profile.at(since_start)
            sight = monitor.add(snapshot)
            if sight is not None:
                yield sight, since_start
                if once:
                    return
        readings.sleep(readings.interval_s)


def _print(
    sights: Iterator[tuple[Sight, Window] | BackendError],
    page: str,
    context: CliContext,
    *,
    as_json: bool,
) -> None:
    from draftproof.cli.json_lines import json_line
    from draftproof.cli.watch_view import panel, sight_document

    notes = Notes()
    for seen in sights:
        if isinstance(seen, BackendError):
            notes.say(str(seen))
        elif as_json:
            write_data(json_line(sight_document(*seen, page)))
        else:
            context.stdout_console().print(panel(*seen, page))


def _draw(
    sights: Iterator[tuple[Sight, Window] | BackendError],
    page: str,
    context: CliContext,
    notes: Notes,
) -> None:
    from rich.live import Live
    from rich.text import Text

    from draftproof.cli.watch_view import panel

    notes.say("Ctrl-C ends")
    first = Text(f"waiting for two readings of {page}")
    with Live(first, console=context.stdout_console(), auto_refresh=False) as live:
        for seen in sights:
            if isinstance(seen, BackendError):
                live.update(Text(str(seen), style="bold red"), refresh=True)
            else:
                live.update(panel(*seen, page), refresh=True)
