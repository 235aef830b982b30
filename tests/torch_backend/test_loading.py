"""What is loaded, what is refused, and what the refusal says."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

from draftproof.backends.torch_hf import load_torch
from draftproof.backends.torch_hf.interface import PASS
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import ConfigError, ModelFileError

_REFUSED = {
    "mamba": ("layers of kind linear_attention", transformers.MambaConfig),
    "rwkv": ("RwkvForCausalLM carries a recurrent state", transformers.RwkvConfig),
    "jamba": ("layers of kind linear_attention", transformers.JambaConfig),
    "bloom": ("BloomForCausalLM does not attend through", transformers.BloomConfig),
}


@pytest.mark.parametrize("kind", sorted(_REFUSED))
def test_a_model_that_cannot_be_rolled_back_is_refused_by_name(kind):
    reason, config = _REFUSED[kind]
    model = transformers.AutoModelForCausalLM.from_config(
        config(vocab_size=32, hidden_size=32, num_hidden_layers=2)
        if kind != "bloom"
        else config(vocab_size=32, hidden_size=32, n_layer=2, n_head=4)
    )
    with pytest.raises(ModelFileError, match=reason):
        load_torch(model, context_length=32, kv_cache_bytes=1 << 20)


def test_a_mask_in_chunks_is_refused(build_model, monkeypatch):
    model = build_model("llama")
    right = transformers.models.llama.modeling_llama.create_causal_mask

    def in_chunks(**arguments):
        arguments["and_mask_function"] = lambda _b, _h, q, k: q // 8 == k // 8
        return right(**arguments)

    monkeypatch.setattr(transformers.models.llama.modeling_llama, "create_causal_mask", in_chunks)
    with pytest.raises(ModelFileError, match="layer 0 masks otherwise than causal"):
        load_torch(model, kv_cache_bytes=1 << 20)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"position_bias": torch.zeros(1)}, r"asks its attention for position_bias = \(1,\)"),
        ({"dropout": 0.5}, "asks for dropout 0.5"),
        ({"is_causal": False}, "sees tokens that come later"),
    ],
)
def test_what_a_layer_asks_for_is_never_ignored(build_model, option, reason):
    model = build_model("llama")

    def ask(_module, arguments, keywords):
        return arguments, {**keywords, **option}

    attention = model.model.layers[1].self_attn
    if "dropout" in option:
        attention.training, attention.attention_dropout = True, 0.5
        model.eval = lambda: model
    else:
        attention.register_forward_pre_hook(ask, with_kwargs=True)
    with pytest.raises(ModelFileError, match=reason):
        load_torch(model, kv_cache_bytes=1 << 20)


def test_a_layer_that_drops_the_arguments_of_a_call_is_refused(build_model):
    model = build_model("llama")

    def drop(_module, arguments, keywords):
        return arguments, {name: v for name, v in keywords.items() if name != PASS}

    model.model.layers[1].self_attn.register_forward_pre_hook(drop, with_kwargs=True)
    with pytest.raises(ModelFileError, match="does not hand the arguments of a call"):
        load_torch(model, kv_cache_bytes=1 << 20)


def test_state_outside_of_attention_is_found_by_the_check_at_load(build_model):
    model = build_model("llama")

    def mix(_module, _arguments, output):
        # Every token reads the one before it in the call, whoever that belongs to.
        return output + torch.roll(output, 1, dims=1)

    model.model.layers[0].mlp.register_forward_hook(mix)
    with pytest.raises(ModelFileError, match="scores a text in two passes otherwise than in one"):
        load_torch(model, kv_cache_bytes=1 << 20)


@pytest.mark.parametrize("rotation", ["dynamic", "longrope"])
def test_rotations_that_depend_on_the_neighbours_are_refused(build_model, rotation):
    rope = {
        "rope_type": rotation,
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
    }
    if rotation == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    model = build_model("llama", rope_parameters=rope)
    with pytest.raises(ModelFileError, match="pass a context_length of at most 64"):
        load_torch(model, kv_cache_bytes=1 << 20)
    assert load_torch(model, kv_cache_bytes=1 << 20, context_length=64).info.context_length == 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory, build_model):
    path = tmp_path_factory.mktemp("hf") / "tiny-llama"
    build_model("llama").save_pretrained(path)
    return path


def rewritten(folder, tmp_path, **changes):
    """Copy a folder with another configuration."""
    config = json.loads((folder / "config.json").read_text())
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    return tmp_path


def score(backend, tokens):
    row = Row(backend.open(), tokens, 0, len(tokens))
    return backend.forward(FlatBatch.from_rows([row])).copy()


@pytest.mark.parametrize("linear", ["auto", "plain", "packed", "f16"])
def test_a_folder_is_loaded_with_its_own_law(folder, references, tokens, linear):
    backend = load_torch(folder, kv_cache_bytes=1 << 20, linear=linear, threads=1)
    info = backend.info
    assert (info.name, info.runtime, info.trees, info.page_size) == (
        "tiny-llama",
        "torch",
        True,
        16,
    )
    assert (info.vocab_size, info.context_length) == (96, 256)
    rounds = linear in ("auto", "f16")
    assert info.precision == ("float32, 15 matrices rounded to float16" if rounds else "float32")
    expected = references("llama")(tokens)
    gap = np.abs(score(backend, tokens) - expected).max()
    assert gap < (0.05 if rounds else 2e-5)
    assert (gap > 1e-4) == rounds


def kinds_of(backend):
    return {type(module).__name__ for module in backend._model.model.modules()}


def test_a_named_dtype_is_not_rounded(folder, references, tokens):
    backend = load_torch(folder, kv_cache_bytes=1 << 20, dtype="float32")
    assert backend.info.precision == "float32"
    assert {"_Packed"} == kinds_of(backend) & {"_Packed", "_Half", "Linear"}
    assert np.abs(score(backend, tokens) - references("llama")(tokens)).max() < 2e-5


@pytest.mark.parametrize(("factor", "num_rounded"), [(1e-5, 14), (1e6, 13)])
def test_a_layer_that_half_precision_holds_badly_is_not_rounded(
    build_model, tmp_path, factor, num_rounded
):
    # Float16 has few bits below 6e-5 and no numbers above 65504.
    model = build_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(factor)
        model.model.layers[1].mlp.up_proj.weight.mul_(1 / factor)
    model.save_pretrained(tmp_path)
    backend = load_torch(tmp_path, kv_cache_bytes=1 << 20)
    assert backend.info.precision == f"float32, {num_rounded} matrices rounded to float16"
    second = backend._model.model.model.layers[1].mlp
    kinds = [type(m).__name__ for m in (second.gate_proj, second.down_proj, second.up_proj)]
    assert kinds == ["_Half", "_Packed", "_Packed" if factor > 1 else "_Half"]
    if factor > 1:
        with pytest.raises(ModelFileError, match="does not fit float16"):
            load_torch(tmp_path, kv_cache_bytes=1 << 20, linear="f16")


def test_weights_that_are_half_precision_numbers_are_packed_without_rounding(
    tmp_path, build_model, tokens
):
    model = build_model("gpt2").half().float()
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([tokens])).logits[0].numpy()
    backend = load_torch(tmp_path, kv_cache_bytes=1 << 20, linear="auto")
    assert {"_Half"} == kinds_of(backend) & {"_Half", "_Packed"}
    assert backend.info.precision == "float32"
    assert np.abs(score(backend, tokens) - expected).max() < 2e-5


def test_a_row_of_packed_weights_does_not_depend_on_its_neighbours(folder, tokens):
    backend = load_torch(folder, kv_cache_bytes=1 << 20, linear="packed")
    layer = backend._model.model.lm_head
    inputs = torch.randn(8, 64)
    assert torch.equal(layer(inputs)[3:4], layer(inputs[3:4]))


def test_half_types_are_loaded_and_close(folder, references, tokens):
    backend = load_torch(folder, dtype="bfloat16", kv_cache_bytes=1 << 20)
    assert backend.info.precision == "bfloat16"
    logits = score(backend, tokens)
    assert logits.dtype == np.float32
    gaps = np.abs(logits - references("llama")(tokens)).max(axis=1)
    assert 1e-4 < np.median(gaps) < 0.5


def test_device_logits_stay_tensors(folder, tokens):
    backend = load_torch(folder, kv_cache_bytes=1 << 20, host_logits=False)
    row = Row(backend.open(), tokens, 0, 2)
    logits = backend.forward(FlatBatch.from_rows([row]))
    assert isinstance(logits, torch.Tensor)
    assert logits.dtype == torch.float32
    assert logits.shape == (2, 96)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "float64"}, "dtype is 'float64', expected one of auto, float32"),
        ({"attention": "flash"}, "attention is 'flash', expected one of auto, sdpa, explicit"),
        ({"linear": "int8"}, "linear is 'int8', expected one of auto, plain"),
        ({"linear": "f16", "dtype": "bfloat16"}, "expected 'plain' for bfloat16 on cpu"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"threads": 0}, "threads is 0, expected 1 to"),
        ({"context_length": 257}, "context_length is 257, expected 1 to 256"),
        ({"kv_cache_bytes": 100}, "kv_cache_bytes is 100, expected at least one page"),
        ({"vocab_size": 97}, "the tokenizer has 97 tokens, the model 96"),
        ({"page_size": 0}, "page_size is 0"),
    ],
)
def test_options_out_of_range_are_refused(folder, options, reason):
    with pytest.raises(ConfigError, match=reason):
        load_torch(folder, **{"kv_cache_bytes": 1 << 20, **options})


def test_a_device_for_a_model_object_is_refused(build_model):
    with pytest.raises(ConfigError, match="those of the model object"):
        load_torch(build_model("llama"), device="cpu")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mine", "auto_map": {"AutoModel": "code.Mine"}}, "needs Python code"),
        ({"model_type": "mine"}, "model type 'mine' is not known"),
        ({"num_hidden_layers": 3}, "9 missing weights: model.layers.2"),
        ({"num_hidden_layers": 1}, "9 unexpected weights: model.layers.1"),
        ({"intermediate_size": 100}, "mismatched"),
        ({"quantization_config": {"quant_method": "fp8"}}, "stored quantised"),
    ],
)
def test_folders_that_would_change_the_law_are_refused(folder, tmp_path, changes, reason):
    with pytest.raises(ModelFileError, match=reason):
        load_torch(rewritten(folder, tmp_path, **changes), kv_cache_bytes=1 << 20)


def test_no_weights_and_no_folder_are_refused(folder, tmp_path):
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ModelFileError, match=r"no \.safetensors file"):
        load_torch(tmp_path)
    with pytest.raises(ModelFileError, match="no such folder, and no hub id"):
        load_torch(tmp_path / "absent")


def test_an_unreachable_hub_is_told(monkeypatch):
    import huggingface_hub

    def offline(*_arguments, **_options):
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelFileError, match="could not be fetched from the hub: ConnectionError"):
        load_torch("someone/some-model")


def test_the_package_is_imported_without_torch():
    code = "import draftproof, sys; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
