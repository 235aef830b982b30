"""Decoders under test: our engine, a function, foreign engines, a server.

A subject gives continuations of a prompt, and its rounds where it knows them. Everything
else, the law, the test and the verdict, is the same for all.
"""

from draftproof.audit.subjects.collect import prompt_evidence
from draftproof.audit.subjects.draws import Draws, Policy, RoundKind, Subject, padded
from draftproof.audit.subjects.engine_core import EngineSubject
from draftproof.audit.subjects.fan_out import draw_all
from draftproof.audit.subjects.foreign_engine import EngineProcessRecipe, EngineProcessSubject
from draftproof.audit.subjects.law_file import LawFile, read_laws, write_laws
from draftproof.audit.subjects.on_off import (
    OnOffEvidence,
    OnOffVerdict,
    TextCounts,
    judge_on_off,
)
from draftproof.audit.subjects.page import certificate_page
from draftproof.audit.subjects.python_callable import CallableSubject, PythonRecipe
from draftproof.audit.subjects.report import facts_of, facts_of_on_off
from draftproof.audit.subjects.table_engine import TableRecipe

__all__ = [
    "CallableSubject",
    "Draws",
    "EngineProcessRecipe",
    "EngineProcessSubject",
    "EngineSubject",
    "LawFile",
    "OnOffEvidence",
    "OnOffVerdict",
    "Policy",
    "PythonRecipe",
    "RoundKind",
    "Subject",
    "TableRecipe",
    "TextCounts",
    "certificate_page",
    "draw_all",
    "facts_of",
    "facts_of_on_off",
    "judge_on_off",
    "padded",
    "prompt_evidence",
    "read_laws",
    "write_laws",
]
