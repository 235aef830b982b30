"""transformers' generate on tiny random models."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftproof.audit import Evidence, Plan, judge
from draftproof.audit.subjects import Policy, RoundKind, prompt_evidence
from draftproof.audit.subjects.transformers_generate import (
    TransformersRecipe,
    TransformersSubject,
    _Passes,
    generate_options,
    transformers_law,
)
from draftproof.core.params import SamplingParams
from draftproof.errors import ConfigError, ModelFileError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

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
    passes = _Passes([(0, 10), (8, 3)])
    assert passes.rounds(8, 4, False) == [RoundKind(2, 0, 1, False), RoundKind(2, 2, 3, False)]


def test_what_generate_lacks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="which transformers has"):
        generate_options(Policy(SamplingParams(presence_penalty=1.0), 3))
    with pytest.raises(ConfigError, match="expected one of them"):
        TransformersRecipe(tmp_path, tmp_path, 3)
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        TransformersRecipe(tmp_path)()


def test_too_many_continuations_are_refused(model):
    with pytest.raises(ConfigError, match="more than 20"):
        transformers_law(model, PROMPT, Policy(SamplingParams(), 2), max_outcomes=20)
    assert np.isclose(transformers_law(model, PROMPT, Policy(SamplingParams(), 1)).probs.sum(), 1)
