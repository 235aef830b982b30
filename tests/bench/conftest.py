"""Simulated engines whose truth is known: a clock that is moved, a table, coins."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.bench.engine_runner import EngineRunner
from draftproof.bench.run_record import Arm, Condition, Environment, Settings, Subject
from draftproof.bench.settings import PLAIN
from draftproof.engine import Engine, EngineCore, SchedulerConfig
from draftproof.testing.scripted import ScriptedProposer

VOCAB_SIZE = 24


class ManualClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0
        self.now_s += seconds


class TimedBackend(TableBackend):
    """A table whose passes take a known time on a clock."""

    def __init__(self, clock, pass_s, **options):
        super().__init__(
            FunctionTable(VOCAB_SIZE, _next_law, span=1), context_length=4096, **options
        )
        self.clock, self.pass_s = clock, pass_s

    def forward(self, batch):
        self.clock.sleep(self.pass_s(len(batch.sequence_ids), len(batch)))
        return super().forward(batch)


def _next_law(held):
    """The next token is certain: one more than the last."""
    law = np.zeros(VOCAB_SIZE)
    law[(held[-1] + 1) % VOCAB_SIZE] = 1.0
    return law


class DigitTokenizer:
    """Any text is a few tokens made from its hash."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset()

    def encode(self, text, *, add_special=True):
        return [byte % VOCAB_SIZE for byte in hashlib.sha256(text.encode()).digest()[:9]]

    def encode_chat(self, messages):
        return self.encode(repr(messages))

    def token_bytes(self, token_id):
        return bytes([65 + token_id])

    def decode(self, token_ids):
        return b"".join(map(self.token_bytes, token_ids)).decode()


def coin_drafter(rate):
    """A drafter that is right with a known rate, independently at every position."""

    def script(request):
        held = request.token_ids
        drafts = []
        for offset in range(request.kappa):
            right = (held[-1] + 1 + offset) % VOCAB_SIZE
            place = f"{tuple(held[:9])} {len(held) + offset}".encode()
            coin = int.from_bytes(hashlib.sha256(place).digest()[:4], "little") / 2**32
            drafts.append(right if coin < rate else (right + 7) % VOCAB_SIZE)
        return drafts

    return ScriptedProposer(script, "coin")


def simulated_runner(rate, pass_s, *, max_rows=16):
    """An engine on a clock of its own, and that clock."""
    clock = ManualClock()
    core = EngineCore(
        TimedBackend(clock, pass_s),
        tokenizer=DigitTokenizer(),
        proposers=[coin_drafter(rate)],
        kappa=4,
        scheduler=SchedulerConfig(max_rows=max_rows),
    )
    runner = EngineRunner(Engine(core), is_chat=True, clock=clock, sleep=clock.sleep)
    return runner, clock


def settings(conditions=None, kappas=(3,), **changes):
    """A grid, small unless told otherwise."""
    made = Settings(
        conditions=tuple(conditions or [Condition("chat", 0.0, 1)]),
        arms=(PLAIN, *(Arm(f"kappa {kappa}", kappa) for kappa in kappas)),
        max_tokens=33,
        requests_per_slot=1,
        rounds=6,
        width=None,
        minutes=None,
        confidence=0.95,
        seed=0,
        ignore_eos=False,
        prompts="built-in",
        is_chat=True,
    )
    return replace(made, **changes)


class NumberedPrompts:
    """Prompts that are their numbers."""

    num_distinct = None

    def prompt(self, kind, number):
        return (("user", f"{kind} {number}"),)


def environment(**changes):
    made = Environment(
        "a processor", 2, None, "Linux x86_64", "3.12.0", {"draftproof": "0.1.0"}, None,
        "draftproof bench", "2026-01-01T00:00:00+00:00", None, (0.1, 0.1, 0.1),
    )  # fmt: skip
    return replace(made, **changes)


SUBJECT = Subject("engine", "table", "table", "f64", {"method": "coin"})


@pytest.fixture(scope="session")
def tools():
    """The names of this file that tests need."""
    return SimpleNamespace(**globals())
