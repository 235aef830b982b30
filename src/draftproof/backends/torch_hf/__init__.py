"""Hugging Face causal language models on PyTorch, with our own pages of keys and values."""

from draftproof.backends.torch_hf.backend import TorchBackend
from draftproof.backends.torch_hf.folder import model_folder
from draftproof.backends.torch_hf.head import TorchHead, load_torch_head
from draftproof.backends.torch_hf.loading import DTYPES, load_torch
from draftproof.backends.torch_hf.parallel import ParallelBackend
from draftproof.backends.torch_hf.parallel_start import load_parallel

__all__ = [
    "DTYPES",
    "ParallelBackend",
    "TorchBackend",
    "TorchHead",
    "load_parallel",
    "load_torch",
    "load_torch_head",
    "model_folder",
]
