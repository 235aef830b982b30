"""The command line: one file per verb, data on stdout, everything else on stderr."""

from draftproof.cli.app import app, main
from draftproof.cli.context import CliContext, Loader

__all__ = ["CliContext", "Loader", "app", "main"]
