"""Baselines on disk: times of references, for later runs on the same device under the same conditions.

    <cache>/baselines/<digest of the keys>.json        one reference on one workload

A file holds the reference's latency with its record, and the keys under which the latency was measured.
`session/reference_timing.py` makes the keys. A file never holds inputs or expected outputs, which depend on secrets.
Sessions write the files. Workers in a sandbox cannot reach the folder. Without a sandbox the cache is off. If a file is
damaged, too large, or does not fit its name, it counts as missing, and the reference is timed again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.files.writing import open_new
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.timing.measurement import Count, Words

FOLDER: Final = "baselines"
MOST_BYTES: Final = 64 << 10
"""Largest size of a file in bytes. Usual files have about 2 kB."""
TIMES_MS: Final = ("mean_ms", "min_ms", "q25_ms", "median_ms", "q75_ms", "max_ms")
"""Fields of a record that include the launch gap."""
KEPT_FIELDS: Final = """
method cache_state stop calls trials samples std_ms interval95_ms launch launch_reason fallback busy_ms operations
launch_gap_ns precision precision_reached flags compiled
"""
"""Fields of a record that are stored besides the times. Fields such as the GPU's power are not stored, since they
describe the moment of the measurement."""

Latency = Annotated[float, Field(gt=0, le=1e9)]


class KeptBaseline(BaseModel):
    """Content of one file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = 1
    """Version of the file format."""
    marks: dict[str, str]
    """The keys under which the latency was measured."""
    sm_mhz: Count | None = None
    """SM clock in MHz under a short load, before the run's first job. This clock shows whether clocks are locked, which
    drivers do not report."""
    definition: Words
    """The definition's name, for people. The keys contain the definition's digest."""
    workload: Words
    """The workload's uuid, for people."""
    hardware: Words
    taken: Words
    """Time of the measurement: ISO 8601 in UTC."""
    latency_ms: Latency
    trials_ms: Annotated[list[Latency], Field(min_length=1, max_length=1000)]
    record: dict[str, Any]

    @field_validator("record")
    @classmethod
    def _filter(cls, record: dict[str, Any]) -> dict[str, Any]:
        if not record.keys() >= set(TIMES_MS):
            raise ValueError("times are missing")
        kept = {*TIMES_MS, *KEPT_FIELDS.split()}
        return {name: value for name, value in record.items() if name in kept}


class KeptFile(NamedTuple):
    """One file of the folder, usable or not."""

    path: Path
    size_bytes: int
    last_used_s: float
    """Seconds since the epoch."""
    baseline: KeptBaseline | None
    """None if the file is unusable."""


class BaselineCache:
    """The folder of baselines. Any number of processes can use it at once without waiting."""

    def __init__(self, cache_root: Path) -> None:
        self.folder = cache_root / FOLDER

    def path_of(self, keys: Mapping[str, str]) -> Path:
        """Return the path of the baseline with these keys, whether it exists or not."""
        return self.folder / f"{digest_of(dict(keys))}.json"

    def read(self, keys: Mapping[str, str]) -> KeptBaseline | None:
        """Return the baseline with these keys; None if there is no usable file. Update the file's time of last use."""
        kept = self._read_file(self.path_of(keys))
        if kept is not None:
            with suppress(OSError):  # a read-only cache still works for reading
                os.utime(self.path_of(keys))
        return kept

    def write(self, kept: KeptBaseline) -> None:
        """Store a baseline, replacing an older one, if the folder is writable."""
        path = self.path_of(kept.marks)
        staged = path.with_suffix(".new")  # if two processes write at once, the result is at worst a damaged file
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(open_new(staged, 0o600), "w", encoding="utf-8") as handle:
                handle.write(kept.model_dump_json(exclude_none=True))
            staged.replace(path)

    def remove(self, keys: Mapping[str, str]) -> None:
        """Remove the baseline with these keys, if there is one."""
        remove_tree(self.path_of(keys))

    def files(self) -> list[KeptFile]:
        """Return the entries of the folder, latest use first."""
        found = []
        for path in self._paths():
            with suppress(OSError):  # another process has removed it
                stat = path.lstat()
                found.append(KeptFile(path, stat.st_size, stat.st_mtime, self._read_file(path)))
        return sorted(found, key=lambda one: -one.last_used_s)

    def clear(self) -> int:
        """Remove all entries; return their number."""
        return sum(map(remove_tree, self._paths()))

    def _paths(self) -> list[Path]:
        return list(self.folder.iterdir()) if self.folder.is_dir() and not self.folder.is_symlink() else []

    def _read_file(self, path: Path) -> KeptBaseline | None:
        try:
            kept = KeptBaseline.model_validate_json(read_whole(path, MOST_BYTES))
        except (OSError, ValueError):
            return None
        return kept if path == self.path_of(kept.marks) else None
