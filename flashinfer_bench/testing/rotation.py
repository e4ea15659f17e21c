"""Cold by rotation: calls get copies of the arguments in turn, and a copy has left the L2 before its next use.

It is refused where it would not work. Whether it worked is told by three timings (`why_not_cold`): a call may read
something that is not among its arguments, or only a small part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Final

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
"""Between two uses of one copy, the other copies fill the L2 this many times. Once would not do, because the L2 does
not replace its lines in strict order."""
MEMORY_SHARE: Final = 0.8
"""The copies take at most this share of the free memory; where they need more, rotation is refused."""
VISIBLE_SHARE: Final = 0.05
VISIBLE_NS: Final = 200
"""If a flush slows a call by less than either limit, cold and warm make no difference that could be checked."""
COLD_SHARE: Final = 0.8
"""A rotated call is cold if its time is more than this share of the way from the warm call's to the flushed call's."""


class RotationRefused(Exception):
    """Rotating the arguments would not make calls cold, or is not possible; the reason is its text."""


class Rotation:
    """Gives each call of a function one of several equal sets of arguments. A set is made when it is first used.

    Args:
        call: the function with the given arguments, which are the first set.
        tensors: the tensors among the arguments that are copied.
        sets: the most sets that are made.
        evict: empties the L2, so that a new set is as cold as the others.
    """

    def __init__(
        self, call: partial[object], tensors: Sequence[torch.Tensor], *, sets: int, evict: Callable[[], None]
    ) -> None:
        self._call = call
        self._tensors = list(tensors)
        self._sets = sets
        self._evict = evict
        self._launches: list[Launch] = [call]

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
        args, kwargs = replace_tensors((self._call.args, self._call.keywords), replacements)
        self._launches.append(partial(self._call.func, *args, **kwargs))
        self._evict()


def count_sets(
    function: Callable[..., object],
    tensors: Sequence[torch.Tensor],
    *,
    l2_bytes: int,
    free_bytes: int,
    calls: int,
) -> int:
    """Return how many sets of arguments keep every call cold.

    Args:
        function: what is called.
        tensors: those among its arguments that lie on the device that is timed.
        l2_bytes: size of the cache that the copies have to overflow.
        free_bytes: memory for the copies.
        calls: the most calls that will be made.

    Raises:
        RotationRefused: it would not work; the text says why.
    """
    if not tensors:
        raise RotationRefused("there are no GPU tensors among the arguments to make copies of: pass them in args")
    outside = name_outside_tensors(function, tensors[0].device.type)
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
    """Say why rotated calls were warm after all, or partly warm; None where they were cold or it makes no difference.

    Args:
        rotated_ns: the usual time of a call over rotated arguments.
        warm_ns: the usual time of a call on the same arguments each time, without a flush.
        flushed_ns: the usual time of a call on the same arguments each time, after a flush.
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
