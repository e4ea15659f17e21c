"""How many threads torch has on the CPU beside a GPU: one for our small work, all for the code of definitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_usual: list[int] = []
"""The number that torch had before this process was kept to one thread; empty where it was not."""


def keep_to_one_thread() -> None:
    """Have torch compute in one thread from here on, but within `usual_threads`.

    On 16 cores, of which workers hold some, an operation on 50,000 numbers took 5 to 8 ms: it waits for the last of its
    threads. They spin meanwhile and after it, on cores that other workers and sessions need.
    """
    if not _usual:
        _usual.append(torch.get_num_threads())
    torch.set_num_threads(1)


@contextmanager
def usual_threads() -> Iterator[None]:
    """Let torch have as many threads as it had before this process was kept to one."""
    if not _usual:
        yield
        return
    torch.set_num_threads(_usual[0])
    try:
        yield
    finally:
        torch.set_num_threads(1)
