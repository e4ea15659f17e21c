"""One thread for small work on the CPU beside a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute in one thread.

    On 16 cores, of which workers that start hold some, an operation on 50,000 numbers took 5 to 8 ms: it waits for the
    last of its threads.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
