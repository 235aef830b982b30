"""Tiny random models of the real transformers classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from draftproof.backends.torch_hf import TorchBackend, load_torch
from draftproof.core.types import FlatBatch, Row

VOCAB = 96
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
}
_NO_GROUPS = {**_COMMON, "num_key_value_heads": 4}
_NEOX = {name: value for name, value in _COMMON.items() if name != "num_key_value_heads"}
_MIXED = ["sliding_attention", "full_attention"]
_MLA = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1,
}  # fmt: skip

#: Name of the configuration class and its arguments, by family.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _COMMON),
    "qwen2": ("Qwen2Config", _COMMON),
    "qwen3": ("Qwen3Config", {**_COMMON, "head_dim": 16}),
    "mistral": ("MistralConfig", {**_COMMON, "sliding_window": 7}),
    "gemma2": ("Gemma2Config", {**_COMMON, "head_dim": 16, "sliding_window": 6}),
    "gemma3": (
        "Gemma3TextConfig",
        {**_COMMON, "head_dim": 16, "sliding_window": 6, "layer_types": _MIXED},
    ),
    "phi": ("PhiConfig", {**_NO_GROUPS, "partial_rotary_factor": 0.5}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    ),
    "gpt-neox": ("GPTNeoXConfig", {**_NEOX, "rotary_pct": 0.25}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        {
            **_COMMON,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "gpt-oss": (
        "GptOssConfig",
        {
            **_COMMON,
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 6,
            "layer_types": _MIXED,
        },
    ),
    "granite": ("GraniteConfig", {**_COMMON, "logits_scaling": 3.0}),
    "deepseek-v3": ("DeepseekV3Config", {**_NO_GROUPS, **_MLA}),
}


def make_model(family: str, **changes: Any) -> Any:
    """Return a random model whose law is far from uniform."""
    kind, arguments = CONFIGS[family]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**arguments, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
            else:
                # Sinks, norms and biases at their first values would hide a fault.
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


class Reference:
    """The model's own forward over a whole text, by its own eager attention."""

    def __init__(self, family: str, **changes: Any) -> None:
        self.model = make_model(family, **changes)
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def __call__(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits of every position, shape (N, V)."""
        key = tuple(tokens)
        if key not in self._known:
            ids = torch.tensor([key])
            with torch.inference_mode():
                found = self.model(input_ids=ids, use_cache=False).logits[0]
            self._known[key] = found.float().numpy()
        return self._known[key]


class Decoder:
    """Feeds a backend; what the tests say most often."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend = backend

    def feed(
        self, seq: int, tokens: Sequence[int], parents: Sequence[int] | None = None
    ) -> np.ndarray:
        """Append tokens and return all of their logits."""
        return self.feed_all([(seq, tokens, parents)])[0]

    def feed_all(
        self, rows: Sequence[tuple[int, Sequence[int], Sequence[int] | None]]
    ) -> list[np.ndarray]:
        """Append tokens to several sequences in one pass."""
        batch = [
            Row(seq, list(tokens), self.backend.length(seq), len(tokens), parents)
            for seq, tokens, parents in rows
        ]
        logits = self.backend.forward(FlatBatch.from_rows(batch)).copy()
        ends = np.cumsum([len(row.token_ids) for row in batch])
        return np.split(logits, ends[:-1])

    def score(self, tokens: Sequence[int], widths: Sequence[int] | None = None) -> np.ndarray:
        """Score a text from scratch, cut into passes of the given widths."""
        seq, parts, begin = self.backend.open(), [], 0
        for width in widths or [len(tokens)]:
            parts.append(self.feed(seq, tokens[begin : begin + width]))
            begin += width
        self.backend.close(seq)
        assert begin == len(tokens)
        return np.concatenate(parts)


@pytest.fixture(params=sorted(CONFIGS))
def family(request: pytest.FixtureRequest) -> str:
    """Return the name of each family in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def build_model() -> Callable[..., Any]:
    """Return the maker of tiny models."""
    return make_model


@pytest.fixture(scope="session")
def references() -> Callable[[str], Reference]:
    """Return a function that makes the reference of a family once."""
    made: dict[str, Reference] = {}

    def get(family: str) -> Reference:
        if family not in made:
            made[family] = Reference(family)
        return made[family]

    return get


@pytest.fixture
def decoder() -> Callable[..., Decoder]:
    """Return a function that loads a family into a fresh backend."""

    def load(family: str, **options: Any) -> Decoder:
        changes = options.pop("changes", {})
        options.setdefault("kv_cache_bytes", 1 << 20)
        return Decoder(load_torch(make_model(family, **changes), **options))

    return load


@pytest.fixture(scope="session")
def tokens() -> list[int]:
    """Return a text of 60 tokens, several pages."""
    return np.random.default_rng(7).integers(0, VOCAB, 60).tolist()
