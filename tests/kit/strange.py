"""What may stand in place of a file: a pipe, a device, a file without end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.trees import remove_tree

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


@contextmanager
def deep_folder(top: Path, name: str = "d") -> Iterator[Path]:
    """Make a folder with folders in it deeper than Python recurses. What is left of it at the end pytest cannot remove.

    Args:
        top: the outermost folder.
        name: what each of the others is called.
    """
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    try:
        yield top
    finally:
        remove_tree(top)
