"""Files and folders that a command writes because the user names them. In a trace set, no link leads such a write out.

Outside of sets, a path is the user's own choice, and its links are followed.
"""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flashinfer_bench.base.files.writing import WriteRefused, check_place, open_to_append
from flashinfer_bench.data.store.layout import find_set_around
from flashinfer_bench.env import get_fib_dataset_path
from flashinfer_bench.errors import Misuse


class Output(NamedTuple):
    """A place to write to."""

    path: Path
    """Absolute, and without `..`."""
    root: Path | None
    """The folder of the trace set that the place lies in, for the writers; None outside of sets."""

    def append(self, data: bytes) -> None:
        """Append to the file, all of it or nothing. Outside of sets, it may be a device or a pipe.

        Raises:
            OSError: it cannot be written.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o666) if self.root is None else open_to_append(self.path, root=self.root)
        try:
            size, written = os.fstat(fd).st_size, 0
            try:
                written = os.write(fd, data)
            finally:
                if written != len(data):
                    with suppress(OSError):  # a device has no size
                        os.ftruncate(fd, size)
        finally:
            os.close(fd)
        if written != len(data):
            raise OSError(errno.ENOSPC, "the disk took only part of it", str(self.path))


def find_output(path: Path | str, args: argparse.Namespace | None = None) -> Output:
    """Find the trace set that a place lies in.

    Args:
        path: a file or a folder, which may be missing.
        args: the command's; its sets count as such, whatever they look like.

    Raises:
        Misuse: the place lies behind a link in a set, or is one.
    """
    whole, root = find_set_around(Path(path), _named_sets(args))
    if root is not None:
        try:
            check_place(whole, root)
        except WriteRefused as error:
            raise Misuse(f"{path} cannot be written: {error.strerror}, or name the place that you mean") from error
        except OSError:
            pass  # the writer tells it
    return Output(whole, root)


def _named_sets(args: argparse.Namespace | None) -> Iterator[Path]:
    named = getattr(args, "local", None) or ()
    yield from map(Path, [named] if isinstance(named, str) else named)
    yield get_fib_dataset_path()
