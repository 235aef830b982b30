"""Published heads on disk: what is read, what is refused, and the way from the command line."""

from __future__ import annotations

import json

import eagle_kit as kit
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'draftproof[torch]'")

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from typer.testing import CliRunner

import draftproof
from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.backends.torch_hf import TorchHead, load_torch, load_torch_head
from draftproof.backends.torch_hf.head_weights import read_eagle_weights
from draftproof.backends.torch_hf.taps import eagle3_layers
from draftproof.build.heads import head_layers, load_head
from draftproof.build.speculative import SpeculativeConfig
from draftproof.cli.app import app
from draftproof.cli.context import CliContext
from draftproof.errors import ConfigError, IncompatibleModelsError, ModelFileError
from draftproof.models.eagle_config import read_eagle_config
from draftproof.models.head_files import is_head, is_own_head, read_head


def config_of(folder):
    return read_eagle_config(folder / "config.json")


def test_both_formats_say_the_same(tmp_path):
    held = kit.tensors()
    one = kit.write_speculators(tmp_path / "one", held, layers=kit.READ, norm_before_residual=True)
    two = kit.write_original(
        tmp_path / "two", held, pickled=True, norm_before_residual=True,
        eagle_config={"eagle_aux_hidden_state_layer_ids": kit.NAMED, "use_aux_hidden_state": True},
    )  # fmt: skip
    assert config_of(one) == config_of(two)
    assert config_of(one).layers == kit.READ
    assert config_of(one).norm_before_residual
    left, right = (read_eagle_weights(folder, config_of(one)) for folder in (one, two))
    assert left.tensors.keys() == right.tensors.keys()
    assert all(torch.equal(each, right.tensors[name]) for name, each in left.tensors.items())
    np.testing.assert_array_equal(left.draft_ids, kit.drafted_ids(held))
    np.testing.assert_array_equal(right.draft_ids, left.draft_ids)
    for folder in (one, two):
        assert is_head(str(folder))
        assert not is_own_head(folder)
        assert head_layers(str(folder)) == kit.READ
        assert SpeculativeConfig.parse({"model": str(folder)}).method == "draft_head"
        with pytest.raises(ModelFileError):
            read_head(folder)


def test_a_head_that_calls_itself_a_llama_is_known_by_its_draft_vocabulary(tmp_path):
    folder = kit.write_original(tmp_path, kit.tensors(), architectures=["LlamaForCausalLM"])
    assert is_head(str(folder))
    assert head_layers(str(folder)) == "eagle3"
    model = tmp_path / "model"
    kit.target_model().config.save_pretrained(model)
    assert not is_head(str(model))


def test_what_transformers_leaves_out_has_its_defaults(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"speculators_model_type": "eagle3", "transformer_layer_config": {}})
    )
    found, usual = config_of(tmp_path), transformers.LlamaConfig()
    assert found.hidden_size == found.target_hidden_size == usual.hidden_size
    assert found.num_kv_heads == usual.num_key_value_heads
    assert found.head_dim == usual.head_dim
    assert found.ffn_size == usual.intermediate_size
    assert found.vocab_size == usual.vocab_size
    assert found.norm_epsilon == usual.rms_norm_eps
    assert found.rotation["rope_theta"] == usual.rope_parameters["rope_theta"]


LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "layer",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0}
         | LLAMA3},
    ],
)  # fmt: skip
def test_rotations_are_read_as_transformers_names_them(tmp_path, layer):
    folder = kit.write_original(tmp_path, kit.tensors(), layer=layer)
    assert config_of(folder).rotation == {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}


@pytest.mark.parametrize("num_layers", [7, 32])
def test_the_usual_states_are_those_of_the_authors(num_layers):
    assert eagle3_layers(num_layers) == (2, num_layers // 2, num_layers - 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_magic": 3}, "the option use_magic = 3 is not known"),
        ({"speculators_model_type": "dflash"}, "type 'dflash'"),
        ({"norm_before_residual": "yes"}, "norm_before_residual is 'yes'"),
        ({"draft_vocab_size": kit.VOCAB + 1}, "draft_vocab_size is 41"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"layers": (2, 1, 3)}, "expected rising numbers"),
        ({"layers": (2,)}, "as wide as the head"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state False"),
        ({"eagle_config": {"use_magic": 3}}, "unknown key 'use_magic'"),
        ({"kind": "eagle", "layernorms": True}, "layernorms"),
        ({"layer": {"model_type": "qwen3"}}, "model_type is 'qwen3'"),
        ({"layer": {"hidden_act": "gelu"}}, "hidden_act is 'gelu'"),
        ({"layer": {"num_hidden_layers": 2}}, "num_hidden_layers is 2"),
        ({"layer": {"sliding_window": 4}}, "the option sliding_window = 4"),
        ({"layer": {"rope_scaling": {"rope_type": "dynamic"}}}, "rotation of type 'dynamic'"),
        ({"layer": {"hidden_size": "wide"}}, "hidden_size is 'wide'"),
        ({"layer": {"num_key_value_heads": 3}}, "groups of equal size"),
    ],
)
def test_options_that_are_not_known_are_refused_by_name(tmp_path, changes, message):
    folder = kit.write_speculators(tmp_path, kit.tensors(), **changes)
    with pytest.raises(ModelFileError, match=message):
        head_layers(str(folder))


def damaged(name, change):
    held = kit.tensors()
    held[name] = change(held[name])
    return held


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return print, ("boo",)


def without(name):
    return {key: each for key, each in kit.tensors().items() if key != name}


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (without("fc.weight"), "tensor fc.weight is missing"),
        (without("d2t"), "no d2t"),
        (damaged("fc.weight", lambda t: t[:, :-1].contiguous()), r"fc.weight is \(32, 95\)"),
        (damaged("norm.weight", lambda t: t * np.nan), "norm.weight holds what is no finite"),
        (damaged("d2t", lambda t: t + torch.arange(len(t))), "d2t maps 24 tokens to"),
        (damaged("d2t", lambda t: torch.zeros_like(t) - torch.arange(len(t))), "to 1 from 0 to 0"),
        (damaged("d2t", lambda t: t[:-1].contiguous()), r"d2t is \(23,\)"),
        (damaged("t2d", torch.logical_not), "t2d marks other tokens"),
        (kit.tensors() | {"layers.1.mlp.up_proj.weight": torch.zeros(2)}, "1 tensors that no"),
        (kit.tensors() | {"layers.0.mlp.up_proj.weight": torch.zeros(2)}, "two tensors up_proj"),
        (kit.tensors(attention_bias=True), "tensors that no option .*bias"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, held, message):
    config = config_of(kit.write_original(tmp_path, kit.tensors()))
    save_file(held, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        read_eagle_weights(tmp_path, config)


def test_a_pickle_that_holds_code_is_refused_and_not_run(tmp_path, capsys):
    config = config_of(kit.write_original(tmp_path, kit.tensors(), pickled=True))
    torch.save(kit.tensors() | {"fc.weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_eagle_weights(tmp_path, config)
    assert "boo" not in capsys.readouterr().out
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ModelFileError, match="no weights"):
        read_eagle_weights(tmp_path, config)


@pytest.fixture(scope="module")
def plain():
    return kit.target_model()


@pytest.fixture(scope="module")
def target():
    return load_torch(kit.target_model(), kv_cache_bytes=1 << 18, hidden_layers=kit.READ)


def test_a_head_of_another_model_is_refused(tmp_path, target):
    held = kit.tensors()
    folder = kit.write_speculators(tmp_path, held, layers=(0, 2, 3))
    with pytest.raises(IncompatibleModelsError, match=r"reads hidden states \(0, 2, 3\)"):
        load_torch_head(folder, target)
    kit.write_speculators(tmp_path, held, layers=kit.READ, layer={"vocab_size": 90})
    with pytest.raises(IncompatibleModelsError, match="for 90 tokens"):
        load_torch_head(folder, target)
    kit.write_speculators(tmp_path, held, layers=kit.READ, target_hidden_size=48)
    with pytest.raises(IncompatibleModelsError, match="3 states of width 48"):
        load_torch_head(folder, target)
    kit.write_speculators(tmp_path, held)
    with pytest.raises(ConfigError, match=r"of 4 layers these are \(2, 2, 1\)"):
        load_torch_head(folder, target)


def test_a_target_of_another_width_needs_the_heads_own_embedding(tmp_path):
    target = load_torch(
        kit.target_model(width=48), kv_cache_bytes=1 << 18, hidden_layers=kit.READ
    )  # fmt: skip
    folder = kit.write_speculators(
        tmp_path, kit.tensors(told=3 * 48), layers=kit.READ, target_hidden_size=48
    )
    assert isinstance(load_torch_head(folder, target), TorchHead)
    held = kit.tensors(told=3 * 48, own_embedding=False)
    kit.write_speculators(tmp_path, held, layers=kit.READ, target_hidden_size=48)
    with pytest.raises(IncompatibleModelsError, match="no embedding of its own"):
        load_torch_head(folder, target)


def test_tokens_without_a_string_are_not_drafted(tmp_path):
    target = load_torch(
        kit.target_model(), kv_cache_bytes=1 << 18, hidden_layers=kit.READ, vocab_size=30
    )
    held = kit.tensors()
    head = load_torch_head(kit.write_speculators(tmp_path, held, layers=kit.READ), target)
    assert head.shape.vocab_size == 30
    assert head.draft_ids.tolist() == [i for i in kit.drafted_ids(held).tolist() if i < 30]


def test_other_runtimes_and_precisions_are_refused(tmp_path, target):
    folder = str(kit.write_speculators(tmp_path, kit.tensors(), layers=kit.READ))
    table = TableBackend(MarkovTable(kit.VOCAB, None), PagedStore(40, 4))
    with pytest.raises(ConfigError, match=r"beside a target on torch; .* Expected --backend torch"):
        load_head(folder, table)
    with pytest.raises(ConfigError, match="precision int8 has no effect"):
        load_head(folder, target, precision="int8")


@pytest.mark.parametrize("layers", [(3, 1), (0, 5), (-1, 2), ()])
def test_states_that_a_model_has_not_are_refused(layers):
    with pytest.raises(ConfigError, match="expected rising numbers from 0 to 4"):
        load_torch(kit.target_model(), kv_cache_bytes=1 << 18, hidden_layers=layers)


@pytest.mark.parametrize("fusion_bias", [False, True])
def test_a_published_head_of_type_eagle_is_the_plain_forward(tmp_path, plain, fusion_bias):
    target = load_torch(kit.target_model(), kv_cache_bytes=1 << 18, with_hidden=True)
    held = kit.eagle_tensors(fusion_bias=fusion_bias)
    kit.write_speculators(
        tmp_path, held, kind="eagle", layernorms=False, fusion_bias=fusion_bias,
        draft_vocab_size=None, norm_before_residual=None,
    )  # fmt: skip
    assert head_layers(str(tmp_path)) is None
    head = load_head(str(tmp_path), target)
    text = [3, 1, 4, 1, 5, 9]
    told = kit.states(plain, text, (kit.LAYERS,))
    mask = np.triu(np.full((1, 5, 5), -1e9, np.float32), 1)
    nothing = np.zeros((1, kit.KV_HEADS, 0, kit.DIM), np.float32)
    x, logits, *made = head.run(
        told[None, :-1].astype(np.float32), np.array([text[1:]]), np.arange(1, 6)[None], nothing,
        nothing, mask,
    )  # fmt: skip
    _, next_logits, *_ = head.run(
        x[:, None], np.array([[2]]), np.array([[6]]), *made, np.zeros((1, 1, 6), np.float32)
    )
    matrices = [
        layer.weight.detach().double().numpy()
        for layer in (plain.model.embed_tokens, plain.lm_head)
    ]
    expected, _ = kit.reference(held, matrices[0], told, text, drafts=[2], output=matrices[1])
    np.testing.assert_allclose(np.concatenate([logits, next_logits]), expected, atol=5e-4)
    assert head.draft_ids.tolist() == list(range(kit.VOCAB))


# From a folder, by Python and by the command line.


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny Llama with one token per byte, and a head for it."""
    path = tmp_path_factory.mktemp("hf")
    vocab = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    (path / "target").mkdir()
    library.save(str(path / "target" / "tokenizer.json"))
    model = kit.target_model(vocab=len(vocab), layers=7)
    model.config.eos_token_id = model.config.bos_token_id = None
    model.generation_config.eos_token_id = model.generation_config.bos_token_id = None
    model.save_pretrained(path / "target")
    held = kit.tensors(vocab=len(vocab), drafted=200)
    return path / "target", kit.write_original(
        path / "head", held, pickled=True, layer={"vocab_size": len(vocab)}
    )


def test_a_head_drafts_from_python(folders):
    model, head = map(str, folders)
    options = {"max_tokens": 16, "seed": 3, "rule": "sample-match"}
    plain = draftproof.load(model)
    drafting = draftproof.load(
        model, speculative_config={"model": head, "num_speculative_tokens": 2}
    )
    result = drafting.generate("one two", **options)
    assert result.stats.num_draft_tokens > 10
    assert result.token_ids == plain.generate("one two", **options).token_ids
    with pytest.raises(ConfigError, match="precision f32 has no effect on the head"):
        draftproof.load(model, speculative_config={"model": head}, draft_precision="f32")


def test_a_head_drafts_from_the_command_line(folders):
    model, head = map(str, folders)
    words = ["generate", "--backend", "torch", "-m", model, "-md", head, "--max-tokens", "12"]
    result = CliRunner().invoke(app, [*words, "--json", "one two"], obj=CliContext())
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["stats"]["num_draft_tokens"] > 0


@pytest.mark.parametrize("backend", ["auto", "openvino", "llamacpp"])
def test_other_runtimes_are_refused_before_they_load(folders, tmp_path, backend):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="does not give; expected --backend torch"):
        draftproof.load(
            file, backend=backend, speculative_config={"model": str(folders[1])}, cache_dir=tmp_path
        )
