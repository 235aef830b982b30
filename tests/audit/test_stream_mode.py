"""Audits of long texts on the whole engine: exact, tilted, silent."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from draftproof.audit import Plan
from draftproof.audit.kinds import check, kind_of
from draftproof.audit.repeated_texts import Beginning, TextMarks, repeated_text
from draftproof.audit.stream import PromptDrafts, StreamLook, judge_stream
from draftproof.audit.stream_run import watch_stream
from draftproof.backends.table import FunctionTable, TableBackend, seeded_probs
from draftproof.core.params import SamplingParams
from draftproof.core.types import TreeVerdict
from draftproof.engine import EngineCore
from draftproof.errors import ConfigError
from draftproof.evidence.stream import StreamBets
from draftproof.evidence.stream_power import smallest_share, stream_power
from draftproof.proposers import DraftModelProposer
from draftproof.verify import NumpyExecutor

#: A right engine is called biased with probability 0.001 over the whole run; the verdict
#: states the tilt it would have seen.
PLAN = Plan(tv=0.2)
PROMPTS = [("p", (0, 1, 2)), ("q", (3, 1))]
VOCAB = 12


def table(seed):
    return FunctionTable(VOCAB, lambda held: seeded_probs(VOCAB, tuple(held[-2:]), seed=seed))


class KeepsTheDraft(NumpyExecutor):
    """Keeps the first draft where the rule threw it away, half of the time."""

    def judge(self, rows, logits):
        found = []
        for row, verdict in zip(rows, super().judge(rows, logits), strict=True):
            if verdict.source == "recovered" and not verdict.path and row.coins.sample(7) < 0.5:
                verdict = TreeVerdict((), row.draft.token_ids[0], "recovered")
            found.append(verdict)
        return found


class SeedsComeAgain(EngineCore):
    """Takes another seed for the one it was given."""

    change = staticmethod(lambda seed: seed)

    def submit(self, request):
        return super().submit(replace(request, seed=self.change(request.seed)))


def run(executor=None, kappa=2, budget=600, change=lambda seed: seed, **knobs):
    core = SeedsComeAgain(
        TableBackend(table(1)),
        proposers=[DraftModelProposer(TableBackend(table(2)))],
        kappa=kappa,
        executor=executor,
    )
    core.change = change
    return watch_stream(
        core, "table", PROMPTS, SamplingParams(**knobs), PLAN,
        budget=budget, text_tokens=75, first_seed=11,
    )  # fmt: skip


@pytest.mark.statistical
def test_the_engine_raises_no_alarm_and_its_certificate_recomputes(tmp_path):
    evidence = run()
    verdict = judge_stream(evidence)
    assert verdict.exit_code == 0, verdict.reason
    assert verdict.num_tokens == 600
    assert verdict.smallest_tv <= PLAN.tv
    assert evidence.bets.tolerance == 0
    assert evidence.num_with_law == 600
    assert [each.prompt for each in evidence.drafts] == ["p", "q"]
    assert all(each.drafted > each.accepted > 0 for each in evidence.drafts)
    stored = tmp_path / "c.json"
    written = kind_of(evidence).stored(evidence, verdict)
    stored.write_text(json.dumps(written))
    again = check(stored)
    assert not again.differences
    # The same evidence with a prompt after which nothing was drafted.
    silent = replace(evidence, drafts=(evidence.drafts[0], PromptDrafts("q", 0, 0)))
    assert judge_stream(silent).exit_code == 3
    assert judge_stream(silent).reason == "nothing was drafted after 'q'"
    # Figures that are no numbers are compared with nothing: they are refused.
    written["evidence"]["looks"][0]["log_wealth"][0] = "nan"
    stored.write_text(json.dumps(written))
    with pytest.raises(ConfigError, match="wealth"):
        check(stored)
    for changed in ({"sample_tv": np.nan}, {"gaps": (((np.nan,),), ((0.1,),))}):
        with pytest.raises(ConfigError, match=r"expected (a TV|finite)"):
            replace(evidence, **changed)
    assert ("rounding", "a bias up to TV 0 per token raises no alarm") in again.facts


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda _seed: 5, "text 2 after 'p' is text 0 again, 75 tokens"),
        (lambda seed: (seed - 11) % 4, "text 4 after 'p' is text 0 again, 75 tokens"),
        # Prompts take turns: texts 0 and 2 are of one prompt and get one seed.
        (lambda seed: (seed - 11) // 4, "text 2 after 'p' is text 0 again, 75 tokens"),
    ],
    ids=["ignored", "period of 4", "neighbours"],
)
def test_seeds_that_come_again_are_named(change, named, tmp_path):
    # A text of 75 tokens has a probability below 1e-20 to come by chance.
    evidence = run(change=change)
    verdict = judge_stream(evidence)
    assert verdict.exit_code == 3
    assert verdict.reason.startswith("the draws depend on each other and may not be pooled: text")
    assert verdict.dependence[0].p_value < 1e-12
    first = repeated_text(evidence.texts, 1e-3)[1]
    assert repeated_text(evidence.texts[: first + 1], 1e-3)[0].name == named
    stored = tmp_path / "c.json"
    stored.write_text(json.dumps(kind_of(evidence).stored(evidence, verdict)))
    assert not check(stored).differences
    # Without the marks, as in certificates from before, nothing is said of it.
    assert judge_stream(replace(evidence, texts=None)).dependence is None
    with pytest.raises(ConfigError, match="1 texts of 8 looks"):
        replace(evidence, texts=evidence.texts[:1])


def test_texts_that_begin_alike_are_found_and_certain_ones_are_not():
    rng = np.random.default_rng(3)
    texts = rng.integers(0, 50, (40, 100))
    even = np.full(100, 1 / 50)

    def marked(rows, probs):
        return [TextMarks.of("p", row.tolist(), probs, 1e-3) for row in rows]

    assert repeated_text(marked(texts, even), 1e-3)[0].p_value == 1.0
    texts[30, :70] = texts[4, :70]
    test, first = repeated_text(marked(texts, even), 1e-3)
    assert (first, test.name) == (30, "text 30 after 'p' begins like text 4, 64 tokens")
    assert test.p_value < 1e-12
    # All alike, as they must be where each token is nearly certain.
    test, first = repeated_text(marked(texts[[0] * 40], np.full(100, 0.999)), 1e-3)
    assert (first, test.p_value) == (None, 1.0)
    with pytest.raises(ConfigError, match=r"log probability 0\.5"):
        Beginning(8, "00", 0.5)


@pytest.mark.statistical
def test_a_bias_before_the_first_repetition_is_a_bias():
    # What came before the text that was repeated is evidence, and nothing after it.
    tilted = run(KeepsTheDraft(), budget=4000)
    again = replace(tilted, texts=(*tilted.texts[:2], tilted.texts[0], *tilted.texts[3:]))
    assert judge_stream(again).dependence[0].p_value < 1e-12
    assert judge_stream(again).verdict == "not enough evidence"
    looks, texts = (*tilted.looks, tilted.looks[-1]), (*tilted.texts, tilted.texts[-1])
    assert judge_stream(replace(tilted, looks=looks, texts=texts)).verdict == "biased"


@pytest.mark.statistical
def test_a_tilt_towards_the_drafter_stops_the_run():
    # Half of the rejected first drafts are kept: a TV per token of about 0.1, within 600.
    verdict = judge_stream(run(KeepsTheDraft(), budget=4000))
    assert verdict.exit_code == 1
    assert verdict.alarmed_at < 4000
    assert verdict.strongest


def test_an_engine_that_never_drafted_gets_no_verdict():
    verdict = judge_stream(run(kappa=0, budget=150))
    assert verdict.exit_code == 3
    assert "nothing was drafted" in verdict.reason


def test_a_prompt_that_the_budget_never_comes_to_is_named():
    evidence = run(budget=75)
    assert evidence.drafts[0].drafted > 0
    assert evidence.drafts[1] == PromptDrafts("q", 0, 0)
    verdict = judge_stream(evidence)
    assert verdict.exit_code == 3
    assert verdict.reason == "nothing was drafted after 'q'"


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="drafts kept after"):
        PromptDrafts("p", 2, 3)
    for wealth in (np.nan, np.inf):
        with pytest.raises(ConfigError, match="wealth"):
            StreamLook(5, 0, (wealth,))
    with pytest.raises(ConfigError, match="whole numbers"):
        StreamLook(5, -1, (0.0,))


def test_too_short_a_text_is_no_evidence():
    verdict = judge_stream(run(budget=150))
    assert verdict.exit_code == 3
    assert "would have been seen" in verdict.reason


@pytest.mark.parametrize("knobs", [{"top_k": 3}, {"top_p": 0.9}, {"temperature": 0.0}])
def test_filters_and_greedy_policies_are_refused(knobs):
    with pytest.raises(ConfigError, match="full vocabulary"):
        run(**knobs)


@pytest.mark.statistical
def test_the_stated_share_is_what_a_simulation_gives():
    # 400 simulated texts: a power of 0.99 comes out below 0.965 with probability 1e-5.
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.ones(6), 300)
    q = rng.dirichlet(np.ones(6), 300)
    bets = StreamBets()
    right = bets.gaps(p, q, np.array([rng.choice(6, p=row) for row in p]))
    wrong = bets.gaps(p, q, np.array([rng.choice(6, p=row) for row in q]))
    share = smallest_share(bets, (right, wrong), 2000, 500, 1e-3, 0.99)
    assert 0.01 < share < 0.5
    assert stream_power(bets, (right, wrong), 2000, 500, share, 1e-3, seed=8) > 0.965
    assert stream_power(bets, (right, wrong), 2000, 500, share / 4, 1e-3, seed=8) < 0.5
    assert smallest_share(bets, (right, wrong), 3, 0, 1e-3, 0.99) == np.inf
