"""transformers' generate on tiny random models."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from draftproof.audit import Evidence, Plan, judge
from draftproof.audit.subjects import EngineProcessRecipe, Policy, RoundKind, prompt_evidence
from draftproof.audit.subjects.transformers_generate import (
    TransformersRecipe,
    TransformersSubject,
    known_options,
    transformers_law,
)
from draftproof.core.params import SamplingParams
from draftproof.errors import ConfigError, ModelFileError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Passes = importlib.import_module("draftproof.audit.subjects.workers.transformers_engine").Passes

PROMPT = (5, 9, 7, 5, 9, 7, 5, 9)
POLICY = Policy(SamplingParams(temperature=0.8, top_k=2), 3)


def tiny(seed=0):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=24, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model():
    return tiny()


def test_the_law_is_the_product_of_filtered_rows(model):
    law = transformers_law(model, PROMPT, POLICY)
    assert len(law) == 8
    for outcome in itertools.islice(law.outcomes, 3):
        prob = 1.0
        for i, token in enumerate(outcome):
            with torch.no_grad():
                row = model(torch.tensor([[*PROMPT, *outcome[:i]]])).logits[0, -1].double() / 0.8
            best = torch.topk(row, 2)
            kept = torch.softmax(best.values, -1)
            prob *= float(kept[best.indices.tolist().index(token)])
        assert law.prob(outcome) == pytest.approx(prob, rel=1e-5)


@pytest.mark.statistical
def test_prompt_lookup_is_audited_and_a_wrong_filter_is_seen(model):
    # 150 draws show a bias of TV 0.32 with probability 0.99, at a false-alarm rate of 0.001.
    plan = Plan(tv=0.35, calibration_samples=4000)
    law = transformers_law(model, PROMPT, POLICY)
    verdicts = {}
    for name, options in (("right", {}), ("wrong", {"top_k": 1})):
        subject = TransformersSubject(model, {"prompt_lookup_num_tokens": 2} | options)
        drawn = subject.draw(PROMPT, POLICY, 150, 4)
        verdicts[name] = judge(Evidence(name, plan, (prompt_evidence("p", law, drawn),)))
    assert verdicts["right"].verdict == "exact", verdicts["right"].reason
    assert verdicts["right"].acceptance.num_drafted > 0
    assert not verdicts["right"].findings
    assert verdicts["wrong"].verdict == "biased"


def test_rounds_follow_from_what_the_model_was_given(model):
    # A model that assists itself keeps nearly every draft.
    subject = TransformersSubject(model, {"assistant_model": model})
    drawn = subject.draw(PROMPT, Policy(SamplingParams(top_k=1), 5), 2, 1)
    emitted = sum(kind.emitted * times for kind, times in drawn.rounds.items())
    assert emitted == drawn.tokens.size == 10
    passes = Passes(model)
    passes.seen += [(0, 10), (8, 3)]
    assert passes.rounds(8, 4, False) == [RoundKind(2, 0, 1, False), RoundKind(2, 2, 3, False)]


def test_drafts_by_early_exit_are_no_passes_of_the_target(model):
    subject = TransformersSubject(model, {"assistant_early_exit": 1})
    drawn = subject.draw(PROMPT, Policy(SamplingParams(top_k=2), 5), 4, 1)
    emitted = sum(kind.emitted * times for kind, times in drawn.rounds.items())
    assert emitted == drawn.tokens.size == 20
    assert any(kind.drafted for kind in drawn.rounds)
    # Every drafting round lies in its text where it was played.
    drafting = sum(times for kind, times in drawn.rounds.items() if kind.drafted)
    assert sum(drawn.samples.values()) == drafting == drawn.totals.rounds
    texts = {tuple(row) for row in drawn.tokens.tolist()}
    for each in drawn.samples:
        played = each.prefix + each.emitted
        assert any(text[: len(played)] == played for text in texts)
    assert model.config.num_hidden_layers == 2


def test_its_worker_gives_the_same_draws_and_nearly_the_same_law(model, tmp_path):
    model.save_pretrained(tmp_path)
    recipe = TransformersRecipe(tmp_path, prompt_lookup=2)
    here, there = (
        recipe(),
        EngineProcessRecipe("transformers", recipe.options(), Path(sys.executable))(),
    )
    try:
        policy = there.in_its_order(POLICY)
        law, other = transformers_law(model, PROMPT, POLICY), there.law(PROMPT, policy)
        assert law.outcomes == other.outcomes
        np.testing.assert_allclose(law.probs, other.probs, rtol=1e-4)
        alone, away = (s.draw(PROMPT, POLICY, 8, 3) for s in (here, there))
    finally:
        there.close()
    np.testing.assert_array_equal(alone.tokens, away.tokens)
    assert alone.samples == away.samples != {}
    assert alone.rounds == away.rounds


def test_what_generate_lacks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="which transformers has"):
        known_options(Policy(SamplingParams(presence_penalty=1.0), 3))
    with pytest.raises(ConfigError, match="expected one of them"):
        TransformersRecipe(tmp_path, tmp_path, 3)
    with pytest.raises(ConfigError, match="without an assistant"):
        TransformersRecipe(tmp_path, own_tokenizers=True)
    with pytest.raises(ConfigError, match="num_assistant_tokens without"):
        TransformersRecipe(tmp_path, prompt_lookup=2, num_assistant_tokens=3)
    with pytest.raises(ConfigError, match="early_exit 0"):
        TransformersRecipe(tmp_path, early_exit=0)
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        TransformersRecipe(tmp_path)()


def test_an_exit_that_the_model_lacks_is_refused(model, tmp_path):
    model.save_pretrained(tmp_path)
    for layers in (2, 9):
        with pytest.raises(ModelFileError, match=f"after layer {layers} of 2: expected fewer"):
            TransformersRecipe(tmp_path, early_exit=layers)()
    assert TransformersRecipe(tmp_path, early_exit=1)().model.config.num_hidden_layers == 2


@pytest.mark.parametrize("prompt", [(), (10, 5, 99), (3, -1)])
def test_prompts_of_no_tokens_of_the_model_are_refused(model, prompt):
    with pytest.raises(ConfigError, match="expected 1 or more, from 0 to 23"):
        transformers_law(model, prompt, POLICY)


def test_too_many_continuations_are_refused(model):
    with pytest.raises(ConfigError, match="more than 20"):
        transformers_law(model, PROMPT, Policy(SamplingParams(), 2), max_outcomes=20)
    assert np.isclose(transformers_law(model, PROMPT, Policy(SamplingParams(), 1)).probs.sum(), 1)
