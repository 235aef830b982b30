"""The engine emits the same text with the torch executor as with the definition."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from engine_kit import GREEDY, NEAR, RULES, TABLE, WARM, ids, make_core, requests, run

from draftproof.backends.table import TableBackend
from draftproof.device import TorchExecutor
from draftproof.proposers import DraftModelProposer


@pytest.mark.parametrize("params", [GREEDY, WARM])
@pytest.mark.parametrize("rule", RULES)
def test_same_text(rule, params):
    def texts(executor=None):
        drafter = DraftModelProposer(TableBackend(NEAR))
        core = make_core(TABLE, proposers=[drafter], executor=executor, kappa=4)
        return ids(run(core, requests(5, 9, 3, params=params, rule=rule, max_tokens=20)))

    executor = TorchExecutor()
    assert texts(executor) == texts()
    assert executor.counts.num_native > 10
    assert executor.counts.num_unsupported == 0
