"""The whole visit: look, measure, have the engine check itself, and report the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.errors import DeviceFault, Fault
from flashinfer_bench.examine.compare.result import Comparison
from flashinfer_bench.examine.doctor import findings as made
from flashinfer_bench.examine.doctor.findings import Finding
from flashinfer_bench.examine.doctor.machine import MachineState, read_machine
from flashinfer_bench.examine.doctor.readings import ProbeFailed, Readings, run_probe
from flashinfer_bench.examine.doctor.self_check import time_twins, try_programs

FORMAT_VERSION: Final = 2
"""Version of the JSON document. History: 1 is the first; 2 has `twins`, as `compare` has them, for `agreement`."""
TWINS: Final = ("first twin", "second twin")
SEE_MESSAGE: Final = "see what the message names"


@dataclass
class Report:
    """What the doctor found."""

    machine: MachineState
    readings: Readings | None
    """None if nothing could be measured."""
    twins: Comparison | None
    """None if it was left out, or nothing could be measured."""
    findings: list[Finding]
    summary: str = ""

    @property
    def exit_code(self) -> int:
        """Return 0 if this machine can measure, 1 if something is broken."""
        return int(any(finding.state == "broken" for finding in self.findings))

    def document(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        twins = None if self.twins is None else self.twins.document(TWINS, ())
        return {
            "version": FORMAT_VERSION,
            "exit_code": self.exit_code,
            **asdict(replace(self, twins=None)),
            "twins": twins,
        }


def examine(
    device: Device,
    *,
    named: str | None = None,
    quick: bool = False,
    sandbox: Level = "auto",
    tell: Callable[[str], object] = lambda _line: None,
) -> Report:
    """Examine a machine and one of its devices.

    Args:
        device: the device.
        named: its name as the user gave it; None if the user named none.
        quick: leave out the runs of the engine.
        sandbox: the level that runs will ask for.
        tell: takes a line about what is done next.
    """
    tell("looking at the machine")
    machine = read_machine(device)
    readings = _measure(device, tell)
    measured = None if isinstance(readings, Finding) else readings
    report = Report(machine, measured, None, [*made.find_gpu(machine, named), *made.find_languages(machine)])
    report.findings += [*made.find_neighbours(machine, measured), *made.find_confinement(machine.sandbox, sandbox)]
    if isinstance(readings, Finding):
        report.findings.append(readings)
    else:
        report.findings += [*made.find_clock(readings), *made.find_cold(readings.cache)]
        report.findings += [*made.find_rates(readings.rates, device.name), *made.find_load(machine, readings)]
        if not quick:
            _run_engine(report, device, tell)
    report.summary = made.summarise_findings(report.findings, measured)
    return report


def _measure(device: Device, tell: Callable[[str], object]) -> Readings | Finding:
    """Measure while no other run may; if that is not possible, return a finding that says why."""
    said = ""
    with ExitStack() as held:
        try:
            for line in lock_device(device, held, limit_s=0.0):
                said = line.partition(";")[0]
        except DeviceFault as fault:
            return Finding("lock", "broken", said or str(fault), "wait until that run is over, or end it")
        tell(f"measuring {device.label}")
        try:
            return run_probe(device)
        except ProbeFailed as failed:
            return Finding("measuring", "broken", str(failed), SEE_MESSAGE)


def _run_engine(report: Report, device: Device, tell: Callable[[str], object]) -> None:
    def compare() -> Iterable[Finding]:
        report.twins = time_twins(device)
        return made.find_agreement(report.twins, on_gpu=device.kind == "cuda")

    tell("timing the same kernels as two solutions each")
    _add(report, "A/A", compare)
    tell("building, loading and calling programs of ours")
    _add(report, "programs", lambda: made.find_programs(try_programs(device)))


def _add(report: Report, topic: str, find: Callable[[], Iterable[Finding]]) -> None:
    try:
        report.findings += find()
    except Fault as fault:
        report.findings.append(Finding(topic, "broken", str(fault), SEE_MESSAGE))
