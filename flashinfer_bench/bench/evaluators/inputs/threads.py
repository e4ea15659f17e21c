"""The CPU threads of torch alongside a GPU: one thread for the judge's small operations, all for the code of
definitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_usual: list[int] = []
"""The number of threads before this process was limited to one; empty if it was not limited."""


def keep_to_one_thread() -> None:
    """Have torch compute in one thread from here on, except within `usual_threads`.

    With more threads, a small operation waits for its slowest thread, since workers hold some cores. The threads also
    spin on cores that other workers and sessions need.
    """
    if not _usual:
        _usual.append(torch.get_num_threads())
    torch.set_num_threads(1)


@contextmanager
def usual_threads() -> Iterator[None]:
    """Restore the number of torch's threads from before this process was limited to one thread."""
    if not _usual:
        yield
        return
    torch.set_num_threads(_usual[0])
    try:
        yield
    finally:
        torch.set_num_threads(1)
