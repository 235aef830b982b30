"""The whole engine on a real model: SmolLM2-135M-Instruct."""

from __future__ import annotations

import pytest

from draftproof.build import load
from draftproof.core.types import FlatBatch, Row

pytestmark = pytest.mark.model

COPY = (
    "Karim bought apples, pears and bread, and walked home along the river.\n"
    "Karim bought apples, pears and bread, and walked home along the river.\n"
    "Karim bought"
)
PROMPTS = (COPY, "def fibonacci(n):\n", "The capital of France is")
#: A fork of greedy texts is rounding where the two best logits are closer than this.
#: Passes of different shape differ by up to about 1e-4 in the logits.
NEAR_TIE = 1e-3
NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


@pytest.fixture(scope="module")
def engine(smollm2_gguf):
    return load("smollm2", precision="int8", speculative_config=NGRAM, kv_cache_bytes=100 << 20)


@pytest.fixture(scope="module")
def deterministic(smollm2_gguf):
    return load(
        "smollm2",
        precision="int8",
        speculative_config=NGRAM,
        kv_cache_bytes=30 << 20,
        deterministic=True,
    )


def gap_at(engine, tokens, one, other):
    """How far apart two tokens are in the logits that follow a text."""
    target = engine.core.target
    sequence = target.open()
    logits = target.forward(FlatBatch.from_rows([Row(sequence, tokens, 0, 1)]))[0]
    gap = abs(float(logits[one] - logits[other]))
    target.close(sequence)
    return gap


@pytest.mark.parametrize("kappa", [1, 3, 7, 12])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_with_drafts_is_the_plain_text_or_forks_at_a_tie(engine, prompt, kappa):
    plain = engine.generate(prompt, max_tokens=60, num_speculative_tokens=0, ignore_eos=True)
    drafted = engine.generate(prompt, max_tokens=60, num_speculative_tokens=kappa, ignore_eos=True)
    for index, (one, other) in enumerate(zip(plain.token_ids, drafted.token_ids, strict=True)):
        if one != other:
            context = [*plain.prompt_ids, *plain.token_ids[:index]]
            gap = gap_at(engine, context, one, other)
            print(f"fork at token {index}, {gap:.2g} apart in the logits")  # noqa: T201
            assert gap < NEAR_TIE
            break
    assert drafted.stats.num_draft_tokens > 0 or prompt is not COPY


def test_drafts_are_really_accepted_on_a_copy(engine):
    result = engine.generate(COPY, max_tokens=40, num_speculative_tokens=5)
    assert result.stats.num_accepted_tokens >= 10
    assert result.exactness == "greedy"


def test_a_draft_model_equal_to_the_target_is_always_accepted(smollm2_gguf):
    config = {"model": "smollm2", "num_speculative_tokens": 4}
    twins = load("smollm2", precision="int8", speculative_config=config, kv_cache_bytes=50 << 20)
    greedy = twins.generate(PROMPTS[1], max_tokens=40, ignore_eos=True)
    assert greedy.stats.num_accepted_tokens >= 0.9 * greedy.stats.num_draft_tokens > 0
    sampled = twins.generate(PROMPTS[1], max_tokens=40, ignore_eos=True, temperature=1.0, seed=3)
    # p and q differ only by rounding, so a refusal has a probability of about 1e-4.
    assert sampled.stats.num_accepted_tokens >= 0.95 * sampled.stats.num_draft_tokens > 0
    assert sampled.rule == "block"


def test_deterministic_text_is_equal_to_the_bit_in_any_company(deterministic):
    def requests(kappas):
        return [
            deterministic.request(
                PROMPTS[index % 3] if index < 4 else f"{index} {COPY}",
                max_tokens=40,
                ignore_eos=True,
                temperature=0.9 if index % 2 else 0.0,
                rule="coupled" if index % 2 else None,
                seed=index,
                num_speculative_tokens=kappa,
                request_id=f"r{index}-{kappa}",
            )
            for index, kappa in enumerate(kappas)
        ]

    plain = [deterministic.generate_many([r])[0].token_ids for r in requests([0] * 8)]
    together = deterministic.generate_many(requests([1, 2, 3, 5, 8, 15, 4, 7]))
    assert [result.token_ids for result in together] == plain
    assert sum(result.stats.num_accepted_tokens for result in together) > 20
    assert together[0].exactness == "greedy, to the bit"
    assert together[1].exactness == "seed-identical, to the bit"


def test_a_stop_string_of_the_real_tokenizer_cuts_the_text(engine):
    whole = engine.generate(COPY, max_tokens=40, num_speculative_tokens=0).text
    stop = "walked"
    assert stop in whole
    result = engine.generate(COPY, max_tokens=40, stop=stop)
    assert result.text == whole[: whole.index(stop)]
    assert (result.finish_reason, result.stop_reason) == ("stop", stop)
