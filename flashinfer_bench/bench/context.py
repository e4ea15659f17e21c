"""The services for judging a trace set, set up once: the machine, the sandbox, the evaluators, the settings of a
session.

Runs, the resident engine and comparisons all start from these services. This module starts no device session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from flashinfer_bench.base.host import spare_cores
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.evaluator_record import built_in_key
from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER
from flashinfer_bench.bench.evaluators.plug_ins import list_plug_ins
from flashinfer_bench.bench.machine import Device, Machine, discover_devices
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner import baseline_cache
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.runner.lookup import EvaluatorLookup, look_up_evaluators
from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.bench.runner.requests import RequestMaker
from flashinfer_bench.bench.runner.sandbox import Sandbox, find_sandbox
from flashinfer_bench.bench.scheduler import Rules, Scheduler
from flashinfer_bench.bench.spread_file import SPREAD_FOLDER, SpreadFile
from flashinfer_bench.cluster.settings import ClusterSettings, join_cluster
from flashinfer_bench.compile import (
    BuildPool,
    BuildTarget,
    default_jobs,
    find_toolchain,
    find_unavailable_languages,
    why_not_buildable,
)
from flashinfer_bench.data import Definition, Solution, TraceSet
from flashinfer_bench.data.store.layout import (
    BLOB,
    DEFINITIONS,
    SERVED,
    SOLUTIONS,
    TRACES,
    WORKLOADS,
    find_foreign_folders,
)
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.roofline.measured import PEAKS_FOLDER
from flashinfer_bench.timing.settings import TimingSettings

GIB: Final = 1 << 30
QUICK_SHARE: Final = 1 / 3
"""A quick run gets this share of the time budgets, since it has one of the usual three trials."""
CACHE_FOLDERS: Final = (
    "serve",
    "artifacts",
    "staging",
    "jit",
    "locks",
    baseline_cache.FOLDER,
    JUDGE_FOLDER,
    SPREAD_FOLDER,
    PEAKS_FOLDER,
)


class HarnessContext:
    """The services for judging a trace set on this machine.

    Args:
        trace_set: the set to judge.
        config: its settings; the bundled defaults if omitted. The set's settings for its own definitions
            (`tolerances.yaml`) rank below the user's settings.
        cache: folder of built files; the user's cache if omitted.

    Raises:
        ConfigError: the configuration requests missing devices, evaluators that no session can import, or a sandbox
            that this machine lacks.
    """

    def __init__(self, trace_set: TraceSet, config: BenchmarkConfig | None, cache: Path | None) -> None:
        self.trace_set = trace_set
        self.cache = (cache or cache_root(os.environ)).resolve()
        self.config = (config if config is not None else BenchmarkConfig.default()).for_set(trace_set)
        self._toolchain = find_toolchain()
        self._cluster = None
        """The cluster of the sessions; None for this machine."""
        if self.config.cluster is not None:
            self._cluster = join_cluster(self._cluster_settings(str(self.cache) if cache is not None else None))
            self.sandbox, self.machine = self._cluster.sandbox, self._cluster.machine
        else:
            self.sandbox = find_sandbox(self.config.sandbox, self.cache)
            self.machine = Machine(
                discover_devices(self.config.devices),
                find_unavailable_languages(self._toolchain),
                lambda one: why_not_buildable(one, self._toolchain, self.machine.capabilities),
                self.sandbox.fingerprint_key,
            )
        self._plug_ins = list_plug_ins(self.config.evaluator_modules)
        self.tool: tuple[str, str] | None = None
        """The module that replaces sessions (`SessionConfig.tool`)."""
        self._lookup = EvaluatorLookup()

    def fingerprint_evaluators(
        self, definitions: Sequence[Definition], others: Iterable[Definition] = ()
    ) -> dict[str, str]:
        """Return the fingerprint of the evaluator that judges each definition. Only plug-ins need a process for the
        look-up.

        Args:
            definitions: the definitions.
            others: definitions that later calls may have. A process of this call also looks up the evaluators of these
                definitions.

        Raises:
            ConfigError: a plug-in cannot be used, or `extra` has a key or value that it does not take.
        """
        if not self._plug_ins:
            return {definition.name: built_in_key(definition) for definition in definitions}
        if not self._lookup.has_all(definitions):
            asked = {one.name: one for one in (*others, *definitions)}
            stays = self._cluster is None and not others
            self._lookup = look_up_evaluators(
                asked.values(), self._plug_ins, kind=self.machine.kind, keeps_server=stays
            )
        self._lookup.check(definitions, self.config)
        return {one.name: self._lookup.choices[one.name].fingerprint for one in definitions}

    @property
    def plug_in_keys(self) -> frozenset[str]:
        """Keys of `extra` that the plug-ins have declared so far."""
        return self._lookup.known.keys

    def sandbox_of(self, device: Device) -> Sandbox:
        """Return the sandbox of workers on a device."""
        return self.sandbox if self._cluster is None else self._cluster.sandbox_of(device)

    def survey(self, solutions: Iterable[Solution]) -> None:
        """Ask the nodes of a cluster for the missing requirements of all solutions at once. After this call, the plan
        needs no request for each solution."""
        if self._cluster is not None:
            self._cluster.survey(solutions)

    def close(self) -> None:
        """Leave the cluster, and end the actors there. Call it after all sessions have ended."""
        if self._cluster is not None:
            self._cluster.close()

    def may_compile_ahead(self) -> bool:
        """Return whether a session can compile ahead: on this machine's only GPU, with a sandbox and spare cores."""
        is_alone = self._cluster is None and self.machine.kind == "cuda" and len(self.machine.devices) == 1
        return is_alone and self.sandbox.is_sandboxed and bool(spare_cores())

    def make_scheduler(self, seeds: JobSeeds, rules: Rules, *, needs_triton: bool) -> Scheduler:
        """Make the loop over the devices; start no process."""
        makes = RequestMaker if self._cluster is None else self._cluster.batch_maker
        build_pool = self._make_build_pool() if self._cluster is None else self._cluster.no_builds(self.cache)
        return Scheduler(
            self.machine.devices if self._cluster is None else self._cluster,
            session_config_for=lambda device: self.greet(device, rules, needs_triton=needs_triton),
            requests=makes(build_pool, blob_root_for=self.blob_root_for, seed_of=seeds.of),
            rules=rules,
        )

    def blob_root_for(self, job: Job) -> Path:
        """Return the folder below which the stored inputs of a job lie."""
        return self.trace_set.blob_root(job.definition.name, job.workload.uuid) or Path.cwd()

    def root_of(self, solution: Solution) -> Path | None:
        """Return the folder of the set for a solution's traces; None for a set in memory."""
        return self.trace_set.solution_root(solution.name)

    def greet(self, device: Device, rules: Rules, *, needs_triton: bool) -> SessionConfig:
        """Return the settings of a session."""
        config = self.config
        isolated = config.use_isolated_runner or rules.one_worker_a_job
        share = QUICK_SHARE if config.quick else 1.0
        return SessionConfig(
            device=device.kind,
            hardware=device.name,
            isolated=isolated,
            timeout_seconds=config.timeout_seconds,
            call_timeout_seconds=config.call_timeout_seconds,
            profile_baseline=config.profile_baseline,
            compile_mode=config.compile_mode,
            time_budget_s=config.time_budget_s * share,
            baseline_budget_s=config.baseline_budget_s * share,
            timing=TimingSettings(config.l2_cache, config.clock, config.cuda_graphs, config.assurance),
            keep_samples=config.keep_samples,
            library_calls=config.library_calls,
            baselines=self._choose_baselines(device),
            gpu_uuid=device.uuid if device.kind == "cuda" else None,
            gpu_index=device.pci_rank,
            gpu_capability=device.capability,
            worker_memory_bytes=int(config.worker_memory_gb * GIB) if config.worker_memory_gb else None,
            needs_triton=needs_triton,
            cache_root=str(self.cache),
            plug_ins=self._plug_ins,
            tool=self.tool,
            is_sandboxed=self.sandbox.is_sandboxed,
            sessions=1 if self._cluster is not None else max(1, len(self.machine.devices)),
            compiles_ahead=rules.compiles_ahead,
            expects_new=rules.is_resident and not isolated,
            sandbox_user=self.sandbox.user,
            hidden=list_hidden_folders(self.trace_set, self.cache),
        )

    def _make_build_pool(self) -> BuildPool:
        return BuildPool(
            self.cache,
            jobs=self.config.build_jobs or default_jobs(spared_cores=0 if self.machine.kind == "cpu" else 1),
            target=BuildTarget.of(self.machine.capabilities),
            toolchain=self._toolchain,
        )

    def _cluster_settings(self, cache: str | None) -> ClusterSettings:
        devices = self.config.devices
        if devices is not None and set(devices) != {"cpu"}:
            raise ConfigError("devices: Ray chooses the GPUs of a cluster; only cpu can be asked for with --cluster")
        return ClusterSettings(
            address=self.config.cluster_address,
            kind="cpu" if devices is not None else None,
            sandbox=self.config.sandbox,
            cache=cache,
            has_shared_blobs=self.config.shared_blobs,
            build_jobs=self.config.build_jobs,
            hidden=CACHE_FOLDERS,
        )

    def learn_spread(self, groups: Sequence[Sequence[float]]) -> None:
        """Learn the spread between workers from latencies of the same code in several workers.

        With several devices, the device of each worker is unknown, and nothing is stored.
        """
        if len(self.machine.devices) == 1:
            SpreadFile(self.cache, self.machine.devices[0]).add(groups)

    def _choose_baselines(self, device: Device) -> Literal["use", "refresh", "off"]:
        """Return how times of references are cached between runs.

        Times are not cached on a CPU, whose speed changes every minute. Without a sandbox workers could write the
        stored times. With `keep_samples` every sample is wanted, and the cache has no samples.
        """
        is_wanted = self.config.profile_baseline and not self.config.keep_samples
        if device.kind == "cpu" or not self.sandbox.is_sandboxed or not is_wanted:
            return "off"
        return "refresh" if self.config.fresh_baselines else "use"


def list_hidden_folders(trace_set: TraceSet, cache: Path) -> list[str]:
    """Return the folders that no worker may read, even if they lie in a folder that workers need."""
    parts = (DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES, BLOB, SERVED)
    files = [*trace_set.definition_files.values(), *trace_set.solution_files.values()]
    foreign = find_foreign_folders(files, trace_set.roots)
    # A folder stays readable if workers need some of its files; its definitions are hidden.
    needed = [Path(sys.prefix), Path(__file__)]
    shut = {folder for folder in foreign if not any(path.is_relative_to(folder.absolute()) for path in needed)}
    shown = [file for file in trace_set.definition_files.values() if file.parent in foreign - shut]
    hidden = [root / part for root in trace_set.roots for part in parts]
    return [str(path.absolute()) for path in (*hidden, *shut, *shown, *(cache / name for name in CACHE_FOLDERS))]
