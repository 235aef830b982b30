"""Measures what speculation buys, under load, with intervals.

An arm is one way to decode; plain decoding is one of them. In each round all arms of a
condition run on the same prompts in random order, and ratios are taken within rounds.
"Do not speculate" is an answer.
"""

from draftproof.bench.trace_file import read_trace

__all__ = ["read_trace"]
