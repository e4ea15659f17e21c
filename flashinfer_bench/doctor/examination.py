"""The whole visit: look, measure, have the engine check itself, and say what was found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.doctor.diagnosis import (
    Finding,
    find_agreement,
    find_clock,
    find_cold,
    find_confinement,
    find_gpu,
    find_languages,
    find_load,
    find_neighbours,
    find_rates,
    summarise_findings,
)
from flashinfer_bench.doctor.machine import MachineState, read_machine
from flashinfer_bench.doctor.probe_process import ProbeFailed, run_probe
from flashinfer_bench.doctor.readings import Readings
from flashinfer_bench.doctor.self_check import Agreement, run_self_check
from flashinfer_bench.errors import DeviceFault, Fault

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""


@dataclass(frozen=True)
class Report:
    """What the doctor found."""

    machine: MachineState
    readings: Readings | None
    """None where nothing could be measured."""
    agreement: Agreement | None
    """None where it was left out, or nothing could be measured."""
    findings: tuple[Finding, ...]
    summary: str

    @property
    def exit_code(self) -> int:
        """Return 0 where this machine can measure, 1 where something is broken."""
        return int(any(finding.state == "broken" for finding in self.findings))

    def document(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        document = {"version": FORMAT_VERSION, "exit_code": self.exit_code, **asdict(self)}
        if self.agreement is not None:
            document["agreement"] |= {"worst": self.agreement.worst, "spread": self.agreement.spread}
        return document


def examine(
    device: Device,
    *,
    asked_for: str | None = None,
    quick: bool = False,
    sandbox: Level = "auto",
    tell: Callable[[str], None] = lambda _line: None,
    look: Callable[[Device], MachineState] = read_machine,
    measure: Callable[[Device], Readings] = run_probe,
    check: Callable[[Device], Agreement] = run_self_check,
) -> Report:
    """Look a machine and one of its devices over.

    Args:
        device: the device.
        asked_for: as it was asked for; None where that was left to us.
        quick: leave the engine's check of itself out.
        sandbox: the level that runs will ask for.
        tell: takes a line about what is done next.
        look: reads what the machine tells of itself.
        measure: takes readings of the device.
        check: has the engine time twins on it.
    """
    tell("looking at the machine")
    machine = look(device)
    readings = _take_readings(device, measure, tell)
    measured = None if isinstance(readings, Finding) else readings
    findings = [*find_gpu(machine, asked_for), *find_languages(machine), *find_neighbours(machine, measured)]
    findings += find_confinement(machine.sandbox, sandbox)
    if isinstance(readings, Finding):
        findings.append(readings)
        return Report(machine, None, None, tuple(findings), summarise_findings(findings, None))
    findings += [*find_clock(readings), *find_cold(readings.cache), *find_rates(readings.rates, device.name)]
    findings += find_load(machine, readings)
    agreement: Agreement | None = None
    if not quick:
        tell("timing the same kernels as two solutions each")
        try:
            agreement = check(device)
            findings += find_agreement(agreement, on_gpu=device.kind == "cuda")
        except Fault as fault:
            findings.append(Finding("A/A", "broken", str(fault), "see what the message names"))
    return Report(machine, readings, agreement, tuple(findings), summarise_findings(findings, readings))


def _take_readings(
    device: Device, measure: Callable[[Device], Readings], tell: Callable[[str], None]
) -> Readings | Finding:
    """Measure while no other run may; where that cannot be, return what is the matter."""
    said = ""
    with ExitStack() as held:
        try:
            for line in lock_device(device, held, limit_s=0.0):
                said = line.partition(";")[0]
        except DeviceFault as fault:
            return Finding("lock", "broken", said or str(fault), "wait until that run is over, or end it")
        tell(f"measuring {device.label}")
        try:
            return measure(device)
        except ProbeFailed as failed:
            return Finding("measuring", "broken", str(failed), "see what the message names")
