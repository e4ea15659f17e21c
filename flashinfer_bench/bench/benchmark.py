"""A run, in one screen: plan → sessions → verdicts → traces.

Other modules decide: `plan` what is run, `machine` on which devices, `runner` how, `evaluators` whether it is right.
A fault is not a verdict. It makes no trace; it is an event, and stands in `faults`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluators.built_in import mark_built_in
from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER
from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, RunStarted
from flashinfer_bench.bench.machine import Device, Machine, discover_devices
from flashinfer_bench.bench.planning.plan import Job, Plan, describe_nothing, make_plan
from flashinfer_bench.bench.planning.resume import RecordedJobs
from flashinfer_bench.bench.planning.selection import select
from flashinfer_bench.bench.runner import baseline_cache
from flashinfer_bench.bench.runner.fleet import Fleet, Judged
from flashinfer_bench.bench.runner.job_seeds import JobSeeds, recorded_seeds
from flashinfer_bench.bench.runner.lookup import look_up_evaluators
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.recorded import find_resumed
from flashinfer_bench.bench.runner.sandbox import find_sandbox
from flashinfer_bench.cluster.settings import ClusterSettings, join_cluster
from flashinfer_bench.compile import (
    BuildFarm,
    BuildTarget,
    default_jobs,
    find_toolchain,
    find_unavailable_languages,
    why_not_buildable,
)
from flashinfer_bench.data import Evaluation, Trace, TraceSet
from flashinfer_bench.data.store.layout import BLOB, DEFINITIONS, SOLUTIONS, TRACES, WORKLOADS
from flashinfer_bench.data.store.loose import find_loose_folders
from flashinfer_bench.data.store.record import TraceWriter
from flashinfer_bench.data.store.trace_list import kept_of
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import ConfigError, DataSetError
from flashinfer_bench.roofline.workloads import cost_of_workload, describe_time
from flashinfer_bench.timing.settings import TimingSettings

GIB = 1 << 30
QUICK_SHARE: Final = 1 / 3
"""A quick look may take this share of the time budgets: what one of the usual three trials may."""
CACHE_FOLDERS = ("artifacts", "staging", "jit", "leases", "locks", baseline_cache.FOLDER, JUDGE_FOLDER)


class Benchmark:
    """Judges the solutions of a trace set. Usable as a context manager.

    Args:
        trace_set: what is run.
        config: how it is run; the bundled defaults where it is left out. What the set says of its own definitions
            (`tolerances.yaml`) goes below what the user says.
        cache: folder for what is built; the user's cache where it is left out.

    Raises:
        ConfigError: the configuration asks for devices that are not there, evaluators that no session could import, or
            a sandbox that cannot be had here.

    Example:
        >>> result = Benchmark(TraceSet.from_path("flashinfer-trace")).run_all()
    """

    def __init__(
        self, trace_set: TraceSet, config: BenchmarkConfig | None = None, *, cache: Path | None = None
    ) -> None:
        self._trace_set = trace_set
        self._cache = cache
        self.config = (config if config is not None else BenchmarkConfig.default()).for_set(trace_set)
        self._toolchain = find_toolchain()
        self._cluster = join_cluster(self._cluster_settings()) if self.config.cluster is not None else None
        """Where the run takes place, if not on this machine."""
        if self._cluster is None:
            self.sandbox = find_sandbox(self.config.sandbox, self._cache_folder())
            self.machine = self._look_around()
        else:
            self.sandbox, self.machine = self._cluster.sandbox, self._cluster.machine
        self._seeds = JobSeeds(self.config.seed)
        self.faults: list[JobFaulted] = []
        self._unsaved: dict[int, Trace] = {}
        """The traces of this object's runs that the set has in memory only, by their identity: nothing is resumed from
        them."""
        self._plug_ins = list_plug_ins(self.config.evaluator_modules)
        self._evaluators: dict[str, str] | None = None
        """Definition → fingerprint of the evaluator that judges it; None until somebody asks."""

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def get_trace_set(self) -> TraceSet:
        """Return the trace set that is run."""
        return self._trace_set

    def replay(self, traces: Iterable[Trace]) -> None:
        """Give jobs the inputs that they had when these traces were recorded."""
        run_seed, recorded = recorded_seeds(traces)
        self._seeds = JobSeeds(self.config.seed if run_seed is None else run_seed, recorded)

    def close(self) -> None:
        """Leave the cluster, and end its actors; each run has ended its own processes."""
        if self._cluster is not None:
            self._cluster.close()

    @collector_paused()
    def plan(self, *, resume: bool = False, retry_timeouts: bool = False) -> Plan:
        """Return the jobs of a run and what is left out of it; nothing is started.

        Args:
            resume: leave out jobs that a trace of the set records unchanged, but for traces that were not to be saved.
            retry_timeouts: with `resume`, do jobs again that timed out.

        Raises:
            ConfigError: names that the set does not have, or filters that leave nothing, all of them at once; or
                evaluators from outside that cannot be used.
        """
        recorded = None
        if resume:
            traces = [trace for traces in self._trace_set.traces.values() for trace in kept_of(traces)]
            saved = [trace for trace in traces if id(trace) not in self._unsaved]
            recorded = RecordedJobs.from_traces(saved, retry_timeouts=retry_timeouts)
        evaluators = self._fingerprint_evaluators()
        if self._cluster is not None:
            self._cluster.survey(one for item in select(self._trace_set, self.config) for one in item.solutions)
        return make_plan(self._trace_set, self.config, self.machine, recorded=recorded, evaluators=evaluators)

    def run(self, plan: Plan, *, save_results: bool = True) -> Iterator[Event]:
        """Run a plan; yields what happens as it happens. Closing the iterator stops every process of the run.

        The set gets each trace in memory, before its event is yielded.

        Args:
            plan: from `plan()`.
            save_results: append each trace to the set on disk before its event is yielded.

        Raises:
            DataSetError: results are to be saved, and the set has no folder.
        """
        self.faults = []
        if not plan.jobs:
            return
        if save_results:
            for job in plan.jobs:
                self._result_root(job)
        yield RunStarted(self.machine.devices, len(plan.jobs))
        writers: dict[Path, TraceWriter] = {}
        with self._fleet(plan) as fleet:
            for happening in fleet.run(plan.jobs):
                if isinstance(happening, Judged):
                    trace = self._make_trace(happening.job, happening.device, happening.evaluation)
                    if save_results:
                        self._save(writers, happening.job, trace)
                    else:
                        self._unsaved[id(trace)] = trace
                    self._trace_set.keep_traces([trace])
                    yield JobFinished(happening.job, trace, happening.device, happening.seconds)
                    continue
                if isinstance(happening, JobFaulted):
                    self.faults.append(happening)
                yield happening

    def run_all(self, save_results: bool = True, resume: bool = False, *, dump_traces: bool | None = None) -> TraceSet:
        """Run every job of the set and return a new TraceSet.

        It has the input's definitions, solutions and workloads, and this run's traces only; with `resume` also those
        that record the jobs that were left out. The input set gets the new traces, too. Where everything was skipped, a
        warning says why.

        Args:
            save_results: append each trace to the set on disk the moment its job ends.
            resume: leave out jobs that are already recorded, unchanged.
            dump_traces: another name of `save_results`; where it is given, it counts.

        Raises:
            ConfigError: as for `plan`. Jobs that could not be judged raise nothing: they stand in `faults`.
        """
        plan = self.plan(resume=resume)
        result = self._trace_set.without_traces()
        if plan.resumed:
            result.keep_traces(find_resumed(self.plan(), plan, self._trace_set))
        elif not plan.jobs:
            warnings.warn(describe_nothing(plan), stacklevel=2)
        for event in self.run(plan, save_results=save_results if dump_traces is None else dump_traces):
            if isinstance(event, JobFinished):
                result.keep_traces([event.trace])
        return result

    def _fingerprint_evaluators(self) -> dict[str, str]:
        """Return the fingerprint of the evaluator that judges each definition; only plug-ins need a process for it."""
        if self._evaluators is None:
            asked = [item.definition for item in select(self._trace_set, self.config)]
            if self._plug_ins:
                choices = look_up_evaluators(asked, self._plug_ins)
                self._evaluators = {name: item.fingerprint for name, item in choices.items()}
            else:
                self._evaluators = {definition.name: mark_built_in(definition) for definition in asked}
        return self._evaluators

    def _look_around(self) -> Machine:
        """Find the devices, and what can be built for them."""
        devices = discover_devices(self.config.devices)
        languages = find_unavailable_languages(self._toolchain)
        capabilities = Machine(devices, languages).capabilities
        target = BuildTarget.of(capabilities)
        return Machine(
            devices,
            languages,
            lambda solution: why_not_buildable(solution, self._toolchain, target, capabilities),
            self.sandbox.mark,
        )

    def _fleet(self, plan: Plan) -> Fleet:
        needs_triton = any(job.solution.spec.language.value == "triton" for job in plan.jobs)
        return Fleet(
            self.machine.devices if self._cluster is None else self._cluster,
            hello_for=lambda device: self._hello(device, needs_triton=needs_triton),
            blob_root_for=lambda job: self._trace_set.blob_root(job.definition.name, job.workload.uuid) or Path.cwd(),
            farm=self._cluster.sources if self._cluster is not None else self._make_farm(),
            seed_of=self._seeds.of,
        )

    def _make_farm(self) -> BuildFarm:
        return BuildFarm(
            self._cache_folder(),
            jobs=self.config.build_jobs or default_jobs(spared_cores=0 if self.machine.kind == "cpu" else 1),
            target=BuildTarget.of(self.machine.capabilities),
            toolchain=self._toolchain,
        )

    def _cluster_settings(self) -> ClusterSettings:
        devices = self.config.devices
        if devices is not None and set(devices) != {"cpu"}:
            raise ConfigError("devices: Ray chooses the GPUs of a cluster; only cpu can be asked for with --cluster")
        return ClusterSettings(
            address=self.config.cluster_address,
            kind="cpu" if devices is not None else None,
            sandbox=self.config.sandbox,
            cache=str(self._cache) if self._cache is not None else None,
            has_shared_blobs=self.config.shared_blobs,
            hidden=CACHE_FOLDERS,
        )

    def _cache_folder(self) -> Path:
        return (self._cache or cache_root(os.environ)).resolve()

    def _hello(self, device: Device, *, needs_triton: bool) -> Hello:
        config = self.config
        share = QUICK_SHARE if config.quick else 1.0
        return Hello(
            device=device.kind,
            hardware=device.name,
            isolated=config.use_isolated_runner,
            timeout_seconds=config.timeout_seconds,
            profile_baseline=config.profile_baseline,
            time_budget_s=config.time_budget_s * share,
            baseline_budget_s=config.baseline_budget_s * share,
            timing=TimingSettings(config.l2_cache, config.clock, config.cuda_graphs),
            keep_samples=config.keep_samples,
            baselines=self._choose_baselines(device),
            gpu_uuid=device.uuid if device.kind == "cuda" else None,
            gpu_index=device.pci_rank,
            worker_memory_bytes=int(config.worker_memory_gb * GIB) if config.worker_memory_gb else None,
            needs_triton=needs_triton,
            cache_root=str(self._cache_folder()),
            plug_ins=self._plug_ins,
            has_walls=self.sandbox.has_walls,
            sandbox_user=self.sandbox.user,
            hidden=list_hidden_folders(self._trace_set, self._cache_folder()),
        )

    def _choose_baselines(self, device: Device) -> Literal["use", "refresh", "off"]:
        """Say whether times of references are kept between runs.

        Not on a CPU, whose speed is another one every minute; not where workers have no walls, since they could write
        what is kept; and not where every reading is wanted, which nobody keeps.
        """
        is_wanted = self.config.profile_baseline and not self.config.keep_samples
        if device.kind == "cpu" or not self.sandbox.has_walls or not is_wanted:
            return "off"
        return "refresh" if self.config.fresh_baselines else "use"

    def _make_trace(self, job: Job, device: Device, evaluation: Evaluation) -> Trace:
        """Add what the verdict was reached under: settings, seed, digests, device."""
        run: dict[str, Any] = {
            "fingerprint": dict(job.fingerprint),
            "config": job.config.values(),
            "timeout_seconds": self.config.timeout_seconds,
            "worker_memory_gb": self.config.worker_memory_gb,
            **self._seeds.describe(job),
            "device": describe_device(device),
            "sandbox": (self.sandbox if self._cluster is None else self._cluster.sandbox_of(device)).record(),
            **({"quick": True} if self.config.quick else {}),
            "runner": "isolated" if self.config.use_isolated_runner else "persistent",
        }
        extra = {**(evaluation.extra or {}), "run": run, **self._roofline(job, device, evaluation)}
        extended = evaluation.model_copy(update={"extra": extra})
        return Trace(
            definition=job.definition.name, workload=job.workload, solution=job.solution.name, evaluation=extended
        )

    def _roofline(self, job: Job, device: Device, evaluation: Evaluation) -> dict[str, Any]:
        """Tell what share of the GPU's roofline was reached, where the cost of the workload is known."""
        if evaluation.performance is None or device.kind == "cpu":
            return {}
        root = self._trace_set.blob_root(job.definition.name, job.workload.uuid) or Path.cwd()
        cost = cost_of_workload(job.definition, job.workload, root)
        facts = describe_time(cost, device.name, evaluation.performance.latency_ms) if cost is not None else None
        return {} if facts is None else {"roofline": facts}

    def _save(self, writers: dict[Path, TraceWriter], job: Job, trace: Trace) -> None:
        """Append a trace to the set that the solution came from."""
        root = self._result_root(job)
        writer = writers.setdefault(root, TraceWriter(root))
        writer.append(trace, author=job.solution.author, op_type=job.definition.op_type)

    def _result_root(self, job: Job) -> Path:
        root = self._trace_set.solution_roots.get(job.solution.name) or self._trace_set.root
        if root is None:
            raise DataSetError(
                "the trace set was not loaded from a folder, so there is nowhere to save: save_results=False"
            )
        return root


def describe_device(device: Device) -> dict[str, Any]:
    """Return what a trace tells of the device that judged it."""
    on_node = {"node": device.node} if device.node is not None else {}
    return {"kind": device.kind, "index": device.index, "uuid": device.uuid, **on_node}


def list_hidden_folders(trace_set: TraceSet, cache: Path) -> list[str]:
    """Return what no worker reads, even where somebody has put it in a folder that workers need."""
    roots = {*trace_set.solution_roots.values(), *trace_set.workload_roots.values(), *trace_set.blob_roots.values()}
    roots |= {trace_set.root} if trace_set.root is not None else set()
    in_sets = [root / name for root in sorted(roots) for name in (DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES, BLOB)]
    loose = find_loose_folders(
        [*trace_set.definition_files.values(), *trace_set.solution_files.values()], trace_set.roots
    )
    # What a worker needs may lie beside: then only the definitions are hidden.
    needed = [Path(sys.prefix), Path(__file__)]
    shut = [folder for folder in loose if not any(path.is_relative_to(folder.absolute()) for path in needed)]
    shown = [file for file in trace_set.definition_files.values() if file.parent in loose - {*shut}]
    hidden = (*in_sets, *shut, *shown, *(cache / name for name in CACHE_FOLDERS))
    return [str(path.absolute()) for path in hidden]
