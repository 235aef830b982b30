"""Draws that depend on each other get no "exact", in audits of a law; the reason names how."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from dataclasses import replace

import numpy as np
import pytest
from dependent_draws import FAULTS, cached_answers, copied_rows, given_twice, period_of_seeds

from draftproof.audit import Evidence, Plan, PromptEvidence, judge
from draftproof.audit.draw_order import DrawOrder
from draftproof.audit.kinds import check, kind_of
from draftproof.audit.matrix import judge_matrix
from draftproof.audit.matrix_evidence import Cell, MatrixEvidence
from draftproof.audit.sequential import Look, SequentialEvidence, judge_sequential
from draftproof.audit.subjects import OnOffEvidence, TextCounts, judge_on_off
from draftproof.errors import ConfigError
from draftproof.evidence import Counts, JointLaw

OUTCOMES = 27
LAW = JointLaw.from_mapping(
    dict(zip(np.ndindex(3, 3, 3), np.linspace(1, 2, OUTCOMES) / (1.5 * OUTCOMES), strict=True)), 3
)
#: An exact decoder is called biased with probability 0.001 and dependent with 0.001.
PLAN = Plan(tv=0.2, calibration_samples=4000)
NUM = 12_000
#: What the reason says of each fault.
NAMED = {
    "period_of_seeds": "draws after 'p' repeat with period 7",
    "cached_answers": "are 5 to 68 again",
    "copied_rows": "equal the one 1 before",
    "shared_coins": "equal the one 1 before",
    "given_twice": "equal the one 1 before",
    "neighbouring_seeds": "equal the one 1 before",
}


def drawn(fault=None, seed=0, num=NUM):
    rng = np.random.default_rng(seed)
    draws = rng.choice(OUTCOMES, num, p=LAW.probs)
    return draws if fault is None else fault(draws, rng)


def fixed(*samples):
    prompts = tuple(
        PromptEvidence(
            "p" if not index else f"p{index}",
            LAW,
            Counts(np.bincount(codes, minlength=OUTCOMES)),
            order=DrawOrder.of(codes),
        )
        for index, codes in enumerate(samples)
    )
    return Evidence("test", PLAN, prompts, expects_speculation=False)


def sequential(codes, looks=(400, 3000, NUM)):
    seen = [
        (Look(tuple(np.bincount(codes[:end], minlength=OUTCOMES).tolist()), 0),) for end in looks
    ]
    return SequentialEvidence(fixed(codes), NUM, tuple(seen))


@pytest.mark.statistical
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_named(fault):
    # Copies of 0.05 are seen with a probability above 0.9999; the other faults repeat more.
    codes = drawn(fault)
    for found in (judge(fixed(codes)), judge_sequential(sequential(codes))):
        assert (found.verdict, found.exit_code) == ("not enough evidence", 3)
        assert "the draws depend on each other and may not be pooled" in found.reason
        assert NAMED[fault.__name__] in found.reason
        assert "draws depend on each other" in found.findings


@pytest.mark.statistical
def test_independent_draws_are_left_alone():
    # False alarms: 0.002 in each of four audits.
    for seed in (1, 2):
        codes = drawn(seed=seed)
        for found in (judge(fixed(codes)), judge_sequential(sequential(codes))):
            assert found.verdict == "exact"
            assert min(test.p_value for test in found.dependence) > PLAN.alpha
            assert 0.005 < found.smallest_repeat < 0.03


@pytest.mark.statistical
def test_one_prompt_of_several_is_enough():
    clean = [drawn(seed=seed) for seed in (3, 4)]
    found = judge(fixed(*clean, drawn(cached_answers, seed=5)))
    assert "draws after 'p2': 6000 to 6063 are 5 to 68 again" in found.reason
    assert judge(fixed(*clean)).verdict == "exact"


@pytest.mark.statistical
def test_a_bias_is_no_dependence():
    # Independent draws of another law; the tests of the order do not know the reference.
    codes = np.random.default_rng(6).choice(OUTCOMES, NUM, p=LAW.probs[::-1])
    found = judge(fixed(codes))
    assert found.verdict == "biased"
    assert min(test.p_value for test in found.dependence) > PLAN.alpha


def test_draws_that_cannot_be_are_a_bias_whatever_their_order():
    codes = drawn(period_of_seeds)
    codes[9] = OUTCOMES
    counts = Counts(np.bincount(codes, minlength=OUTCOMES + 1)[:-1], {(8, 8, 8): 1})
    prompt = PromptEvidence("p", LAW, counts, order=DrawOrder.of(codes))
    found = judge(replace(fixed(drawn()), prompts=(prompt,)))
    assert found.verdict == "biased"


@pytest.mark.parametrize("make", [fixed, sequential])
def test_certificates_hold_the_order(make, tmp_path):
    evidence = make(drawn(given_twice))
    kind = kind_of(evidence)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(kind.stored(evidence, kind.judge(evidence))))
    # Little more than the draws tell: 4.7 bits each, in base64.
    assert len(json.loads(path.read_text())["evidence"]["prompts"][0]["order"]["zlib"]) < NUM
    again = check(path)
    assert again.differences == ()
    final = getattr(again.evidence, "final", again.evidence)
    assert (final.prompts[0].order.codes == drawn(given_twice)).all()
    assert any("depend on each other" in text for label, text in again.facts if label == "verdict")
    assert any("a share of 0.0" in text for label, text in again.facts if label == "independence")


def packed(num):
    return b64encode(zlib.compress(bytes(num))).decode()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("draws", -1, "-1 draws in order of 8 bits"),
        ("draws", 10**9, "1000000000 draws"),
        ("draws", True, "True draws"),
        ("bits", 7, "of 7 bits"),
        ("zlib", "?", "expected base64 of zlib"),
        ("zlib", b64encode(b"no zlib").decode(), "expected base64 of zlib"),
        ("zlib", packed(10), "10 bytes, expected 12000"),
        ("zlib", packed(10**8), "12001 bytes, expected 12000"),
        ("zlib", packed(NUM), "the outcomes that were counted"),
    ],
)
def test_an_order_that_cannot_be_is_refused(field, value, message):
    stored = fixed(drawn()).to_json()
    stored["prompts"][0]["order"][field] = value
    with pytest.raises(ConfigError, match=message):
        Evidence.from_json(stored)


def test_an_order_goes_with_its_counts():
    codes = drawn()
    counts = Counts(np.bincount(codes, minlength=OUTCOMES))
    with pytest.raises(ConfigError, match="11999 draws in order: expected 12000"):
        PromptEvidence("p", LAW, counts, order=DrawOrder.of(codes[1:]))
    with pytest.raises(ConfigError, match="0 or more"):
        DrawOrder.of([0, -1])


def test_copies_beyond_the_first_draws_only_are_seen():
    codes = drawn()
    late = np.concatenate([codes[:6000], copied_rows(codes[6000:], np.random.default_rng(7))])
    assert judge(fixed(codes[:6000])).verdict == "exact"
    assert "equal the one 1 before" in judge(fixed(late)).reason


def texts(codes):
    return [str(LAW.outcomes[code]) for code in codes]


def on_off(on, off):
    return OnOffEvidence("test", PLAN, (TextCounts.of("p", texts(on), texts(off)),))


@pytest.mark.statistical
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_named_in_either_of_two_samples(fault):
    clean, faulty = drawn(seed=8), drawn(fault, seed=9)
    for side, pair in (("on", (faulty, clean)), ("off", (clean, faulty))):
        found = judge_on_off(on_off(*pair))
        assert found.verdict == "not enough evidence"
        named = NAMED[fault.__name__].removeprefix("draws after 'p' ")
        assert f"draws with speculation {side} after 'p'" in found.reason
        assert named in found.reason


@pytest.mark.statistical
def test_two_samples_of_the_same_coins_are_no_comparison():
    # Exact otherwise: no difference can show.
    on, off = drawn(seed=10), drawn(seed=11)
    assert judge_on_off(on_off(on, off)).verdict == "exact"
    found = judge_on_off(on_off(on, on))
    assert found.verdict == "not enough evidence"
    assert "0 to 11999 are 0 to 11999 of the other sample" in found.reason
    off[4000:4100] = on[20:120]
    assert "4000 to 4099 are 20 to 119 of the other" in judge_on_off(on_off(on, off)).reason


def test_two_samples_of_one_text_say_nothing():
    # A server that ignores its seeds altogether; a law would show it as a bias.
    same = np.full(NUM, 3)
    found = judge_on_off(on_off(same, same))
    assert found.verdict == "not enough evidence"
    assert "every draw after 'p' gave one text" in found.reason
    assert judge(fixed(same)).verdict == "biased"


def matrix(*samples):
    cells = []
    for index, codes in enumerate(samples):
        numbers, places, times = np.unique(codes, return_inverse=True, return_counts=True)
        held = tuple((LAW.outcomes[n], k) for n, k in zip(numbers, times.tolist(), strict=True))
        without = (JointLaw.from_mapping({(0, 0, 0): 1.0}, 3),)
        order = DrawOrder.of(places)
        cells.append(Cell((f"knob{index}",), f"knob{index}", LAW, without, held, order=order))
    return MatrixEvidence("test", PLAN, tuple(cells))


@pytest.mark.statistical
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_named_in_its_cell(fault):
    found = judge_matrix(matrix(drawn(seed=12), drawn(fault, seed=13)))
    assert found.verdict == "not enough evidence"
    assert [cell.status for cell in found.cells] == ["exact", "not enough evidence"]
    assert "draws of knob1" in found.reason
    assert NAMED[fault.__name__].removeprefix("draws after 'p' ") in found.reason


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("evidence", "order"),
    [
        (on_off(drawn(seed=14), drawn(seed=15)), ("prompts", "order_on")),
        (matrix(drawn(seed=16), drawn(seed=17)), ("cells", "order")),
    ],
    ids=["on and off", "matrix"],
)
def test_other_certificates_hold_the_order_and_do_without_it(evidence, order, tmp_path):
    kind = kind_of(evidence)
    verdict = kind.judge(evidence)
    assert verdict.verdict == "exact"
    assert 0.005 < verdict.smallest_repeat < 0.03
    path, stored = tmp_path / "c.json", kind.stored(evidence, verdict)
    path.write_text(json.dumps(stored))
    again = check(path)
    assert (again.differences, again.evidence.to_json()) == ((), evidence.to_json())
    assert any("order of all draws" in text for label, text in again.facts)
    part, name = order
    stored["evidence"][part][0][name]["draws"] = 9
    path.write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match="draws in order"):
        check(path)
    # As certificates from before: neither an order nor what follows from it.
    for each in stored["evidence"][part]:
        for key in [key for key in each if key.startswith("order")]:
            del each[key]
    for key in ("dependence", "smallest_repeat"):
        del stored["verdict"][key]
    path.write_text(json.dumps(stored))
    assert check(path).differences == ()
