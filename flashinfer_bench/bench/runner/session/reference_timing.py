"""Times the reference, plain or under torch.compile: once for each workload, like a solution, in its own worker.

The reference may write to its inputs and is never refused. In all other respects the reference is timed like a
solution: same kind of worker, same calls on the same kind of content, same clock. So a solution equal to the reference
has a speed-up of 1. A cached time of an earlier run on the same GPU is reused (`KeptTimes`) if all conditions are the
same: definition, workload and stored inputs, device, its limits and clocks, driver, torch and other packages, this
package, and the settings of the measurement. The caller ensures that no worker holds a solution during the timing
(`device_session.prepare`).

The compiled reference is a second file beside the reference's source. Its first calls compile it, and are not timed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.base.stamp import utc_now
from flashinfer_bench.bench.planning.resume import PROTOCOL
from flashinfer_bench.bench.runner.baseline_cache import TIMES_MS, BaselineCache, KeptBaseline
from flashinfer_bench.bench.runner.environments import is_passed_on
from flashinfer_bench.bench.runner.protocol import RequestedSolution, SessionConfig
from flashinfer_bench.bench.runner.session.job import BaselineKey, JobContext, plan_reference
from flashinfer_bench.bench.runner.workers.artifacts import load_solution
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel, WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, MeasurePlan, SessionTools
from flashinfer_bench.bench.runner.workers.pool import gaps_matter, reference_files
from flashinfer_bench.data import SafetensorsInput
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.errors import DefinitionFault, SolutionFailure
from flashinfer_bench.timing.measurement import Measured
from flashinfer_bench.timing.nvml import read_gpu_settings, read_gpu_state

OWN_EVALUATORS: Final = "flashinfer_bench."
PASSING: Final = frozenset({"throttled", "other_processes"})
"""Flags of a temporary disturbance. A baseline with one of these flags is not cached."""
OWN_DOING: Final = frozenset({"power_cap"})
"""Reasons for throttling that the call itself causes each time: long matrix products draw all the power."""
KNOWN: Final = 0.02
"""Largest relative half-width of the interval of a cached baseline."""
SAME_CLOCK: Final = 0.03
"""Largest relative difference of two SM clocks that count as equal. Drivers do not report locked clocks."""
COMPILE_S: Final = 600.0
"""Additional seconds for a compiled reference, since max-autotune builds many kernels."""
COMPILED_CALLS: Final = 3
"""Number of untimed first calls of a compiled reference: one compiles, one captures CUDA graphs, one replays them."""
COMPILED: Final = """\
import functools

import torch
import torch._inductor.config
from torch._dynamo.utils import counters

from .reference import run as reference

torch._inductor.config.compile_threads = 1
compiled = torch.compile(reference, mode={mode!r})
untold = [None] * {calls}


@functools.wraps(reference)
def run(*args, **kwargs):
    result = compiled(*args, **kwargs)
    if untold:
        untold.pop()
        graphs = counters["stats"]["unique_graphs"]
        breaks = max(sum(counters["graph_break"].values()), graphs - 1)  # breaks at branches are only seen as graphs
        print("compiled:", graphs, "graphs,", breaks, "breaks", flush=True)
    return result
"""
"""Source of a compiled reference. The compilers start no processes, which could outlive the worker. Results need no
copy, even from a CUDA graph: the worker stores each result before the next call."""
COUNTS: Final = re.compile(r"compiled: (\d+) graphs, (\d+) breaks")
"""The output of a compiled reference after its first calls."""
OF_NO_DEVICE: Final = frozenset({"PATH", "LANG", "LC_ALL", "TZ", "MAX_JOBS"})
"""Variables that reach workers and do not affect a device."""


@dataclass(frozen=True)
class KeptTimes:
    """The cached times of references, as one session reads and writes them."""

    session_config: SessionConfig
    machine: Mapping[str, str]
    """Keys common to all baselines of this session."""
    sm_mhz: int
    """Clock of the GPU's processors in MHz before the first job."""

    @classmethod
    def open(
        cls, session_config: SessionConfig, libraries: Mapping[str, str], environment: Mapping[str, str]
    ) -> KeptTimes | None:
        """Return the cached times; None if the host wants no cache, or the GPU does not report its settings.

        Call it just after the GPU was used, because an idle GPU lowers its clock.
        """
        if session_config.baselines == "off" or session_config.gpu_uuid is None:
            return None
        settings, state = read_gpu_settings(session_config.gpu_uuid), read_gpu_state(session_config.gpu_uuid)
        if settings is None or settings.power_limit_w is None or state is None or state.sm_mhz is None:
            return None
        variables = {
            name: value for name, value in environment.items() if is_passed_on(name) and name not in OF_NO_DEVICE
        }
        machine = {
            "device": session_config.gpu_uuid,
            "hardware": session_config.hardware,
            "protocol": str(PROTOCOL),
            "libraries": json.dumps(dict(libraries), sort_keys=True),
            "environment": digest_of(variables),
            "gpu": json.dumps(asdict(settings), sort_keys=True),
        }
        return cls(session_config, machine, state.sm_mhz)

    @property
    def cache(self) -> BaselineCache:
        """The cache on disk."""
        return BaselineCache(Path(self.session_config.cache_root))

    def find(self, job: JobContext, plan: MeasurePlan) -> Measured | None:
        """Return the time of a job's reference in an earlier run under the same conditions."""
        keys = self._keys(job, plan) if self.session_config.baselines == "use" else None
        kept = self.cache.read(keys) if keys is not None else None
        if kept is None or abs((kept.sm_mhz or 0) - self.sm_mhz) > SAME_CLOCK * self.sm_mhz:
            return None
        return Measured(kept.latency_ms, kept.trials_ms, {**kept.record, "source": "cached", "taken": kept.taken})

    def keep(self, job: JobContext, plan: MeasurePlan, measured: Measured) -> None:
        """Cache the time of a job's reference if it was undisturbed and its interval is narrow; else remove the cached
        time."""
        keys = self._keys(job, plan)
        if keys is None:
            return
        low, high = measured.record.get("interval95_ms") or (0.0, float("inf"))
        if is_disturbed(measured) or (high - low) / 2 > KNOWN * measured.latency_ms:
            self.cache.remove(keys)
            return
        with suppress(ValidationError):  # for example a time of 0, which is useless
            kept = KeptBaseline(
                marks=keys,
                sm_mhz=self.sm_mhz,
                definition=job.request.definition.name,
                workload=job.workload.uuid,
                hardware=self.session_config.hardware,
                taken=utc_now(),
                latency_ms=measured.latency_ms,
                trials_ms=list(measured.trials),
                record=measured.record,
            )
            self.cache.write(kept)

    def _keys(self, job: JobContext, plan: MeasurePlan) -> dict[str, str] | None:
        """Return the keys of a job's baseline; None if they are unknown."""
        evaluator = job.request.evaluator
        if not evaluator.__module__.startswith(OWN_EVALUATORS):
            return None  # its inputs may depend on more than the keys
        stored = [source.path for source in job.workload.inputs.values() if isinstance(source, SafetensorsInput)]
        try:
            states = {path: Path(job.requested.blob_root, path).stat() for path in stored}
        except (OSError, ValueError):
            return None
        # A rewritten file counts as another file. Reading a gigabyte to compare would take too long.
        blobs = {path: [one.st_size, one.st_ino, one.st_mtime_ns, one.st_ctime_ns] for path, one in states.items()}
        definition, workload = job.key
        return {
            **self.machine,
            "definition": definition,
            "workload": workload,
            "blobs": digest_of(blobs) if blobs else "",
            "evaluator": f"{evaluator.__name__} {evaluator.revision}",
            "settings": json.dumps({**asdict(plan), "num_trials": job.request.config.num_trials}, sort_keys=True),
        }


def is_disturbed(measured: Measured) -> bool:
    """Return whether a temporary condition has disturbed a measurement."""
    flags = PASSING & set(measured.record.get("flags", []))
    slowed_by = set(measured.record.get("gpu", {}).get("slowed_by", []))
    return bool(flags - {"throttled"} if slowed_by and slowed_by <= OWN_DOING else flags)


def move_to_gap(measured: Measured, gap_ns: int) -> Measured:
    """Return a cached measurement with this run's launch gap in place of the earlier run's gap."""
    record = measured.record
    if not record.get("operations") or record.get("launch_gap_ns", gap_ns) == gap_ns:
        return measured
    more_ms = (gap_ns - record["launch_gap_ns"]) / 1e6
    moved: dict[str, Any] = {name: record[name] + more_ms for name in TIMES_MS} | {"launch_gap_ns": gap_ns}
    if "interval95_ms" in record:
        moved["interval95_ms"] = [bound + more_ms for bound in record["interval95_ms"]]
    trials_ms = [value + more_ms for value in measured.trials]
    return replace(measured, latency_ms=measured.latency_ms + more_ms, trials=trials_ms, record={**record, **moved})


@dataclass
class ReferenceTimer:
    """Times references on one device, and caches their times."""

    session_config: SessionConfig
    tools: SessionTools
    kept: KeptTimes | None = None
    """Times of earlier runs; None if the cache is off."""
    mode: str = ""
    """Mode of torch.compile; empty to time the references as they are."""
    _known: dict[BaselineKey, Measured] = field(default_factory=dict)
    _forgotten: set[BaselineKey] = field(default_factory=set)
    """Workloads whose time was forgotten once. The next time of such a workload is measured, even if one is cached, and
    never forgotten."""

    def __post_init__(self) -> None:
        """Give compiled references keys of their own in the cache."""
        if self.kept is not None and self.mode:
            self.kept = replace(self.kept, machine={**self.kept.machine, "compiled": self.mode})

    def recall(self, job: JobContext) -> Measured | None:
        """Return the reference's time on a job's workload in this run or an earlier run; None if there is none."""
        key = job.key
        if key not in self._known and self.kept is not None and key not in self._forgotten:
            found = self.kept.find(job, plan_reference(self.session_config, job.request.config))
            if found is not None:
                self._known[key] = found
        return self._known.get(key)

    def forget_slow(self, key: BaselineKey) -> bool:
        """Forget a reference's time if its context is slower than the best context so far; return whether it was
        forgotten.

        The first contexts of a session may all be slow. Later workers with fast contexts would make a solution seem
        faster than an equal reference.
        """
        known = self._known.get(key)
        if known is None or key in self._forgotten:
            return False
        excess_ns = self.tools.pool.excess_ns(known.record.get("chain_gap_ns", 0))
        if not gaps_matter(excess_ns, known.record.get("operations", 1), known.latency_ms * 1e6):
            return False
        del self._known[key]
        self._forgotten.add(key)
        self.tools.pool.end_reference()
        return True

    def measure(
        self,
        job: JobContext,
        input_sets: list[list[Any]],
        *,
        is_alone: bool,
        check: Callable[[RemoteKernel], object] = lambda _: None,
    ) -> Measured:
        """Return the reference's time on a job's workload.

        The record of a compiled reference has `compiled`: mode, seconds of the first call, graphs, graph breaks.

        Args:
            input_sets: the inputs of each trial.
            is_alone: whether no worker holds a solution, so that later runs can reuse the time.
            check: raises SolutionFailure if a compiled reference is wrong.

        Raises:
            DefinitionFault: the reference fails in its worker.
        """
        known = self.recall(job)
        if known is None:
            known = self._known[job.key] = self._take(job, input_sets, check)
            if self.forget_slow(job.key):
                known = self._known[job.key] = self._take(job, input_sets, check)
            if self.kept is not None and is_alone:
                self.kept.keep(job, plan_reference(self.session_config, job.request.config), known)
        return move_to_gap(known, self.tools.run_metadata.launch_gap_ns)

    def _take(
        self,
        job: JobContext,
        input_sets: list[list[Any]],
        check: Callable[[RemoteKernel], object],
        *,
        is_retried: bool = False,
    ) -> Measured:
        """Time the reference. Time it once more if a signal from outside may have ended the worker."""
        try:
            kernel, start = self._open(job), time.monotonic()
            kernel.call_once(input_sets[0])  # compilation in the first call is no part of a measurement
            if not self.mode:
                return kernel.measure(input_sets)
            compile_s = round(time.monotonic() - start, 3)
            for _ in range(1, COMPILED_CALLS):
                kernel.call_once(input_sets[0])
            check(kernel)
            found = COUNTS.findall(kernel.worker.take_output())
            counts = zip(("graphs", "graph_breaks"), map(int, found[-1] if found else ()), strict=False)
            measured = kernel.measure(input_sets)
            compiled = {"mode": self.mode, "compile_s": compile_s, **dict(counts)}
            return replace(measured, record={**measured.record, "compiled": compiled})
        except SolutionFailure as failure:
            self.tools.pool.end_reference()
            if isinstance(failure, WorkerKilled) and not is_retried:
                return self._take(job, input_sets, check, is_retried=True)
            message = f"reference of {job.request.definition.name}, while it was timed: {failure.message}"
            raise DefinitionFault(message) from None
        finally:
            self.tools.pool.tend()

    def _open(self, job: JobContext) -> RemoteKernel:
        """Return the reference, loaded in its worker, as a callable for a job's workload."""
        definition, files = job.request.definition, reference_files(f"{job.request.digest}{self.mode}")
        sources, limit_s = {"reference.py": definition.reference}, self.session_config.timeout_seconds
        if self.mode:
            sources["compiled.py"] = COMPILED.format(mode=self.mode, calls=COMPILED_CALLS)
            limit_s += COMPILE_S
        worker, is_fresh = self.tools.pool.worker_for(files)
        task = KernelTask(
            input_names=list(definition.inputs),
            outputs=job.output_specs(),
            timeout_seconds=limit_s,
            plan=plan_reference(self.session_config, job.request.config),
            vary=job.vary_secretly(),
            may_return_inputs=True,
            is_reference=True,
        )
        kernel = RemoteKernel(worker, self.tools, task, KernelMetadata("run", definition.name, False))
        if is_fresh:
            solution = RequestedSolution(
                name=f"reference of {definition.name}",
                language="python",
                declared_style=False,
                digest=files.digest,
                directory=None,
                entry=[*sources][-1],
                symbol="run",
                kind="reference",
                sources=sources,
                build_error=None,
            )
            load_solution(kernel, solution)
        return kernel
