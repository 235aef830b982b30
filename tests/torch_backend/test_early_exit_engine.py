"""An early exit of a Hugging Face model drafts for it, and shares its weights."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'draftproof[torch]'")

from draftproof.build.draft_links import early_exit
from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.proposers import DraftModelProposer, DraftModelTreeProposer


@pytest.mark.parametrize("kind", [DraftModelProposer, DraftModelTreeProposer])
def test_text_with_an_early_exit_is_the_plain_text(decoder, kind):
    target = decoder("llama").backend
    draft = early_exit(target, target.num_layers - 1)
    shared = {parameter.data_ptr() for parameter in target._model.model.parameters()}
    assert {parameter.data_ptr() for parameter in draft._model.model.parameters()} < shared
    prompt = (3, 1, 4, 1, 5, 9, 2, 6)
    results = []
    for proposers in ([], [kind(draft)]):
        core = EngineCore(target, proposers=proposers, kappa=3 * len(proposers))
        core.submit(GenerateRequest(prompt, SamplingParams(temperature=0.0), max_tokens=24))
        (result,) = core.run().values()
        assert result.error is None
        results.append(result)
    assert results[0].token_ids == results[1].token_ids
    assert results[1].stats.num_draft_tokens > 20
