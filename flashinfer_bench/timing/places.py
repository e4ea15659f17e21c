"""Outputs that lie in another place in memory for each call.

The place of an output decides which of its rows share the memory's banks with the inputs. On an H200, x + 1 over 32 MB
takes up to 2 % longer in one place than in another, for as long as a process keeps the place. So calls write to several
places in turn, and a latency is averaged over several placements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, Final

import torch

from flashinfer_bench.timing.clocks import Clock, Launch
from flashinfer_bench.timing.measurement import Trial

PLACES: Final = 8
"""The most places that the outputs of a call are written to in turn."""
MOST_BYTES: Final = 512 << 20
"""All places together hold at most this. In calls on larger outputs the place makes no difference."""
FREE_SHARE: Final = 8
"""All places together hold at most the free memory divided by this."""
FEW_BYTES: Final = 32 << 20
"""Places that hold no more together are taken without a look at the free memory, which may wait for the driver."""


def count_places(size: int, *, calls: int, free_bytes: int) -> int:
    """Return in how many places the outputs of a call are to lie in turn, at least one.

    Args:
        size: bytes of all outputs of one call.
        calls: the untimed calls before the readings. Each place is made by one of them.
        free_bytes: memory that is free on the device.
    """
    room = min(MOST_BYTES, free_bytes // FREE_SHARE) // max(size, 1)
    return max(1, min(PLACES, calls, room))


def choose_places(size: int, *, calls: int, clock: Clock, device: torch.device) -> int:
    """Return in how many places outputs are to lie on this device: in one on a CPU, or where calls are to be warm."""
    if device.type != "cuda" or clock.cache_state != "cold":
        return 1
    if size * min(PLACES, calls) <= FEW_BYTES:
        return max(1, min(PLACES, calls))
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return count_places(size, calls=calls, free_bytes=free_bytes)


class Kept:
    """A launch that keeps what the latest calls returned, so that the next one's outputs lie elsewhere.

    A result that holds more memory than its outputs need is not kept. Examples are a slice of a workspace, and
    activations that are saved for a gradient.

    Args:
        function: what is called.
        places: in how many places its outputs are to lie.
        size: bytes of all outputs of one call.
    """

    def __init__(self, function: Callable[[], Any], places: int, size: int) -> None:
        self._function = function
        self._size = size
        self._results: deque[Any] = deque(maxlen=places - 1)
        self._keeps: bool | None = None

    @property
    def places(self) -> int:
        """In how many places outputs lie, by the calls that were made so far."""
        return (self._results.maxlen or 0) + 1 if self._keeps else 1

    def __call__(self) -> None:
        """Call the function."""
        result = self._function()
        if self._keeps is None:
            held = held_bytes(result)
            self._keeps = held is not None and held <= self._size
        if self._keeps:
            self._results.append(result)

    def give_back(self, trial: Trial) -> None:
        """Drop the results. Free the memory of graphs that the results have kept from being freed."""
        has_kept = bool(self._results)
        self._results.clear()
        if has_kept and trial.facts.get("launch") == "graph":
            torch.cuda.empty_cache()


def held_bytes(result: Any) -> int | None:
    """Return the memory that a result keeps from being freed; None where that cannot be told."""
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if any(tensor.grad_fn is not None for tensor in tensors):
        return None
    if any(not isinstance(value, (torch.Tensor, int, float, type(None))) for value in values):
        return None
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def written_elsewhere(function: Callable[..., Any], outputs: Sequence[torch.Tensor], places: int) -> Launch:
    """Return a launch that hands the function each of several sets of outputs in turn, the given one first.

    Args:
        function: takes one set of outputs as its arguments.
        outputs: the first set; the others are like it.
        places: how many sets there are.
    """
    more = [[torch.empty_like(output) for output in outputs] for _ in range(places - 1)]
    sets = cycle([list(outputs), *more])
    return lambda: function(*next(sets))


def note_places(trial: Trial, places: int) -> Trial:
    """Return the trial with the number of places among its facts, where there were several.

    The capture of a graph decides where its outputs lie, so a call has no more places than graphs.
    """
    most = int(trial.facts.get("graphs", 1) if trial.facts.get("launch") == "graph" else trial.facts["calls"])
    used = min(places, most)
    return replace(trial, facts={**trial.facts, "output_places": used}) if used > 1 else trial
