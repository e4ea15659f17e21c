"""The whole visit: look, measure, have the engine check itself, and say what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.bench.runner.sandbox import Level
from flashinfer_bench.errors import DeviceFault, Fault
from flashinfer_bench.examine.doctor.diagnosis import (
    Finding,
    find_agreement,
    find_clock,
    find_cold,
    find_confinement,
    find_gpu,
    find_languages,
    find_load,
    find_neighbours,
    find_programs,
    find_rates,
    summarise_findings,
)
from flashinfer_bench.examine.doctor.machine import MachineState, read_machine
from flashinfer_bench.examine.doctor.probe_process import ProbeFailed, run_probe
from flashinfer_bench.examine.doctor.readings import Readings
from flashinfer_bench.examine.doctor.self_check import Agreement, check_and_learn, try_programs

FORMAT_VERSION: Final = 1
"""Version of the JSON document. History: 1 is the first."""


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


@dataclass(frozen=True)
class Instruments:
    """What a device is looked over with."""

    look: Callable[[Device], MachineState] = read_machine
    """Reads what the machine tells of itself."""
    measure: Callable[[Device], Readings] = run_probe
    """Takes readings of the device."""
    check: Callable[[Device], Agreement] = check_and_learn
    """Has the engine time twins on the device."""
    build: Callable[[Device], Mapping[str, str | None]] = try_programs
    """Has the engine build, load and call programs of ours; returns what was tried → why it does not work, or None."""


REAL: Final = Instruments()


@dataclass(frozen=True)
class Asked:
    """What the user asked for."""

    device: str | None = None
    """The device as the user named it; None where the user named none."""
    quick: bool = False
    """Leave out the engine's check of itself."""
    sandbox: Level = "auto"
    """The level that runs will ask for."""


NOTHING_ASKED: Final = Asked()


def examine(
    device: Device,
    *,
    asked: Asked = NOTHING_ASKED,
    tell: Callable[[str], None] = lambda _line: None,
    instruments: Instruments = REAL,
) -> Report:
    """Look a machine and one of its devices over.

    Args:
        device: the device.
        asked: what the user asked for.
        tell: takes a line about what is done next.
        instruments: what reads, measures and checks.
    """
    tell("looking at the machine")
    machine = instruments.look(device)
    readings = _take_readings(device, instruments.measure, tell)
    measured = None if isinstance(readings, Finding) else readings
    findings = [*find_gpu(machine, asked.device), *find_languages(machine), *find_neighbours(machine, measured)]
    findings += find_confinement(machine.sandbox, asked.sandbox)
    if isinstance(readings, Finding):
        findings.append(readings)
        return Report(machine, None, None, tuple(findings), summarise_findings(findings, None))
    findings += [*find_clock(readings), *find_cold(readings.cache), *find_rates(readings.rates, device.name)]
    findings += find_load(machine, readings)
    agreement: Agreement | None = None
    if not asked.quick:
        tell("timing the same kernels as two solutions each")
        try:
            agreement = instruments.check(device)
            findings += find_agreement(agreement, on_gpu=device.kind == "cuda")
        except Fault as fault:
            findings.append(Finding("A/A", "broken", str(fault), "see what the message names"))
        tell("building, loading and calling programs of ours")
        try:
            findings += find_programs(instruments.build(device))
        except Fault as fault:
            findings.append(Finding("programs", "broken", str(fault), "see what the message names"))
    return Report(machine, readings, agreement, tuple(findings), summarise_findings(findings, readings))


def _take_readings(
    device: Device, measure: Callable[[Device], Readings], tell: Callable[[str], None]
) -> Readings | Finding:
    """Measure while no other run may. Where that is not possible, return a finding that says why."""
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
