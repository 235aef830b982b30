"""A decoding loop as small as it can be: propose, one pass, verify, commit."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft, FlatBatch, Row
from draftproof.verify import verify


@dataclass
class Run:
    tokens: list
    drafts: list = field(default_factory=list)
    accepted: list = field(default_factory=list)

    @property
    def num_drafted(self):
        return sum(len(draft) for draft in self.drafts)


class Loop:
    """One request against one target; ``round`` may be called with any kappa, 0 included."""

    def __init__(self, target, proposer, prompt, *, rule="standard", seed=0, params=None, name="a"):
        self.target, self.proposer, self.rule, self.name = target, proposer, rule, name
        self.params = params or SamplingParams()
        self.run = Run(list(prompt))
        self.history, self.coins = History(prompt), CoinSource(seed)
        self.sequence = target.open()
        if len(prompt) > 1:
            target.forward(FlatBatch.from_rows([Row(self.sequence, prompt[:-1], 0, 0)]))

    def request(self, kappa):
        tokens = self.run.tokens
        return ProposalRequest(
            self.name,
            tokens,
            kappa,
            self.params,
            self.history,
            self.coins.round(len(tokens)),
            self.rule == "coupled",
        )

    def round(self, kappa, draft=None):
        tokens = self.run.tokens
        if draft is None:
            draft = self.proposer.propose([self.request(kappa)])[0] if kappa else Draft()
        held = self.target.length(self.sequence)
        assert held == len(tokens) - 1
        fed = [*tokens[held:], *draft.token_ids]
        logits = self.target.forward(FlatBatch.from_rows([Row(self.sequence, fed, held, len(fed))]))
        logits = np.array(logits)
        verdict = verify(
            self.rule,
            draft,
            lambda j: target_law(logits[j], self.params, self.history, draft.token_ids[:j]),
            self.coins.round(len(tokens)),
        )
        for token in [*draft.token_ids[: verdict.num_accepted], verdict.token_id]:
            tokens.append(int(token))
            self.history.append(int(token))
        self.target.truncate(self.sequence, len(tokens) - 1)
        self.target.commit(self.sequence)
        self.run.drafts.append(draft)
        self.run.accepted.append(verdict.num_accepted)
        return draft, verdict

    def rounds(self, count, kappa):
        for _ in range(count):
            self.round(kappa)
        return self.run


@pytest.fixture
def loop():
    return Loop
