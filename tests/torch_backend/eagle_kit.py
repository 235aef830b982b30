"""Small random heads in the formats in which heads are published, and what they compute.

`reference` is written from the papers and the published files' own names, in float64 and
over whole texts, and shares nothing with the code that it checks.
"""

from __future__ import annotations

import json

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

VOCAB, DRAFTED, WIDTH = 40, 24, 32
HEADS, KV_HEADS, DIM, INNER = 4, 2, 8, 48
LAYERS = 4
#: States that the heads read, and how the authors' format names them.
READ, NAMED = (1, 2, 3), [0, 1, 2]


def target_model(vocab=VOCAB, layers=LAYERS, width=WIDTH, seed=0):
    """Return a random Llama whose law is far from uniform."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=48, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def states(model, tokens, layers):
    """Return joined hidden states by the model's own forward, shape (N, len(layers) * E)."""
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False
        )
    return np.concatenate([output.hidden_states[i][0].double().numpy() for i in layers], axis=1)


def tensors(*, vocab=VOCAB, drafted=DRAFTED, told=3 * WIDTH, width=WIDTH, own_embedding=True,
            attention_bias=False, mlp_bias=False, norm_before_fc=False, seed=1):  # fmt: skip
    """Return random weights by the names of the authors' format."""
    generator = np.random.default_rng(seed)

    def normal(*extent):
        is_norm = len(extent) == 1
        spread = 0.4 if is_norm else 1.5 / extent[-1] ** 0.5
        return torch.from_numpy(generator.normal(float(is_norm), spread, extent).astype(np.float32))

    layer = {
        "hidden_norm.weight": (width,),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (HEADS * DIM, 2 * width),
        "self_attn.k_proj.weight": (KV_HEADS * DIM, 2 * width),
        "self_attn.v_proj.weight": (KV_HEADS * DIM, 2 * width),
        "self_attn.o_proj.weight": (width, HEADS * DIM),
        "mlp.gate_proj.weight": (INNER, width),
        "mlp.up_proj.weight": (INNER, width),
        "mlp.down_proj.weight": (width, INNER),
    }
    for name, extent in list(layer.items()):
        if attention_bias if name.startswith("self_attn") else mlp_bias and name[:3] == "mlp":
            layer[name.replace("weight", "bias")] = extent[:1]
    found = {f"midlayer.{name}": normal(*extent) for name, extent in layer.items()}
    found |= {
        "fc.weight": normal(width, told),
        "norm.weight": normal(width),
        "lm_head.weight": normal(drafted, width),
    }
    if norm_before_fc:
        found["input_norm.weight"] = normal(told)
    if own_embedding:
        found["embed_tokens.weight"] = normal(vocab, width)
    ids = np.sort(generator.permutation(vocab)[:drafted])
    marks = np.zeros(vocab, dtype=bool)
    marks[ids] = True
    found["d2t"] = torch.from_numpy(ids - np.arange(drafted))
    found["t2d"] = torch.from_numpy(marks)
    return found


def layer_config(vocab=VOCAB, width=WIDTH, **changes):
    """Return what transformers writes of the layer."""
    return {
        "model_type": "llama", "hidden_size": width, "intermediate_size": INNER,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
        "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "vocab_size": vocab,
        "hidden_act": "silu", "max_position_embeddings": 128, "tie_word_embeddings": False,
    } | changes  # fmt: skip


def write_speculators(folder, held, *, layers=None, kind="eagle3", layer=None, **changes):
    """Write a head as vLLM's speculators do."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "draft_vocab_size": len(held["d2t"]) if "d2t" in held else VOCAB,
        "norm_before_residual": False,
        "target_hidden_size": None,
        "transformer_layer_config": layer_config(**(layer or {})),
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "tiny"}},
        "torch_dtype": "float32",
    } | changes
    if layers is not None:
        config["eagle_aux_hidden_state_layer_ids"] = list(layers)
    (folder / "config.json").write_text(json.dumps(config))
    renamed = {name.replace("midlayer.", "layers.0."): each for name, each in held.items()}
    save_file(renamed, folder / "model.safetensors")
    return folder


def write_original(folder, held, *, pickled=False, layer=None, **changes):
    """Write a head as EAGLE-3's authors do."""
    folder.mkdir(parents=True, exist_ok=True)
    config = layer_config(**(layer or {})) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(held["d2t"]),
        "bos_token_id": 1,
        "torch_dtype": "float16",
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    if pickled:
        torch.save(held, folder / "pytorch_model.bin")
    else:
        save_file(held, folder / "model.safetensors")
    return folder


def eagle_tensors(*, fusion_bias=False, seed=2):
    """Return random weights of a head of type ``eagle``, by the names of speculators."""
    found = tensors(seed=seed)
    generator = np.random.default_rng(seed)
    norms = ("hidden_norm.weight", "input_layernorm.weight")  # which this type has not
    held = {
        name.replace("midlayer.", "transformer."): each
        for name, each in found.items()
        if name.startswith("midlayer.") and not name.endswith(norms)
    }
    for part in "qkv":
        name = f"transformer.self_attn.{part}_proj.weight"
        held[name] = held[name][:, :WIDTH].contiguous()
    extent = (WIDTH, 2 * WIDTH)
    fusion = generator.normal(0.0, 1.5 / extent[1] ** 0.5, extent)
    held["fusion_fc.weight"] = torch.from_numpy(fusion.astype(np.float32))
    if fusion_bias:
        bias = generator.normal(0.0, 0.5, WIDTH)
        held["fusion_fc.bias"] = torch.from_numpy(bias.astype(np.float32))
    return held


def drafted_ids(held):
    """Return the token of each row of the head's output layer."""
    return np.arange(len(held["d2t"])) + held["d2t"].numpy()


def _norm(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight


def _turn(heads, place, theta):
    half = DIM // 2
    angle = place * theta ** (-np.arange(half) / half)
    left, right = heads[..., :half], heads[..., half:]
    return np.concatenate(
        [
            left * np.cos(angle) - right * np.sin(angle),
            right * np.cos(angle) + left * np.sin(angle),
        ],
        axis=-1,
    )


def reference(held, embedding, told, tokens, *, first=1, drafts=(), window=10**9,
              norm_before_residual=False, theta=500.0, output=None):  # fmt: skip
    """Return logits and the head's own states, behind a text and behind each of some drafts.

    ``told`` are the target's joined states of ``tokens``; the head reads the tokens from
    ``first`` on, each with the state before it, and each draft with its own last state. With
    ``output``, the target's output layer, it is a head of type ``eagle``.
    """
    w = {
        name.replace("transformer.", "midlayer."): each.double().numpy()
        for name, each in held.items()
        if each.is_floating_point()
    }

    def product(name, x):
        return w[f"midlayer.{name}.weight"] @ x + w.get(f"midlayer.{name}.bias", 0.0)

    keys, values, logits, states, x = [], [], [], [], None
    text = [*tokens, *drafts]
    for place in range(first, len(text)):
        if output is not None:
            state = told[place - 1] if place < len(tokens) else x
            joined = np.concatenate([embedding[text[place]], state])
            read = stream = w["fusion_fc.weight"] @ joined + w.get("fusion_fc.bias", 0.0)
        elif place < len(tokens):
            state = told[place - 1]
            if "input_norm.weight" in w:
                state = _norm(state, w["input_norm.weight"])
            stream = w["fc.weight"] @ state
        else:
            stream = x
        if output is None:
            normed = _norm(stream, w["midlayer.hidden_norm.weight"])
            read = np.concatenate(
                [_norm(embedding[text[place]], w["midlayer.input_layernorm.weight"]), normed]
            )
            stream = normed if norm_before_residual else stream
        keys.append(_turn(product("self_attn.k_proj", read).reshape(KV_HEADS, DIM), place, theta))
        values.append(product("self_attn.v_proj", read).reshape(KV_HEADS, DIM))
        if place < len(tokens) - 1:
            continue  # of one layer nothing else is seen later
        query = _turn(product("self_attn.q_proj", read).reshape(HEADS, DIM), place, theta)
        mixed = []
        for head in range(HEADS):
            group = head * KV_HEADS // HEADS
            near = slice(max(len(keys) - window, 0), None)
            scores = np.array([key[group] @ query[head] for key in keys[near]]) / DIM**0.5
            shares = np.exp(scores - scores.max())
            mixed.append(shares @ np.array([v[group] for v in values[near]]) / shares.sum())
        x = stream + product("self_attn.o_proj", np.concatenate(mixed))
        inner = _norm(x, w["midlayer.post_attention_layernorm.weight"])
        gate = product("mlp.gate_proj", inner)
        gated = gate / (1 + np.exp(-gate)) * product("mlp.up_proj", inner)
        x = x + product("mlp.down_proj", gated)
        if output is None:
            logits.append(w["lm_head.weight"] @ _norm(x, w["norm.weight"]))
        else:
            logits.append(output @ x)
        states.append(x)
    return logits, states
