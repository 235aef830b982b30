"""Models behind ``core.protocols.ModelBackend``. Importing this package loads no runtime."""
