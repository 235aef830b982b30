"""Faults that real engines shipped, replayed on the cache alone."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.errors import CapacityError


def next_token(tokens) -> int:
    """Return what the toy target says after these tokens; it depends on all of them."""
    value = 1
    for token in tokens:
        value = (value * 31 + token + 1) % 1009
    return value % 7


def speculate(tokens, kappa, accepted):
    """Return ``kappa`` drafts of which the target agrees with the first ``accepted`` only."""
    drafts = []
    for index in range(kappa):
        right = next_token(tokens + drafts)
        drafts.append(right if index < accepted else (right + 1) % 7)
    return drafts


def test_kv_1_both_caches_hold_the_committed_tokens_after_every_round(simulate):
    """k = 4, accepted 3, 4, 1, 0, 4, 2: neither full acceptance nor a rejection loses one."""
    target, drafter = simulate(num_pages=12, page_size=4), simulate(num_pages=12, page_size=4)
    tokens = [1, 2, 3]
    at_target, at_drafter = target.open(tokens), drafter.open(tokens)
    target.run_pass([(at_target, tokens[:-1])])
    for accepted in (3, 4, 1, 0, 4, 2):
        drafts = speculate(tokens, 4, accepted)
        # The drafter feeds what it has not seen. Its last draft is never fed in the round
        # that drafts it, so after full acceptance it catches up by two tokens here.
        unseen = tokens[drafter.cache.length(at_drafter) :]
        drafter.run_pass([(at_drafter, unseen)])
        assert drafter.cache.tokens(at_drafter).tolist() == tokens
        for draft in drafts[:-1]:
            drafter.run_pass([(at_drafter, [draft])])
        target.run_pass([(at_target, [tokens[-1], *drafts])])
        tokens = tokens + drafts[:accepted]
        tokens.append(next_token(tokens))
        for simulation, seq in ((target, at_target), (drafter, at_drafter)):
            have = simulation.cache.length(seq)
            simulation.truncate(seq, min(have, len(tokens) - 1))
            simulation.commit(seq)
            simulation.cache.check_integrity()
        assert target.cache.tokens(at_target).tolist() == tokens[:-1]
        lag = len(tokens) - 1 - drafter.cache.length(at_drafter)
        assert lag == (1 if accepted == 4 else 0)


def run_rows(simulation, prompts, schedule, rounds):
    """Decode rows together, each with its own acceptance; return tokens after each round."""
    rows = []
    for prompt in prompts:
        seq = simulation.open(prompt)
        simulation.run_pass([(seq, prompt[simulation.cache.length(seq) : -1])])
        rows.append((seq, list(prompt)))
    trace = []
    for number in range(rounds):
        plans = []
        for index, (seq, tokens) in enumerate(rows):
            accepted = schedule(index, number)
            drafts = speculate(tokens, 4, accepted)
            assert simulation.reserve(seq, 5)
            plans.append((seq, tokens, drafts, accepted))
        simulation.run_pass([(seq, [tokens[-1], *drafts]) for seq, tokens, drafts, _ in plans])
        for seq, tokens, drafts, accepted in plans:
            tokens += drafts[:accepted]
            tokens.append(next_token(tokens))
            simulation.truncate(seq, len(tokens) - 1)
            simulation.commit(seq)
        trace.append([(list(tokens), simulation.cache.length(seq)) for seq, tokens in rows])
    return trace


def test_kv_3_each_row_rolls_back_by_its_own_amount(simulate):
    """Prompts of 3, 7 and 12 tokens, accepted 0, 2, 4 in turn: equal to the solo runs."""
    prompts = [[1, 2, 3], [4] * 7, list(range(6)) * 2]
    together = run_rows(simulate(num_pages=80, page_size=8), prompts, turn, 50)
    for index, prompt in enumerate(prompts):
        solo = run_rows(
            simulate(num_pages=80, page_size=8), [prompt], lambda _, n, i=index: turn(i, n), 50
        )
        assert [row[index] for row in together] == [row[0] for row in solo]


def turn(index, number):
    return (0, 2, 4)[(index + number) % 3]


def test_kv_5_a_warm_request_equals_the_cold_one(simulate):
    simulation = simulate(num_pages=40, page_size=4)
    prompt = [1, 2, 3, 4, 5, 6] * 4
    cold = run_rows(simulation, [prompt], turn, 6)
    for seq in list(simulation.tokens):
        simulation.close(seq)
    assert simulation.counters.prefix_hit_tokens == 0
    warm = run_rows(simulation, [prompt], turn, 6)
    assert simulation.counters.prefix_hit_tokens == 20  # 24 would leave nothing to compute
    assert warm == cold


def test_kv_5_rejected_drafts_never_reach_the_prefix_cache(simulate):
    simulation = simulate(num_pages=40, page_size=4)
    tokens = [1, 2, 3, 4, 5]
    seq = simulation.open(tokens)
    simulation.run_pass([(seq, tokens)])
    simulation.commit(seq)
    simulation.run_pass([(seq, [6, 6, 6, 6, 6, 6, 6])])  # seven drafts, all rejected
    simulation.truncate(seq, 5)
    simulation.commit(seq)
    other = simulation.open([1, 2, 3, 4, 5, 6, 6, 6, 6, 6])
    assert simulation.cache.length(other) == 4
    simulation.run_pass([(seq, [7, 7, 7]), (other, [5, 6, 6, 6])])
    assert simulation.cache.page_table(seq)[1] != simulation.cache.page_table(other)[1]


def test_kv_5_a_page_is_published_after_the_pass_that_wrote_it(simulate):
    simulation = simulate(num_pages=40, page_size=4)
    seq = simulation.open([1, 2, 3, 4])
    found = []

    def meanwhile():
        twin = simulation.cache.open([1, 2, 3, 4, 5])
        found.append(simulation.cache.length(twin))
        simulation.cache.close(twin)

    simulation.run_pass([(seq, [1, 2, 3, 4])], meanwhile)
    simulation.commit(seq)
    meanwhile()
    assert found == [0, 4]


@pytest.mark.parametrize("kappa", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("max_tokens", [1, 2, 5, 9])
def test_so_4_a_cache_without_a_slot_to_spare_is_never_overrun(simulate, kappa, max_tokens):
    """The pool holds exactly prompt + output - 1 tokens; drafts stop one short of it."""
    prompt = [1, 2, 3]
    slots = len(prompt) + max_tokens - 1
    simulation = simulate(num_pages=slots, page_size=1)
    tokens = list(prompt)
    seq = simulation.open(tokens)
    simulation.run_pass([(seq, tokens[:-1])])
    while (budget := len(prompt) + max_tokens - len(tokens)) > 0:
        drafts = speculate(tokens, min(kappa, budget - 1), kappa)
        assert simulation.run_pass([(seq, [tokens[-1], *drafts])]) == [seq]
        tokens += drafts
        tokens.append(next_token(tokens))
        simulation.truncate(seq, len(tokens) - 1)
        simulation.commit(seq)
    assert simulation.cache.usage().held_pages == slots
    # One slot more, as a limit by total length would ask for, is refused and harmless.
    with pytest.raises(CapacityError, match=f"sequence {seq} needs 1 slots after {slots} tokens"):
        simulation.cache.append(seq, [0])
    simulation.check()


def test_sv_1_aborts_at_any_moment_return_every_slot(simulate):
    """500 requests die after opening, reserving, a pass, a rollback or a commit."""
    generator = np.random.default_rng(20)
    simulation = simulate(num_pages=24, page_size=4)
    start = simulation.cache.usage()
    alive = []
    for _ in range(500):
        prompt = [1, 2, 3, 4, *generator.integers(0, 3, size=generator.integers(1, 12)).tolist()]
        seq = simulation.open(prompt)
        stages = int(generator.integers(0, 5))
        if stages >= 1:
            simulation.reserve(seq, len(prompt) + 5)
        if stages >= 2:
            ran = simulation.run_pass([(seq, prompt[simulation.cache.length(seq) :] + [6] * 5)])
            if ran and stages >= 3:
                simulation.truncate(seq, len(prompt) + int(generator.integers(0, 6)))
            if ran and stages >= 4:
                simulation.commit(seq)
        alive.append(seq)
        while len(alive) > generator.integers(0, 4):
            simulation.close(alive.pop(int(generator.integers(0, len(alive)))))
    for seq in alive:
        simulation.close(seq)
    usage = simulation.cache.usage()
    assert usage.held_pages == start.held_pages == 0
    assert usage.free_pages + usage.evictable_pages == start.free_pages
    assert simulation.counters.num_evictions > 0  # the pool was tight enough to matter
    simulation.cache.check_integrity()
    assert run_rows(simulation, [[1, 2, 3, 4, 5]], turn, 5) == run_rows(
        simulate(num_pages=24, page_size=4), [[1, 2, 3, 4, 5]], turn, 5
    )
