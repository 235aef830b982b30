"""What serving engines say about themselves on their metrics pages.

One set of counters and gauges for vLLM, SGLang, llama.cpp and our own server. Pages come
in as text; this room opens no connection.
"""

from draftproof.metrics.monitor import Monitor, Sight
from draftproof.metrics.page import Samples, is_metrics, parse_metrics
from draftproof.metrics.snapshot import EngineSnapshot, engine_of, read_snapshot
from draftproof.metrics.window import Window, between

__all__ = [
    "EngineSnapshot",
    "Monitor",
    "Samples",
    "Sight",
    "Window",
    "between",
    "engine_of",
    "is_metrics",
    "parse_metrics",
    "read_snapshot",
]
