"""What a machine streams and computes per second, from its data sheet or a measurement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from draftproof.errors import ConfigError
from draftproof.planner.catalogue import hardware_entry

__all__ = ["Hardware", "read_hardware"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    Parameters
    ----------
    name : str
        Name shown to people.
    bytes_per_s : float
        Memory bandwidth.
    flops_per_s : float
        Dense arithmetic rate at the precision of the activations.
    memory_bytes : float, default 0
        Memory of the device; 0 when it is not known.
    link_bytes_per_s : float, default 0
        Bandwidth between devices, one direction; 0 when they are not linked.
    source : str
        Where the figures are from.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float
    memory_bytes: float = 0.0
    link_bytes_per_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("bytes_per_s", "flops_per_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{self.name}: {name} is {getattr(self, name)}; expected > 0")

    def ridge_tokens(self, bytes_per_param: float = 2.0) -> float:
        """Return the tokens per pass at which arithmetic takes as long as streaming.

        Parameters
        ----------
        bytes_per_param : float, default 2
            Bytes per streamed weight; each costs 2 FLOPs per token.

        Returns
        -------
        float
            Positions in a pass. Peak rates and perfect reuse of weights are assumed.
        """
        return self.flops_per_s / self.bytes_per_s * bytes_per_param / 2.0

    def derated(self, bandwidth: float = 1.0, compute: float = 1.0) -> Hardware:
        """Return the device at fractions of its peak rates.

        Parameters
        ----------
        bandwidth, compute : float
            Fractions in (0, 1].

        Returns
        -------
        Hardware
            With scaled rates.

        Raises
        ------
        ConfigError
            If a fraction is out of range.
        """
        for name, value in (("bandwidth", bandwidth), ("compute", compute)):
            if not 0.0 < value <= 1.0:
                raise ConfigError(f"{name} efficiency {value}: expected a number in (0, 1]")
        return replace(
            self,
            bytes_per_s=self.bytes_per_s * bandwidth,
            flops_per_s=self.flops_per_s * compute,
        )


def read_hardware(name: str, precision: str = "bf16") -> Hardware:
    """Return a device of the shipped list.

    Parameters
    ----------
    name : str
        Its name, for example ``"h100-sxm"``.
    precision : str, default "bf16"
        Precision of the arithmetic.

    Returns
    -------
    Hardware
        Its data-sheet figures.

    Raises
    ------
    ConfigError
        If the device or its rate at that precision is unknown.
    """
    entry = hardware_entry(name)
    rates = entry["tflops"]
    if precision not in rates:
        raise ConfigError(
            f"{name} has no published rate in {precision!r}; expected one of {', '.join(rates)}"
        )
    return Hardware(
        name=name.lower(),
        bytes_per_s=entry["gb_per_s"] * 1e9,
        flops_per_s=rates[precision] * 1e12,
        memory_bytes=entry.get("memory_gb", 0) * 1e9,
        link_bytes_per_s=entry.get("link_gb_per_s", 0) * 1e9,
        source=entry["source"],
    )
