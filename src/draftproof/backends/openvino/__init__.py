"""Models on the OpenVINO CPU runtime, with our own pages of keys and values."""

from draftproof.backends.openvino.quiet_import import import_openvino

import_openvino()  # before any module below imports the runtime

from draftproof.backends.openvino.backend import OpenVINOBackend  # noqa: E402
from draftproof.backends.openvino.loading import load_openvino  # noqa: E402
from draftproof.backends.openvino.manifest import Manifest, read_manifest  # noqa: E402
from draftproof.backends.openvino.prepare import prepare  # noqa: E402

__all__ = ["Manifest", "OpenVINOBackend", "load_openvino", "prepare", "read_manifest"]
