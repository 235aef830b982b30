"""Continuous batching of ragged requests, one exact step at a time."""

from draftproof.engine.admission import reads
from draftproof.engine.core import EngineCore
from draftproof.engine.engine import Engine, Prompt
from draftproof.engine.exactness import exactness_label
from draftproof.engine.listeners import Listener
from draftproof.engine.request import (
    FinishReason,
    GenerateRequest,
    GenerateResult,
    StepOutput,
    StopCriterion,
    TokenEvent,
)
from draftproof.engine.scheduler import SchedulerConfig
from draftproof.engine.step import Clock

__all__ = [
    "Clock",
    "Engine",
    "EngineCore",
    "FinishReason",
    "GenerateRequest",
    "GenerateResult",
    "Listener",
    "Prompt",
    "SchedulerConfig",
    "StepOutput",
    "StopCriterion",
    "TokenEvent",
    "exactness_label",
    "reads",
]
