"""Draft lengths that are chosen: what a configuration may say, and which policy it makes."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from draftproof.build import SpeculativeConfig
from draftproof.build.lengths import (
    BUILT_IN_MS,
    BUILT_IN_TOKENS,
    built_in_cost,
    drafter_key,
    make_policy,
)
from draftproof.core.kappa_policy import RowState
from draftproof.core.types import ModelInfo, StepRecord
from draftproof.errors import ConfigError
from draftproof.planner.calibrate import MachineRates
from draftproof.planner.calibrate_rounds import Overheads
from draftproof.planner.controller import GoodputController
from draftproof.planner.fit import Cell
from draftproof.planner.profile import Profile, read_profile, write_profile
from draftproof.planner.rounds import TableDraft

TARGET = ModelInfo("small", "openvino", 100, 1000, precision="int8")
AUTO = {"method": "ngram", "num_speculative_tokens": "auto"}
MEASURED = Path(__file__).parents[2] / "benchmarks/results/verify_cost.json"
RANGES = [[1, 4, 5], [5, 8, 2], [9, 32, 0]]


def policy_of(value, target=TARGET, proposer="ngram"):
    return make_policy(SpeculativeConfig.parse(value), target, proposer)


def profile_at(path, pass_s=lambda tokens: 0.02 + 0.001 * tokens, drafters=("ngram",)):
    """A profile whose passes cost what a function says."""
    cells = [
        Cell(batch, width, context, (pass_s(batch * width),) * 3)
        for batch in (1, 2, 4)
        for width in (1, 2, 4, 8, 16)
        for context in (16, 256)
    ]
    tables = {name: TableDraft((1, 4), (1, 4), np.full((2, 2), 1e-4)) for name in drafters}
    profile = Profile(
        "small", "openvino", "int8", {}, tuple(cells), tables,
        Overheads(1e-4, 1e-5, 0.0), MachineRates(1e10, 1e10),
    )  # fmt: skip
    write_profile(profile, path)
    return str(path)


def converge(policy, accept, rounds=60, proposer="ngram", batch=1):
    """Play rounds in which the first ``accept`` drafts survive; return the last choices."""
    for turn in range(rounds):
        rows = [RowState(f"r{i}", 100 + turn, 15, (proposer,)) for i in range(batch)]
        choices = policy.choose(rows)
        for row, choice in zip(rows, choices, strict=True):
            kept = min(accept, choice.kappa)
            policy.observe(StepRecord(row.request_id, turn, (0,) * choice.kappa, kept, (0,)))
    return [choice.kappa for choice in choices]


# What may be asked for --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ngram", "suffix", "prediction", "early_exit"])
def test_auto_has_a_most_that_every_mode_allows(method):
    value = {"method": method, "num_speculative_tokens": "auto"}
    config = SpeculativeConfig.parse(value | ({"num_layers": 2} if method == "early_exit" else {}))
    assert config.is_auto
    assert 8 <= config.kappa <= 15


def test_a_schedule_is_taken_as_the_planner_and_vllm_write_it():
    config = SpeculativeConfig.parse(
        {"method": "ngram", "num_speculative_tokens_per_batch_size": RANGES}
    )
    assert (config.kappa, config.is_auto) == (5, False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"method": "ngram", "num_speculative_tokens": "much"}, "num_speculative_tokens.*'much'"),
        ({"num_speculative_tokens": "auto"}, "no method drafts"),
        ({**AUTO, "method": "ngram_tree"}, "'auto' counts chains only"),
        ({"method": "ngram", "profile": "x.json"}, "profile has no effect unless"),
        ({**AUTO, "num_speculative_tokens_per_batch_size": RANGES}, "expected one of them"),
        ({"num_speculative_tokens_per_batch_size": RANGES}, "no effect with method 'none'"),
        (
            {"method": "ngram", "num_speculative_tokens_per_batch_size": [[2, 4, 1]]},
            r"has \[2, 4, 1\].*here \[1, 1 or more",
        ),
        (
            {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 1], [6, 8, 0]]},
            r"has \[6, 8, 0\].*here \[5, 5 or more",
        ),
        (
            {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, -1]]},
            r"has \[1, 4, -1\]",
        ),
        (
            {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "num_speculative_tokens_per_batch_size": RANGES,
            },
            "has 5; expected .*at most num_speculative_tokens, 3",
        ),
        ({"method": "ngram", "num_speculative_tokens_per_batch_size": []}, "no range"),
    ],
)
def test_lengths_that_contradict_are_refused(value, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        SpeculativeConfig.parse(value)
    assert "\n" not in str(caught.value)


# Which policy it makes --------------------------------------------------------------------------


def test_a_number_needs_no_policy():
    assert policy_of({"method": "ngram", "num_speculative_tokens": 4}) == (None, "")
    assert policy_of(None, proposer="none") == (None, "")


@pytest.mark.parametrize(("batch", "kappa"), [(1, 5), (4, 5), (5, 2), (8, 2), (9, 0), (40, 0)])
def test_a_schedule_goes_by_the_rows_that_decode(batch, kappa):
    policy, note = policy_of({"method": "ngram", "num_speculative_tokens_per_batch_size": RANGES})
    rows = [RowState(f"r{i}", 10, 8, ("ngram",)) for i in range(batch)]
    assert [choice.kappa for choice in policy.choose(rows)] == [kappa] * batch
    assert not note


def test_auto_without_a_profile_says_whose_costs_it_follows():
    policy, note = policy_of(AUTO)
    assert isinstance(policy, GoodputController)
    assert "built-in costs" in note
    assert "calibrate" in note
    assert converge(policy, accept=15)[0] > 7
    assert converge(policy_of(AUTO)[0], accept=0)[0] == 0


def test_a_profile_decides(tmp_path):
    steep = profile_at(tmp_path / "steep.json", lambda tokens: 0.02 * tokens)
    flat = profile_at(tmp_path / "flat.json", lambda tokens: 0.02 + 1e-5 * tokens)
    lengths = {}
    for path in (steep, flat):
        policy, note = policy_of({**AUTO, "profile": path})
        assert not note
        lengths[path] = converge(policy, accept=2)[0]
    assert lengths[steep] == 0
    assert lengths[flat] >= 2


def test_a_profile_of_something_else_is_noted(tmp_path):
    path = profile_at(tmp_path / "p.json")
    _policy, note = policy_of(
        {**AUTO, "profile": path}, ModelInfo("other", "torch", 9, 99, precision="f32")
    )
    assert "small openvino int8" in note
    assert "other torch f32" in note


def test_drafters_that_look_up_are_priced_as_the_measured_one(tmp_path):
    path = profile_at(tmp_path / "p.json", drafters=("ngram", "draft-model"))
    for method in ("suffix", "prediction"):
        value = {"method": method, "num_speculative_tokens": "auto", "profile": path}
        assert policy_of(value, proposer=method)[0] is not None


def test_a_draft_model_needs_its_costs(tmp_path):
    value = {"model": "small.gguf", "num_speculative_tokens": "auto"}
    with pytest.raises(ConfigError, match="draftproof calibrate -m MODEL -md DRAFT"):
        policy_of(value, proposer="draft-model")
    lacking = profile_at(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="'draft-model' is not in the profile"):
        policy_of({**value, "profile": lacking}, proposer="draft-model")


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"method": "early_exit", "num_layers": 6}, "early-exit:6"),
        ({"method": "draft_head", "model": "a-head"}, "draft-head"),
        ({"method": "hybrid", "num_layers": 4}, "early-exit:4"),
        ({"method": "hybrid", "model": "small.gguf"}, "draft-model"),
    ],
)
def test_what_drafts_with_layers_or_a_head_is_priced_by_its_own_name(tmp_path, value, key):
    value = {**value, "num_speculative_tokens": "auto"}
    assert drafter_key(SpeculativeConfig.parse(value)) == key
    with pytest.raises(ConfigError, match="draftproof calibrate -m MODEL"):
        policy_of(value, proposer="x")
    lacking = profile_at(tmp_path / "lacking.json", drafters=("ngram", "early-exit:5"))
    with pytest.raises(ConfigError, match=f"'{key}' is not in the profile; measured: ngram, early"):
        policy_of({**value, "profile": lacking}, proposer="x")
    priced = profile_at(tmp_path / "priced.json", drafters=("ngram", key))
    policy, note = policy_of({**value, "profile": priced}, proposer="x")
    assert not note
    assert converge(policy, accept=9, proposer="x")[0] >= 6


def test_the_price_of_a_draft_decides(tmp_path):
    # Passes are flat: only the drafting itself can make drafts not pay.
    value = {"method": "early_exit", "num_layers": 6, "num_speculative_tokens": "auto"}
    lengths = []
    for each_s in (1e-4, 5e-2):
        path = tmp_path / f"{each_s}.json"
        profile_at(path, lambda tokens: 0.02 + 1e-5 * tokens, drafters=("early-exit:6",))
        document = json.loads(path.read_text())
        table = document["drafters"]["early-exit:6"]
        table["seconds"] = [[each_s * kappa for kappa in table["kappas"]]] * 2
        path.write_text(json.dumps(document))
        lengths.append(converge(policy_of({**value, "profile": str(path)})[0], accept=9)[0])
    assert lengths[0] >= 6
    assert lengths[1] == 0


@pytest.mark.parametrize(
    ("enough", "measured", "copied"),
    [
        (1, ("ngram", "draft-model"), 15),
        (1, ("draft-model",), 15),
        (2, ("ngram", "draft-model"), 0),
    ],
)
def test_copies_of_a_hybrid_cost_a_look_up_where_its_model_is_not_asked(
    tmp_path, enough, measured, copied
):
    path = tmp_path / "p.json"
    profile_at(path, lambda tokens: 0.02 + 1e-5 * tokens, drafters=measured)
    document = json.loads(path.read_text())
    table = document["drafters"]["draft-model"]
    table["seconds"] = [[0.5 * kappa for kappa in table["kappas"]]] * 2
    path.write_text(json.dumps(document))
    value = {"method": "hybrid", "model": "small.gguf", "num_speculative_tokens": "auto"}
    value |= {"profile": str(path), "hybrid_enough": enough}
    for sign, most in ((-1, 0), (3, copied)):
        policy, _note = policy_of(value, proposer="hybrid")
        for turn in range(40):
            (choice,) = policy.choose([RowState("a", 100 + turn, 15, ("hybrid",), (sign,))])
            drafted = (0,) * choice.kappa
            policy.observe(StepRecord("a", turn, drafted, choice.kappa, (0,)))
        assert choice.kappa == min(most, 12)


# Built-in costs ---------------------------------------------------------------------------------


def test_built_in_costs_are_the_measured_ones():
    document = json.loads(MEASURED.read_text(encoding="utf-8"))
    for result in document["results"]:
        fastest = [
            min(each["median_ms"] for each in result["passes"] if each["rows"] * each["width"] == n)
            for n in BUILT_IN_TOKENS
        ]
        assert BUILT_IN_MS[result["precision"]] == pytest.approx(fastest, abs=0.006)


def test_the_built_in_change_of_shape_is_no_more_than_the_measured_one():
    path = MEASURED.with_name("shape_change.json")
    medians = {
        name: each["median"]
        for name, each in json.loads(path.read_text(encoding="utf-8"))["ms_per_pass"].items()
    }
    measured = [
        medians[f"1 and {n} in turns, one graph"]
        - (medians["1 alone, one graph"] + medians[f"{n} alone, one graph"]) / 2
        for n in (4, 5)
    ]
    held = built_in_cost("int8").change_s * 1e3
    assert 0.8 * min(measured) <= held <= min(measured)


def test_a_profile_says_what_a_change_of_shape_costs(tmp_path):
    path = tmp_path / "p.json"
    profile_at(path)
    document = json.loads(path.read_text())
    lengths = []
    for change_s in (0.0, 0.5):
        document["overheads"]["change_s"] = change_s
        path.write_text(json.dumps(document))
        assert read_profile(path).round_cost("ngram").change_s == change_s
        lengths.append(converge(policy_of({**AUTO, "profile": str(path)})[0], 1, rounds=1)[0])
    assert lengths[0] > lengths[1] == 0
    del document["overheads"]["change_s"]  # as profiles of before
    path.write_text(json.dumps(document))
    assert read_profile(path).round_cost("ngram").change_s == 0.0


@pytest.mark.parametrize("precision", [*BUILT_IN_MS, "unheard of"])
def test_more_tokens_never_cost_less(precision):
    cost = built_in_cost(precision)
    seconds = cost.pass_seconds(1, np.arange(1.0, 200.0), 100.0)
    assert all(after >= before for before, after in pairwise(seconds))
    assert seconds[-1] > 2 * seconds[31]


# Trees -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "drafters"),
    [
        ({"method": "ngram_tree"}, ("ngram",)),
        ({"method": "suffix_tree"}, ("ngram",)),
        ({"method": "prediction_tree"}, ("ngram",)),
        ({"method": "draft_model_tree", "model": "x"}, ("draft-model",)),
        ({"method": "hybrid_tree", "model": "x"}, ("draft-model",)),
        ({"method": "draft_model_tree", "num_layers": 8}, ("ngram", "early-exit:8")),
    ],
)
def test_a_profile_says_how_many_nodes_a_tree_has(tmp_path, value, drafters):
    path = profile_at(tmp_path / "p.json", lambda n: 0.02 + 0.0005 * n, drafters=drafters)
    policy, note = policy_of({**value, "profile": path, "num_speculative_tokens": 9}, proposer="t")
    assert note == ""

    def size(batch):
        return policy.choose([RowState(f"r{i}", 100, 15, ("t",)) for i in range(batch)])[0].kappa

    sizes = [size(batch) for batch in (1, 4, 32)]
    assert sizes == sorted(sizes, reverse=True)
    assert 9 >= sizes[0] > sizes[2]
    assert policy_of(value, proposer="t") == (None, "")


@pytest.mark.parametrize(
    "value",
    [
        {"method": "suffix_tree"},
        {"method": "ngram_tree"},
        {"method": "draft_model_tree", "model": "x"},
        {"method": "draft_head_tree", "model": "x"},
    ],
)
def test_a_tree_that_was_measured_is_priced_by_what_it_took(tmp_path, value):
    key = value["method"].replace("_", "-")
    drafters = ("ngram", "draft-model", "draft-head", key)
    path = Path(profile_at(tmp_path / "p.json", lambda n: 0.02 + 1e-5 * n, drafters=drafters))

    def size():
        config = {**value, "profile": str(path), "num_speculative_tokens": 9}
        policy, _ = policy_of(config, proposer="t")
        return policy.choose([RowState("r", 100, 15, ("t",))])[0].kappa

    assert size() > 3
    document = json.loads(path.read_text())
    document["drafters"][key]["seconds"] = [[9.0, 9.0], [9.0, 9.0]]
    path.write_text(json.dumps(document))
    assert size() == 0


def test_profiles_that_do_not_serve_a_tree_are_refused(tmp_path):
    path = profile_at(tmp_path / "p.json", drafters=("early-exit:4",))
    with pytest.raises(ConfigError, match="drafter 'draft-model' is not in the profile"):
        policy_of({"method": "draft_model_tree", "model": "x", "profile": path})
    with pytest.raises(ConfigError, match="profile and num_speculative_tokens_per_batch_size"):
        SpeculativeConfig.parse(
            {
                "method": "ngram_tree",
                "profile": path,
                "num_speculative_tokens_per_batch_size": RANGES,
            }
        )
