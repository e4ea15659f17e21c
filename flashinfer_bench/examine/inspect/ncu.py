"""Nsight Compute: the commands, the metrics of its table of raw values, and the document of a profile.

A call is profiled once, between the profiler's start and stop, after a few calls that warm it up. Clocks are left as
they are, as in a run. Each kernel is profiled alone, several times: with a cold L2, or as the passes leave it.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect.look import (
    WORK,
    Inspected,
    StepDone,
    ToolPlan,
    ToolStep,
    make_document,
    render_document,
)
from flashinfer_bench.examine.inspect.target import InspectTarget
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.roofline.workloads import cost_of_workload

REPORT: Final = f"{WORK}/report.ncu-rep"
PROFILE, DETAILS, RAW = "profile", "details", "raw"
"""Names of the steps."""
READ_LIMIT_S: Final = 120.0
"""Seconds that one reading of the report may take."""
OWN_SECTIONS: Final = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
"""Sections with the metrics that cannot be asked for by name, and the reasons why warps wait."""
METRIC: Final = re.compile(r"^([a-z0-9]+__\w+)", re.MULTILINE)
DURATION: Final = "gpu__time_duration.sum"
METRICS: Final[dict[str, tuple[str, ...]]] = {
    "duration_us": (DURATION,),
    "dram_tb_per_sec": ("dram__bytes.sum.per_second",),
    "dram_percent": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_written_bytes": ("dram__bytes_write.sum",),
    "sm_percent": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "tensor_percent": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "occupancy_percent": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "theoretical_occupancy_percent": ("sm__maximum_warps_per_active_cycle_pct",),
    "registers_per_thread": ("launch__registers_per_thread",),
    "shared_bytes_per_block": ("launch__shared_mem_per_block",),
    "waves": ("launch__waves_per_multiprocessor",),
}
"""Key in our document → the metrics that have it; the first that the chip has counts."""
SCALES: Final = {"duration_us": 1e6, "dram_tb_per_sec": 1e-12}
"""Key → factor for its value in seconds or bytes."""
STALL: Final = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
TOP_STALLS: Final = 5
PREFIXES: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNIT: Final = re.compile(r"(n|u|m|K|M|G|T)?(s|second|byte|B)(/.*)?")
NO_RIGHT: Final = "ERR_NVGPUCTRPERM"
NO_RIGHT_MEANS: Final = (
    "the driver lets no ordinary user read the GPU's counters: an administrator can allow it "
    "(NVreg_RestrictProfilingToAdminUsers=0), or start this as root with --sandbox off"
)
NO_KERNELS: Final = "No kernels were profiled"
LINES: Final = (
    ("duration        ", "{duration_us} us"),
    ("memory          ", "{dram_tb_per_sec} TB/s, {dram_percent} % of peak"),
    ("SM              ", "{sm_percent} % of peak"),
    ("tensor cores    ", "{tensor_percent} % of peak"),
    ("occupancy       ", "{occupancy_percent} % achieved, {theoretical_occupancy_percent} % possible"),
    ("registers       ", "{registers_per_thread} a thread"),
)
"""Title → text of a kernel's line; in braces keys of METRICS."""


def list_metrics(program: Path) -> frozenset[str]:
    """Return the names of all metrics of the GPU here, without their roll-ups; none if ncu does not tell them."""
    command = [str(program), "--query-metrics"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=READ_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return frozenset()
    return frozenset(METRIC.findall(done.stdout))


def plan_ncu(
    program: Path,
    known: Container[str] = (),
    *,
    set: str = "detailed",  # noqa: A002 - ncu's own word
    sections: Sequence[str] = (),
    kernel_name: str | None = None,
    page: str = "details",
    cache: Literal["cold", "warm"] = "cold",
    warm_up_calls: int = 2,
    limit_s: float = 300.0,
) -> ToolPlan:
    """Return the steps: profile the call, then read the report twice.

    Args:
        program: ncu.
        known: metrics of the GPU. A kernel is not profiled at all if others are asked for.
        set: set of sections.
        sections: further sections.
        kernel_name: only kernels of this name, or "regex:EXPRESSION"; None for all.
        page: page of the report that is returned as text.
        cache: the L2 before each pass over a kernel.
        warm_up_calls: calls before the one that is profiled.
        limit_s: seconds that profiling may take.
    """
    wanted = [name for names in METRICS.values() for name in names if name.partition(".")[0] in known]
    profile = [
        *(str(program), "--target-processes", "application-only", "--profile-from-start", "off"),
        *("--clock-control", "none", "--cache-control", "all" if cache == "cold" else "none", "--set", set),
        *(word for section in (*sections, *OWN_SECTIONS) for word in ("--section", section)),
        *("--metrics", ",".join(wanted or [DURATION]), *(["--kernel-name", kernel_name] if kernel_name else [])),
        *("--force-overwrite", "--export", REPORT),
    ]
    # It would copy its sections to the new HOME each time.
    environment = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}

    def read(name: str, *flags: str) -> ToolStep:
        argv = [str(program), "--import", REPORT, "--page", *flags]
        return ToolStep(name=name, argv=argv, calls=False, limit_s=READ_LIMIT_S, environment=environment)

    call = ToolStep(
        name=PROFILE,
        argv=profile,
        calls=True,
        warm_up_calls=warm_up_calls,
        limit_s=limit_s,
        environment=environment,
    )
    return ToolPlan(program, [call, read(RAW, "raw", "--csv", "--print-units", "base"), read(DETAILS, page)])


def read_profile(target: InspectTarget, device: Device, done: Inspected) -> tuple[dict[str, Any], str]:
    """Return the document of a profile with its share of the roofline, and the page of the report as text.

    Raises:
        FlashInferBenchError: there is no profile; the message has the tool's words.
    """
    steps = {step.name: step for step in done.steps}
    problem = _find_failure(steps[PROFILE])
    kernels = parse_raw(steps[RAW].text) if RAW in steps else []
    if problem or not kernels:
        said = f"\n{steps[RAW].text}".replace("\n", "\n  ") if RAW in steps else ""
        raise FlashInferBenchError(problem or f"ncu told no values of its report:{said}")
    durations = [kernel["duration_us"] for kernel in kernels]
    total_us = None if None in durations else sum(durations)
    cost = cost_of_workload(target.definition, target.workload, target.blob_root)
    roofline = describe_time(cost, device.name, total_us / 1e3) if cost is not None and total_us else None
    document = make_document("ncu", target, device, done, duration_us=total_us, kernels=kernels, roofline=roofline)
    return document, steps[DETAILS].text if DETAILS in steps else ""


def _find_failure(step: StepDone) -> str:
    """Return why there is no profile; empty if there is one."""
    text = step.text.strip().replace("\n", "\n  ")
    if step.error:
        error = step.error.strip().replace("\n", "\n  ")
        return f"the solution failed while ncu looked at it:\n  {error}"
    if NO_RIGHT in step.text:
        return NO_RIGHT_MEANS
    if NO_KERNELS in step.text:
        return "the call launched no kernel that was asked for: nothing was profiled"
    return f"ncu made no profile; {step.ended}:\n  {text}" if step.ended else ""


def parse_raw(text: str) -> list[dict[str, Any]]:
    """Return the kernels of a raw page in CSV: a row of names, a row of units, a row for each kernel.

    Each has name, grid, block, and METRICS and stalls; None for what the chip lacks.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = list(csv.reader(lines[start:]))
    if len(rows) < 3:
        return []
    names, units = rows[:2]
    return [
        _read_kernel(dict(zip(names, zip(row, units, strict=True), strict=True)))
        for row in rows[2:]
        if len(row) == len(names) == len(units)
    ]


def _read_kernel(cells: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    values: dict[str, float | None] = {}
    for key, names in METRICS.items():
        found = [value for name in names if (value := _number(cells.get(name))) is not None]
        # A chip has several pipes of tensor cores, and a kernel uses one of them.
        value = max(found, default=None) if key == "tensor_percent" else next(iter(found), None)
        values[key] = None if value is None else value * SCALES.get(key, 1.0)
    waits = {match[1]: _number(cells[name]) or 0.0 for name in cells if (match := STALL.fullmatch(name))}
    waits.pop("selected", None)  # a warp that issues
    ordered = sorted(waits.items(), key=lambda item: -item[1])[:TOP_STALLS]
    stalls = [{"reason": reason, "share": value / sum(waits.values())} for reason, value in ordered if value > 0]
    name, grid, block = (cells.get(title, ("", ""))[0] for title in ("Kernel Name", "Grid Size", "Block Size"))
    return {"name": name, "grid": grid, "block": block, **values, "stalls": stalls}


def _number(cell: tuple[str, str] | None) -> float | None:
    """Return a value in seconds, bytes or its own unit; None if the tool has none."""
    if cell is None:
        return None
    try:
        value = float(cell[0].replace(",", ""))
    except ValueError:
        return None
    unit = UNIT.fullmatch(cell[1])
    return value * PREFIXES[unit[1] or ""] if unit else value


def render_profile(document: Mapping[str, Any]) -> str:
    """Return a profile's document as lines."""
    lines = [f"duration {_short(document['duration_us'])} us in all"]
    roofline = document["roofline"]
    if roofline is not None:
        share = f", {roofline['share']:.1%} of the roofline ({roofline['bound']}-bound)" if "share" in roofline else ""
        lines.append(f"{roofline['tflops']:.4g} TFLOP/s, {roofline['tb_per_sec']:.4g} TB/s{share}")
    for kernel in document["kernels"]:
        values = {key: _short(kernel[key]) for key in METRICS}
        stalls = ", ".join(f"{stall['reason']} {stall['share']:.0%}" for stall in kernel["stalls"])
        lines += ["", f"{kernel['name']}, grid {kernel['grid']}, block {kernel['block']}"]
        lines += [f"  {title} {text.format(**values)}" for title, text in LINES]
        lines.append(f"  warps wait for   {stalls or _short(None)}")
    return render_document(document, lines)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
