"""The shipped rules and laws, run as they are on a lattice of plain float coins.

With all probabilities multiples of 1/4, every threshold a coin meets is a multiple of
1/12, so the midpoints of twelve cells count each outcome exactly. Nothing stands in
for shipped code here; the price is that only short drafts fit.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from draftproof.core.law import DenseLaw, SparseLaw
from draftproof.core.types import Draft
from draftproof.verify import plain_token, verify

pytestmark = pytest.mark.exact

CELLS = 12
POINTS = [(i + 0.5) / CELLS for i in range(CELLS)]
TABLES = [(2, 1, 1), (0, 3, 1), (1, 0, 3)]


class LatticeCoins:
    """Coins read from a script, in the order in which the rule asks for them."""

    def __init__(self, drafts, accepts, samples) -> None:
        self.draft = drafts.__getitem__
        self.accept = accepts.__getitem__
        self.sample = samples.__getitem__


def laws(weights):
    dense = DenseLaw(np.array(weights, dtype=np.float32))
    ids = np.flatnonzero(weights)
    return dense, SparseLaw(ids, np.array(weights, dtype=np.float64)[ids], len(weights))


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_one_draft_counts_to_the_target(rule: str) -> None:
    for p, q in product(TABLES, TABLES):
        for target, proposal in zip(laws(p), reversed(laws(q)), strict=True):
            counts: Counter[int] = Counter()
            for u, a, s in product(POINTS, repeat=3):
                draft = Draft((proposal.draw(u),), (proposal,))
                coins = LatticeCoins([u], [a], [s, s])
                verdict = verify(rule, draft, lambda j, target=target: target, coins)
                counts[verdict.token_id if verdict.num_accepted == 0 else draft.token_ids[0]] += 1
            assert [Fraction(counts[t], CELLS**3) for t in range(3)] == [Fraction(w, 4) for w in p]


@pytest.mark.parametrize("rule", ["standard", "sample-match"])
def test_two_drafts_count_to_the_joint_law(rule: str) -> None:
    # Two tokens and halves: every threshold is a multiple of 1/2, so two cells are enough.
    points = (0.25, 0.75)
    target = {(): (1, 1), (0,): (2, 0), (1,): (1, 1)}
    draft_table = {(): (2, 0), (0,): (1, 1), (1,): (0, 2)}
    p = {prefix: DenseLaw(np.array(w, dtype=np.float32)) for prefix, w in target.items()}
    q = {prefix: DenseLaw(np.array(w, dtype=np.float32)) for prefix, w in draft_table.items()}
    counts: Counter[tuple[int, ...]] = Counter()
    for u, v, a, b, s, t, plain in product(points, repeat=7):
        first = q[()].draw(u)
        tokens = (first, q[(first,)].draw(v))
        coins = LatticeCoins([u, v], [a, b], [s, t, 0.25])
        draft = Draft(tokens, (q[()], q[(first,)]))
        verdict = verify(rule, draft, lambda j, tokens=tokens: p.get(tokens[:j], p[()]), coins)
        text = (*tokens[: verdict.num_accepted], verdict.token_id)[:2]
        if len(text) < 2:
            text += (plain_token(rule, p[text], LatticeCoins([], [], [plain])),)
        counts[text] += 1
    expected = {(0, 0): 64, (1, 0): 32, (1, 1): 32}
    assert counts == expected
