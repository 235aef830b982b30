"""The scenes in which faults are studied: small tables on which they show well.

The first token after the prompt is certain, because a first round drafts nothing: the
enumeration is spent on rounds that draft. A text of four tokens then has 27 outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table import (
    FunctionTable,
    MarkovTable,
    PagedStore,
    PositionTable,
    WindowStore,
)
from draftproof.core.constraint import GrammarSpec
from draftproof.core.params import SamplingParams
from draftproof.engine import GenerateRequest
from draftproof.testing.faults.drafter import TableDrafter, TreeDrafter
from draftproof.testing.faults.scene import PROMPT, Scene
from draftproof.testing.scripted import FixedProposer

__all__ = ["SCENES", "SparingGrammar"]

_VOCAB = 3
_FIRST = {PROMPT: (0.0, 1.0, 0.0)}
_TARGET = MarkovTable(_VOCAB, None, seed=14, rows=_FIRST)
_DRAFT = MarkovTable(_VOCAB, 1, seed=9, spread=2.0)
#: Half of the entries are impossible; the first and last token are so now and then.
_HOLES = MarkovTable(_VOCAB, None, seed=32, rows=_FIRST, zeros=0.45)
#: Residuals of a weighted law and of the law itself differ here.
_BLOCK = MarkovTable(_VOCAB, None, seed=53, rows=_FIRST)
#: A nucleus of which a second cut would take a part.
_NUCLEUS = MarkovTable(_VOCAB, None, seed=46, rows=_FIRST)
_POSITIONS = PositionTable(2, seed=3)
#: Two tokens are best: greedy decoding is decided by the rule for ties.
_TIES = FunctionTable(4, lambda _held: (0.1, 0.4, 0.4, 0.1))
_END = frozenset({2})


class SparingGrammar:
    """A grammar of tokens: no 1 after a 1, and no more than one 2.

    It is complete after a number of tokens.

    Parameters
    ----------
    length : int
        Tokens of a text.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.output: tuple[int, ...] = ()

    def allowed(self, extra: Sequence[int] = ()) -> NDArray[np.bool_] | None:
        """Return which tokens may follow the output and ``extra``; see `Constraint`."""
        mask = np.ones(_VOCAB, dtype=bool)
        text = (*self.output, *extra)
        mask[1] = text[-1:] != (1,)
        mask[2] = 2 not in text
        return mask

    def forced(self, limit: int) -> tuple[int, ...]:
        """Return nothing: two tokens are always open."""
        del limit
        return ()

    likely = forced

    def advance(self, token: int) -> None:
        """Take in a committed token."""
        self.output += (token,)

    @property
    def is_complete(self) -> bool:
        """Whether the text is long enough."""
        return len(self.output) >= self.length


def _grammar(_: GrammarSpec) -> SparingGrammar:
    return SparingGrammar(4)


_draft = partial(TableDrafter, _DRAFT)
_block_draft = partial(TableDrafter, MarkovTable(_VOCAB, 1, seed=153))


def _policy(name: str, **knobs: object) -> Scene:
    return Scene(name, _TARGET, _draft, params=SamplingParams(**knobs))  # type: ignore[arg-type]


_COMPANION = GenerateRequest(
    (2, 2, 1, 0, 1), SamplingParams(temperature=0.4), max_tokens=9, seed=5, request_id="beside"
)
_EARLIER = GenerateRequest(
    (0, 2, 0), SamplingParams(), max_tokens=4, seed=6, request_id="earlier", kappa=0
)

_ALL = (
    Scene("token rule", _TARGET, _draft),
    Scene("certain drafts", _TARGET, lambda: FixedProposer((1, 2))),
    Scene("holes", _HOLES, _draft),
    Scene("block", _BLOCK, _block_draft, rule="block"),
    Scene("long block", MarkovTable(2, None, seed=5, rows={PROMPT: (0.0, 1.0)}),
          partial(TableDrafter, MarkovTable(2, 1, seed=6)), rule="block", kappa=3, horizon=5),
    Scene("two rounds", MarkovTable(2, None, seed=5, rows={PROMPT: (0.0, 1.0)}),
          partial(TableDrafter, MarkovTable(2, 1, seed=6)), kappa=1, horizon=5),
    Scene("coupled", _TARGET, _draft, rule="coupled", horizon=3),
    Scene("sample-match", _TARGET, _draft, rule="sample-match"),
    Scene("greedy ties", _TIES, lambda: FixedProposer((1, 2)), horizon=12,
          params=SamplingParams(temperature=0.0)),
    Scene("greedy", _TARGET, _draft, horizon=12, params=SamplingParams(temperature=0.0)),
    Scene("self-drafting", _POSITIONS, partial(TableDrafter, _POSITIONS), horizon=6),
    Scene("end of text", _TARGET, _draft, eos_token_ids=_END),
    Scene("certain end", _TARGET, lambda: FixedProposer((2, 2)), eos_token_ids=_END),
    _policy("temperature", temperature=0.5),
    _policy("top-k", top_k=2),
    Scene("top-p", _NUCLEUS, _draft, params=SamplingParams(top_p=0.75)),
    _policy("min-p", min_p=0.4),
    _policy("bias", logit_bias={0: 1.5, 2: -1.0}),
    _policy("banned", banned_token_ids=(2,)),
    _policy("frequency", frequency_penalty=0.9),
    _policy("presence", presence_penalty=1.2),
    _policy("repetition", repetition_penalty=1.6),
    _policy("top-k and top-p", temperature=0.8, top_k=2, top_p=0.7),
    Scene("least length", _TARGET, _draft, params=SamplingParams(min_tokens=3),
          eos_token_ids=_END),
    Scene("in company", _TARGET, _draft, company=(_COMPANION,)),
    Scene("after another", _TARGET, _draft, before=(_EARLIER,),
          store=partial(PagedStore, page_size=1)),
    Scene("window", MarkovTable(_VOCAB, 3, seed=31), _draft, store=partial(WindowStore, 3),
          window=3),
    Scene("grammar", _TARGET, _draft, constraints=_grammar),
    Scene("grammar and block", _TARGET, lambda: FixedProposer((2, 0)), rule="block",
          constraints=_grammar),
    Scene("tree", _TARGET, partial(TreeDrafter, _DRAFT), kappa=3, horizon=3, room=2),
    Scene("kept path", _TARGET, partial(TreeDrafter, _DRAFT)),
    Scene("traversal", _TARGET, partial(TreeDrafter, _DRAFT), rule="block", kappa=3,
          horizon=3, room=2),
    Scene("wide tree", MarkovTable(4, None, seed=3, rows={PROMPT: (0.0, 1.0, 0.0, 0.0)}),
          partial(TreeDrafter, MarkovTable(4, 1, seed=8), 3), kappa=3, horizon=2, room=3),
    Scene("tree of positions", PositionTable(_VOCAB, seed=3), partial(TreeDrafter, _DRAFT),
          kappa=3, horizon=3, room=2),
    Scene("twins", _HOLES, partial(TableDrafter, _HOLES)),
)  # fmt: skip

#: All scenes by name.
SCENES: Mapping[str, Scene] = MappingProxyType({scene.name: scene for scene in _ALL})
