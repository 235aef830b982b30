"""The only room where configuration becomes objects."""

from draftproof.build.loading import PRECISIONS, load, load_model
from draftproof.build.speculative import SpeculativeConfig

__all__ = ["PRECISIONS", "SpeculativeConfig", "load", "load_model"]
