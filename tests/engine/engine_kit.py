"""Small engines, drafters of every temper, and the comparison with speculation off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from draftproof.backends.table import (
    FunctionTable,
    MarkovTable,
    MixedTable,
    PagedStore,
    TableBackend,
)
from draftproof.core.constraint import GrammarSpec
from draftproof.core.params import SamplingParams
from draftproof.engine import Engine, EngineCore, GenerateRequest
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.scripted import (
    DecliningProposer,
    FixedProposer,
    FlickeringProposer,
    OracleProposer,
    OverBudgetProposer,
)

RULES = ("standard", "block", "coupled", "sample-match")
VOCAB = 7
#: The law depends on the whole prefix: one wrong token in a cache changes all that follows.
TABLE = MarkovTable(VOCAB, None, seed=3, spread=1.5)
NEAR = MixedTable(TABLE, MarkovTable(VOCAB, None, seed=4), 0.35)
GREEDY = SamplingParams(temperature=0.0)
WARM = SamplingParams(temperature=0.9)


def make_core(table=TABLE, *, store=None, context_length=1024, faults=None, **options):
    """An engine core over a table model; backend faults go in ``faults``."""
    backend = TableBackend(table, store, context_length=context_length, **(faults or {}))
    return EngineCore(backend, **options)


def prompts(*lengths, vocab=VOCAB, seed=0):
    """Random prompts of given lengths."""
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, vocab, length).tolist()) for length in lengths]


def requests(*lengths, params=GREEDY, seed=0, vocab=VOCAB, **options):
    """One request per length, named a, b, c, ... with seeds of their own."""
    return [
        GenerateRequest(
            prompt,
            params,
            request_id=chr(ord("a") + index),
            seed=options.get("seeds", range(100, 200))[index],
            **{key: value for key, value in options.items() if key != "seeds"},
        )
        for index, prompt in enumerate(prompts(*lengths, seed=seed, vocab=vocab))
    ]


def run(core, batch, *, check=True):
    """Run requests together; return results by id."""
    for request in batch:
        core.submit(request)
    results = core.run()
    for result in results.values():
        if check and result.error is not None:
            raise result.error
    return results


def run_alone(make, batch):
    """Run each request on an engine of its own."""
    results = {}
    for request in batch:
        results |= run(make(), [request])
    return results


def plain(batch, table=TABLE, **options):
    """The same requests with speculation off."""
    core = make_core(table, **options)
    return run(core, [replace(request, kappa=0, proposer=None, prediction=()) for request in batch])


def ids(results):
    """Token ids by request."""
    return {name: result.token_ids for name, result in results.items()}


def answers(batch, table=TABLE, **options):
    """Prompt and plain output of each request: what an oracle knows."""
    results = plain(batch, table, **options)
    return {
        request.request_id: [*request.prompt_ids, *results[request.request_id].token_ids]
        for request in batch
    }


def both(batch, make_drafter, kappa, *, table=TABLE, make_store=PagedStore, **options):
    """Run a batch with and without speculation; return results, the plain ones and the core."""
    known = answers(batch, table, store=make_store())
    core = make_core(
        table, store=make_store(), proposers=[make_drafter(known)], kappa=kappa, **options
    )
    return run(core, batch), plain(batch, table, store=make_store()), core


def check_equal(batch, make_drafter, kappa, **options):
    results, expected, core = both(batch, make_drafter, kappa, **options)
    assert ids(results) == ids(expected)
    for name, result in results.items():
        assert result.finish_reason == expected[name].finish_reason
    assert core.target.num_open == 0
    return results


def corrupt_every(period, vocab=VOCAB):
    """A corruption that is wrong at every ``period``-th position."""
    return lambda position, token: (token + 1) % vocab if position % period == 0 else token


#: Drafters by temper. Each takes what an oracle knows.
DRAFTERS = {
    "oracle": lambda known: OracleProposer(known),
    "half-wrong": lambda known: OracleProposer(known, corrupt_every(3)),
    "junk": lambda known: FixedProposer((5, 5, 2)),
    "ngram": lambda known: NgramProposer(1, 3),
    "self": lambda known: DraftModelProposer(TableBackend(TABLE)),
    "model": lambda known: DraftModelProposer(TableBackend(NEAR)),
    "flickering": lambda known: FlickeringProposer(OracleProposer(known), (True, False, False)),
    "declining": lambda known: DecliningProposer(),
    "over budget": lambda known: OverBudgetProposer(OracleProposer(known, corrupt_every(4)), 3),
}


def drafter(name, known=None):
    """A fresh drafter by its temper."""
    return DRAFTERS[name](known or {})


class Pieces:
    """A tokenizer whose tokens are given pieces of bytes; the last id ends a text."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = [*pieces, b""]
        self.vocab_size = len(self._pieces)
        self.eos_token_ids = frozenset({self.vocab_size - 1})

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        data, found = text.encode(), []
        while data:
            best = max(
                (i for i, piece in enumerate(self._pieces[:-1]) if data.startswith(piece)),
                key=lambda i: len(self._pieces[i]),
            )
            found.append(best)
            data = data[len(self._pieces[best]) :]
        return found

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")


def written(script, vocab, start=1):
    """A table that writes a script, one token per position from ``start`` on, then repeats 0."""

    def law(held):
        row = np.zeros(vocab)
        at = len(held) - start
        row[script[at] if at < len(script) else 0] = 1.0
        return row

    return FunctionTable(vocab, law)


def make_engine(table=TABLE, *, tokenizer=None, **options):
    """The engine people use, over a table model."""
    return Engine(make_core(table, tokenizer=tokenizer, **options))


def held(core):
    """What the target holds now: open sequences and pages."""
    return core.target.num_open, core.target.num_held


class ListConstraint:
    """A grammar that is a list of token sequences; what matches one in full is complete."""

    def __init__(self, sentences, vocab=VOCAB):
        self.sentences = [tuple(sentence) for sentence in sentences]
        self.vocab = vocab
        self.output = ()

    @classmethod
    def factory(cls, vocab=VOCAB):
        """Make constraints of grammars whose source is a JSON list of lists of token ids."""
        return lambda spec: cls(json.loads(spec.source), vocab)

    def next_tokens(self, text):
        width = len(text)
        return {s[width] for s in self.sentences if s[:width] == text and len(s) > width}

    def allowed(self, extra=()):
        text = (*self.output, *extra)
        if not self.next_tokens(text):
            return None  # complete, which ends the request, or not of this grammar
        mask = np.zeros(self.vocab, dtype=bool)
        mask[list(self.next_tokens(text))] = True
        return mask

    def forced(self, limit):
        tokens = []
        while len(tokens) < limit and len(left := self.next_tokens((*self.output, *tokens))) == 1:
            tokens += left
        return tuple(tokens)

    likely = forced

    def advance(self, token):
        assert token in self.next_tokens(self.output), (token, self.output)
        self.output += (token,)

    @property
    def is_complete(self):
        return not self.next_tokens(self.output)


def sentences(*texts):
    """A grammar of token sequences, for `ListConstraint`."""
    return GrammarSpec("choice", json.dumps(texts))
