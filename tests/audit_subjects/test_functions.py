"""Functions of Python and files of laws."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.audit import Certificate, Evidence, Plan, judge, recompute
from draftproof.audit.subjects import (
    CallableSubject,
    LawFile,
    Policy,
    PythonRecipe,
    padded,
    prompt_evidence,
    read_laws,
    write_laws,
)
from draftproof.audit.subjects.draws import overlong
from draftproof.audit.subjects.python_callable import find_callable, policy_dict
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError
from draftproof.evidence import JointLaw

LAW = JointLaw.from_mapping({(0, 0): 0.5, (0, 1): 0.2, (2,): 0.3}, 2, [2])
POLICY = Policy(SamplingParams(temperature=0.7, top_k=3), 2, frozenset({2}))


def test_laws_come_back_from_a_file_to_the_bit(tmp_path):
    path = tmp_path / "laws.json"
    write_laws(path, [LawFile("a", (1, 2), LAW), LawFile("b", (3,), LAW)])
    first, second = read_laws(path)
    assert (first.name, first.prompt_ids, second.prompt_ids) == ("a", (1, 2), (3,))
    assert first.law.digest() == LAW.digest()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": "x"}', '{"schema": "draftproof-laws/1"}']
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "laws.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"laws\.json"):
        read_laws(path)


def test_a_function_is_told_the_policy_and_its_rounds_are_kept():
    seen = []

    def decode(prompt_ids, policy, n):
        seen.append((prompt_ids, policy))
        return {"samples": [[0, 1]] * n, "rounds": [(2, 1, 2)] * n + [(2, 2, 1, True)]}

    drawn = CallableSubject(decode).draw([4, 5], POLICY, 2, 11)
    assert seen == [
        (
            (4, 5),
            {"temperature": 0.7, "top_k": 3, "max_tokens": 2, "eos_token_ids": [2], "seed": 11},
        )
    ]
    assert drawn.rounds == {(2, 1, 2, False): 2, (2, 2, 1, True): 1}
    assert drawn.log().accepted == (1, 1, 2)
    np.testing.assert_array_equal(drawn.tokens, [[0, 1], [0, 1]])


def test_samples_that_are_no_rows_are_refused():
    with pytest.raises(ConfigError, match="samples of list"):
        CallableSubject(lambda *_: [[[0], [1, 2]]] * 2).draw([1], POLICY, 2, 0)


def test_a_function_without_rounds_reports_none():
    drawn = CallableSubject(lambda p, q, n: np.zeros((n, 2), int)).draw([1], POLICY, 2, 0)
    assert drawn.log() is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([[0, 1]], "1 samples were returned, 3"),
        ({"samples": []}, "expected samples and rounds"),
        ({"samples": [[0]] * 3, "rounds": [(1,)]}, "a round"),
        ({"samples": [[0]] * 3, "rounds": [5]}, "a round 5"),
        ({"samples": [[0]] * 3, "rounds": ["abc"]}, "a round 'abc'"),
        ({"samples": [[0]] * 3, "rounds": 5}, "rounds 5"),
    ],
)
def test_wrong_answers_are_refused(answer, message):
    with pytest.raises(BackendError, match=message):
        CallableSubject(lambda p, q, n: answer).draw([1], POLICY, 3, 0)


def test_samples_must_be_token_ids():
    np.testing.assert_array_equal(padded([[1, 2, 3], [4]], 2), [[1, 2], [4, -1]])
    with pytest.raises(ConfigError, match="expected a sequence of token ids"):
        padded(["ab"], 2)
    with pytest.raises(ConfigError, match="int"):
        padded(3, 2)


def test_a_policy_at_rest_is_empty():
    assert policy_dict(Policy(SamplingParams(), 1)) == {"max_tokens": 1, "eos_token_ids": []}


@pytest.mark.parametrize("name", ["json", "json:", "no_such_module:f", "json:nothing", "sys:path"])
def test_functions_that_are_none_are_refused(name):
    with pytest.raises(ConfigError, match=name.partition(":")[0]):
        find_callable(name)
    with pytest.raises(ConfigError):
        PythonRecipe(name)()


@pytest.mark.parametrize(
    ("samples", "count"),
    [
        ([[1, 2, 0], [1, 3], [3]], 0),
        ([[1, 3, 3], [3, 3, 3]], 0),  # rows filled with the end token itself
        (np.array([[1, 3, -1], [1, 2, 0]]), 0),
        ([[1, 3, 2], [3, 1, 1]], 2),  # an end in the middle of a block that ended nothing
        ([[1, 2, 0, 1], [1, 2, 0, 3], [1, 2, 0]], 2),  # a budget that nobody looked at
    ],
)
def test_texts_that_go_on_behind_their_end_are_counted_and_told(samples, count):
    policy = Policy(SamplingParams(), 3, frozenset({3}))
    assert overlong(samples, policy) == count
    drawn = CallableSubject(lambda *_: samples).draw((0,), policy, len(samples), 1)
    assert drawn.merge(drawn).num_overlong == 2 * count
    law = JointLaw.from_mapping({(1, 2, 0): 0.5, (1, 3): 0.25, (3,): 0.25}, 3, frozenset({3}))
    plan = Plan(tv=0.5, calibration_samples=4000)
    held = Evidence("f", plan, (prompt_evidence("p", law, drawn),), expects_speculation=False)
    verdict = judge(held)
    assert any(f"{count} of" in finding for finding in verdict.findings) == bool(count)
    assert recompute(Certificate.from_json(Certificate.of(held).to_json()))[1] == ()
