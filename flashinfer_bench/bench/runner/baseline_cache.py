"""Baselines on disk: times of references, for later runs on the same device under the same conditions.

    <cache>/baselines/<digest of the keys>.json        one reference on one workload

A file holds the reference's latency with its record, and the keys under which it was taken: definition, workload and
its stored inputs, device, its limits and clocks, driver, torch and the other packages, this package, and the settings
of the measurement. It never holds inputs or expected outputs, which come from secrets. Sessions write here. No worker
with walls reaches the folder, and without walls nothing here is used. A file that is strange, damaged, too large or
about something else counts as missing: the reference is timed again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.files.writing import open_new
from flashinfer_bench.base.stamp import utc_now
from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.bench.runner.environments import is_passed_on
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.data import SafetensorsInput
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.timing.measurement import Count, Measured, Words
from flashinfer_bench.timing.nvml import read_gpu_settings, read_gpu_state

if TYPE_CHECKING:  # the host lists baselines without torch
    from flashinfer_bench.bench.runner.session.job import JobContext
    from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan

FOLDER: Final = "baselines"
MOST_BYTES: Final = 64 << 10
"""Most bytes of a file: ours have about 2 kB."""
MOST_KEPT: Final = 20_000
"""Most files, about 40 MB. Beyond that a tenth of them goes, the longest unused first."""
TIMES_MS: Final = ("mean_ms", "min_ms", "q25_ms", "median_ms", "q75_ms", "max_ms")
"""Fields of a record that include the launch gap."""
KEPT_FIELDS: Final = frozenset(
    {
        *TIMES_MS,
        "method",
        "cache_state",
        "stop",
        "calls",
        "trials",
        "samples",
        "std_ms",
        "interval95_ms",
        "launch",
        "launch_reason",
        "fallback",
        "busy_ms",
        "operations",
        "launch_gap_ns",
        "precision",
        "precision_reached",
        "flags",
    }
)
"""Fields of a record that are kept. The others describe the moment, such as the GPU's power, or are samples."""
OWN_EVALUATORS: Final = "flashinfer_bench."
PASSING: Final = frozenset({"throttled", "other_processes", "mixed_methods"})
"""Flags of a disturbance that passes: a baseline with one of these is not kept."""
OWN_DOING: Final = frozenset({"power_cap"})
"""Reasons of throttling that come back whenever the call is made: long matrix products draw all the power there is."""
KNOWN: Final = 0.02
"""Largest relative half-width of the interval of a baseline that is kept."""
SAME_CLOCK: Final = 0.03
"""Largest relative difference of clocks under one setting: no driver says what clocks are locked to."""
OF_NO_DEVICE: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH", "LANG", "LC_ALL", "TZ", "MAX_JOBS"}
)
"""Variables that reach workers and do not change a device."""

Latency = Annotated[float, Field(gt=0, le=1e9)]


class KeptBaseline(BaseModel):
    """One file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = 1
    """Version of the file's form. 1: the first."""
    marks: dict[str, str]
    """The keys."""
    sm_mhz: Count | None = None
    """Clock of the GPU's processors right after work, before the run's first job: only here locked clocks show."""
    definition: Words
    """Its name, for people; the keys have its digest."""
    workload: Words
    """Its uuid, for people."""
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
        return {name: value for name, value in record.items() if name in KEPT_FIELDS}


class KeptFile(NamedTuple):
    """One entry of the folder."""

    path: Path
    size_bytes: int
    last_used_s: float
    """Seconds since the epoch."""
    baseline: KeptBaseline | None
    """None if it cannot be used."""


class BaselineCache:
    """The folder of baselines. Any number of processes may use it at once; none of them waits.

    Args:
        cache_root: the cache's folder.
    """

    def __init__(self, cache_root: Path) -> None:
        self.folder = cache_root / FOLDER
        self._is_trimmed = False

    def place(self, marks: Mapping[str, str]) -> Path:
        """Return the path of the baseline with these keys, whether it exists or not."""
        return self.folder / f"{digest_of(dict(marks))}.json"

    def read(self, marks: Mapping[str, str]) -> KeptBaseline | None:
        """Return the baseline with these keys; None if there is none that can be used. This counts as a use."""
        place = self.place(marks)
        kept = self._read_file(place)
        if kept is not None:
            with suppress(OSError):  # a cache that cannot be written to can still be read
                os.utime(place, follow_symlinks=False)
        return kept

    def write(self, kept: KeptBaseline) -> bool:
        """Keep a baseline in place of an older one; tell whether that was possible."""
        place = self.place(kept.marks)
        staged = place.with_suffix(".new")  # if two write it at once, what comes of it counts as missing at worst
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.folder.is_symlink():
                return False
            with os.fdopen(open_new(staged, 0o600), "w", encoding="utf-8") as handle:
                handle.write(kept.model_dump_json(exclude_none=True))
            staged.replace(place)
        except OSError:
            return False
        if not self._is_trimmed:
            self._is_trimmed = True
            self.trim()
        return True

    def remove(self, marks: Mapping[str, str]) -> None:
        """Remove the baseline with these keys, if there is one."""
        if not self.folder.is_symlink():
            remove_tree(self.place(marks))

    def files(self) -> list[KeptFile]:
        """Return the entries of the folder, the one with the latest use first."""
        found = sorted(self._list(), key=lambda one: -one[2])
        return [KeptFile(*one, self._read_file(one[0])) for one in found]

    def trim(self, most: int = MOST_KEPT) -> None:
        """Remove the longest unused files if there are too many."""
        found = sorted(self._list(), key=lambda one: one[2])
        for path, _, _ in found[: len(found) - most * 9 // 10] if len(found) > most else ():
            remove_tree(path)

    def clear(self) -> int:
        """Remove everything; return the number of removed entries."""
        return sum(remove_tree(path) for path, _, _ in self._list())

    def _read_file(self, path: Path) -> KeptBaseline | None:
        """Return a file's baseline; None if it is strange, a link, or has another form or name."""
        try:
            if path.is_symlink() or self.folder.is_symlink():
                return None
            parsed: Any = json.loads(read_whole(path, MOST_BYTES), parse_constant=_refuse)
            kept = KeptBaseline.model_validate(parsed)
        except (OSError, ValueError, RecursionError):
            return None
        return kept if path == self.place(kept.marks) else None

    def _list(self) -> Iterator[tuple[Path, int, float]]:
        """Yield path, bytes and last use of each entry."""
        if self.folder.is_symlink():
            return
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in list(entries):
                with suppress(OSError):  # it is being removed
                    found = entry.stat(follow_symlinks=False)
                    yield Path(entry.path), found.st_size, found.st_mtime


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


@dataclass(frozen=True)
class KeptBaselines:
    """The times of references that one session reads and keeps.

    Args:
        hello: the session's settings.
        cache: the folder.
        machine: keys that all baselines of this session share.
        sm_mhz: clock of the GPU's processors before the first job; None for a CPU.
    """

    hello: Hello
    cache: BaselineCache
    machine: Mapping[str, str]
    sm_mhz: int | None = None

    @classmethod
    def open(cls, hello: Hello, libraries: Mapping[str, str], environment: Mapping[str, str]) -> KeptBaselines | None:
        """Return them; None if the host wants none, or the GPU does not tell its settings.

        Call it when the GPU has just worked, so that its clock is that of a GPU at work.
        """
        if hello.baselines == "off":
            return None
        settings_of = {
            name: value for name, value in environment.items() if is_passed_on(name) and name not in OF_NO_DEVICE
        }
        machine = {
            "device": hello.gpu_uuid or hello.device,
            "hardware": hello.hardware,
            "protocol": str(PROTOCOL),
            "libraries": json.dumps(dict(libraries), sort_keys=True),
            "environment": digest_of(settings_of),
        }
        cache = BaselineCache(Path(hello.cache_root))
        if hello.gpu_uuid is None:
            return cls(hello, cache, machine)
        settings, state = read_gpu_settings(hello.gpu_uuid), read_gpu_state(hello.gpu_uuid)
        if settings is None or settings.power_limit_w is None or state is None or state.sm_mhz is None:
            return None
        return cls(hello, cache, {**machine, "gpu": json.dumps(asdict(settings), sort_keys=True)}, state.sm_mhz)

    def find(self, job: JobContext, plan: MeasurePlan) -> Measured | None:
        """Return the time of a job's reference in an earlier run under the same conditions."""
        marks = self._marks(job, plan) if self.hello.baselines == "use" else None
        kept = self.cache.read(marks) if marks is not None else None
        if kept is None:
            return None
        then_mhz, now_mhz = kept.sm_mhz or 0, self.sm_mhz or 0
        if then_mhz and now_mhz and abs(then_mhz - now_mhz) > SAME_CLOCK * now_mhz:
            return None
        return Measured(kept.latency_ms, kept.trials_ms, {**kept.record, "source": "cached", "taken": kept.taken})

    def keep(self, job: JobContext, plan: MeasurePlan, measured: Measured) -> None:
        """Keep the time of a job's reference if nothing disturbed it and its interval is narrow; else keep nothing."""
        marks = self._marks(job, plan)
        if marks is None:
            return
        low, high = measured.record.get("interval95_ms") or (0.0, float("inf"))
        if is_disturbed(measured) or (high - low) / 2 > KNOWN * measured.latency_ms:
            self.cache.remove(marks)
            return
        with suppress(ValidationError):  # a time of 0, say, is of no use
            kept = KeptBaseline(
                marks=marks,
                sm_mhz=self.sm_mhz,
                definition=job.block.definition.name,
                workload=job.workload.uuid,
                hardware=self.hello.hardware,
                taken=utc_now(),
                latency_ms=measured.latency_ms,
                trials_ms=list(measured.trials),
                record=measured.record,
            )
            self.cache.write(kept)

    def _marks(self, job: JobContext, plan: MeasurePlan) -> dict[str, str] | None:
        """Return the keys of a job's baseline; None if they cannot be told."""
        evaluator = job.block.evaluator
        if not evaluator.__module__.startswith(OWN_EVALUATORS):
            return None  # its author alone knows its inputs
        blobs: dict[str, list[int]] = {}
        for source in job.workload.inputs.values():
            if isinstance(source, SafetensorsInput):
                try:
                    state = Path(job.order.blob_root, source.path).stat()
                except (OSError, ValueError):
                    return None
                # A file that was written anew is another one. A gigabyte is not read for that.
                blobs[source.path] = [state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns]
        definition, workload = job.key
        return {
            **self.machine,
            "definition": definition,
            "workload": workload,
            "blobs": digest_of(blobs) if blobs else "",
            "evaluator": f"{evaluator.__name__} {evaluator.revision}",
            "settings": json.dumps({**asdict(plan), "num_trials": job.block.config.num_trials}, sort_keys=True),
        }


def is_disturbed(measured: Measured) -> bool:
    """Tell whether something that passes has disturbed a measurement."""
    flags = PASSING & set(measured.record.get("flags", []))
    slowed_by = set(measured.record.get("gpu", {}).get("slowed_by", []))
    return bool(flags - {"throttled"} if slowed_by and slowed_by <= OWN_DOING else flags)


def move_to_gap(measured: Measured, gap_ns: int) -> Measured:
    """Return a measurement with the launch gap of this run, which all its solutions have in their latencies."""
    record = measured.record
    if not record.get("operations") or record.get("launch_gap_ns", gap_ns) == gap_ns:
        return measured
    more_ms = (gap_ns - record["launch_gap_ns"]) / 1e6
    moved: dict[str, Any] = {name: record[name] + more_ms for name in TIMES_MS} | {"launch_gap_ns": gap_ns}
    if "interval95_ms" in record:
        moved["interval95_ms"] = [bound + more_ms for bound in record["interval95_ms"]]
    trials_ms = [value + more_ms for value in measured.trials]
    return replace(measured, latency_ms=measured.latency_ms + more_ms, trials=trials_ms, record={**record, **moved})
