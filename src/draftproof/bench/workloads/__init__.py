"""Prompts to measure on: six kinds, from text that is copied to text that is free."""

from draftproof.bench.workloads.composing import KINDS, Turns, Workloads
from draftproof.bench.workloads.prompt_file import PromptFile, read_prompt_file

__all__ = ["KINDS", "PromptFile", "Turns", "Workloads", "read_prompt_file"]
