"""Hugging Face causal language models on PyTorch, with our own pages of keys and values."""

from draftproof.backends.torch_hf.backend import TorchBackend
from draftproof.backends.torch_hf.folder import model_folder
from draftproof.backends.torch_hf.loading import DTYPES, load_torch

__all__ = ["DTYPES", "TorchBackend", "load_torch", "model_folder"]
