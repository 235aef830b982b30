"""The options that verbs share, and their help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["Backend", "LogprobsMode", "Precision", "Rule"]

MODEL = "Model"
SPECULATION = "Speculation"
SAMPLING = "Sampling"
ENDING = "Ending"
SHAPE = "Shape of the output"
PROMPT = "Prompt"
OUTPUT = "Output"
MANY = "Many prompts"


class Precision(StrEnum):
    """How weights are held."""

    F32 = "f32"
    F16 = "f16"
    INT8 = "int8"


class Backend(StrEnum):
    """Runtimes."""

    AUTO = "auto"
    OPENVINO = "openvino"
    TORCH = "torch"
    LLAMACPP = "llamacpp"


class Rule(StrEnum):
    """Verification rules, all of them exact."""

    STANDARD = "standard"
    BLOCK = "block"
    COUPLED = "coupled"
    SAMPLE_MATCH = "sample-match"


class LogprobsMode(StrEnum):
    """Whose log probabilities are reported."""

    RAW = "raw"
    PROCESSED = "processed"


def _option(panel: str, *names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


Model = Annotated[
    str,
    _option(
        MODEL, "-m", "--model", help="A name, a .gguf file, an OpenVINO or Hugging Face folder."
    ),
]
PrecisionOf = Annotated[Precision, _option(MODEL, "--precision", help="How weights are held.")]
PrecisionOrNone = Annotated[
    Precision | None,
    _option(MODEL, "--precision", help="How OpenVINO holds the weights; int8 by default."),
]
BackendOf = Annotated[
    Backend, _option(MODEL, "--backend", help="The runtime; by files and calibrations by default.")
]
Device = Annotated[
    str | None, _option(MODEL, "--device", help="PyTorch: auto, cpu, cuda or cuda:1.")
]
Dtype = Annotated[
    str | None, _option(MODEL, "--dtype", help="PyTorch: auto, float32, bfloat16 or float16.")
]
Attention = Annotated[
    str | None,
    _option(
        MODEL,
        "--attention",
        help="PyTorch: auto, sdpa, explicit, flash-attn, flashinfer or flex.",
    ),
]
Linear = Annotated[
    str | None,
    _option(MODEL, "--linear", help="PyTorch on CPUs: auto, plain, packed or f16."),
]
CudaGraphs = Annotated[
    str | None,
    _option(MODEL, "--cuda-graphs", help="PyTorch on CUDA: auto, on or off."),
]
TensorParallel = Annotated[
    int | None,
    _option(MODEL, "--tensor-parallel", help="PyTorch: processes over which the model is cut."),
]
GpuLayers = Annotated[
    int | None,
    _option(MODEL, "-ngl", "--n-gpu-layers", help="llama.cpp: layers on the GPU, -1 for all."),
]
MainGpu = Annotated[
    int | None, _option(MODEL, "--main-gpu", help="llama.cpp: the only GPU to use, by number.")
]
FlashAttn = Annotated[
    bool | None,
    _option(MODEL, "--flash-attn/--no-flash-attn", help="llama.cpp: one kernel for attention."),
]
CacheTypeK = Annotated[
    str | None, _option(MODEL, "--cache-type-k", help="llama.cpp: how keys are kept, as q8_0.")
]
CacheTypeV = Annotated[
    str | None, _option(MODEL, "--cache-type-v", help="llama.cpp: how values are kept.")
]
Threads = Annotated[
    int | None, _option(MODEL, "--threads", help="Threads of the runtime; all cores by default.")
]
ContextLength = Annotated[
    int | None, _option(MODEL, "--context-length", help="Use less context than the model has.")
]
KvCacheMb = Annotated[
    int | None, _option(MODEL, "--kv-cache-mb", help="Size of the KV cache in MB (10^6 bytes).")
]
Deterministic = Annotated[
    bool,
    _option(
        MODEL,
        "--deterministic",
        help="Keep greedy and seed-identical text to the bit; smaller passes.",
    ),
]
MaxRows = Annotated[int, _option(MODEL, "--max-rows", help="Most requests that run at once.")]

DraftModel = Annotated[
    str | None,
    _option(
        SPECULATION,
        "-md",
        "--draft-model",
        help="Draft with this model; of another vocabulary it drafts what both have.",
    ),
]
Draft = Annotated[
    str | None,
    _option(
        SPECULATION,
        "--draft",
        metavar="METHOD[:VALUE]",
        help="Draft in this way, as 'suffix' or 'early-exit:8', the first 8 layers.",
    ),
]
DraftPrecision = Annotated[
    Precision | None,
    _option(SPECULATION, "--draft-precision", help="Weights of the draft model; as the target's."),
]
SpeculativeConfigJson = Annotated[
    str | None,
    _option(
        SPECULATION,
        "--speculative-config",
        metavar="JSON",
        help='For example \'{"method": "ngram", "num_speculative_tokens": 5}\'.',
    ),
]
NumSpeculativeTokens = Annotated[
    int | None,
    _option(SPECULATION, "-k", "--num-speculative-tokens", help="Most drafts per round."),
]
NumberOrAuto = Annotated[
    str | None,
    _option(
        SPECULATION,
        "-k",
        "--num-speculative-tokens",
        metavar="N|auto",
        help="Most drafts per round; 'auto' chooses them anew in each round.",
    ),
]
RuleOf = Annotated[
    Rule | None,
    _option(SPECULATION, "--rule", help="Verification rule; the best exact one by default."),
]

Prediction = Annotated[
    Path | None,
    _option(
        SPECULATION,
        "--prediction",
        metavar="FILE",
        help="What the output is expected to be, for prediction, hybrid, and trees of them.",
    ),
]

Temperature = Annotated[float, _option(SAMPLING, "--temperature", help="0 is greedy.")]
TopK = Annotated[int, _option(SAMPLING, "--top-k", help="Keep the k best tokens; 0 is off.")]
TopP = Annotated[float, _option(SAMPLING, "--top-p", help="Keep this much mass; 1 is off.")]
MinP = Annotated[
    float, _option(SAMPLING, "--min-p", help="Keep tokens of this share of the best; 0 is off.")
]
RepetitionPenalty = Annotated[float, _option(SAMPLING, "--repetition-penalty", help="1 is off.")]
PresencePenalty = Annotated[float, _option(SAMPLING, "--presence-penalty", help="0 is off.")]
FrequencyPenalty = Annotated[float, _option(SAMPLING, "--frequency-penalty", help="0 is off.")]
LogitBias = Annotated[
    str | None,
    _option(
        SAMPLING, "--logit-bias", metavar="JSON", help="Added to logits, such as '{\"50\": -2.5}'."
    ),
]
Seed = Annotated[
    int | None, _option(SAMPLING, "--seed", help="Same seed, same text; a fresh one by default.")
]

MaxTokens = Annotated[int, _option(ENDING, "--max-tokens", help="Most tokens to generate.")]
MinTokens = Annotated[int, _option(ENDING, "--min-tokens", help="No end before this many.")]
IgnoreEos = Annotated[
    bool, _option(ENDING, "--ignore-eos", help="Treat the end token as an ordinary one.")
]
Stop = Annotated[
    list[str] | None,
    _option(ENDING, "--stop", help="End before this text; may be given several times."),
]

JsonSchema = Annotated[
    str | None,
    _option(
        SHAPE, "--json-schema", metavar="JSON|FILE", help="Write JSON that this schema allows."
    ),
]
JsonObject = Annotated[bool, _option(SHAPE, "--json-object", help="Write a JSON object.")]
Regex = Annotated[
    str | None, _option(SHAPE, "--regex", help="The whole output matches this expression.")
]
Choice = Annotated[
    list[str] | None,
    _option(SHAPE, "--choice", help="Write one of these texts; give it several times."),
]
Grammar = Annotated[
    Path | None,
    _option(SHAPE, "--grammar", metavar="FILE.lark", help="Follow a grammar in Lark syntax."),
]

Chat = Annotated[
    bool | None,
    _option(
        PROMPT,
        "--chat/--raw",
        help="Put the prompt through the model's chat template, or give it as it is (default).",
    ),
]
System = Annotated[str | None, _option(PROMPT, "--system", help="System message; implies --chat.")]

Logprobs = Annotated[
    int | None,
    _option(
        OUTPUT,
        "--logprobs",
        metavar="N",
        help="With --json or --prompts: log probabilities, also of the N best tokens.",
    ),
]
LogprobsModeOf = Annotated[
    LogprobsMode | None,
    _option(
        OUTPUT, "--logprobs-mode", help="The model's own (raw), or under the policy (processed)."
    ),
]
Completions = Annotated[
    int, _option(OUTPUT, "-n", "--n", metavar="N", help="Completions of the prompt.")
]
JsonOutput = Annotated[bool, _option(OUTPUT, "--json", help="One JSON object on stdout.")]
ShowSources = Annotated[
    bool | None,
    _option(
        OUTPUT,
        "--show-sources/--no-show-sources",
        help="Tell accepted, recovered and bonus tokens apart; the default on a terminal.",
    ),
]
Compare = Annotated[
    bool,
    _option(OUTPUT, "--compare", help="Time plain and speculative decoding, interleaved."),
]
Repeats = Annotated[
    int | None,
    _option(OUTPUT, "--repeats", help="Pairs of runs to time, 5 (demo: 3).", metavar="N"),
]
Quiet = Annotated[bool, _option(OUTPUT, "-q", "--quiet", help="Only data and errors.")]

Prompts = Annotated[
    Path | None,
    _option(MANY, "--prompts", metavar="FILE.jsonl", help="One JSON object per line; - is stdin."),
]
Output = Annotated[
    Path | None,
    _option(
        MANY,
        "--output",
        metavar="OUT.jsonl",
        help="Where results go; the same command goes on after an interruption.",
    ),
]
