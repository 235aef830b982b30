"""Whoever listens to an engine hears of every request and every output."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_kit import WARM, make_core, requests, run

from draftproof.errors import ConfigError, RequestAbortedError
from draftproof.proposers import NgramProposer


class Ear:
    def __init__(self, *, wants_traces):
        self.wants_traces = wants_traces
        self.requests, self.outputs = [], []

    def on_request(self, request):
        self.requests.append(request)

    def on_output(self, output):
        self.outputs.append(output)


def core_with(*ears):
    core = make_core(proposers=[NgramProposer(1, 2)], kappa=2)
    for ear in ears:
        core.listeners.add(ear)
    return core


def test_requests_and_outputs_are_heard_in_order():
    ear = Ear(wants_traces=False)
    results = run(core_with(ear), requests(3, 5, params=WARM, max_tokens=8))
    assert [request.request_id for request in ear.requests] == ["a", "b"]
    assert {request.proposer for request in ear.requests} == {"ngram"}
    for name, result in results.items():
        heard = [output for output in ear.outputs if output.request_id == name]
        assert [token for output in heard for token in output.tokens] == result.tokens
        assert [output.result for output in heard] == [*[None] * (len(heard) - 1), result]
        assert all(output.trace is None for output in heard)


def test_one_that_wants_traces_makes_all_requests_traced():
    deaf, ear = Ear(wants_traces=False), Ear(wants_traces=True)
    asked = requests(3, params=WARM, max_tokens=8)
    (result,) = run(core_with(deaf, ear), asked).values()
    assert [output.trace for output in ear.outputs] == result.traces
    assert len(result.traces) == len(result.records)
    assert not asked[0].trace
    plain = run(core_with(), asked)["a"]
    assert plain.token_ids == result.token_ids
    assert plain.traces == []


def test_aborts_are_heard_and_refused_requests_are_not():
    ear = Ear(wants_traces=True)
    core = core_with(ear)
    (asked,) = requests(3, params=WARM, max_tokens=50)
    core.submit(asked)
    with pytest.raises(ConfigError):
        core.submit(asked)  # the id is taken
    with pytest.raises(ConfigError):
        core.submit(replace(asked, proposer="nobody", request_id="b"))
    assert [request.request_id for request in ear.requests] == ["a"]
    core.step()
    core.abort("a")
    core.reap()
    assert ear.outputs[-1].finish_reason == "abort"
    assert isinstance(ear.outputs[-1].error, RequestAbortedError)


def test_one_that_left_hears_no_more():
    ear = Ear(wants_traces=True)
    core = core_with(ear)
    core.listeners.remove(ear)
    core.listeners.remove(ear)
    (result,) = run(core, requests(3, max_tokens=5)).values()
    assert (ear.requests, ear.outputs, result.traces) == ([], [], [])
