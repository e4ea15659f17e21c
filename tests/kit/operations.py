"""Counts what torch does, on tensors of a CPU: operations that a GPU would have to launch, and waits for it."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = {"equal", "_local_scalar_dense", "_to_copy", "is_nonzero"}
"""Operations that wait for a GPU, or bring something to it or from it."""
FREE = {
    *("alias", "as_strided", "detach", "expand", "lift_fresh", "select", "slice", "split", "unbind", "unsqueeze"),
    *("_unsafe_view", "view", "empty", "empty_like", "empty_strided"),
}
"""Operations that launch nothing."""


class CountedOperations(TorchDispatchMode):
    """The operations of a block, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    def waits(self):
        return sum(count for name, count in self.counts.items() if name in WAITS)

    def launches(self):
        return sum(count for name, count in self.counts.items() if name not in FREE)


@contextmanager
def counting_operations():
    """Count the operations of torch in this block."""
    with CountedOperations() as counted:
        yield counted
