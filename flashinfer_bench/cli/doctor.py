"""`doctor`: prints whether and how well this machine can measure, as tables or as JSON."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Final

from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.parser import Parser, add_flags, add_format, add_sandbox
from flashinfer_bench.errors import UsageError

if TYPE_CHECKING:
    from flashinfer_bench.examine.doctor.examination import Report

MARKS: Final = {"ok": "ok", "note": "note", "broken": "BROKEN"}
STATES: Final = (("sm_mhz", "MHz"), ("memory_mhz", "MHz of its memory"), ("power_w", "W"), ("temperature_c", "°C"))
"""Field of a GPU's state → its unit."""


def declare_doctor(parser: Parser) -> None:
    """Add the help and the flags of the command."""
    parser.describe(
        "Report whether this machine can measure, by which method, and how well its times can be compared. "
        "Exit codes: 0 it can measure, 1 something is broken.",
        example="doctor --device 0",
        execute=execute,
    )
    add_flags(parser, {"--device NAME": "0, cuda:1, a GPU's uuid, or cpu (default: the first GPU)"})
    add_sandbox(parser, default="auto")
    flags = {
        "--quick": "skip the runs of the engine: no test kernels are judged or timed",
        "--peaks": "measure bandwidth and matrix products of the GPU, and keep them as the peaks of its rooflines",
    }
    add_flags(parser, flags)
    add_format(parser)


def execute(args: Namespace) -> int:
    """Examine the machine, and print the findings. Return 1 if a part of the machine is broken."""
    from flashinfer_bench.bench.machine import discover_devices
    from flashinfer_bench.cli.tables import write_result
    from flashinfer_bench.examine.doctor import examination

    device = discover_devices(None if args.device is None else [args.device])[0]
    if args.peaks and device.kind == "cpu":
        raise UsageError("--peaks needs a GPU")
    how = {"named": args.device, "quick": args.quick, "peaks": args.peaks, "sandbox": args.sandbox}
    report = examination.examine(device, progress=lambda line: write_err(f"{line} …"), **how)
    write_result(args, report.document(), render_report(report))
    return report.exit_code


def render_report(report: Report) -> str:
    """Render the machine, the findings, the advice, and a summary."""
    from flashinfer_bench.cli.tables import join_sections, render_table, wrap_line

    machine = [(title, text) for title, text in describe_machine(report).items() if text]
    rows = [(MARKS[finding.state], finding.topic, finding.text) for finding in report.findings]
    advice = [f"{finding.topic}: {finding.advice}" for finding in report.findings if finding.advice]
    return join_sections(
        render_table(["Machine", ""], machine),
        render_table(["State", "What", "Found"], rows),
        ["What to do", *(wrap_line(line, 2) for line in advice)] if advice else [],
        [wrap_line(report.summary)],
    )


def describe_machine(report: Report) -> dict[str, str]:
    """Return the description of the machine: title → text."""
    machine, readings = report.machine, report.readings
    capability, state = machine.device.capability, machine.at_rest
    clocks = [] if state is None else [f"{getattr(state, field)} {unit}" for field, unit in STATES]
    versions = {**machine.versions, "CUDA of torch": readings.cuda if readings is not None else None}
    return {
        "device": f"{machine.device.label}, {machine.device.name}",
        "compute capability": "" if capability is None else "{}.{}".format(*capability),
        "at rest": ", ".join(clocks),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        "not installed": ", ".join(name for name, version in machine.versions.items() if version is None),
        "compilers": ", ".join(f"{name} {path or 'not found'}" for name, path in machine.compilers.items()),
    }
