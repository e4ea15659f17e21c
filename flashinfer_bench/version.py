"""The package's version: read by the build, by `--version` and written into every trace. Nothing else lives here."""

__version__ = "0.1.0"
