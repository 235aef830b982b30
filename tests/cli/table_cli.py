"""The command line over a table model: a script, and the loader that tests hand in.

Run as a script it is the ``draftproof`` command with this loader. The environment
variable ``TABLE_CLI_PASS_S`` makes every pass of the model take that long, so that a
run can be interrupted in the middle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftproof.backends.table import FunctionTable, TableBackend, seeded_probs
from draftproof.build.grammars import lazy_constraints
from draftproof.build.lengths import make_policy
from draftproof.build.speculative import SpeculativeConfig
from draftproof.cli import CliContext, main
from draftproof.engine import Engine, EngineCore, SchedulerConfig
from draftproof.errors import ConfigError, ModelFileError, PromptError
from draftproof.proposers import (
    DraftModelProposer,
    NgramProposer,
    PredictionProposer,
    PredictionTreeProposer,
)

CHARACTERS = "\n" + "".join(map(chr, range(0x20, 0x7F)))
EOS = len(CHARACTERS)
VOCAB_SIZE = EOS + 1
#: The model's row after this character is NaN; it never writes it itself.
DEADLY = CHARACTERS.index("!")


def next_law(held: tuple[int, ...]) -> Any:
    """Peaked and of order one, so that greedy text soon repeats itself."""
    law = seeded_probs(VOCAB_SIZE, held, seed=8, spread=6.0)
    law[DEADLY] = 0.0
    law[EOS] = 0.01
    return law / law.sum()


class CharacterTokenizer:
    """One token per character, and one that ends."""

    vocab_size = VOCAB_SIZE
    eos_token_ids = frozenset({EOS})

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        if unknown := [char for char in text if char not in CHARACTERS]:
            raise PromptError(f"character {unknown[0]!r} is unknown; expected ASCII")
        return [CHARACTERS.index(char) for char in text]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        turns = [f"{turn['role']}: {turn['content']}\n" for turn in messages]
        return self.encode("".join(turns) + "assistant: ")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else CHARACTERS[token_id].encode()

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes(token) for token in token_ids).decode()


class UnhurriedBackend(TableBackend):
    """A table that takes its time, and whose rounding may depend on the batch."""

    shake = 0.0

    def forward(self, batch: Any) -> Any:
        time.sleep(float(os.environ.get("TABLE_CLI_PASS_S", "0")))
        logits = super().forward(batch)
        if self.shake and len(batch.logits_rows) > 1:
            logits = logits.copy()
            second = np.argsort(logits, axis=1)[:, -2]
            logits[np.arange(len(logits)), second] += self.shake
        return logits


class TiedTable(FunctionTable):
    """Every law has two best tokens, a little apart."""

    def __init__(self, gap: float) -> None:
        super().__init__(VOCAB_SIZE, self._law, span=1)
        self._gap = gap

    def _law(self, held: tuple[int, ...]) -> Any:
        law = np.full(VOCAB_SIZE, 1e-3)
        law[33], law[34] = np.exp(self._gap), 1.0
        return law / law.sum()


def load(
    model: str,
    *,
    speculative_config: Mapping[str, Any] | None,
    context_length: int | None = None,
    max_rows: int = 32,
    deterministic: bool = False,
    also: Sequence[str] = (),
    **unused: Any,
) -> Engine:
    # A "shaky-GAP" model prefers its best token by GAP nats, and no longer so where
    # drafts share the pass: the fault that a comparison of greedy outputs must find.
    gap = float(model.removeprefix("shaky-")) if model.startswith("shaky-") else 0.0
    if model not in ("table", "smollm2") and not gap:
        raise ModelFileError(f"{model}: no such model file; expected table")
    config = dict(speculative_config or {})
    unused["progress"]("loading the table")
    methods = (None, "ngram", "prediction", "prediction-tree", "draft_head")
    if config.get("method") not in methods:
        raise ConfigError(f"method is {config['method']!r}; expected 'ngram' or 'prediction'")
    drafting = config.get("method") is not None
    backend = UnhurriedBackend(
        TiedTable(gap) if gap else FunctionTable(VOCAB_SIZE, next_law, span=1),
        context_length=context_length or 1024,
        nan_after=[DEADLY],
    )
    backend.shake = 2 * gap
    tokenizer = CharacterTokenizer()
    settings = SpeculativeConfig.parse(speculative_config)
    drafters = {
        "ngram": NgramProposer(min_n=2, max_n=5),
        "prediction": PredictionProposer(),
        "prediction_tree": PredictionTreeProposer(),
        # A table has no hidden states: a model of its own stands in for a head.
        "draft_head": DraftModelProposer(
            TableBackend(FunctionTable(VOCAB_SIZE, next_law, span=1)), name="draft-head"
        ),
    }
    policy, note = make_policy(settings, backend.info, settings.method)
    more = [
        drafter for name, drafter in drafters.items() if name in also and name != settings.method
    ]
    core = EngineCore(
        backend,
        tokenizer=tokenizer,
        proposers=[*([drafters[settings.method]] if drafting else []), *more],
        default_proposer=drafters[settings.method].name if drafting else "none",
        kappa=settings.kappa,
        kappa_policy=policy,
        policy_note=note,
        rule=settings.rule,
        allow_lossy=settings.allow_lossy,
        constraints=lazy_constraints(tokenizer, VOCAB_SIZE),
        scheduler=SchedulerConfig(max_rows=max_rows),
        deterministic=deterministic,
    )
    return Engine(core)


if __name__ == "__main__":
    main(context=CliContext(load=load))
