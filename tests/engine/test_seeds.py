"""The seed contract: what the same seed promises, and what nothing may change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pytest
from engine_kit import (
    DRAFTERS,
    NEAR,
    RULES,
    answers,
    drafter,
    ids,
    make_core,
    plain,
    requests,
    run,
    run_alone,
)
from scipy import stats

from draftproof.backends.table import ArrayTable, PagedStore, TableBackend
from draftproof.core.params import SamplingParams
from draftproof.core.rng import CoinSource
from draftproof.engine import GenerateRequest, SchedulerConfig
from draftproof.engine import core as core_module
from draftproof.engine import step as step_module
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.scripted import DecliningProposer

POLICY = SamplingParams(temperature=0.9, top_p=0.97)
SEED_IDENTICAL = ("coupled", "sample-match")


def make(rule, kappa=3, **options):
    """An engine with a model and an n-gram drafter."""
    return make_core(
        proposers=[DraftModelProposer(TableBackend(NEAR)), NgramProposer(1, 3)],
        kappa=kappa,
        rule=rule,
        **options,
    )


def mixed_batch(rule=None):
    """Eight requests that differ in length, policy, drafter and kappa."""
    policies = [
        SamplingParams(temperature=0.2),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.5, min_p=0.05),
        SamplingParams(temperature=0.0),
        SamplingParams(frequency_penalty=0.5),
        SamplingParams(temperature=1.2, logit_bias={2: 1.0}),
        SamplingParams(),
    ]
    batch = requests(3, 7, 12, 5, 1, 20, 9, 4, max_tokens=25, rule=rule)
    return [
        replace(
            request,
            params=policies[index],
            kappa=(3, 0, 5, 1, 4, 2, 8, 3)[index],
            proposer=("draft-model", "ngram")[index % 2],
        )
        for index, request in enumerate(batch)
    ]


# One seed, one text (SE-1, RB-2) ----------------------------------------------------------------


@pytest.mark.parametrize("rule", [None, *RULES])
def test_a_seed_means_one_text_alone_and_in_any_company(rule):
    batch = mixed_batch(rule)
    alone = ids(run_alone(lambda: make(rule), batch))
    assert ids(run(make(rule), batch)) == alone
    for order in ((7, 6, 5, 4, 3, 2, 1, 0), (3, 0, 7, 1, 6, 2, 5, 4)):
        assert ids(run(make(rule), [batch[i] for i in order])) == alone
    for size in (4, 6):
        assert ids(run(make(rule), batch[:size])) == {n: alone[n] for n in "abcdef"[:size]}
    crowded = make(rule, scheduler=SchedulerConfig(max_rows=3, prefill_chunk=4, prefill_budget=4))
    assert ids(run(crowded, batch)) == alone
    late = make(rule)
    for request in batch:  # one joins after every step
        late.submit(request)
        late.step()
    # The first ones may have ended meanwhile; the others have the text they always have.
    assert all(result.token_ids == alone[name] for name, result in late.run().items())


@pytest.mark.parametrize("rule", [None, "coupled"])
def test_a_seed_means_one_text_after_a_hundred_others(rule):
    core = make(rule)
    batch = mixed_batch(rule)
    for index in range(100):
        other = requests(1 + index % 9, params=SamplingParams(), max_tokens=3, seeds=[index])
        core.submit(replace(other[0], request_id=f"other {index}"))
        if index % 7 == 0:
            core.run()
    core.run()
    assert ids(run(core, batch)) == ids(run_alone(lambda: make(rule), batch))


def test_one_stream_of_coins_for_all_requests_is_seen():
    shared = CoinSource(0)
    places = count()

    class Shared:
        def round(self, start):
            return shared.round(next(places))

    def faulty():
        return make("sample-match", coin_source=lambda seed, stream: Shared())

    batch = mixed_batch("sample-match")
    assert ids(run(faulty(), batch)) != ids(run_alone(faulty, batch))


def test_rows_that_swap_their_draft_laws_are_seen(monkeypatch):
    """RB-2: every row is verified against the laws of its neighbour."""
    original = step_module.draft_rows

    def swapped(plans, *rest):
        original(plans, *rest)
        drafts = [plan.draft for plan in plans if plan.draft.laws is not None]
        for plan, other in zip(
            (p for p in plans if p.draft.laws is not None), drafts[::-1], strict=True
        ):
            width = min(len(plan.draft), len(other))
            laws = tuple(other.laws[:width])
            plan.draft = replace(plan.draft, token_ids=plan.draft.token_ids[:width], laws=laws)

    batch = [replace(request, proposer="draft-model") for request in mixed_batch("standard")]
    alone = ids(run_alone(lambda: make("standard"), batch))
    monkeypatch.setattr(step_module, "draft_rows", swapped)
    assert ids(run(make("standard"), batch, check=False)) != alone


SCRIPT = """
import json, sys
sys.path.insert(0, {folder!r})
from test_seeds import make, mixed_batch
from engine_kit import ids, run
print(json.dumps(ids(run(make(None), mixed_batch()))))
"""


def test_a_seed_means_one_text_after_a_restart(request):
    folder = str(request.path.parent)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=folder)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "12345"},
    )
    assert json.loads(ran.stdout) == ids(run(make(None), mixed_batch()))


def test_other_seeds_and_other_streams_give_other_texts():
    texts = set()
    for seed in range(4):
        for stream in range(4):
            batch = requests(4, params=POLICY, max_tokens=30, seeds=[seed], stream=stream)
            first = ids(run(make(None), batch))["a"]
            assert first == ids(run(make(None), batch))["a"]
            texts.add(tuple(first))
    assert len(texts) == 16


def test_the_seed_of_a_result_gives_its_text_again():
    request = GenerateRequest((1, 2, 3), POLICY, max_tokens=30)
    (first,) = run(make(None), [request]).values()
    (again,) = run(make(None), [replace(request, seed=first.seed)]).values()
    assert again.token_ids == first.token_ids


# Across kappa, drafters and rules ---------------------------------------------------------------


@pytest.mark.parametrize("rule", SEED_IDENTICAL)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_text_is_a_function_of_the_seed_under_the_seed_identical_rules(name, rule):
    batch = requests(3, 8, params=POLICY, max_tokens=14, rule=rule)
    expected = ids(plain(batch))
    known = answers(batch)
    for kappa in range(9):
        core = make_core(proposers=[drafter(name, known)], kappa=kappa)
        results = run(core, batch)
        assert ids(results) == expected
        assert {result.exactness for result in results.values()} == {"seed-identical"}


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_the_other_rules_keep_the_text_for_one_kappa_and_drafter_only(rule):
    batch = requests(3, 8, params=POLICY, max_tokens=40)
    texts = [ids(run(make(rule, kappa), batch)) for kappa in (0, 2, 5)]
    assert texts[0] != texts[1] != texts[2] != texts[0]
    assert texts[1] == ids(run(make(rule, 2), batch))
    (result, _) = run(make(rule), batch).values()
    assert result.exactness == "exact-in-law"


def test_the_rule_that_breaks_the_contract_is_seen():
    """Were ``standard`` called seed-identical, the test above would say so."""
    batch = requests(3, 8, params=POLICY, max_tokens=30, rule="standard")
    core = make_core(proposers=[drafter("model")], kappa=4)
    assert ids(run(core, batch)) != ids(plain(batch))


# Coins are spent by a request's own rounds only (SE-2) ------------------------------------------


class Counted:
    """Coins that note which of them were asked for."""

    def __init__(self, source, asked):
        self._source, self._asked = source, asked

    def round(self, start):
        coins = self._source.round(start)
        asked = self._asked

        class Round:
            def __getattr__(self, name):
                def ask(offset, *rest):
                    asked.add((name, start, offset))
                    return getattr(coins, name)(offset, *rest)

                return ask

        return Round()


def asked_coins(core_options, batch):
    """Run a batch; return the coins each seed was asked for, and the texts."""
    asked = {}

    def source(seed, stream):
        return Counted(CoinSource(seed, stream), asked.setdefault(seed, set()))

    results = run(make_core(coin_source=source, **core_options), batch)
    return asked, ids(results)


@pytest.mark.parametrize("rule", RULES)
def test_a_silent_drafter_spends_no_coins(rule):
    batch = requests(3, 8, params=POLICY, max_tokens=20, rule=rule)
    silent = asked_coins({"proposers": [DecliningProposer()], "kappa": 4}, batch)
    assert silent == asked_coins({}, batch)
    kinds = {kind for coins in silent[0].values() for kind, *_ in coins}
    assert kinds == {"noise" if rule == "coupled" else "sample"}
    assert all(len(coins) == 20 for coins in silent[0].values())


@pytest.mark.parametrize("rule", RULES)
def test_coins_do_not_depend_on_the_company(rule):
    batch = requests(3, 8, 5, 11, params=POLICY, max_tokens=20, rule=rule)

    def options():
        return {"proposers": [DraftModelProposer(TableBackend(NEAR))], "kappa": 4}

    together, _ = asked_coins(options(), batch)
    for request in batch:
        alone, _ = asked_coins(options(), [request])
        assert alone[request.seed] == together[request.seed]


# Unseeded requests (SE-3) -----------------------------------------------------------------------


def serial_outputs(num_requests=200, max_rows=1, restart_every=None):
    uniform = ArrayTable(np.full((16, 16), 1 / 16))
    outputs = []
    core = None
    for index in range(num_requests):
        if core is None or (restart_every and index % restart_every == 0):
            core = make_core(
                uniform,
                proposers=[NgramProposer(1, 3)],
                kappa=3,
                scheduler=SchedulerConfig(max_rows=max_rows),
            )
        (result,) = run(core, [GenerateRequest((0, 1), max_tokens=10)]).values()
        outputs.append(tuple(result.token_ids))
    return outputs


@pytest.mark.statistical
@pytest.mark.parametrize(("max_rows", "restart_every"), [(1, None), (2, 20)])
def test_unseeded_requests_never_repeat(max_rows, restart_every):
    """False alarms: 1e-9 per check, and 200**2 / 2**41 = 2e-8 for a chance repetition.

    With 200 first tokens over 16 values the smallest total variation that is seen with
    probability one half is about 0.29; a repeated seed has 0.94.
    """
    outputs = serial_outputs(max_rows=max_rows, restart_every=restart_every)
    assert len(set(outputs)) == 200
    first = Counter(output[0] for output in outputs)
    assert stats.chisquare([first[token] for token in range(16)]).pvalue > 1e-9
    same = sum(a[0] == b[0] for a, b in pairwise(outputs))
    assert stats.binomtest(same, 199, 1 / 16).pvalue > 1e-9


def test_a_seed_that_starts_over_is_seen(monkeypatch):
    counter = count()
    monkeypatch.setattr(core_module, "fresh_seed", lambda: next(counter) % 20)
    assert len(set(serial_outputs())) == 20


# Preemption -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_pages", [14, 20, 30])
def test_requests_that_lost_their_pages_say_what_they_would_have_said(rule, num_pages):
    batch = mixed_batch(rule)
    expected = ids(run(make(rule), batch))
    tight = make(rule, store=PagedStore(num_pages))
    assert ids(run(tight, batch)) == expected
    assert tight.num_preemptions > 0
    assert tight.target.num_held == 0
    tight.target.store.cache.check_integrity()


def test_a_resumed_request_that_forgot_its_output_is_seen(monkeypatch):
    """The fault: the penalties of a resumed request start from the prompt again."""
    preempt = core_module.Scheduler._preempt

    def forgetful(self, session):
        preempt(self, session)
        session.history = type(session.history)(session.request.prompt_ids)

    batch = [
        replace(request, params=SamplingParams(frequency_penalty=2.0))
        for request in mixed_batch("sample-match")
    ]
    expected = ids(run(make("sample-match"), batch))
    monkeypatch.setattr(core_module.Scheduler, "_preempt", forgetful)
    assert ids(run(make("sample-match", store=PagedStore(14)), batch)) != expected


def test_the_tables_are_lively_enough():
    """Every kind of round occurs in the mixed batch."""
    results = run(make(None), mixed_batch())
    sources = Counter(t.source for result in results.values() for t in result.tokens)
    assert min(sources[kind] for kind in ("accepted", "recovered", "bonus", "sampled")) >= 5
