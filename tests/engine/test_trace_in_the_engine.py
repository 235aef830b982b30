"""What a trace records when rounds are cut, shared, put off, streamed or not watched."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from engine_kit import WARM, ListConstraint, ids, make_core, requests, run, sentences

from draftproof.backends.table import PagedStore
from draftproof.engine import SchedulerConfig
from draftproof.proposers import NgramProposer
from draftproof.testing.scripted import OracleProposer
from draftproof.verify import NumpyExecutor


class StrictConstraint(ListConstraint):
    """Allows nothing behind a complete text."""

    def allowed(self, extra=()):
        mask = super().allowed(extra)
        return np.zeros(self.vocab, dtype=bool) if mask is None else mask


def test_what_a_grammar_drafts_and_where_it_ends():
    """Behind the end of a grammar there is no law: the last draft is the round's token."""
    factory = StrictConstraint.factory()
    core = make_core(constraints=factory, kappa=4, proposers=[NgramProposer(1, 2)])
    asked = requests(2, params=WARM, max_tokens=12, grammar=sentences([3, 1, 4, 1, 5]))
    (result,) = run(core, [replace(asked[0], trace=True)]).values()
    first, last = result.traces
    assert (first.draft_ids, first.committed, first.token_source) == ((), (3,), "sampled")
    assert last.draft_ids == (1, 4, 1, 5)
    assert (last.drafter, last.sources) == ("grammar", ("grammar",) * 4)
    assert last.p == (1.0,) * 4
    assert last.q == (None,) * 4
    assert (last.path, last.token_id, last.token_source) == ((0, 1, 2), 5, "accepted")
    assert last.num_accepted == 4
    assert last.token_p == 1.0
    assert last.committed == (1, 4, 1, 5)


def test_a_stop_cuts_what_is_committed_and_not_what_was_accepted():
    asked = requests(3, max_tokens=20, stop_token_ids=(4,))[0]
    plain_text = ids(run(make_core(), [replace(asked, stop_token_ids=())]))["a"]
    known = {"a": [*asked.prompt_ids, *plain_text]}
    stop = plain_text[3]
    core = make_core(proposers=[OracleProposer(known)], kappa=6)
    (result,) = run(core, [replace(asked, stop_token_ids=(stop,), trace=True)]).values()
    last = result.traces[-1]
    assert last.committed[-1] == stop
    assert len(last.committed) < len(last.path) + 1


def test_rows_of_a_step_share_its_number_and_its_times():
    core = make_core(proposers=[NgramProposer(1, 2)], kappa=3)
    asked = [replace(request, trace=True) for request in requests(3, 5, params=WARM, max_tokens=9)]
    silent = replace(requests(4, 4, 4, params=WARM, max_tokens=9)[2], request_id="silent")
    results = run(core, [*asked, silent])
    assert results["silent"].traces == []
    steps = {}
    for name in "ab":
        for trace in results[name].traces:
            assert trace.batch == 3 or trace.step > 1
            times = (trace.draft_s, trace.target_s, trace.verify_s, trace.other_s)
            assert min(times) >= 0
            assert trace.total_s == sum(times)
            assert steps.setdefault(trace.step, times) == times
    assert sum(map(sum, steps.values())) <= core.clock.total_s
    assert max(steps) <= core.clock.num_steps


def test_pass_tokens_count_prompts_and_drafts():
    core = make_core(proposers=[NgramProposer(1, 2)], kappa=3)
    asked = replace(requests(11, params=WARM, max_tokens=9)[0], trace=True)
    (result,) = run(core, [asked]).values()
    assert result.traces[0].pass_tokens == 11
    for trace in result.traces[1:]:
        assert trace.pass_tokens == 1 + len(trace.draft_ids)
    assert sum(trace.pass_tokens for trace in result.traces) == core.clock.num_pass_tokens


def test_rounds_go_on_counting_after_a_preemption():
    core = make_core(
        store=PagedStore(page_size=4, num_pages=9),
        proposers=[NgramProposer(1, 2)],
        kappa=2,
        scheduler=SchedulerConfig(prefill_chunk=8),
    )
    asked = [replace(request, trace=True) for request in requests(9, 9, max_tokens=12)]
    results = run(core, asked)
    assert core.num_preemptions > 0
    for result in results.values():
        assert [trace.round for trace in result.traces] == list(range(len(result.traces)))
        committed = [token for trace in result.traces for token in trace.committed]
        assert committed == result.token_ids


def test_streamed_outputs_carry_the_trace():
    core = make_core(proposers=[NgramProposer(1, 2)], kappa=2)
    core.submit(replace(requests(4, max_tokens=6)[0], trace=True))
    outputs = []
    while core.has_work:
        outputs += core.step()
    assert [output.trace for output in outputs] == outputs[-1].result.traces
    assert all(output.trace.committed == output.record.emitted for output in outputs)


def test_an_untraced_row_carries_nothing_to_fill():
    class Spy(NumpyExecutor):
        seen = ()

        def judge(self, rows, logits):
            self.seen += tuple(row.reached is None for row in rows)
            return super().judge(rows, logits)

    spy = Spy()
    run(make_core(executor=spy), requests(3, max_tokens=5))
    assert set(spy.seen) == {True}


def test_an_executor_that_reports_nothing_leaves_gaps_not_errors():
    class Silent(NumpyExecutor):
        def judge(self, rows, logits):
            return super().judge([replace(row, reached=None) for row in rows], logits)

    core = make_core(executor=Silent(), proposers=[NgramProposer(1, 2)], kappa=3)
    (result,) = run(core, [replace(requests(5, params=WARM, max_tokens=9)[0], trace=True)]).values()
    for trace in result.traces:
        assert set(trace.p) <= {None}
        assert math.isnan(trace.token_p)
