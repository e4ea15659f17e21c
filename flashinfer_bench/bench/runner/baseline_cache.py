"""Baselines on disk: what references took, for later runs on the same device under the same conditions.

    <cache>/baselines/<digest of the marks>.json        one reference on one workload

A file holds the reference's latency, its spread and flags, and the marks under which it was taken. It never holds
inputs or expected outputs: these come from secrets. Sessions write here. The folder is out of the reach of workers that
have walls, and without walls nothing here is used. A file that is strange, damaged, too large or about something else
counts as missing: the reference is timed again. `session/kept_baselines.py` says what a mark is, and when to look.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.files.writing import open_new
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.timing.measurement import Count, Measured, Nanoseconds, Stop, Words

FOLDER: Final = "baselines"
MOST_BYTES: Final = 64 << 10
"""Bytes of one file. A larger one is not read; it would be no baseline of ours, which has about 2 kB."""
MOST_KEPT: Final = 20_000
"""Files that are kept, about 40 MB. When there are more, a tenth of them goes, the longest unused first."""
YOUNG_S: Final = 3600.0
"""Seconds after which a file that is still half written has lost its writer, and is removed."""
HALF_WRITTEN: Final = "."
"""What the names of files begin with that are not whole yet."""

Milliseconds = Annotated[float, Field(ge=0, le=1e9)]
Latency = Annotated[float, Field(gt=0, le=1e9)]


class KeptRecord(BaseModel):
    """What is kept of a measurement's record. What told of that moment alone, such as the GPU's power, is left out."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)

    method: Literal["wall", "cupti", "cuda_events"]
    cache_state: Literal["cold", "warm"]
    stop: Stop
    calls: Count
    trials: Count
    samples: Count
    mean_ms: Milliseconds
    std_ms: Milliseconds
    min_ms: Milliseconds
    q25_ms: Milliseconds
    median_ms: Milliseconds
    q75_ms: Milliseconds
    max_ms: Milliseconds
    interval95_ms: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    launch: Literal["stream", "graph"] | None = None
    launch_reason: Words | None = None
    fallback: Words | None = None
    busy_ms: Milliseconds | None = None
    operations: Count | None = None
    launch_gap_ns: Nanoseconds | None = None
    precision: float | None = None
    precision_reached: float | None = None
    flags: Annotated[list[Words], Field(max_length=64)] | None = None


class KeptBaseline(BaseModel):
    """One file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = 1
    """Version of the file's form. 1: the first."""
    marks: dict[str, str]
    """What has to be equal for the time to hold: definition, workload, device, versions, settings."""
    sm_mhz: Count | None = None
    """Clock of the GPU's processors right after work, before the run's first job: locked clocks show here only."""
    definition: Words
    """Its name, for people; the marks have its digest."""
    workload: Words
    """Its uuid, for people."""
    hardware: Words
    taken: Words
    """When it was measured: ISO 8601 in UTC."""
    latency_ms: Latency
    trials_ms: Annotated[list[Latency], Field(min_length=1, max_length=1000)]
    record: KeptRecord

    def to_measured(self) -> Measured:
        """Return the measurement, whose record says that it was not made now."""
        record = self.record.model_dump(exclude_none=True)
        return Measured(self.latency_ms, self.trials_ms, {**record, "source": "cached", "taken": self.taken})


@dataclass(frozen=True)
class KeptFile:
    """One entry of the folder."""

    path: Path
    size_bytes: int
    last_used_s: float
    """Seconds since the epoch."""
    baseline: KeptBaseline | None
    """None where it cannot be used."""


class BaselineCache:
    """The folder of baselines. Any number of processes may use it at once; none of them waits.

    Args:
        cache_root: the cache's folder.
    """

    def __init__(self, cache_root: Path) -> None:
        self.folder = cache_root / FOLDER
        self._is_trimmed = False

    def place(self, marks: Mapping[str, str]) -> Path:
        """Return where the baseline with these marks lies, or would lie."""
        return self.folder / name_of(marks)

    def read(self, marks: Mapping[str, str]) -> KeptBaseline | None:
        """Return the baseline with these marks; None where there is none that can be used. This counts as a use."""
        place = self.place(marks)
        kept = read_baseline(place)
        if kept is None:
            return None
        with contextlib.suppress(OSError):  # a cache that cannot be written to can still be read
            os.utime(place, follow_symlinks=False)
        return kept

    def write(self, kept: KeptBaseline) -> bool:
        """Keep a baseline, in the place of an older one; tell whether that was possible."""
        staged = self.folder / f"{HALF_WRITTEN}{os.getpid()}-{os.urandom(6).hex()}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.folder.is_symlink():
                return False
            with os.fdopen(open_new(staged, 0o600), "w", encoding="utf-8") as handle:
                handle.write(kept.model_dump_json(exclude_none=True))
            staged.replace(self.place(kept.marks))
        except OSError:
            with contextlib.suppress(OSError):
                staged.unlink(missing_ok=True)
            return False
        if not self._is_trimmed:
            self._is_trimmed = True  # once a session: a session adds hundreds, not thousands
            self.trim()
        return True

    def remove(self, marks: Mapping[str, str]) -> None:
        """Remove the baseline with these marks, if there is one."""
        if not self.folder.is_symlink():
            remove_tree(self.place(marks))

    def files(self) -> list[KeptFile]:
        """Return what lies in the folder; the one with the latest use comes first."""
        found = [KeptFile(path, size, used, read_baseline(path)) for path, size, used in self._look()]
        return sorted(found, key=lambda one: -one.last_used_s)

    def trim(self, most: int = MOST_KEPT) -> None:
        """Remove the files that were not used for longest where there are too many, and what dead writers left."""
        with contextlib.suppress(OSError):
            names = os.listdir(self.folder)  # noqa: PTH208 - names alone: looking at each file takes seconds over a network
            if len(names) <= most and not any(name.startswith(HALF_WRITTEN) for name in names):
                return
        found = sorted(self._look(), key=lambda one: one[2])
        now = time.time()
        for path, _, used in found:
            if path.name.startswith(HALF_WRITTEN) and now - used > YOUNG_S:
                remove_tree(path)
        if len(found) > most:
            for path, _, _ in found[: len(found) - most * 9 // 10]:
                remove_tree(path)

    def clear(self) -> int:
        """Remove everything; return how many entries are gone."""
        return sum(remove_tree(path) for path, _, _ in self._look())

    def _look(self) -> Iterator[tuple[Path, int, float]]:
        """Yield path, bytes and last use of each entry."""
        if self.folder.is_symlink():
            return
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in list(entries):
                with contextlib.suppress(OSError):  # it is being removed
                    found = entry.stat(follow_symlinks=False)
                    yield Path(entry.path), found.st_size, found.st_mtime


def name_of(marks: Mapping[str, str]) -> str:
    """Return the name of the file for a baseline with these marks."""
    return f"{digest_of(dict(marks))}.json"


def read_baseline(path: Path) -> KeptBaseline | None:
    """Return a file's baseline; None where it cannot be read, is a link or strange, or has another form or name."""
    try:
        if path.is_symlink() or path.parent.is_symlink():
            return None
        parsed: Any = json.loads(read_whole(path, MOST_BYTES))
        kept = KeptBaseline.model_validate(parsed)
        return kept if path.name == name_of(kept.marks) else None
    except (OSError, ValueError, RecursionError, ValidationError):
        return None
