"""What is stated about speculation before an audit: ``--drafts``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from draftproof.errors import ConfigError

__all__ = ["Drafts", "DraftsOf", "stated_drafts"]


class Drafts(StrEnum):
    """What "exact" needs to know of drafts."""

    SHOWN = "shown"
    ASSUMED = "assumed"
    NONE = "none"

    @property
    def must_show(self) -> bool:
        """Whether "exact" needs drafts that show."""
        return self is Drafts.SHOWN

    @property
    def is_assumed(self) -> bool:
        """Whether somebody vouches for them."""
        return self is Drafts.ASSUMED


DraftsOf = Annotated[
    Drafts | None,
    typer.Option(
        "--drafts",
        help="What exact needs: drafts that are shown, the default where there may be any; drafts "
        "that you know of although they cannot show; or none, for plain decoding.",
        rich_help_panel="Statistics",
    ),
]


def stated_drafts(asked: Drafts | None, *, has_drafter: bool) -> Drafts:
    """Return what is stated about speculation.

    Parameters
    ----------
    asked : Drafts, optional
        What ``--drafts`` says.
    has_drafter : bool
        Whether the subject was given a drafter, or may have one.

    Returns
    -------
    Drafts
        By default drafts must show where there may be any.

    Raises
    ------
    ConfigError
        If drafts are expected of a subject without a drafter.
    """
    if has_drafter:
        return asked or Drafts.SHOWN
    if asked not in (None, Drafts.NONE):
        raise ConfigError(f"--drafts {asked.value} without a drafter: expected a drafter, or none")
    return Drafts.NONE
