"""Models on llama.cpp, through the C interface of ``llama-cpp-python``."""

from draftproof.backends.llama_cpp.backend import LlamaCppBackend
from draftproof.backends.llama_cpp.loading import load_llama_cpp
from draftproof.backends.llama_cpp.native import KV_TYPES, LlamaModel

__all__ = ["KV_TYPES", "LlamaCppBackend", "LlamaModel", "load_llama_cpp"]
