"""The exceptions of the package, one tree.

::

    DraftproofError
    ├── ConfigError (ValueError)      the caller's input cannot be honoured; exit code 2
    │   ├── PromptError               the prompt does not fit or is empty
    │   └── IncompatibleModelsError   a drafter and a target that may not be paired
    ├── ModelFileError                a model file is missing, damaged or of an unknown kind
    ├── BackendError                  the runtime failed
    │   ├── CapacityError             no KV pages are left
    │   ├── ContextOverflowError      a token would land past the model's context
    │   └── RollbackError             the cache of this model cannot be rewound
    ├── NonFiniteLogitsError          a target row holds NaN, +inf or no finite entry
    ├── RequestAbortedError                the request was aborted by its owner
    └── InvariantError                a bug of ours: an internal promise was broken

Messages name the bad value and what was expected, on one line.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "CapacityError",
    "ConfigError",
    "ContextOverflowError",
    "DraftproofError",
    "IncompatibleModelsError",
    "InvariantError",
    "ModelFileError",
    "NonFiniteLogitsError",
    "PromptError",
    "RequestAbortedError",
    "RollbackError",
]


class DraftproofError(Exception):
    """Base of every exception the package raises on purpose."""

    #: Exit code of the command line when this error ends it.
    exit_code = 1


class ConfigError(DraftproofError, ValueError):
    """The caller asked for something that is malformed or cannot be honoured."""

    exit_code = 2


class PromptError(ConfigError):
    """The prompt is empty, or longer than the model's context."""


class IncompatibleModelsError(ConfigError):
    """The drafter and the target do not share a vocabulary."""


class ModelFileError(DraftproofError):
    """A model file is missing, damaged or of a kind that is not supported."""


class BackendError(DraftproofError):
    """A model runtime could not do what was asked."""


class CapacityError(BackendError):
    """The KV cache has no free page left for this sequence."""


class ContextOverflowError(BackendError):
    """A token would be placed past the context length of the model."""


class RollbackError(BackendError):
    """The cache of this model cannot be rewound to an earlier length."""


class NonFiniteLogitsError(DraftproofError):
    """A row of target logits holds NaN or +inf, or leaves no token possible."""


class RequestAbortedError(DraftproofError):
    """The request was aborted by its owner before it finished."""


class InvariantError(DraftproofError):
    """An internal promise was broken: a defect of this package."""
