"""What may stand in place of a file: a pipe, a device, a file without end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

HUGE_BYTES: Final = 1 << 42


def make_socket(path: Path) -> None:
    """Put a socket at a path, which may be longer than a socket's address."""
    with socket.socket(socket.AF_UNIX) as end:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            end.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


def make_sparse(path: Path) -> None:
    """Put a file of four terabytes, which take no room on the disk, at a path."""
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


STRANGE: Final[dict[str, Callable[[Path], object]]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": make_socket,
    "a folder": lambda path: path.mkdir(),
    "has more than": make_sparse,
    "symbolic links": lambda path: path.symlink_to(path.name),
}
"""Words of the message → what puts it at a path."""
