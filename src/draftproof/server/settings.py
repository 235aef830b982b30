"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.errors import ConfigError

__all__ = ["LOOPBACK", "ServerConfig"]

#: Names under which only this machine reaches the server.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits and manners of a server.

    Parameters
    ----------
    model_name : str
        The name that requests must give as ``model``; compared, never looked up.
    default_kappa : int, default 0
        Most drafts per round for requests that do not say; the engine's own number.
    host : str, default "127.0.0.1"
        Address to listen on.
    port : int, default 8000
        Port to listen on; 0 takes a free one.
    api_key : str, optional
        What clients must send as a bearer token. None asks for nothing.
    allowed_hosts : tuple of str
        Names that a ``Host`` header may carry beside the loopback names. Only looked at
        when listening on loopback, where it keeps pages of other sites out.
    cors_origins : tuple of str
        Sites whose pages may call the server; none by default.
    max_running : int, default 32
        Requests that the engine runs at once; completions count one by one.
    max_queue : int, default 128
        Completions that may wait beyond those; more get status 429.
    max_choices : int, default 16
        Most completions of one HTTP request: prompts times ``n``.
    max_tokens : int, optional
        Most tokens a request may ask for; the context alone limits when None.
    max_body_bytes : int, default 4000000
        Longest request body.
    timeout_s : float, default 600
        Deadline of a request in seconds, waiting included; a request may ask for less.
    drain_s : float, default 30
        How long running requests get to end after SIGTERM, in seconds.
    wedge_s : float, default 60
        A step of the engine that takes longer than this is reported by ``/health``.
    log_prompts : bool, default False
        Whether prompts and outputs are logged.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    model_name: str
    default_kappa: int = 0
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_running: int = 32
    max_queue: int = 128
    max_choices: int = 16
    max_tokens: int | None = None
    max_body_bytes: int = 4_000_000
    timeout_s: float = 600.0
    drain_s: float = 30.0
    wedge_s: float = 60.0
    log_prompts: bool = False

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, least in (
            ("default_kappa", 0),
            ("port", 0),
            ("max_running", 1),
            ("max_queue", 0),
            ("max_choices", 1),
            ("max_tokens", 1),
            ("max_body_bytes", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        for name in ("timeout_s", "drain_s", "wedge_s"):
            value = getattr(self, name)
            if not 0.0 < value < float("inf"):
                raise ConfigError(f"{name} is {value}; expected a positive number of seconds")
        if self.api_key is not None and not self.api_key:
            raise ConfigError("the API key is empty; expected at least one character")
        if self.max_choices > self.max_running + self.max_queue:
            raise ConfigError(
                f"max_choices is {self.max_choices}; expected at most max_running + max_queue, "
                f"{self.max_running + self.max_queue}, or such a request could never enter"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        return self.host in LOOPBACK
