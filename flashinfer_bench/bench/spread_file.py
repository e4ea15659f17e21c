"""The known spread between workers on each device, in the cache; a run and `doctor` add to it.

    <cache>/spread/<digest of the device>.json      {"device": name, "squares": sum, "freedom": degrees}

An invalid, damaged or too large file counts as missing: then the default of the kind of device is used. Workers in a
sandbox do not reach the folder. A file is small, and written whole.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.errors import Fault
from flashinfer_bench.timing.between_workers import MOST_FREEDOM, WorkerSpread, learned_spread, sum_squares

SPREAD_FOLDER: Final = "spread"
MOST_BYTES: Final = 4096
"""A file of more bytes than this is not read."""


class SpreadFile:
    """The spread between workers on one device.

    Args:
        cache: the cache's folder.
        device: the device.
    """

    def __init__(self, cache: Path, device: Device) -> None:
        self._device = device
        self.path = cache / SPREAD_FOLDER / f"{digest_of({'name': device.name, 'uuid': device.uuid})}.json"

    def read(self) -> WorkerSpread:
        """Return the known spread."""
        return learned_spread(self._device.kind, *self._numbers())

    def add(self, groups: Sequence[Sequence[float]]) -> None:
        """Learn from latencies of the same code in several workers.

        Args:
            groups: for each solution and workload, the latencies of its workers.
        """
        result, before = sum_squares(groups), self._numbers()
        squares, freedom = result[0] + before[0], result[1] + before[1]
        if result[1] > 0:
            kept = min(1.0, MOST_FREEDOM / freedom)  # old latencies count for less and less
            document = {"device": self._device.name, "squares": squares * kept, "freedom": freedom * kept}
            with contextlib.suppress(OSError, Fault):  # a cache that cannot be written to is no reason to fail
                write_whole(self.path, json.dumps(document) + "\n")

    def _numbers(self) -> tuple[float, float]:
        """Return the sum of squares and its degrees of freedom; zeros if they are unknown."""
        try:
            result = json.loads(read_whole(self.path, MOST_BYTES))
            squares, freedom = float(result["squares"]), float(result["freedom"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return 0.0, 0.0
        return (squares, freedom) if 0 <= squares < freedom <= MOST_FREEDOM + 1 else (0.0, 0.0)
