"""``draftproof distill``, and the head that it leaves, from the command line."""

from __future__ import annotations

import json

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers
from typer.testing import CliRunner

from draftproof.cli.app import app
from draftproof.cli.context import CliContext


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], obj=CliContext())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny Llama with one token per byte and no chat template."""
    path = tmp_path_factory.mktemp("hf")
    vocab = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    library = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.save(str(path / "tokenizer.json"))
    transformers.set_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=len(vocab), hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.2, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_a_head_is_trained_measured_and_used(model, tmp_path):
    folder = tmp_path / "head"
    result = run(
        "distill", "-m", model, "--minutes", 0.01, "--tokens", 500, "--draft-vocab", 64,
        "-o", folder, "--json", "--prompts", 1,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["draft_vocab_size"] == 64
    assert {row["kappa"] for row in document["speed"]} == {2, 3, 4}
    assert document["notes"]["held_out"]["counts"][0] > 0
    assert document["prompts"].startswith("1 built-in prompts")
    used = run("generate", "-m", model, "-md", folder, "--max-tokens", 12, "--json", "one two")
    assert used.exit_code == 0, used.output
    assert json.loads(used.stdout)["stats"]["num_draft_tokens"] > 0


def test_texts_of_the_user_are_measured_on_their_own_held_out_pieces(model, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 30)
    result = run(
        "distill", "-m", model, "--minutes", 0.02, "--tokens", 1000, "--draft-vocab", 64,
        "--text", text, "-o", tmp_path / "head", "--prompts", 3,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert "with beginnings of 1 held-out pieces of" in shown
    other = run("distill", "-m", model, "--draft-vocab", 64, "-o", tmp_path / "head")
    assert other.exit_code == 2
    assert "the text was texts of --text and is the target's own answers now" in " ".join(
        other.output.split()
    )


def test_what_cannot_be_is_refused(model, tmp_path):
    result = run("distill", "-m", model, "--minutes", 0, "-o", tmp_path / "head")
    assert result.exit_code == 2
    assert "minutes is 0.0" in result.output


def test_paths_are_refused_before_a_model_is_loaded(tmp_path):
    taken, empty = tmp_path / "taken", tmp_path / "empty"
    taken.write_text("a file")
    empty.mkdir()
    (empty / "folder.md").mkdir()
    output = tmp_path / "head"
    for words, message in (
        (("-o", taken), "taken is a file; expected a folder"),
        (("-o", taken / "below"), "taken is a file; expected a folder"),
        (("-o", output, "--text", tmp_path / "nowhere"), "nowhere: does not exist"),
        (("-o", output, "--text", empty), "no file that ends in .txt or .md"),
    ):
        result = run("distill", "-m", "no-such-model", *words)
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
    assert not output.exists()
