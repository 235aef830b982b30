"""Tables of laws to audit on: seeded random ones, and those that tell faults apart best."""

from __future__ import annotations

from functools import cache

from draftproof.audit.rounds import Prefix, Tables
from draftproof.audit.table_law import TableLaw
from draftproof.backends.table import seeded_probs

__all__ = ["FIXTURE_HORIZON", "FIXTURE_KAPPA", "fixture_tables", "seeded_tables"]

#: Drafts of a round and tokens of a text of the fixture.
FIXTURE_KAPPA, FIXTURE_HORIZON = 3, 4
#: Seed and spreads of the fixture, the best of a search (`benchmarks/audit_fixture.py`)
#: for the largest smallest distance of any fault from exactness and from the others.
_FIXTURE = (3237, 0.5, 2.0)


def seeded_tables(
    seed: int, vocab_size: int = 3, *, spread: float = 1.0, draft_spread: float = 1.0
) -> Tables:
    """Return tables whose laws depend on the whole text and on nothing else.

    Parameters
    ----------
    seed : int
        Seed of all rows.
    vocab_size : int, default 3
        Number of token ids.
    spread : float, default 1
        Peakedness of the target, see `draftproof.backends.table.seeded_probs`.
    draft_spread : float, default 1
        The same for the drafter.

    Returns
    -------
    Tables
        Target and drafter are unrelated: a bad drafter shows more faults than a good
        one, and exactness must hold for any.
    """

    @cache
    def target(prefix: Prefix) -> TableLaw:
        return TableLaw(seeded_probs(vocab_size, prefix, seed=2 * seed, spread=spread).tolist())

    @cache
    def draft(prefix: Prefix) -> TableLaw:
        return TableLaw(
            seeded_probs(vocab_size, prefix, seed=2 * seed + 1, spread=draft_spread).tolist()
        )

    return Tables(f"seeded-{vocab_size}-{seed}", vocab_size, target, draft)


def fixture_tables() -> Tables:
    """Return the tables on which the catalogue is told apart best.

    Returns
    -------
    Tables
        Three tokens; texts of four tokens have 81 outcomes, all possible.
    """
    seed, spread, draft_spread = _FIXTURE
    return seeded_tables(seed, spread=spread, draft_spread=draft_spread)
