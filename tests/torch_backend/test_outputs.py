"""Hidden states, early exit, branching rows and failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draftproof.core.types import FlatBatch, Row
from draftproof.errors import BackendError, ConfigError, ContextOverflowError, InvariantError


def last_rows(backend, tokens, count):
    sequence = backend.open()
    return FlatBatch.from_rows([Row(sequence, tokens, 0, count)])


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"], indirect=True)
def test_hidden_states_are_those_of_the_plain_forward(family, decoder, references, tokens):
    model = references(family).model
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    backend = decoder(family).backend
    logits, hidden = backend.forward_with_hidden(last_rows(backend, tokens, 5), [0, 1, -1])
    assert hidden.shape == (3, 5, 64)
    for found, expected in zip(hidden, [output.hidden_states[i] for i in (0, 1, -1)], strict=True):
        assert torch.allclose(found, expected[0, -5:], atol=2e-5)
    assert np.abs(logits - output.logits[0, -5:].numpy()).max() < 2e-5
    with pytest.raises(ConfigError, match="hidden states of layer 3, expected 0 to 2"):
        backend.forward_with_hidden(last_rows(backend, tokens, 1), [3])


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "qwen3-moe"], indirect=True)
def test_early_exit_is_the_model_cut_after_its_first_layers(
    family, decoder, references, build_model, tokens
):
    full = decoder(family)
    draft = full.backend.early_exit(1)
    name = "n_layer" if family == "gpt2" else "num_hidden_layers"
    changes = {name: 1}
    if family == "gemma3":
        changes["layer_types"] = ["sliding_attention"]
    short = build_model(family, **changes)
    short.load_state_dict(references(family).model.state_dict(), strict=False)
    with torch.inference_mode():
        expected = short(input_ids=torch.tensor([tokens])).logits[0].numpy()
    cut = type(full)(draft)
    assert np.abs(cut.score(tokens, [30, 1, 29]) - expected).max() < 2e-5
    # The whole model is what it was, and shares the weights.
    whole = references(family)(tokens)
    assert np.abs(full.score(tokens) - whole).max() < 2e-5
    ours = {parameter.data_ptr() for parameter in full.backend._model.model.parameters()}
    assert {p.data_ptr() for p in draft._model.model.parameters()} < ours
    with pytest.raises(ConfigError, match="early exit after 3 layers, expected 1 to 2"):
        full.backend.early_exit(3)


def test_no_wanted_rows_give_no_logits(decoder, tokens):
    backend = decoder("llama").backend
    assert backend.forward(last_rows(backend, tokens, 0)).shape == (0, 96)


def test_logits_are_read_only(decoder, tokens):
    backend = decoder("llama").backend
    with pytest.raises(ValueError, match="read-only"):
        backend.forward(last_rows(backend, tokens, 1))[0, 0] = 1.0


def test_padding_of_the_head_is_cut_off(decoder, references, tokens):
    text = [token % 90 for token in tokens]
    cut = decoder("llama", vocab_size=90)
    assert np.abs(cut.score(text) - references("llama")(text)[:, :90]).max() < 2e-5
    with pytest.raises(InvariantError, match="token id 90, expected 0 to 89"):
        cut.score([90])


def test_depth_not_slots_is_held_against_the_context(decoder):
    backend = decoder("llama", context_length=8).backend
    sequence = backend.open()
    backend.forward(FlatBatch.from_rows([Row(sequence, [1] * 6, 0, 0)]))
    fan = Row(sequence, [1, 2, 3, 4], 6, 4, [-1, 0, 0, 0])
    backend.forward(FlatBatch.from_rows([fan]))
    backend.truncate(sequence, 7, [9])
    with pytest.raises(ContextOverflowError, match="9 tokens in one sequence, expected at most 8"):
        backend.forward(FlatBatch.from_rows([Row(sequence, [5], 8, 1)]))


def test_a_failure_of_torch_appends_nothing(decoder, references, tokens):
    model = decoder("llama")
    backend = model.backend
    sequence = backend.open()
    model.feed(sequence, tokens[:20])

    def fail(*_arguments):
        raise RuntimeError("out of\nmemory")

    hook = backend._model.model.model.layers[1].register_forward_pre_hook(fail)
    with pytest.raises(BackendError, match="torch failed: out of memory"):
        model.feed(sequence, tokens[20:30])
    hook.remove()
    assert backend.length(sequence) == 20
    found = model.feed(sequence, tokens[20:])
    assert np.abs(found - references("llama")(tokens)[20:]).max() < 2e-5


def test_what_a_page_held_before_never_matters(decoder, references, tokens):
    """Rows that are padded in one pass do not read what is not theirs, not even NaN."""
    model = decoder("mistral")
    for tensor in model.backend._pages._tensors:
        tensor.fill_(float("nan"))
    short, long = model.backend.open(), model.backend.open()
    rows = [(short, tokens[:3], None), (long, tokens[:30], None)]
    found = model.feed_all(rows)
    found_next = model.feed_all([(short, tokens[3:5], None), (long, tokens[30:31], None)])
    expected = references("mistral")(tokens)
    for logits, want in zip(
        [*found, *found_next],
        [expected[:3], expected[:30], expected[3:5], expected[30:31]],
        strict=True,
    ):
        assert np.abs(logits - want).max() < 2e-5
