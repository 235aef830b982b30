"""The controller and a drafter that copies where it can: when it starts, stops and what it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftproof.core.kappa_policy import RowState
from draftproof.core.params import SamplingParams
from draftproof.core.policy import History
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft, StepRecord
from draftproof.planner.controller import ControllerConfig, GoodputController
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import CopyCost, CopyThenModel, ParallelDraft, RoundCost, TableDraft
from draftproof.planner.told import PricedAs
from draftproof.planner.tracker import TrackerConfig
from draftproof.proposers import HybridProposer, SuffixProposer

GREEDY = SamplingParams(temperature=0.0)
#: A pass of n tokens costs 0.8 + 0.2 n plain steps; a draft of the model 0.12 each.
MODEL = TableDraft((1, 4), (1, 8), np.asarray([[0.12, 0.96]] * 2))
COST = RoundCost(AffineCost(0.8, 0.2), MODEL)
COPIES = {"hybrid": CopyCost(ParallelDraft(0.01), 3)}


class Guesses:
    """A poor model: drafts token 0, whatever came before."""

    name = "model"

    def propose_after(self, requests, heads):
        return [
            Draft((0,) * (asked.kappa - len(head)), proposer=self.name)
            for asked, head in zip(requests, heads, strict=True)
        ]

    def propose(self, requests):
        return self.propose_after(requests, [()] * len(requests))

    def release(self, request_id):
        pass


class Untold(HybridProposer):
    """The planted fault, and what a hybrid was before: it tells nothing."""

    def foretell(self, request_id, token_ids):
        return -1


class ToldForAll(HybridProposer):
    """The planted fault: where nothing is copied it tells the faintest sign of a copy."""

    def foretell(self, request_id, token_ids):
        return max(super().foretell(request_id, token_ids), 1)


def copied_text(length=60, seed=0):
    """A prompt that the output repeats."""
    prompt = np.random.default_rng(seed).permutation(length)[:length] + 1
    return prompt.tolist(), prompt.tolist()


def free_text(length=60):
    """An output in which nothing comes twice, nor what the model drafts."""
    return list(range(1, 31)), list(range(100, 100 + length))


def play(texts, controller, kind=HybridProposer, copies=4):
    """Decode texts together; return seconds, and drafts and acceptance by round."""
    drafter = kind([SuffixProposer(min_score=0.3)], Guesses(), enough=1)
    names = [str(i) for i in range(len(texts))]
    tokens = [[*prompt, output[0]] for prompt, output in texts]
    done, seconds, rounds = [1] * len(texts), 0.0, []
    while any(done[i] < len(texts[i][1]) for i in range(len(texts))):
        live = [i for i in range(len(texts)) if done[i] < len(texts[i][1])]
        rows = [
            RowState(
                names[i], len(tokens[i]) - 1, min(12, len(texts[i][1]) - done[i] - 1), ("hybrid",),
                (drafter.foretell(names[i], tokens[i]),), len(texts[i][1]) - done[i],
            )
            for i in live
        ]  # fmt: skip
        choices = controller.choose(rows)
        drafted, kept = {}, {}
        for i, choice in zip(live, choices, strict=True):
            draft = ()
            if choice.kappa:
                asked = ProposalRequest(
                    names[i], tokens[i], choice.kappa, GREEDY, History(()), CoinSource(0).round(0)
                )
                draft = drafter.propose([asked])[0]
                of_model = sum(source == "model" for source in draft.sources)
                seconds += 0.12 * of_model + 0.01
            output = texts[i][1]
            wanted = output[done[i] : done[i] + len(draft)]
            hit = 0
            while hit < len(wanted) and draft.token_ids[hit] == wanted[hit]:
                hit += 1
            new = output[done[i] : done[i] + hit + 1]
            drafted[names[i]], kept[names[i]] = len(draft), hit
            if choice.kappa:
                controller.observe(
                    StepRecord(names[i], 0, (0,) * len(draft), hit, (0,) * (hit + 1))
                )
            tokens[i] += new
            done[i] += len(new)
        seconds += 0.8 + 0.2 * (len(live) + sum(drafted.values()))
        rounds.append((drafted, kept))
    return seconds, rounds


def controller_of(copies=COPIES, **limits):
    return GoodputController(COST, config=ControllerConfig(max_kappa=12, **limits), copies=copies)


# -- what it does ----------------------------------------------------------------------------


def first_draft(rounds, most=4):
    """Number of the first round that drafts so many at once."""
    return next((n for n, (drafted, _) in enumerate(rounds) if max(drafted.values()) >= most), 99)


@pytest.mark.parametrize("seed", range(3))
def test_copied_text_is_drafted_soon_and_far(seed):
    seconds, rounds = play([copied_text(40, seed)], controller_of())
    assert first_draft(rounds) <= 8
    assert seconds < 0.75 * 40


def test_a_hybrid_that_does_not_tell_drafts_later():
    told, untold = (
        play([copied_text(40)], controller_of(), kind)[0] for kind in (HybridProposer, Untold)
    )
    assert untold > 1.2 * told


@pytest.mark.parametrize("count", [1, 4])
def test_free_text_with_a_poor_model_is_soon_left_alone(count):
    length = 200
    seconds, rounds = play([free_text(length)] * count, controller_of())
    late = rounds[length // 2 :]
    assert sum(any(drafted.values()) for drafted, _ in late) <= 2
    plain = length * (0.8 + 0.2 * count)
    # The stake and the allowance are a hundredth each.
    assert seconds <= 1.02 * plain
    assert any(any(drafted.values()) for drafted, _ in rounds), "nothing was ever tried"


def test_a_poor_model_is_not_held_against_copies_nor_copies_for_it():
    controller = controller_of()
    prompt, output = copied_text(40)
    mixed = (prompt, [*range(100, 160), *output, *range(200, 260)])
    _, rounds = play([mixed], controller)
    copies = [drafted for drafted, _ in rounds if max(drafted.values()) > 3]
    assert copies, "what was copied was not drafted behind free text"
    behind = rounds[-40:]
    assert sum(any(drafted.values()) for drafted, _ in behind) <= 4
    low, high = (controller.survival("0", "hybrid", sign)[0] for sign in (-1, 3))
    assert low < 0.4
    assert high > 0.85


def test_a_sign_for_what_is_not_copied_spoils_the_beliefs_about_short_copies():
    # The planted fault: both kinds of drafts under one sign.
    found = {}
    for kind in (HybridProposer, ToldForAll):
        controller = controller_of()
        play([free_text(200)], controller, kind)
        found[kind] = controller.survival("0", "hybrid", 1)[0]
    assert found[HybridProposer] == pytest.approx(TrackerConfig().prior(1)[0])
    assert found[ToldForAll] < 0.75 * found[HybridProposer]


def test_priors_are_those_of_copies_and_of_a_model():
    controller, limits = controller_of(), TrackerConfig()
    found = [controller.survival("0", "hybrid", sign)[0] for sign in (-1, 1, 2, 3)]
    assert found == pytest.approx([limits.prior_rate, *(rate for rate, _ in limits.sign_priors)])


# -- what it pays ----------------------------------------------------------------------------


def chosen(controller, sign, most=12):
    (choice,) = controller.choose([RowState("0", 100, most, ("hybrid",), (sign,))])
    return choice


def test_a_copy_does_not_pay_for_the_model():
    cheap, dear = (chosen(controller_of(copies), 3).kappa for copies in (COPIES, None))
    assert cheap > dear


def test_where_nothing_is_copied_no_more_is_asked_for_than_the_model_drafts():
    sure = TrackerConfig(prior_rate=0.97, prior_strength=50.0)
    assert chosen(controller_of(tracker=sure, stake_share=1.0), -1).kappa == 3
    assert chosen(controller_of(None, tracker=sure, stake_share=1.0), -1).kappa > 3
    assert chosen(controller_of(), 3).proposer == "hybrid"


def test_in_a_batch_a_row_that_copies_does_not_draw_in_the_models():
    # The model's first slot is believed to yield more than a copy's last ones, and costs more.
    hopeful = TrackerConfig(prior_rate=0.6, prior_strength=50.0)
    dear = RoundCost(AffineCost(0.8, 0.2), TableDraft((1, 4), (1, 8), np.full((2, 2), 2.0)))
    controller = GoodputController(
        dear,
        config=ControllerConfig(max_kappa=12, tracker=hopeful, stake=9.0),
        copies=COPIES,
    )
    rows = [RowState(str(i), 100, 12, ("hybrid",), (sign,)) for i, sign in enumerate((3, -1, -1))]
    copied, *others = (choice.kappa for choice in controller.choose(rows))
    assert copied > 3
    assert others == [0, 0]


def test_a_copy_with_a_model_behind_is_priced_with_its_passes():
    cost = CopyThenModel(ParallelDraft(0.01, 0.1), MODEL, 2)
    rows = np.asarray([0.0, 1.0, 3.0])
    found = [cost.depth_seconds(depth, rows, 64.0) for depth in (1, 2, 3)]
    assert found[0] == pytest.approx([0.0, 0.11 + 0.12, 0.31 + 0.12])
    assert found[1] == pytest.approx([0.0, 0.12, 0.12])
    assert found[2] == pytest.approx([0.0, 0.0, 0.0])


def test_names_for_prices():
    priced = PricedAs(COPIES)
    row = RowState("0", 9, 5, ("ngram", "hybrid"), (0, 2))
    copied = priced.key(row, "hybrid")
    assert priced.key(row, "ngram") == ""
    assert priced.key(row, "other") == ""
    assert priced.first(row) == copied != "hybrid"
    assert priced.drafter(copied) == priced.drafter("hybrid") == "hybrid"
    assert priced.keys("hybrid") == ("hybrid", copied)
    assert priced.keys("ngram") == ("ngram",)
    faint = replace(row, signs=(0, -1))
    assert priced.key(faint, "hybrid") == "hybrid"
    assert priced.assignments([row, faint], "hybrid") == [[copied, "hybrid"], [copied, ""]]
    assert priced.assignments([row, row], "hybrid") == [[copied] * 2]
    assert priced.limits([row, faint], [copied, "hybrid"], [9, 9]) == [9, 3]
    # Without signs, as under a grammar, it may copy all the same.
    assert priced.limits([replace(row, signs=())], ["hybrid"], [9]) == [9]
