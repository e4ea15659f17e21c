"""The token of a server: a secret in a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.errors import ConfigError

SHORTEST: Final = 16
"""Shortest token, in characters. A shorter token can be guessed."""
MOST_BYTES: Final = 4096


def read_token(path: Path | str) -> str:
    """Return the token in a file, without surrounding whitespace.

    Raises:
        ConfigError: the file cannot be read, other users can read or change it, or its content is too short.
    """
    hint = f"python -c 'import secrets; print(secrets.token_urlsafe())' > {path}; chmod 600 {path}"
    try:
        descriptor = open_to_read(path)
        try:
            found = os.fstat(descriptor)
            text = os.read(descriptor, MOST_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"--token-file: {path} cannot be read: {error.strerror}; to make one: {hint}") from error
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(f"--token-file: other users may read or change {path}; do: chmod 600 {path}")
    token = text.decode("utf-8-sig", "replace").strip()
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"--token-file: {path} should hold {SHORTEST} or more plain characters; to make one: {hint}")
    return token
