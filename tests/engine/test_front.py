"""The engine people use, by one caller: whole, streamed, several at once."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from engine_kit import (
    TABLE,
    VOCAB,
    WARM,
    held,
    ids,
    make_core,
    requests,
    run_alone,
)
from front_kit import OPTIONS, fresh, is_clean

from draftproof.backends.table import PagedStore, TableBackend
from draftproof.engine import Engine
from draftproof.errors import ConfigError, NonFiniteLogitsError

# One caller -------------------------------------------------------------------------------------


def test_generate_stream_and_many_agree():
    engine = fresh()
    result = engine.generate([1, 2, 3], **OPTIONS)
    outputs = list(engine.stream([1, 2, 3], **OPTIONS))
    assert [t.token_id for output in outputs for t in output.tokens] == result.token_ids
    assert outputs[-1].result.token_ids == result.token_ids
    assert sum(output.result is not None for output in outputs) == 1
    batch = requests(3, 8, 5, 1, params=WARM, max_tokens=25)
    many = engine.generate_many(batch)
    assert [result.request_id for result in many] == ["a", "b", "c", "d"]
    assert {r.request_id: r.token_ids for r in many} == ids(run_alone(lambda: fresh().core, batch))
    assert engine.generate_many([]) == []
    assert is_clean(engine)


def test_an_error_is_raised_after_all_have_ended_and_nothing_stays():
    engine = fresh(TableBackend(TABLE, PagedStore(prefix_caching=False), nan_after=(6,)))
    batch = requests(3, 4, 5, params=replace(WARM, banned_token_ids=(6,)), max_tokens=10)
    batch = [replace(r, prompt_ids=tuple(t % 6 for t in r.prompt_ids)) for r in batch]
    batch[1] = replace(batch[1], prompt_ids=(1, 6))
    with pytest.raises(NonFiniteLogitsError, match="request b"):
        engine.generate_many(batch)
    assert engine.core.stats.num_emitted_tokens == 20
    assert is_clean(engine)
    with pytest.raises(NonFiniteLogitsError):
        list(engine.stream([1, 6], max_tokens=3))
    assert is_clean(engine)


def test_requests_before_a_refused_one_are_taken_back():
    engine = fresh()
    batch = requests(3, 4, 5, max_tokens=10)
    batch[2] = replace(batch[2], stop_token_ids=(VOCAB,))
    with pytest.raises(ConfigError, match="stop_token_ids"):
        engine.generate_many(batch)
    assert is_clean(engine)
    with pytest.raises(ConfigError, match="'a' is in use"):
        engine.generate_many([batch[0], batch[0]])
    assert is_clean(engine)


@pytest.mark.parametrize("taken", [1, 3])
def test_leaving_a_stream_early_gives_everything_back(taken):
    engine = fresh()
    stream = engine.stream([1, 2, 3], **OPTIONS)
    for _ in range(taken):
        next(stream)
    assert held(engine.core)[0] == 1
    stream.close()
    assert is_clean(engine)
    for _ in engine.stream([1, 2, 3], **OPTIONS):
        break
    gc.collect()
    assert is_clean(engine)
    dropped = engine.stream([1, 2, 3], **OPTIONS)
    next(dropped)
    del dropped
    gc.collect()
    assert is_clean(engine)
    engine.stream([1, 2, 3], **OPTIONS)  # never started, so never submitted
    assert is_clean(engine)
    assert (
        engine.generate([1, 2], **OPTIONS).token_ids
        == fresh().generate([1, 2], **OPTIONS).token_ids
    )


def test_a_stream_that_nobody_reads_does_not_stop_the_others():
    engine = fresh()
    idle = engine.stream([4, 4], **OPTIONS)
    next(idle)
    results = engine.generate_many(requests(3, 5, params=WARM, max_tokens=40))
    assert [len(result.token_ids) for result in results] == [40, 40]
    # Its tokens were computed in the same passes and wait for whoever reads on.
    rest = list(idle)
    assert rest[-1].result.token_ids == fresh().generate([4, 4], **OPTIONS).token_ids
    assert is_clean(engine)


def test_a_name_is_taken_until_its_stream_has_been_read():
    """Its owner would otherwise drop what belongs to the next request of that name."""
    engine = fresh()
    stream = engine.stream([1, 2], max_tokens=1, request_id="a")
    assert next(stream).finish_reason == "length"
    with pytest.raises(ConfigError, match="'a' is in use"):
        engine.generate([1, 2], max_tokens=1, request_id="a")
    assert list(stream) == []
    assert engine.generate([1, 2], max_tokens=1, request_id="a").request_id == "a"
    assert is_clean(engine)


def test_whole_results_keep_no_queue_of_steps():
    engine = fresh()
    batch = requests(3, 5, params=WARM, max_tokens=60)
    longest = 0

    def watch(output):
        nonlocal longest
        longest = max([longest, *map(len, engine._turns._queues.values())])
        return False

    engine.generate_many([replace(request, stop_criterion=watch) for request in batch])
    assert longest <= 1


def test_closing_twice_closes_once():
    closed = []
    engine = Engine(make_core(), close=lambda: closed.append(1))
    engine.close()
    engine.close()
    assert closed == [1]


def test_several_completions_of_one_seed_are_its_streams():
    engine = fresh()
    options = {"max_tokens": 12, "temperature": 1.0, "seed": 9}
    many = engine.generate_n([1, 2, 3], 4, **options)
    alone = [engine.generate([1, 2, 3], stream=index, **options) for index in range(4)]
    assert [result.token_ids for result in many] == [result.token_ids for result in alone]
    assert len({tuple(result.token_ids) for result in many}) > 1
    unseeded = engine.generate_n([1, 2, 3], 2, max_tokens=12, temperature=1.0)
    assert unseeded[0].seed == unseeded[1].seed
    assert unseeded[0].token_ids != unseeded[1].token_ids
    with pytest.raises(ConfigError, match="n is 0; expected at least 1"):
        engine.generate_n([1], 0)


def test_a_closed_engine_takes_no_request():
    closed = []
    with Engine(fresh().core, close=lambda: closed.append(1)) as engine:
        engine.generate([1, 2], max_tokens=2)
    assert closed == [1]
    with pytest.raises(ConfigError, match="the engine is closed"):
        engine.generate([1, 2], max_tokens=2)
