"""Readers of what engines and benchmarks say about acceptance.

`read_acceptance` recognises the format by its content: our traces, the metrics pages
and logs of vLLM, SGLang and llama.cpp, and the records of aiperf.
"""

from draftproof.planner.readers.detect import parse_acceptance, read_acceptance

__all__ = ["parse_acceptance", "read_acceptance"]
