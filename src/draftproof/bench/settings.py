"""What was typed becomes a grid, or a refusal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from draftproof.bench.run_record import Arm, Condition, Settings
from draftproof.errors import ConfigError

__all__ = ["arms_of", "check_settings", "grid_of", "kappas_of"]

PLAIN = Arm("plain", 0, is_plain=True)


def kappas_of(text: str) -> tuple[int | None, ...]:
    """Read a sweep.

    Parameters
    ----------
    text : str
        Such as ``"kappa=0,1,3,auto"``.

    Returns
    -------
    tuple of (int or None)
        The numbers; None stands for ``auto``.

    Raises
    ------
    ConfigError
        If something else is swept, or a part is no number.
    """
    name, equals, values = text.partition("=")
    if name.strip() != "kappa" or not equals:
        raise ConfigError(f"--sweep {text!r}: expected kappa=0,1,2,3 or kappa=auto")
    kappas: list[int | None] = []
    for part in values.split(","):
        word = part.strip()
        if word != "auto" and not (word.isascii() and word.isdecimal()):
            raise ConfigError(f"--sweep {text!r}: {word!r}: expected whole numbers or auto")
        kappas.append(None if word == "auto" else int(word))
    if len(set(kappas)) < len(kappas):
        raise ConfigError(f"--sweep {text!r}: expected each value once")
    return tuple(kappas)


def arms_of(kappas: Sequence[int | None]) -> tuple[Arm, ...]:
    """Return the arms of a sweep: plain decoding first, asked for or not.

    Parameters
    ----------
    kappas : sequence of (int or None)
        As `kappas_of` returns them.

    Returns
    -------
    tuple of Arm
        The arms.
    """
    others = [kappa for kappa in kappas if kappa != 0]
    return (PLAIN, *(Arm("auto" if k is None else f"kappa {k}", k) for k in others))


def grid_of(
    workloads: Sequence[str],
    temperatures: Sequence[float],
    concurrencies: Sequence[int],
    rates: Sequence[float],
    *,
    known: Collection[str],
) -> tuple[Condition, ...]:
    """Return every combination.

    Parameters
    ----------
    workloads : sequence of str
        Kinds of prompts.
    temperatures : sequence of float
        At least 0.
    concurrencies : sequence of int
        Requests in flight, for the closed loop.
    rates : sequence of float
        Arrivals per second; they take the place of the closed loop.
    known : collection of str
        The kinds there are.

    Returns
    -------
    tuple of Condition
        Workload by workload.

    Raises
    ------
    ConfigError
        If a value is unknown, out of range or given twice.
    """
    for option, values in (
        ("--workload", workloads),
        ("--temperature", temperatures),
        ("--concurrency", concurrencies),
        ("--rate", rates),
    ):
        if len(set(values)) < len(values):
            raise ConfigError(f"{option} {','.join(map(str, values))}: expected each value once")
    for workload in workloads:
        if workload not in known:
            raise ConfigError(f"--workload {workload!r}: expected some of {', '.join(known)}")
    for temperature in temperatures:
        if not 0.0 <= temperature <= 100.0:
            raise ConfigError(f"--temperature {temperature}: expected 0 to 100")
    if any(rate <= 0 for rate in rates):
        raise ConfigError(f"--rate {min(rates)}: expected more than 0 per second")
    if any(number < 1 for number in concurrencies):
        raise ConfigError(f"--concurrency {min(concurrencies)}: expected at least 1")
    return tuple(
        Condition(workload, temperature, concurrency, rate)
        for workload in workloads
        for temperature in temperatures
        for concurrency, rate in (
            [(None, rate) for rate in rates] if rates else [(n, None) for n in concurrencies]
        )
    )


def check_settings(settings: Settings) -> Settings:
    """Refuse numbers that make no run.

    Parameters
    ----------
    settings : Settings
        What was asked for.

    Returns
    -------
    Settings
        The same.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """
    limits = (
        ("--max-tokens", settings.max_tokens, 2),
        ("--rounds", settings.rounds, 1),
        ("--requests", settings.requests_per_slot, 1),
    )
    for option, value, least in limits:
        if value < least:
            raise ConfigError(f"{option} {value}: expected at least {least}")
    if settings.width is not None and not 0.0 < settings.width < 10.0:
        raise ConfigError(f"--width {settings.width}: expected a share between 0 and 10")
    if settings.minutes is not None and settings.minutes <= 0:
        raise ConfigError(f"--minutes {settings.minutes}: expected more than 0")
    if not 0.5 <= settings.confidence < 1.0:
        raise ConfigError(f"--confidence {settings.confidence}: expected 0.5 to below 1")
    return settings
