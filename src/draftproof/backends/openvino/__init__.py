"""Models on the OpenVINO CPU runtime, with our own pages of keys and values."""

from draftproof.backends.openvino.backend import OpenVINOBackend
from draftproof.backends.openvino.loading import load_openvino
from draftproof.backends.openvino.manifest import Manifest, read_manifest
from draftproof.backends.openvino.prepare import prepare

__all__ = ["Manifest", "OpenVINOBackend", "load_openvino", "prepare", "read_manifest"]
