"""Every verdict, its reasons, and the certificate that recomputes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from draftproof.audit import (
    Certificate,
    DraftTotals,
    Evidence,
    ModelRows,
    Plan,
    PromptEvidence,
    RoundLog,
    fault_named,
    judge,
    plain_law,
    recompute,
    round_laws,
)
from draftproof.audit.fixtures import fixture_tables, seeded_tables
from draftproof.audit.rounds import shipped
from draftproof.audit.shown_drafts import silent_prompts, unshown
from draftproof.audit.verdict import pooled_acceptance
from draftproof.errors import ConfigError
from draftproof.evidence import Counts, JointLaw

KAPPA, HORIZON = 2, 3
TABLES = fixture_tables()
LAW = JointLaw.from_mapping(plain_law(TABLES, HORIZON), HORIZON)
ROWS = ModelRows.from_tables(TABLES, KAPPA, HORIZON)
PLAN = Plan(tv=0.06, calibration_samples=20_000, seed=3)


def counts_of(name: str, draws: int, seed: int = 0, law: JointLaw = LAW) -> Counts:
    joint = fault_named(name).joint_law(TABLES, KAPPA, HORIZON)
    probs = np.array([joint[o] for o in law.outcomes])
    return Counts(np.random.default_rng(seed).multinomial(draws, probs))


def log_of(rule: str, rounds: int) -> RoundLog:
    laws = round_laws(TABLES, shipped(rule), KAPPA).accepted
    lengths = sorted(laws)
    kept = np.random.default_rng(1).choice(lengths, size=rounds, p=[laws[n] for n in lengths])
    return RoundLog(
        (KAPPA,) * rounds, tuple(kept.tolist()), tuple((kept + 1).tolist()), (False,) * rounds
    )


def rounds_of(drafting: int, plain: int = 0) -> RoundLog:
    num = drafting + plain
    drafted = (1,) * drafting + (0,) * plain
    return RoundLog(drafted, (0,) * num, (1,) * num, (False,) * num)


def evidence(counts: Counts, **options) -> Evidence:
    prompt = {k: options.pop(k) for k in ("rounds", "model", "serial") if k in options}
    return Evidence("test", PLAN, (PromptEvidence("prompt", LAW, counts, **prompt),), **options)


def test_enough_draws_of_the_law_are_called_exact() -> None:
    found = judge(
        evidence(
            counts_of("exact", 10_000),
            rounds=log_of("standard", 4000),
            model=ROWS,
            rule="standard",
        )
    )
    assert (found.verdict, found.exit_code, found.findings) == ("exact", 0, ())
    assert found.smallest_shared <= PLAN.tv
    assert found.power.worst >= PLAN.power - 0.02
    assert "would have been seen with probability 0.99" in found.reason
    assert found.diagnosis is None
    assert found.worst_nodes == ()


def test_a_bias_is_sized_placed_and_named() -> None:
    found = judge(evidence(counts_of("target drawn again on reject", 20_000), model=ROWS))
    assert (found.verdict, found.exit_code) == ("biased", 1)
    assert found.diagnosis.name == "target drawn again on reject"
    joint = fault_named("target drawn again on reject").joint_law(TABLES, KAPPA, HORIZON)
    tv = sum(abs(joint[o] - p) for o, p in zip(LAW.outcomes, LAW.probs, strict=True)) / 2
    assert found.estimates[0].low <= tv <= found.estimates[0].high
    assert found.estimates[0].value == pytest.approx(tv, abs=0.02)
    assert found.worst_nodes[0].adjusted < 0.01
    assert "best explanation: target drawn again on reject" in found.findings


def test_too_few_draws_are_not_enough() -> None:
    found = judge(evidence(counts_of("exact", 300)))
    assert (found.verdict, found.exit_code) == ("not enough evidence", 3)
    assert found.smallest_shared > PLAN.tv


def test_one_impossible_draw_is_enough() -> None:
    cells = counts_of("exact", 300).cells
    found = judge(evidence(Counts(cells, {(8, 8, 8): 1})))
    assert found.verdict == "biased"
    assert "1 draws that the reference law cannot give" in found.reason


def test_plain_decoding_is_no_evidence_for_speculation() -> None:
    silent = RoundLog((0,) * 50, (0,) * 50, (1,) * 50, (False,) * 50)
    for expects, verdict in ((True, "not enough evidence"), (False, "exact")):
        found = judge(
            evidence(counts_of("exact", 10_000), rounds=silent, expects_speculation=expects)
        )
        assert found.verdict == verdict
        assert "speculation never happened" in found.findings


# The law has a horizon of 3, so that N drafting rounds were of N / 3 draws at least.
@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        ([{}], "does not tell whether it drafted after 'p0'; where that is known, --drafts"),
        (
            [{"rounds": rounds_of(1)}],
            "certain in 3.34e-05 of the draws after 'p0', 0.1 is expected",
        ),
        ([{"rounds": rounds_of(2990, 9000)}], "certain in 0.0998 of the draws after 'p0', 0.1 is"),
        ([{"rounds": rounds_of(4000)}, {}], "does not tell whether it drafted after 'p1'"),
        (
            [{"rounds": rounds_of(4000)}, {"rounds": rounds_of(0, 9000)}],
            "nothing was drafted after 'p1'",
        ),
        ([{"totals": DraftTotals(90, 400, 300)}], "certain in 0.01 of the draws"),
        ([{"totals": DraftTotals(2000, None, 9000)}], "certain in 0.0667 of the draws"),
        ([{"totals": DraftTotals(900, 2700, 900, 900)}], "certain in 0.0901 of the draws"),
        ([{"totals": DraftTotals(0, 0, 0)}], "nothing was drafted after 'p0'"),
        ([{"rounds": rounds_of(3000, 9000)}], ""),
        ([{"rounds": rounds_of(4000)}, {"totals": DraftTotals(0, 9000, 3000)}], ""),
        ([{"totals": DraftTotals(3000)}], ""),
        ([{"totals": DraftTotals(0, 2700, None, 1000)}], ""),
    ],
)
def test_exact_needs_drafts_in_a_tenth_of_the_draws_of_every_prompt(logs, reason) -> None:
    counts = Counts(np.full(len(LAW), 10_000 // len(LAW)))
    prompts = [PromptEvidence(f"p{i}", LAW, counts, **log) for i, log in enumerate(logs)]
    num = counts.num_draws
    assert num == pytest.approx(10_000, abs=30)
    held = Evidence("test", PLAN, tuple(prompts))
    silent = silent_prompts(held, pooled_acceptance(held))
    assert (reason in silent) if reason else not silent
    assert bool(silent) == bool(reason)
    for assumed in (False, True):
        stated = replace(held, expects_speculation=False, assumes_speculation=assumed)
        assert not silent_prompts(stated, pooled_acceptance(stated))
        said = "stated, not shown" if assumed else "nothing is said about speculation"
        assert (said in unshown(stated)) == bool(reason)
    assert not unshown(held)


def test_a_verdict_follows_what_is_stated_about_drafts() -> None:
    counts = counts_of("exact", 10_000)
    assert judge(evidence(counts)).verdict == "not enough evidence"
    vouched = evidence(counts, expects_speculation=False, assumes_speculation=True)
    found = judge(vouched)
    assert found.verdict == "exact"
    assert found.reason.endswith("; that it speculated was stated, not shown")
    stored = json.loads(json.dumps(vouched.to_json()))
    assert Evidence.from_json(stored).to_json() == stored
    assert Evidence.from_json(stored).assumes_speculation
    # A bias needs no drafts to show.
    wrong = judge(evidence(counts_of("target drawn again on reject", 20_000)))
    assert wrong.verdict == "biased"
    with pytest.raises(ConfigError, match="both expected and assumed"):
        replace(vouched, expects_speculation=True)


def test_draws_that_depend_on_each_other_are_not_pooled() -> None:
    rng = np.random.default_rng(4)
    draws = rng.choice(len(LAW), size=10_000, p=LAW.probs)
    cells = np.bincount(draws, minlength=len(LAW))
    seen = {"serial": tuple(draws.tolist()), "rounds": log_of("standard", 4000)}
    fair = judge(evidence(Counts(cells), **seen))
    assert fair.verdict == "exact"
    for i in range(1, len(draws)):
        if rng.random() < 0.3:
            draws[i] = draws[i - 1]
    cells = np.bincount(draws, minlength=len(LAW))
    found = judge(evidence(Counts(cells), serial=tuple(draws.tolist())))
    assert found.verdict == "not enough evidence"
    assert "draws depend on each other" in found.findings


def test_exact_but_slow_and_fast_because_biased() -> None:
    slow = judge(
        evidence(
            counts_of("exact", 10_000),
            rounds=log_of("sample-match", 4000),
            model=ROWS,
            rule="standard",
        )
    )
    assert slow.verdict == "exact"
    assert slow.findings == ("exact but slow",)
    hasty = RoundLog((KAPPA,) * 900, (KAPPA,) * 900, (KAPPA + 1,) * 900, (False,) * 900)
    fast = judge(evidence(counts_of("first draft unchecked", 5000), rounds=hasty, model=ROWS))
    assert fast.verdict == "biased"
    assert "fast because biased" in fast.findings


def test_several_prompts_are_judged_together() -> None:
    prompts = []
    for seed in range(4):
        tables = seeded_tables(seed)
        law = JointLaw.from_mapping(plain_law(tables, 2), 2)
        cells = np.random.default_rng(seed).multinomial(4000, law.probs)
        prompts.append(PromptEvidence(f"prompt {seed}", law, Counts(cells), rounds_of(1000)))
    plan = Plan(tv=0.08, calibration_samples=10_000)
    good = judge(Evidence("four prompts", plan, tuple(prompts)))
    assert good.verdict == "exact"
    assert good.smallest_shared < good.smallest_single < 0.2
    cells = prompts[2].counts.cells.copy()
    cells[0] += 600
    prompts[2] = PromptEvidence("prompt 2", prompts[2].law, Counts(cells))
    bad = judge(Evidence("four prompts", plan, tuple(prompts)))
    assert bad.verdict == "biased"
    assert bad.combined.worst == 2


# --- the stored form --------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored() -> dict:
    held = evidence(
        counts_of("lenience", 20_000),
        rounds=log_of("standard", 300),
        model=ROWS,
        rule="standard",
        notes={"command": "draftproof audit ..."},
    )
    return json.loads(json.dumps(Certificate.of(held).to_json(), allow_nan=False))


def test_a_certificate_recomputes_from_its_counts(stored, tmp_path) -> None:
    path = tmp_path / "cert.json"
    Certificate.from_json(stored).save(path)
    loaded = Certificate.load(path)
    verdict, differences = recompute(loaded)
    assert differences == ()
    assert verdict.verdict == "biased"
    assert loaded.evidence.notes == {"command": "draftproof audit ..."}
    assert loaded.to_json() == stored


def test_a_changed_count_or_verdict_is_noticed(stored) -> None:
    changed = json.loads(json.dumps(stored))
    changed["evidence"]["prompts"][0]["counts"][3] += 40
    assert "tests" in recompute(Certificate.from_json(changed))[1]
    changed = json.loads(json.dumps(stored))
    changed["verdict"]["verdict"] = "exact"
    assert recompute(Certificate.from_json(changed))[1] == ("verdict",)


def test_other_schemas_and_broken_files_are_refused(stored, tmp_path) -> None:
    with pytest.raises(ConfigError, match="schema 'draftproof-audit/9'"):
        Certificate.from_json({**stored, "schema": "draftproof-audit/9"})
    with pytest.raises(ConfigError, match="expected both"):
        Certificate.from_json({"schema": stored["schema"]})
    broken = json.loads(json.dumps(stored))
    del broken["evidence"]["prompts"][0]["probs"]
    with pytest.raises(ConfigError, match="stored evidence"):
        Certificate.from_json(broken)
    broken = json.loads(json.dumps(stored))
    broken["evidence"]["prompts"][0]["counts"].pop()
    with pytest.raises(ConfigError, match="26 counts of 27 outcomes"):
        Certificate.from_json(broken)
    for text in ("{", "[]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match="expected"):
            Certificate.load(tmp_path / "bad.json")
    for wrong in ({"tv": 0.0}, {"power": 1.0}, {"alpha": 0.0}):
        with pytest.raises(ConfigError):
            Plan(**wrong)
    with pytest.raises(ConfigError):
        Evidence("nothing", PLAN, ())
    with pytest.raises(ConfigError):
        evidence(counts_of("exact", 10), rule="coupled")


def test_rows_give_the_tables_back() -> None:
    tables = ROWS.tables()
    assert plain_law(tables, HORIZON) == pytest.approx(plain_law(TABLES, HORIZON))
    for name in ("block draws the token residual", "row of the position before"):
        fault = fault_named(name)
        again = fault.joint_law(tables, KAPPA, HORIZON)
        assert again == pytest.approx(fault.joint_law(TABLES, KAPPA, HORIZON))


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (((5,), (5,), (-3,), (False,)), "-3 tokens emitted"),
        (((2.5,), (1,), (2,), (False,)), "drafted 2.5"),
        (((2,), (1,), (True,), (False,)), "emitted True"),
        (((2,), (3,), (4,), (False,)), "3 drafts kept of 2"),
    ],
)
def test_rounds_that_cannot_be_are_refused(columns, named) -> None:
    with pytest.raises(ConfigError, match=named):
        RoundLog(*columns)
    RoundLog((5,), (5,), (5,), (False,))  # a missing bonus token is a finding


@pytest.mark.parametrize(
    ("entry", "change", "named"),
    [
        ("counts", lambda held: [held[0] + 0.5, *held[1:]], "count is"),
        ("counts", lambda held: ["7", *held[1:]], "count is '7'"),
        ("impossible", lambda _held: [[[9, 9, 9], -2]], "impossible outcome is -2"),
        ("rounds", lambda held: [[*held[0][:4], -3], *held[1:]], "equal rounds is -3"),
        ("rounds", lambda held: [[3, 3, 1, True, 99_999], *held], "99999 rounds cut in"),
        ("samples", lambda _held: [[[], [1], 0, 0]], "equal rounds is 0"),
        ("samples", lambda _held: [[[], [1], 0.5, 2]], "kept drafts is 0.5"),
        ("samples", lambda _held: [[[], [], 0, 2]], "emitted nothing"),
        ("serial", lambda _held: ["a"], "draw in order is 'a'"),
        ("serial", lambda _held: [0, -2], "draw in order is -2"),
    ],
)
def test_numbers_of_a_file_that_cannot_be_are_refused(stored, entry, change, named) -> None:
    held = json.loads(json.dumps(stored))
    prompt = held["evidence"]["prompts"][0]
    prompt[entry] = change(prompt.get(entry, []))
    with pytest.raises(ConfigError, match=named):
        Evidence.from_json(held["evidence"])
