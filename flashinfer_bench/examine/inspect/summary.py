"""What a tool found, as JSON-able values, and as text for people and models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.examine.inspect.ncu import KernelProfile
from flashinfer_bench.examine.inspect.order import Inspected
from flashinfer_bench.examine.inspect.sanitizer import SanitizerFinding
from flashinfer_bench.examine.inspect.start import InspectSubject
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.roofline.workloads import cost_of_workload

CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a solution prints stands in a tool's output: nothing of it may steer a terminal."""
NOT_KNOWN: Final = "-"


def profile_document(
    subject: InspectSubject, device: Device, kernels: Sequence[KernelProfile], done: Inspected
) -> dict[str, Any]:
    """Return a profile, beside the share of the roofline that its duration reaches."""
    durations = [kernel.values.get("duration_us") for kernel in kernels]
    known = [duration for duration in durations if duration is not None]
    total_us = sum(known) if len(known) == len(durations) else None
    cost = cost_of_workload(subject.definition, subject.workload, subject.blob_root)
    roofline = describe_time(cost, device.name, total_us / 1e3) if cost is not None and total_us else None
    return {
        **_head("ncu", subject, device, done),
        "duration_us": total_us,
        "kernels": [kernel.document() for kernel in kernels],
        "roofline": roofline,
    }


def findings_document(
    subject: InspectSubject,
    device: Device,
    findings: Sequence[SanitizerFinding],
    problems: Sequence[str],
    done: Inspected,
) -> dict[str, Any]:
    """Return the findings of compute-sanitizer."""
    return {
        **_head("compute-sanitizer", subject, device, done),
        "types": [step.name for step in done.steps],
        "findings": [finding.document() for finding in findings],
        "problems": list(problems),
    }


def _head(tool: str, subject: InspectSubject, device: Device, done: Inspected) -> dict[str, Any]:
    return {
        "tool": tool,
        "definition": subject.definition.name,
        "solution": subject.solution.name,
        "workload": subject.workload.uuid,
        "device": device.name,
        "notes": list(done.notes),
    }


def render_profile(document: Mapping[str, Any]) -> str:
    """Return a profile's document as lines."""
    lines = [_title(document), f"duration {_number(document['duration_us'])} us in all"]
    roofline = document["roofline"]
    if roofline is not None:
        share = f", {roofline['share']:.1%} of the roofline ({roofline['bound']}-bound)" if "share" in roofline else ""
        lines.append(f"{roofline['tflops']:.4g} TFLOP/s, {roofline['tb_per_sec']:.4g} TB/s{share}")
    for kernel in document["kernels"]:
        stalls = ", ".join(f"{stall['reason']} {stall['share']:.0%}" for stall in kernel["stalls"]) or NOT_KNOWN
        lines += [
            "",
            f"{kernel['name']}, grid {kernel['grid']}, block {kernel['block']}",
            f"  duration         {_number(kernel['duration_us'])} us",
            f"  memory           {_number(kernel['dram_tb_per_sec'])} TB/s, "
            f"{_number(kernel['dram_percent'])} % of peak",
            f"  SM               {_number(kernel['sm_percent'])} % of peak",
            f"  tensor cores     {_number(kernel['tensor_percent'])} % of peak",
            f"  occupancy        {_number(kernel['occupancy_percent'])} % achieved, "
            f"{_number(kernel['theoretical_occupancy_percent'])} % possible",
            f"  registers        {_number(kernel['registers_per_thread'])} a thread",
            f"  warps wait for   {stalls}",
        ]
    return "\n".join([*lines, *_notes(document)]) + "\n"


def render_findings(document: Mapping[str, Any], findings: Sequence[SanitizerFinding]) -> str:
    """Return the findings as lines."""
    lines = [_title(document)]
    for type_ in document["types"]:
        own = [finding for finding in findings if finding.type == type_]
        if not own and not any(problem.startswith(f"{type_}:") for problem in document["problems"]):
            lines.append(f"{type_}: nothing found")
        lines += [finding.describe() for finding in own]
    lines += [f"not checked: {problem}" for problem in document["problems"]]
    return "\n".join([*map(plain, lines), *_notes(document)]) + "\n"


def plain(text: str) -> str:
    """Return a text without characters that steer a terminal."""
    return CONTROL.sub("?", text)


def _title(document: Mapping[str, Any]) -> str:
    names = f"{document['solution']} on {document['definition']}, workload {document['workload']}"
    return f"{document['tool']}: {names}, {document['device']}"


def _notes(document: Mapping[str, Any]) -> list[str]:
    return [f"note: {note}" for note in document["notes"]]


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.4g}"
