"""The whole examination: read, measure, have the engine check itself, and report the findings.

One kernel is timed as two identical solutions. The ratio of their times should be 1. Its deviation is the error of any
comparison on this machine. Our own *programs* show how solutions can be compiled, loaded and called.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Final

from pydantic import TypeAdapter

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.compile.known_good import NAME, PROGRAMS, KnownGood, define_double
from flashinfer_bench.data import Solution, Trace, TraceSet, Workload
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import DeviceFault, Fault
from flashinfer_bench.examine.compare.measuring import measure
from flashinfer_bench.examine.compare.result import Comparison
from flashinfer_bench.examine.compare.sides import Pairing
from flashinfer_bench.examine.doctor import findings as of
from flashinfer_bench.examine.doctor.findings import Finding
from flashinfer_bench.examine.doctor.machine import MachineState, Readings, read_machine
from flashinfer_bench.report.verdict import reason_of
from flashinfer_bench.roofline.measured import MeasuredPeaks, find_peaks_file, read_peaks

FORMAT_VERSION: Final = 5
"""Version of the JSON document."""
PROBE: Final = "flashinfer_bench.examine.doctor.probe"
PEAKS_PROBE: Final = "flashinfer_bench.examine.doctor.peaks"
PROBE_S: Final = 300.0
"""Seconds until the probe is ended without a result."""
SEE_MESSAGE: Final = "see what the message names"
NAMES: Final = ("first", "second")
IDENTICAL_S: Final = 20.0
"""Maximum seconds for timing identical solutions."""
THRESHOLDS: Final = {"cuda": 0.02, "cpu": 0.1}
"""Device type → share. Identical solutions are timed until it is clear whether their times differ by more than this
share."""
SIZES: Final = {"cuda": (1 << 18, 1 << 23), "cpu": (1 << 12, 1 << 14)}
"""Numbers of elements of the timed calls: a short and a longer call."""
KERNELS: Final = {"one_kernel": "x * 2", "several_kernels": "x * 0.5 * 0.5 * 0.5 * 16"}
"""Name → the expression that a solution returns. Each doubles its input exactly."""


@dataclass
class Report:
    """The result of an examination."""

    machine: MachineState
    readings: Readings | None = None
    """None if the device could not be measured."""
    identical: Comparison | None = None
    """None if the step was skipped, or the device could not be measured."""
    peaks: MeasuredPeaks | None = None
    """The measured peaks of the device; None if they were never measured."""
    findings: list[Finding] = field(default_factory=list)
    summary: str = ""

    @property
    def exit_code(self) -> int:
        """Return 0 if this machine can measure, 1 if something is broken."""
        return int(any(finding.state == "broken" for finding in self.findings))

    def document(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        identical = None if self.identical is None else self.identical.document(NAMES, ())
        head = {"version": FORMAT_VERSION, "exit_code": self.exit_code}
        return {**head, **asdict(replace(self, identical=None)), "identical": identical}


def examine(
    device: Device,
    *,
    named: str | None = None,
    quick: bool = False,
    peaks: bool = False,
    sandbox: Level = "auto",
    progress: Callable[[str], object] = lambda _line: None,
) -> Report:
    """Examine a machine and one of its devices.

    Args:
        device: the device.
        named: the user's name of the device; None if the user named none.
        quick: skip the runs of the engine.
        peaks: measure the peaks of the GPU, and keep them in the cache.
        sandbox: the level that runs will request.
        progress: receives a line before each step.
    """
    progress("looking at the machine")
    machine = read_machine(device)
    report = Report(machine)
    found = report.findings = [*of.find_gpu(machine, named), *of.find_languages(machine.languages)]
    found += of.find_confinement(machine.sandbox, sandbox)
    found += [*of.find_network(has_own_network=machine.has_own_network), *of.find_neighbours(machine.at_rest)]

    def probe() -> Iterable[Finding]:
        report.readings = run_probe(device)
        yield from (of.find_clock(report.readings), *of.find_flush(report.readings))
        if peaks:
            measure_peaks(device, machine.versions)
        report.peaks = read_peaks(find_peaks_file(cache_root(os.environ), device.uuid))
        if report.peaks is not None:
            yield from of.find_peaks(report.peaks)

    def compare() -> Iterable[Finding]:
        report.identical = time_identical(device)
        return [of.find_agreement(report.identical, on_gpu=device.kind == "cuda")]

    steps: list[tuple[str, str, Callable[[], Iterable[Finding]]]] = [
        ("measuring", f"measuring {device.label}", probe),
        ("A/A", "timing the same kernels as two solutions each", compare),
        ("programs", "building, loading and calling programs of ours", lambda: of.find_programs(try_programs(machine))),
    ]
    for topic, step, work in steps:
        if work is probe or (report.readings is not None and not quick):
            progress(step)
            try:
                found += work()
            except Fault as fault:
                found.append(Finding(topic, "broken", str(fault), SEE_MESSAGE))
    report.summary = of.summarise_findings(found, report.readings)
    return report


def measure_peaks(device: Device, versions: Mapping[str, str | None]) -> None:
    """Measure the peaks of a GPU, and keep them in the cache.

    Raises:
        DeviceFault: they could not be measured or kept.
    """
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    head = {"version": 1, "device": device.name, "date": date, "versions": versions}
    document = json.dumps({**head, **_ask(PEAKS_PROBE, device, PROBE_S)}, indent=2)
    try:
        write_whole(find_peaks_file(cache_root(os.environ), device.uuid), document)
    except OSError as error:
        raise DeviceFault(f"the peaks cannot be kept: {error}") from error


def run_probe(device: Device, *, limit_s: float = PROBE_S) -> Readings:
    """Measure the clock of a device.

    Raises:
        DeviceFault: the device could not be measured.
    """
    return TypeAdapter(Readings).validate_python(_ask(PROBE, device, limit_s))


def _ask(module: str, device: Device, limit_s: float) -> Any:
    """Ask a module in a process that sees only this device. Meanwhile the device's lock keeps other runs off.

    Raises:
        DeviceFault: the device could not be measured. The message has the last line of the process's output.
    """
    with ExitStack() as held:
        said = ""
        try:
            for line in ask_for_device(device, held, limit_s=0.0):
                said = said or str(line).partition(";")[0]
        except DeviceFault as fault:
            raise DeviceFault(said or str(fault)) from None
        environment = session_environment(os.environ, device, interpret_triton=False)
        try:
            return run_isolated(module, device.kind, limit_s=limit_s, environment=environment)
        except IsolatedFailure as failure:
            if failure.code is None:
                raise DeviceFault(f"measuring took more than {limit_s:g} s") from None
            said = failure.log.rpartition("\n")[2] or "it said nothing"
            raise DeviceFault(f"the process that measures {describe_exit(failure.code)}: {said}") from None


def time_identical(device: Device) -> Comparison:
    """Compare identical solutions as `compare` does, and record their run-to-run variation."""

    def make_copy(kernel: str, number: int) -> Solution:
        source = f"# {number}\ndef run(x):\n    return {KERNELS[kernel]}\n"
        return KnownGood(kernel, "python", f"{kernel}_{number}.py", source).solution()

    pairings = [Pairing(make_copy(kernel, 1), make_copy(kernel, 2), kernel) for kernel in KERNELS]
    trace_set = _make_set([], SIZES[device.kind])
    return measure(trace_set, pairings, _config_for(device), threshold=THRESHOLDS[device.kind], budget_s=IDENTICAL_S)


def try_programs(machine: MachineState) -> dict[str, tuple[of.State, str]]:
    """Build, load and call one of our programs for each way of compiling solutions.

    It uses the cache of runs, so that a problem of the cache folder is found.

    Returns:
        Way of compiling or calling → its state, with the reason if it does not work. A note if a package is not
        installed.
    """
    is_cuda = machine.device.kind == "cuda"  # host code cannot read inputs on a GPU
    usable = [one for one in PROGRAMS if machine.languages[one.language] is None]
    tried = [one for one in usable if (one.language != "cpp" if is_cuda else not one.needs_gpu)]
    whats = {one.solution().name: one.what for one in tried}
    config = _config_for(
        machine.device, profile_baseline=False, confirm=False, warmup_runs=0, iterations=1, num_trials=1
    )
    engine = Benchmark(_make_set([one.solution() for one in tried], SIZES["cpu"][:1]), config)
    plan = engine.plan()
    found: dict[str, tuple[of.State, str]] = {
        whats[one.solution]: ("note", one.reason) for one in plan.skips if one.solution
    }
    for event in engine.run(plan, save_results=False):
        if isinstance(event, JobFinished) and event.trace.evaluation is not None:
            state: of.State = "ok" if event.trace.is_successful() else "broken"
            found[whats[event.job.solution.name]] = state, reason_of(event.trace.evaluation)
        elif isinstance(event, JobFaulted):
            found[whats[event.job.solution.name]] = "broken", event.message
    return found


def _config_for(device: Device, **settings: Any) -> BenchmarkConfig:
    return BenchmarkConfig.default(devices=["cpu" if device.kind == "cpu" else device.uuid], **settings)


def _make_set(solutions: list[Solution], sizes: Sequence[int]) -> TraceSet:
    """Return a set in memory whose solutions double their input."""
    described = [{"uuid": f"size_{size}", "axes": {"n": size}, "inputs": {"x": {"type": "random"}}} for size in sizes]
    lines = [Trace(definition=NAME, workload=Workload.model_validate(one), solution=None) for one in described]
    return TraceSet(definitions={NAME: define_double()}, solutions={NAME: solutions}, workloads={NAME: lines})
