"""What a session takes from earlier runs, and leaves for later ones: how long references take on this device.

A time is taken over only where nothing differs that could change it: definition, workload and its stored inputs,
device, its limits and clocks, driver, torch and the other packages, this package, how calls are made and timed, and the
settings of the measurement. `baseline_cache.py` reads and writes files. The host decides whether this is done at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.base.stamp import utc_now
from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache, KeptBaseline
from flashinfer_bench.bench.runner.environments import is_passed_on
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.data import SafetensorsInput
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.timing.gpu_state import read_gpu_settings, read_gpu_state
from flashinfer_bench.timing.measurement import Measured

OWN_EVALUATORS: Final = "flashinfer_bench."
PASSING: Final = frozenset({"throttled", "other_processes", "mixed_methods"})
"""Flags of a disturbance that passes: a baseline with one of these is not kept for later runs, unless it is throttled
by OWN_DOING alone."""
OWN_DOING: Final = frozenset({"power_cap"})
"""What slows a GPU down, and comes back whenever the call is made: long matrix products draw all the power there is. In
two runs on an H100 twelve of them, of 19 to 24 ms, differed by 0.6 % at the most."""
KNOWN: Final = 0.02
"""A baseline is kept where half the interval of its median is at most this share of it: later runs have no other."""
SAME_CLOCK: Final = 0.03
"""Clocks of two runs that differ by a larger share are two settings; no driver tells what clocks are locked to."""
OF_NO_DEVICE: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH", "LANG", "LC_ALL", "TZ", "MAX_JOBS"}
)
"""Variables that reach workers and do not change what a device does."""
TIMES_MS: Final = ("mean_ms", "min_ms", "q25_ms", "median_ms", "q75_ms", "max_ms")
"""Fields of a record that hold the launch gap."""


@dataclass(frozen=True)
class KeptBaselines:
    """Finds and keeps the times of references.

    Args:
        hello: the session's settings.
        cache: the folder.
        machine: the marks that all baselines of this session share.
        sm_mhz: the clock of the GPU's processors before the first job; None for a CPU.
    """

    hello: Hello
    cache: BaselineCache
    machine: Mapping[str, str]
    sm_mhz: int | None = None

    def find(self, job: JobContext, plan: MeasurePlan) -> Measured | None:
        """Return what the reference took on a job's workload, in an earlier run under the same conditions."""
        if self.hello.baselines != "use":
            return None
        marks = self._marks(job, plan)
        kept = None if marks is None else self.cache.read(marks)
        return kept.to_measured() if kept is not None and self._is_same_clock(kept.sm_mhz) else None

    def keep(self, job: JobContext, plan: MeasurePlan, measured: Measured) -> None:
        """Keep what the reference took, where that is known well and nothing disturbed it; else keep nothing."""
        marks = self._marks(job, plan)
        if marks is None:
            return
        if is_disturbed(measured) or not is_known(measured):
            self.cache.remove(marks)
            return
        try:
            kept = KeptBaseline.model_validate(
                {
                    "marks": marks,
                    "sm_mhz": self.sm_mhz,
                    "definition": job.block.definition.name,
                    "workload": job.workload.uuid,
                    "hardware": self.hello.hardware,
                    "taken": utc_now(),
                    "latency_ms": measured.latency_ms,
                    "trials_ms": list(measured.trials),
                    "record": measured.record,
                }
            )
        except ValidationError:  # a time of 0, say: nothing that a later run could use
            return
        self.cache.write(kept)

    def _is_same_clock(self, sm_mhz: int | None) -> bool:
        if sm_mhz is None or self.sm_mhz is None:
            return sm_mhz is self.sm_mhz
        return abs(sm_mhz - self.sm_mhz) <= SAME_CLOCK * self.sm_mhz

    def _marks(self, job: JobContext, plan: MeasurePlan) -> dict[str, str] | None:
        """Return what a baseline is kept under; None where that cannot be told."""
        evaluator = job.block.evaluator
        if not evaluator.__module__.startswith(OWN_EVALUATORS):
            return None  # what its inputs are is known to its author
        blobs = read_blobs(job)
        settings = {**asdict(plan), "num_trials": job.block.config.num_trials}
        definition, workload = job.key
        own = {
            "definition": definition,
            "workload": workload,
            "blobs": digest_of(blobs) if blobs else "",
            "evaluator": f"{evaluator.__name__} {evaluator.revision}",
            "settings": json.dumps(settings, sort_keys=True),
        }
        return None if blobs is None else {**self.machine, **own}


def is_disturbed(measured: Measured) -> bool:
    """Tell whether something that passes has disturbed a measurement."""
    flags = PASSING & set(measured.record.get("flags", []))
    slowed_by = set(measured.record.get("gpu", {}).get("slowed_by", []))
    return bool(flags - {"throttled"} if slowed_by and slowed_by <= OWN_DOING else flags)


def is_known(measured: Measured) -> bool:
    """Tell whether a measurement has an interval, and a narrow one."""
    low, high = measured.record.get("interval95_ms") or (0.0, float("inf"))
    return bool((high - low) / 2 <= KNOWN * measured.latency_ms)


def read_blobs(job: JobContext) -> dict[str, list[int]] | None:
    """Return what tells the files of a workload's stored inputs from others, by path; None where one is missing.

    It is size, inode and times: a gigabyte is not read for that. A file that was written anew is another one.
    """
    found: dict[str, list[int]] = {}
    for source in job.workload.inputs.values():
        if isinstance(source, SafetensorsInput):
            try:
                state = Path(job.order.blob_root, source.path).stat()
            except (OSError, ValueError):
                return None
            found[source.path] = [state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns]
    return found


def open_kept_baselines(
    hello: Hello, libraries: Mapping[str, str], environment: Mapping[str, str]
) -> KeptBaselines | None:
    """Return what finds and keeps baselines; None where the host wants none, or a GPU does not tell its settings.

    Call it when the GPU has just worked, so that its clock is that of a GPU at work.
    """
    if hello.baselines == "off":
        return None
    marks = {
        "device": hello.gpu_uuid or hello.device,
        "hardware": hello.hardware,
        "protocol": str(PROTOCOL),
        "libraries": json.dumps(dict(libraries), sort_keys=True),
        "environment": digest_of(_settings_of(environment)),
    }
    cache = BaselineCache(Path(hello.cache_root))
    if hello.gpu_uuid is None:
        return KeptBaselines(hello, cache, marks)
    settings, state = read_gpu_settings(hello.gpu_uuid), read_gpu_state(hello.gpu_uuid)
    if settings is None or settings.power_limit_w is None or state is None or state.sm_mhz is None:
        return None
    return KeptBaselines(hello, cache, {**marks, "gpu": json.dumps(asdict(settings), sort_keys=True)}, state.sm_mhz)


def move_to_gap(measured: Measured, gap_ns: int) -> Measured:
    """Return a cached measurement with the launch gap of this run, which all its solutions have in their latencies."""
    record = measured.record
    if not record.get("operations") or record.get("launch_gap_ns", gap_ns) == gap_ns:
        return measured
    more_ms = (gap_ns - record["launch_gap_ns"]) / 1e6
    moved: dict[str, Any] = {name: record[name] + more_ms for name in TIMES_MS}
    if "interval95_ms" in record:
        moved["interval95_ms"] = [bound + more_ms for bound in record["interval95_ms"]]
    trials_ms = [value + more_ms for value in measured.trials]
    return replace(
        measured,
        latency_ms=measured.latency_ms + more_ms,
        trials=trials_ms,
        record={**record, **moved, "launch_gap_ns": gap_ns},
    )


def _settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may change what a GPU does; the mark of the device says which GPU it is."""
    return {name: value for name, value in environment.items() if is_passed_on(name) and name not in OF_NO_DEVICE}
