"""``draftproof bench --endpoint``: a server, alone or in turns with a plain one."""

from __future__ import annotations

from draftproof.cli.bench_setup import MeasuredSubject
from draftproof.errors import ConfigError

__all__ = ["endpoint_subject"]


def endpoint_subject(
    url: str,
    baseline: str | None,
    model: str | None,
    sweep: str | None,
    api_key: str | None,
    timeout_s: float,
    *,
    is_chat: bool,
    ignore_eos: bool,
) -> MeasuredSubject:
    """Ask servers what they are, and say how they are measured.

    Parameters
    ----------
    url : str
        Base address of the server.
    baseline : str or None
        Of a server that decodes plainly.
    model : str or None
        The model to ask for.
    sweep : str or None
        Drafts per request, for our own server.
    api_key : str or None
        Sent to both.
    timeout_s : float
        Longest silence.
    is_chat : bool
        Whether prompts go to the chat endpoint.
    ignore_eos : bool
        Whether texts go on past their end.

    Returns
    -------
    MeasuredSubject
        What to measure.

    Raises
    ------
    ConfigError
        If a server does not answer, or cannot do what is asked.
    """
    from draftproof.bench.endpoint_runner import Connection, EndpointRunner
    from draftproof.bench.memory_check import memory_warnings
    from draftproof.bench.run_record import Arm, Subject
    from draftproof.bench.settings import arms_of, kappas_of
    from draftproof.bench.workloads import Workloads

    if sweep is not None and baseline is not None:
        raise ConfigError("--sweep and --baseline; expected one of them")
    connection = Connection(timeout_s, api_key)
    addresses = [_base(each) for each in (url, baseline) if each is not None]
    dialects = [
        connection.dialect(each, model, is_chat=is_chat, ignore_eos=ignore_eos)
        for each in addresses
    ]
    first = dialects[0]
    warnings: tuple[str, ...] = ()
    if sweep is not None:
        kappas = kappas_of(sweep)
        if first.engine != "draftproof":
            raise ConfigError(
                f"--sweep {sweep}: {url} is no draftproof server and cannot choose drafts per "
                "request; expected --baseline with a server that does not speculate"
            )
        arms = arms_of(kappas)
    elif baseline is not None:
        arms = (Arm("plain", None, is_plain=True), Arm("served", None))
        if dialects[1].model != first.model:
            warnings = (f"the servers name their models {first.model} and {dialects[1].model}",)
    else:
        arms = (Arm("served", None),)
        warnings = ("there is no plain decoding to compare with: no --baseline and no --sweep",)
    warnings += (
        "servers may keep caches and drafters that remember; prompts are distinct, but those "
        "of an earlier run with the same --seed are not new to them",
    )
    runner = EndpointRunner(
        connection,
        addresses[0],
        first,
        addresses[1] if baseline is not None else None,
        dialects[1] if baseline is not None else None,
    )
    subject = Subject(
        "endpoint",
        first.model,
        first.engine,
        url=addresses[0],
        baseline_url=addresses[1] if baseline is not None else None,
    )
    return MeasuredSubject(
        subject,
        runner,
        arms,
        is_chat,
        shares_cache=sweep is not None,
        warnings=warnings,
        finish=lambda: memory_warnings(runner, arms[-1], Workloads().prompt),
    )


def _base(url: str) -> str:
    """Return a base address without its ``/v1``."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r}: expected an address such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")
