"""Cold by rotation: each call gets its own copy of the arguments, and so many of them that none is left in the L2.

It is refused where it would not work. Whether it did work is told by three timings (`why_not_cold`): a call may read
what is not among its arguments, or only a small part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

import torch

from flashinfer_bench.testing.arguments import (
    NotCopyable,
    bytes_of,
    copy_tensors,
    name_outside_tensors,
    replace_tensors,
)
from flashinfer_bench.timing.clocks import Launch

BETWEEN_SHARE: Final = 3
"""Between two uses of one copy the others fill the L2 so many times; its lines are not replaced in strict order."""
MEMORY_SHARE: Final = 0.8
"""The copies take no more than this of the free memory."""
VISIBLE_SHARE: Final = 0.05
VISIBLE_NS: Final = 200
"""A flush that slows a call by less than both shows no difference between cold and warm."""
COLD_SHARE: Final = 0.8
"""A rotated call that lies no further than this from the warm one towards the flushed one is warm, at least in part."""


class RotationRefused(Exception):
    """Rotating the arguments would not make calls cold, or is not possible; the reason is its text."""


class Rotation:
    """Gives each call of a function one of several equal sets of arguments. A set is made when it is first used.

    Args:
        function: what is called.
        args: its positional arguments; the first set is these themselves.
        kwargs: its keyword arguments.
        tensors: those among both that are copied.
        sets: how many sets there are at the most.
        evict: empties the L2, so that a set that was just made is as cold as the others.
    """

    def __init__(
        self,
        function: Callable[..., object],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        tensors: Sequence[torch.Tensor],
        sets: int,
        evict: Callable[[], None],
    ) -> None:
        self._function = function
        self._given = (tuple(args), dict(kwargs))
        self._tensors = list(tensors)
        self._sets = sets
        self._evict = evict
        self._launches: list[Launch] = [partial(function, *args, **kwargs)]

    @property
    def used(self) -> int:
        """Sets that have been used, the given one included."""
        return len(self._launches)

    def supply(self, index: int) -> Launch:
        """Return the launch of the index-th call."""
        place = index % self._sets
        while len(self._launches) <= place:
            self._add()
        return self._launches[place]

    def _add(self) -> None:
        copies = copy_tensors(self._tensors)
        replacements = {id(old): new for old, new in zip(self._tensors, copies, strict=True)}
        args, kwargs = replace_tensors(self._given, replacements)
        self._launches.append(partial(self._function, *args, **kwargs))
        self._evict()


def count_sets(
    function: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    *,
    device_type: str,
    l2_bytes: int,
    free_bytes: int,
    calls: int,
) -> int:
    """Return how many sets of arguments keep every call cold.

    Args:
        function: what is called.
        tensors: those among its arguments that lie on the device.
        device_type: "cuda", or "cpu" in tests.
        l2_bytes: size of the cache that is to be defeated.
        free_bytes: memory for the copies.
        calls: no more than so many calls will be made.

    Raises:
        RotationRefused: it would not work; the text says why.
    """
    if not tensors:
        raise RotationRefused("there are no GPU tensors among the arguments to make copies of: pass them in args")
    outside = name_outside_tensors(function, device_type)
    if outside:
        raise RotationRefused(
            f"fn uses tensors that are not among its arguments ({', '.join(outside)}), so they would stay warm: "
            "pass them in args"
        )
    try:
        size = bytes_of(tensors)
    except NotCopyable as error:
        raise RotationRefused(f"{error}, which cannot be copied") from None
    if not size:
        raise RotationRefused("the tensors among the arguments are empty")
    sets = 1 + ceil(BETWEEN_SHARE * l2_bytes / size)
    needed = (min(sets, calls) - 1) * size
    if needed > MEMORY_SHARE * free_bytes:
        raise RotationRefused(
            f"{min(sets, calls) - 1} copies of {size / 1e6:.0f} MB do not fit into {free_bytes / 1e9:.1f} GB of memory"
        )
    return sets


def why_not_cold(*, rotated_ns: float, warm_ns: float, flushed_ns: float) -> str | None:
    """Say why rotated calls were warm after all, also in part; None where they were cold or it makes no difference.

    Args:
        rotated_ns: the usual time of a call over rotated arguments.
        warm_ns: of one on the same arguments each time, without a flush.
        flushed_ns: of one on the same arguments each time, after a flush.
    """
    visible_ns = flushed_ns - warm_ns
    if visible_ns <= max(VISIBLE_NS, VISIBLE_SHARE * flushed_ns):
        return None
    if rotated_ns > warm_ns + COLD_SHARE * visible_ns:
        return None
    return (
        f"a call over rotated arguments takes {rotated_ns / 1e3:.2f} us, a warm one {warm_ns / 1e3:.2f} us and one "
        f"after a flush {flushed_ns / 1e3:.2f} us: it reads little of its arguments, or something beside them"
    )
