"""Every option acts as it does with speculation off, or is refused by name (PR-1, PR-2)."""

from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest
from engine_kit import (
    VOCAB,
    ListConstraint,
    Pieces,
    answers,
    corrupt_every,
    make_core,
    make_engine,
    plain,
    requests,
    run,
    sentences,
    written,
)

from draftproof.backends.table import ArrayTable, MarkovTable, TableBackend
from draftproof.core.history import History
from draftproof.core.params import SamplingParams
from draftproof.engine import Engine, GenerateRequest
from draftproof.engine import step as step_module
from draftproof.errors import ConfigError, PromptError
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.scripted import FixedProposer, OracleProposer
from draftproof.verify import executor as executor_module

LETTERS = Pieces([bytes([letter]) for letter in b"abcdef"])
END = 6
PROMPT = [0, 1, 2, 0, 1]

#: Token sequences that a grammar may allow; some go one way for a while, which is a draft.
SAYINGS = [
    (0, 1, 2, 3, 4, 5, 0, 1),
    (0, 1, 2, 3, 1, 5, 5, 5),
    (3, 3, 2, 1, 0, 2, 2, 2),
    (3, 2, 2, 1, 0, 1, 1, 2),
]
#: Two settings of each option whose texts differ, and options that must stand beside them.
OPPOSITES = {
    "max_tokens": (7, 23, {}),
    "temperature": (0.0, 1.5, {}),
    "top_k": (1, 5, {"temperature": 1.0}),
    "top_p": (0.05, 1.0, {"temperature": 1.0}),
    "min_p": (0.0, 1.0, {"temperature": 1.0}),
    "repetition_penalty": (0.5, 3.0, {}),
    "presence_penalty": (-2.0, 2.0, {}),
    "frequency_penalty": (-2.0, 2.0, {}),
    "logit_bias": ({3: -50.0}, {3: 50.0}, {}),
    "allowed_token_ids": ([0, 1], [2, 3], {}),
    "banned_token_ids": ([0, 1, 2], [3, 4, 5], {}),
    "min_tokens": (0, 20, {"temperature": 1.0}),
    "stop": ("a", "b", {"temperature": 1.0, "ignore_eos": True}),
    "stop_token_ids": ([0], [1], {"temperature": 1.0, "ignore_eos": True}),
    "stop_criterion": (lambda out: len(out) == 5, lambda out: out[-1] == 2, {"ignore_eos": True}),
    "ignore_eos": (False, True, {"temperature": 1.5}),
    "seed": (1, 2, {"temperature": 1.0}),
    "stream": (0, 1, {"temperature": 1.0}),
    "logprobs": (None, 3, {}),
    "logprobs_mode": ("raw", "processed", {"logprobs": 3, "temperature": 0.5, "seed": 5}),
    "grammar": (sentences(*SAYINGS[:2]), sentences(*SAYINGS[2:]), {"ignore_eos": True}),
}
#: Options that say how to speculate, or what to tell of it: none of them may change the text.
OF_SPECULATION = {
    "num_speculative_tokens", "max_speculative_tokens", "proposer", "rule", "request_id",
    "prediction", "tenant", "trace",
}  # fmt: skip


def engine(kappa, rule="sample-match", proposers=None):
    if proposers is None:
        proposers = [FixedProposer((1, 2)), NgramProposer(1, 3)]
    return make_engine(
        tokenizer=LETTERS,
        proposers=proposers,
        kappa=kappa,
        rule=rule,
        constraints=ListConstraint.factory(),
    )


def outcome(result):
    tokens = [(t.token_id, t.logprob, t.top_logprobs) for t in result.tokens]
    return tokens, result.text, result.finish_reason, result.stop_reason


def generate(make, **options):
    return make().generate(PROMPT, **{"seed": 5, "max_tokens": 30, **options})


def test_the_matrix_covers_every_option():
    options = set(inspect.signature(Engine.request).parameters) - {"self", "prompt"}
    assert options == set(OPPOSITES) | OF_SPECULATION
    covered = options | {"prompt_ids", "params", "kappa", "max_kappa", "eos_token_ids"}
    covered |= {"order", "stages", "stages_under_a_mask"}
    for kind in (GenerateRequest, SamplingParams):
        assert {field.name for field in fields(kind)} <= covered


@pytest.mark.parametrize("rule", ["coupled", "sample-match"])
@pytest.mark.parametrize("proposer", ["fixed", "ngram", "draft-model"])
@pytest.mark.parametrize("option", OPPOSITES)
def test_an_option_acts_as_with_speculation_off(option, proposer, rule):
    low, high, beside = OPPOSITES[option]

    def on():
        model = DraftModelProposer(TableBackend(MarkovTable(VOCAB, 1, seed=8)))
        drafters = [FixedProposer((1, 2)), NgramProposer(1, 3), model]
        return engine(4, rule, drafters)

    outcomes = []
    for value in (low, high):
        options = {**beside, option: value}
        speculative = generate(on, **options, proposer=proposer)
        assert outcome(speculative) == outcome(generate(lambda: engine(0, rule), **options))
        outcomes.append(outcome(speculative))
    assert outcomes[0] != outcomes[1]


@pytest.mark.parametrize("option", ["temperature", "frequency_penalty", "logit_bias", "min_tokens"])
def test_an_option_that_is_dropped_at_drafts_is_seen(option, monkeypatch):
    """The fault: positions behind the first of a block use the default policy."""
    original = executor_module.target_law

    def dropping(logits, params, history, extra=(), allowed=None, **options):
        bare = SamplingParams(temperature=1.0 if option == "temperature" else params.temperature)
        return original(logits, bare if extra else params, history, extra)

    monkeypatch.setattr(executor_module, "target_law", dropping)
    differs = []
    for value in OPPOSITES[option][:2]:
        options = {**OPPOSITES[option][2], option: value}
        known = {"r": [*PROMPT, *generate(lambda: engine(0), **options).token_ids]}
        faulty = generate(
            lambda known=known: engine(4, proposers=[OracleProposer(known)]),
            **options,
            request_id="r",
        )
        differs.append(outcome(faulty) != outcome(generate(lambda: engine(0), **options)))
    assert any(differs)


REFUSED = {
    "max_tokens": [0, -1, 2.5, True, None],
    "temperature": [-0.1, float("nan"), float("inf")],
    "top_k": [-1, 1.5],
    "top_p": [0.0, 1.1],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0.0, -1.0],
    "presence_penalty": [float("nan")],
    "frequency_penalty": [float("inf")],
    "logit_bias": [{VOCAB: 1.0}, {-1: 1.0}, {0: float("nan")}],
    "allowed_token_ids": [[], [VOCAB], [-1]],
    "banned_token_ids": [[VOCAB], [-1]],
    "min_tokens": [-1],
    "stop_token_ids": [[VOCAB], [-1], [1.5], [True], None, 3],
    "seed": ["seed", 1.5],
    "stream": [-1, 0.5, None],
    "logprobs": [-1, 101],
    "logprobs_mode": ["cooked", 1],
    "stop": [None, 5, [b"a"]],
    "ignore_eos": ["no"],
    "tenant": [5],
    "rule": [5],
    "grammar": ["abc"],
    "stop_criterion": [5],
    "prediction": [[VOCAB], [-1], [1.5], None],
    "num_speculative_tokens": [-1, 1.5],
}


@pytest.mark.parametrize(("option", "value"), [(k, v) for k, vs in REFUSED.items() for v in vs])
@pytest.mark.parametrize("kappa", [0, 4])
def test_a_value_that_cannot_be_honoured_is_refused_by_name(option, value, kappa):
    subject = engine(kappa)
    with pytest.raises(ConfigError, match=option) as caught:
        subject.generate(PROMPT, **{option: value})
    assert "\n" not in str(caught.value)
    assert not subject.core.has_work
    assert subject._turns._queues == {}


def test_names_that_are_unknown_are_refused_whether_or_not_they_would_be_used():
    for kappa in (0, 4):
        with pytest.raises(
            ConfigError, match="drafter 'typo' is unknown; configured: fixed, ngram"
        ):
            engine(kappa).generate(PROMPT, proposer="typo")
        with pytest.raises(ConfigError, match="rule 'typo' is unknown"):
            engine(kappa).generate(PROMPT, rule="typo")
    with pytest.raises(ConfigError, match="a name of its own"):
        engine(4, proposers=[NgramProposer(), NgramProposer()])
    with pytest.raises(ConfigError, match="empty"):
        engine(4).generate(PROMPT, stop="")
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        make_engine().generate(PROMPT, stop="a")


@pytest.mark.parametrize(
    "prompt",
    [[], "", [VOCAB], [-1], [0.5], [None], list(range(7)) * 200, None, 5, [{"role": "user"}]],
)
def test_a_prompt_that_does_not_fit_is_refused(prompt):
    with pytest.raises(PromptError):
        engine(4).generate(prompt)


def test_a_prompt_may_be_text_ids_an_array_or_a_chat():
    subject = engine(4)
    expected = subject.generate("abcab", seed=1).token_ids
    for prompt in (PROMPT, tuple(PROMPT), np.array(PROMPT), [{"role": "user", "content": "abcab"}]):
        result = subject.generate(prompt, seed=1)
        assert result.token_ids == expected
        assert all(type(token) is int for token in result.prompt_ids)


def test_a_drafter_that_is_named_while_speculation_is_off_is_noted():
    (note,) = engine(0).generate(PROMPT, proposer="ngram").notes
    assert note == "drafter ngram is not used: num_speculative_tokens is 0"
    assert engine(4).generate(PROMPT, proposer="ngram", num_speculative_tokens=0).notes == []


# Penalties and min_tokens at every position (PR-1) ----------------------------------------------


PENALTIES = {
    "frequency": SamplingParams(temperature=0.0, frequency_penalty=1.0),
    "presence": SamplingParams(temperature=0.0, presence_penalty=1.5),
    "repetition": SamplingParams(temperature=0.0, repetition_penalty=1.7),
    "sampled": SamplingParams(frequency_penalty=0.8, presence_penalty=0.3, repetition_penalty=1.2),
}


def penalised(params, corrupt=None):
    batch = requests(4, 8, params=params, max_tokens=60, rule="sample-match")
    known = answers(batch)
    core = make_core(proposers=[OracleProposer(known, corrupt)], kappa=4)
    return run(core, batch), plain(batch)


@pytest.mark.parametrize("corrupt", [None, corrupt_every(3)])
@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_see_every_accepted_token(name, corrupt):
    results, expected = penalised(PENALTIES[name], corrupt)
    for key, result in results.items():
        assert result.token_ids == expected[key].token_ids
        assert result.stats.mean_acceptance_length > 2.0


def test_penalties_that_get_one_token_per_step_are_seen(monkeypatch):
    commit, append = step_module.commit_row, History.append
    fed = []

    def starting(*parts):
        fed.clear()
        return commit(*parts)

    def once(self, token):
        if fed:
            self.num_generated += 1
        else:
            append(self, token)
        fed.append(token)

    expected = penalised(PENALTIES["frequency"])[1]
    monkeypatch.setattr(step_module, "commit_row", starting)
    monkeypatch.setattr(History, "append", once)
    results, _ = penalised(PENALTIES["frequency"])
    assert any(results[key].token_ids != expected[key].token_ids for key in results)


@pytest.mark.parametrize("kappa", [0, 1, 4, 8])
@pytest.mark.parametrize("by", ["eos", "stop_token_ids"])
def test_the_first_end_is_at_min_tokens_exactly(by, kappa):
    """The target always prefers the end, and so does one of the drafters."""
    row = [0.1, 0.1, 0.1, 0.7]
    table = ArrayTable(row)
    ends = {"eos_token_ids": frozenset({3})} if by == "eos" else {}
    core = make_core(
        table,
        proposers=[FixedProposer((3,)), DraftModelProposer(TableBackend(table))],
        kappa=kappa,
        **ends,
    )
    for params in (SamplingParams(temperature=0.0, min_tokens=20), SamplingParams(min_tokens=20)):
        for proposer in ("fixed", "draft-model"):
            request = GenerateRequest(
                (0, 1),
                params,
                max_tokens=200,
                stop_token_ids=() if ends else (3,),
                proposer=proposer,
                seed=2,
            )
            (result,) = run(core, [request]).values()
            assert 3 not in result.token_ids[:20]
            assert result.finish_reason == "stop"
            if params.is_greedy:
                assert result.token_ids.index(3) == 20
            assert len(result.token_ids) == result.token_ids.index(3) + 1


@pytest.mark.parametrize("kappa", [0, 4])
def test_an_end_that_is_ignored_is_not_masked_either(kappa):
    table = ArrayTable([0.1, 0.1, 0.1, 0.7])
    core = make_core(
        table, proposers=[FixedProposer((3,))], kappa=kappa, eos_token_ids=frozenset({3})
    )
    params = SamplingParams(temperature=0.0, min_tokens=5)
    request = GenerateRequest((0,), params, max_tokens=9, ignore_eos=True)
    assert run(core, [request])["request-0"].token_ids == [3] * 9


@pytest.mark.parametrize("kappa", [0, 3, 8])
def test_stop_strings_and_criteria_wait_for_min_tokens(kappa):
    """The text is abcabcabcabc; what completes with token number min_tokens counts."""
    text = LETTERS.encode("abcabcabcabc")
    table = written(text, LETTERS.vocab_size)
    asked = []

    def criterion(output):
        asked.append(list(output))
        return output[-1] == 1

    for min_tokens, options, expected in (
        (4, {"stop": "bc"}, "abca"),
        (4, {"stop_criterion": criterion}, "abcab"),
        (5, {"stop": "b"}, "abca"),
        (6, {"stop": "b"}, "abcabca"),
    ):
        subject = make_engine(
            table,
            tokenizer=LETTERS,
            proposers=[OracleProposer({"r": [0, *text]})],
            kappa=kappa,
        )
        result = subject.generate(
            [0], min_tokens=min_tokens, max_tokens=12, request_id="r", **options
        )
        assert result.text == expected
    assert asked == [text[:count] for count in range(1, 6)]
