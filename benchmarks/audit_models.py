"""Write the tiny random models of the recorded audits: a target and two drafters.

``python benchmarks/audit_models.py FOLDER`` writes folders for transformers and vLLM, and GGUF
files for llama.cpp (weights in float16). With ``--ir`` it also writes OpenVINO IR; that needs
openvino-genai and openvino-tokenizers beside transformers.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models

#: Name: seed, letters of the vocabulary. The target, a drafter, and a drafter with another
#: tokenizer, which has twelve letters in common with the target's.
MODELS = {
    "t16": (0, "abcdefghijklmnop"),
    "d16": (1, "abcdefghijklmnop"),
    "u18": (1, "hgfedcbaqrstijkluv"),
}
CONTEXT = 256
#: vLLM's attention on the CPU has no heads narrower than this; ``v16`` is a target for it.
VLLM_HEAD_DIM = 32


def write_folder(folder: Path, seed: int, letters: str, head_dim: int = 16) -> Any:
    """Write a model and its tokenizer of single letters for transformers."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(letters),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        initializer_range=0.25,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return model


def write_gguf(path: Path, model: Any) -> None:
    """Write the same weights as GGUF; the last token ends a text, as llama.cpp wants one."""
    config, state = model.config, model.state_dict()
    size, heads = config.vocab_size, config.num_attention_heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // heads)
    writer.add_vocab_size(size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(chr(97 + i) for i in range(size - 1)), "ab"])
    writer.add_token_types([1] * size)
    writer.add_token_merges(["a b"])
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_eos_token_id(size - 1)
    writer.add_bos_token_id(size - 1)

    def put(name: str, weight: torch.Tensor, *, rotated: bool = False) -> None:
        values = weight.numpy()
        if rotated:  # llama.cpp pairs neighbours, transformers halves
            rows = values.reshape(heads, 2, -1, values.shape[1])
            values = rows.swapaxes(1, 2).reshape(values.shape)
        if values.ndim == 2:
            values = values.astype(np.float16)
        writer.add_tensor(name, np.ascontiguousarray(values))

    put("token_embd.weight", state["model.embed_tokens.weight"])
    put("output_norm.weight", state["model.norm.weight"])
    put("output.weight", state["lm_head.weight"])
    for layer in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{layer}.", f"blk.{layer}."
        for source, name in (
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
        ):
            weight = state[f"{theirs}{source}.weight"]
            put(f"{ours}{name}.weight", weight, rotated=name in ("attn_q", "attn_k"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_ir(path: Path) -> None:
    """Turn a GGUF file into IR beside it, with a byte-level tokenizer that OpenVINO can run."""
    import openvino
    import openvino_genai
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import pre_tokenizers, processors

    # The model is saved before its tokenizer is compiled, which fails for want of
    # special tokens in 2026.4.1.
    with contextlib.suppress(RuntimeError):
        openvino_genai.LLMPipeline(str(path), "CPU", enable_save_ov_model=True)
    vocabulary = {chr(97 + i): i for i in range(15)} | {"ab": 15}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="o $A", special_tokens=[("o", 14)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="o", pad_token="n"
    )
    encoder, decoder = convert_tokenizer(fast, with_detokenizer=True)
    openvino.save_model(encoder, path.parent / "openvino_tokenizer.xml")
    openvino.save_model(decoder, path.parent / "openvino_detokenizer.xml")


def main() -> None:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ir", action="store_true")
    arguments = parser.parse_args()
    for name, (seed, letters) in MODELS.items():
        model = write_folder(arguments.folder / name, seed, letters)
        if name == "u18":
            continue
        into = arguments.folder / f"g{name[0]}"
        into.mkdir(exist_ok=True)
        write_gguf(into / f"{name}.gguf", model)
        if arguments.ir:
            write_ir(into / f"{name}.gguf")
    write_folder(arguments.folder / "v16", *MODELS["t16"], VLLM_HEAD_DIM)


if __name__ == "__main__":
    main()
