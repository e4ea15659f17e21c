"""`doctor`: shows what this machine can measure, as a table or as JSON. `flashinfer_bench.examine.doctor` measures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Final

from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.cli.output import write_err, write_out
from flashinfer_bench.cli.render import Column, Row, available_width, render_table, wrap_line
from flashinfer_bench.examine.doctor.examination import Asked, Report, examine
from flashinfer_bench.examine.doctor.machine import GpuAtRest, MachineState
from flashinfer_bench.examine.doctor.readings import Readings

MARKS: Final = {"ok": "ok", "note": "note", "broken": "BROKEN"}
GIB: Final = 1 << 30
MIB: Final = 1 << 20


def execute(args: argparse.Namespace, *, examination: Callable[..., Report] = examine) -> int:
    """Examine the machine and print the findings; return 1 if something is broken."""
    device = discover_devices(None if args.device is None else [args.device])[0]
    asked = Asked(args.device, quick=args.quick, sandbox=args.sandbox)
    report = examination(device, asked=asked, tell=lambda line: write_err(f"{line} …"))
    if args.format == "json":
        write_out(json.dumps(report.document(), indent=2) + "\n")
    else:
        write_out(render_report(report, available_width(sys.stdout)))
    return report.exit_code


def render_report(report: Report, width: int) -> str:
    """Lay out the machine, the findings, what to do, and a summary."""
    machine = render_table([Column("Machine"), Column("")], list(describe_machine(report)), width)
    rows: list[Row] = [[MARKS[finding.state], finding.topic, finding.text] for finding in report.findings]
    findings = render_table([Column("State"), Column("What"), Column("Found")], rows, width)
    advice = [f"{finding.topic}: {finding.advice}" for finding in report.findings if finding.advice]
    lines = ["What to do", *(wrap_line(line, width, 2) for line in advice), ""] if advice else []
    return "\n".join([machine, findings, *lines, wrap_line(report.summary, width) + "\n"])


def describe_machine(report: Report) -> Iterator[Row]:
    """Yield the rows that describe the machine."""
    machine, readings = report.machine, report.readings
    yield ["device", f"{machine.device.label}, {machine.device.name}"]
    if machine.gpu is not None:
        yield from _describe_gpu(machine, machine.gpu, readings)
    versions = {name: version for name, version in machine.versions.items() if version is not None}
    if readings is not None and readings.cuda:
        versions["CUDA of torch"] = readings.cuda
    yield ["versions", ", ".join(f"{name} {version}" for name, version in versions.items())]
    missing = [name for name, version in machine.versions.items() if version is None]
    if missing:
        yield ["not installed", ", ".join(missing)]
    yield ["compilers", ", ".join(f"{name} {place or 'not found'}" for name, place in machine.compilers.items())]


def _describe_gpu(machine: MachineState, gpu: GpuAtRest, readings: Readings | None) -> Iterator[Row]:
    parts = []
    if machine.device.capability is not None:
        parts.append(f"compute capability {machine.device.capability[0]}.{machine.device.capability[1]}")
    if readings is not None:
        parts += [f"{readings.processors} SMs", f"L2 {readings.l2_bytes / MIB:.0f} MiB"]
    if gpu.memory_bytes is not None and gpu.memory_used_bytes is not None:
        parts.append(f"memory {gpu.memory_bytes / GIB:.1f} GiB, {gpu.memory_used_bytes / GIB:.1f} in use")
    yield ["chip", ", ".join(parts)]
    yield ["clocks", _pairs(gpu, readings)]


def _pairs(gpu: GpuAtRest, readings: Readings | None) -> str:
    """Return clocks, power and temperature at rest, and under load where that was measured."""
    loaded = readings.under_load if readings is not None else None
    parts = []
    for name, field, unit, most in (
        ("SM", "sm_mhz", "MHz", gpu.sm_max_mhz),
        ("memory", "memory_mhz", "MHz", gpu.memory_max_mhz),
        ("power", "power_w", "W", gpu.power_limit_w),
        ("temperature", "temperature_c", "°C", None),
    ):
        values = [getattr(state, field) for state in (gpu.state, loaded) if state is not None]
        known = " to ".join(f"{value:.0f}" for value in values if value is not None)
        if known:
            parts.append(f"{name} {known}{f' of {most:.0f}' if most else ''} {unit}")
    return ", ".join(parts) + (" (at rest to under load)" if loaded is not None else " (at rest)")
