"""Model files: the catalogue, downloads, and cheap reading of their metadata.

This room knows files and packages. It runs no model and imports no runtime.
"""

from draftproof.models.catalog import CATALOG, CatalogEntry, catalog_entry
from draftproof.models.gguf_metadata import GgufFile, TensorInfo, read_gguf
from draftproof.models.pull import cached_path, pull
from draftproof.models.resolve import ModelSource, resolve

__all__ = [
    "CATALOG",
    "CatalogEntry",
    "GgufFile",
    "ModelSource",
    "TensorInfo",
    "cached_path",
    "catalog_entry",
    "pull",
    "read_gguf",
    "resolve",
]
