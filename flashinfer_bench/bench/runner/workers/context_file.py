"""How fast the contexts of a GPU were in earlier sessions, in the cache: so a session knows its first one as slow.

    <cache>/contexts/<digest of the GPU>.json      {"links_ns": [the best context of each of the latest sessions]}

A file that is strange, damaged or too large counts as missing. Workers that have walls do not reach the folder; what a
worker without walls writes there costs a session a few contexts at the most (`stock.py`).
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from statistics import median_low
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.errors import Fault

CONTEXTS_FOLDER: Final = "contexts"
MOST_BYTES: Final = 4096
"""Bytes of one file. A larger one is not read."""
SESSIONS: Final = 8
"""So many of the latest sessions count, each as much as any other."""
SHORTEST_NS: Final = 100
LONGEST_NS: Final = 1_000_000
"""A file with anything shorter or longer is strange."""


class ContextFile:
    """What a link of a chain of empty kernels took in the best contexts of a GPU (`Clock.chain_gap_ns`).

    Args:
        cache: the cache's folder.
        gpu_uuid: the GPU.
    """

    def __init__(self, cache: Path, gpu_uuid: str) -> None:
        self.path = cache / CONTEXTS_FOLDER / f"{digest_of({'uuid': gpu_uuid})}.json"

    def read(self) -> int | None:
        """Return the nanoseconds of a link in a fast context; None where nothing is known."""
        known = self._links()
        return median_low(known) if known else None

    def add(self, link_ns: int) -> None:
        """Keep what a link took in the best context of a session."""
        links = [*self._links(), link_ns][-SESSIONS:]
        with contextlib.suppress(OSError, Fault):  # a cache that cannot be written to is no reason to fail
            write_whole(self.path, json.dumps({"links_ns": links}) + "\n")

    def _links(self) -> list[int]:
        try:
            found = json.loads(read_whole(self.path, MOST_BYTES))["links_ns"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return []
        is_usable = isinstance(found, list) and all(
            type(one) is int and SHORTEST_NS <= one <= LONGEST_NS for one in found
        )
        return found if is_usable else []
