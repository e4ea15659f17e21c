"""Nsight Compute: the commands, the metrics of its table of raw values, and the document of a profile.

One call is profiled, between the profiler's start and stop, after a few warm-up calls. As in a run, clocks are not
locked. Each kernel is profiled alone, in several passes. Each pass has a cold L2, or the L2 that the previous pass
left.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect.tool_runs import (
    WORK,
    Inspected,
    ToolStep,
    indent,
    make_document,
    render_document,
)
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.roofline.workloads import cost_of_workload

REPORT: Final = f"{WORK}/report.ncu-rep"
PROFILE, DETAILS, RAW = "profile", "details", "raw"
"""Names of the steps."""
READ_LIMIT_S: Final = 120.0
"""Seconds that one reading of the report may take."""
OWN_SECTIONS: Final = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
"""Sections that are always collected. The metrics of the first three cannot be requested by name. The last has the warp
stalls."""
ENVIRONMENT: Final = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
"""Without this variable, ncu copies its sections to the new HOME each time."""
METRIC: Final = re.compile(r"^([a-z0-9]+__\w+)", re.MULTILINE)
DURATION: Final = "gpu__time_duration.sum"
METRICS: Final = {
    "duration_us": DURATION,
    "dram_tb_per_sec": "dram__bytes.sum.per_second",
    "dram_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed "
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active "
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical_occupancy_percent": "sm__maximum_warps_per_active_cycle_pct",
    "registers_per_thread": "launch__registers_per_thread",
    "shared_bytes_per_block": "launch__shared_mem_per_block",
    "waves": "launch__waves_per_multiprocessor",
}
"""Key in our document → its metrics; the largest value counts.

A chip has several tensor pipes, and a kernel uses one of them."""
SCALES: Final = {"duration_us": 1e6, "dram_tb_per_sec": 1e-12}
"""Key → factor for its value in seconds or bytes."""
STALL: Final = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
TOP_STALLS: Final = 5
PREFIXES: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNIT: Final = re.compile(r"([numKMGT])(s|second|byte|B)(/.*)?")
FAILURES: Final = {
    "ERR_NVGPUCTRPERM": "the driver lets no ordinary user read the GPU's counters: an administrator can allow it "
    "(NVreg_RestrictProfilingToAdminUsers=0), or start this as root with --sandbox off",
    "No kernels were profiled": "the call launched no kernel that was asked for: nothing was profiled",
}
"""Text in ncu's output → why there is no profile."""
SUMMARY: Final = """\
  duration         {duration_us} us
  memory           {dram_tb_per_sec} TB/s, {dram_percent} % of peak
  SM               {sm_percent} % of peak
  tensor cores     {tensor_percent} % of peak
  occupancy        {occupancy_percent} % achieved, {theoretical_occupancy_percent} % possible
  registers        {registers_per_thread} a thread"""
"""The lines of a kernel, with keys of METRICS in braces."""


def ask_ncu(program: Path, flag: str) -> str:
    """Return ncu's output for one flag.

    Raises:
        FlashInferBenchError: ncu fails, or takes too long.
    """
    try:
        done = subprocess.run([program, flag], capture_output=True, text=True, timeout=READ_LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise FlashInferBenchError(f"{error} {getattr(error, 'stderr', '')}") from None
    return done.stdout


def list_metrics(program: Path) -> frozenset[str]:
    """Return the names of all metrics of this GPU, without roll-ups; empty if ncu does not list them."""
    with suppress(FlashInferBenchError):
        return frozenset(METRIC.findall(ask_ncu(program, "--query-metrics")))
    return frozenset()


def plan_ncu(
    program: Path,
    known: Container[str] = (),
    *,
    set: str = "detailed",  # noqa: A002 - ncu's own word
    sections: Sequence[str] = (),
    kernel_name: str | None = None,
    page: str = "details",
    l2_cache: str = "cold",
    warmup_runs: int = 2,
    timeout: float = 300.0,
) -> list[ToolStep]:
    """Return the steps: profile the call, then read the report twice.

    Args:
        program: ncu.
        known: metrics of the GPU. If any other metric is requested, ncu does not profile the kernel.
        set: set of sections.
        sections: further sections.
        kernel_name: name of the kernels to profile, or "regex:EXPRESSION"; None for all kernels.
        page: page of the report that is returned as text.
        l2_cache: the L2 before each pass over a kernel: "cold" or "warm".
        warmup_runs: calls before the profiled call.
        timeout: seconds that profiling can take.
    """
    wanted = [name for names in METRICS.values() for name in names.split() if name.partition(".")[0] in known]
    profile = [
        *(str(program), "--target-processes", "application-only", "--profile-from-start", "off"),
        *("--clock-control", "none", "--cache-control", "all" if l2_cache == "cold" else "none", "--set", set),
        *(word for section in (*sections, *OWN_SECTIONS) for word in ("--section", section)),
        *("--metrics", ",".join(wanted or [DURATION]), *(["--kernel-name", kernel_name] if kernel_name else [])),
        *("--force-overwrite", "--export", REPORT),
    ]
    read = [str(program), "--import", REPORT, "--page"]
    raw = [*read, "raw", "--csv", "--print-units", "base"]
    return [
        ToolStep(PROFILE, profile, calls=True, limit_s=timeout, warm_up_calls=warmup_runs, environment=ENVIRONMENT),
        ToolStep(RAW, raw, calls=False, limit_s=READ_LIMIT_S, environment=ENVIRONMENT),
        ToolStep(DETAILS, [*read, page], calls=False, limit_s=READ_LIMIT_S, environment=ENVIRONMENT),
    ]


def read_profile(done: Inspected) -> tuple[dict[str, Any], str]:
    """Return the document of a profile with its share of the roofline, and the page of the report as text.

    Raises:
        FlashInferBenchError: there is no profile; the message has the tool's output.
    """
    first, *rest = done.steps
    texts = {step.name: step.text for step in rest}
    if first.error:
        raise FlashInferBenchError(f"the solution failed while ncu looked at it:\n{indent(first.error)}")
    for words, meaning in FAILURES.items():
        if words in first.text:
            raise FlashInferBenchError(meaning)
    kernels = parse_raw(texts.get(RAW, ""))
    if first.ended or not kernels:
        said = "\n".join([first.text, *texts.values()])
        raise FlashInferBenchError(f"ncu made no profile; {first.ended}:\n{indent(said)}")
    durations = [kernel["duration_us"] for kernel in kernels]
    total_us = None if None in durations else sum(durations)
    cost = cost_of_workload(done.job.definition, done.job.workload, done.blob_root)
    roofline = describe_time(cost, done.device, total_us / 1e3) if cost is not None and total_us else None
    document = make_document("ncu", done, duration_us=total_us, kernels=kernels, roofline=roofline)
    return document, texts.get(DETAILS, "")


def parse_raw(text: str) -> list[dict[str, Any]]:
    """Return the kernels of a raw page in CSV: a row of names, a row of units, a row for each kernel.

    Each kernel has its name, grid, block, METRICS and stalls. A metric that the chip lacks is None.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    table: list[list[str]] = [*csv.reader(lines[start:]), [], []]
    names, units, *rows = table
    return [
        _read_kernel(dict(zip(names, row, strict=True)), dict(zip(names, units, strict=False)))
        for row in rows
        if row and len(row) == len(names)
    ]


def _read_kernel(cells: Mapping[str, str], units: Mapping[str, str]) -> dict[str, Any]:
    def number(name: str) -> float | None:
        """Return a metric in seconds, bytes or its own unit; None if the tool reports no finite number."""
        try:
            value = float(cells[name].replace(",", ""))
        except (KeyError, ValueError):
            return None
        if not isfinite(value):
            return None
        unit = UNIT.fullmatch(units.get(name, ""))
        return value * PREFIXES[unit[1]] if unit else value

    values = {}
    for key, names in METRICS.items():
        found = [value * SCALES.get(key, 1) for name in names.split() if (value := number(name)) is not None]
        values[key] = max(found, default=None)
    waits = {match[1]: number(name) or 0.0 for name in cells if (match := STALL.fullmatch(name))}
    waits.pop("selected", None)  # no stall: the warp issues
    ordered = sorted(waits.items(), key=lambda item: -item[1])[:TOP_STALLS]
    stalls = [{"reason": reason, "share": value / sum(waits.values())} for reason, value in ordered if value > 0]
    titles = {"name": "Kernel Name", "grid": "Grid Size", "block": "Block Size"}
    return {**{key: cells.get(title, "") for key, title in titles.items()}, **values, "stalls": stalls}


def render_profile(document: Mapping[str, Any]) -> str:
    """Return a profile's document as lines."""
    lines = [f"duration {_short(document['duration_us'])} us in all"]
    roofline = document["roofline"]
    if roofline is not None:
        share = f", {roofline['share']:.1%} of the roofline ({roofline['bound']}-bound)" if "share" in roofline else ""
        lines.append(f"{roofline['tflops']:.4g} TFLOP/s, {roofline['tb_per_sec']:.4g} TB/s{share}")
    for kernel in document["kernels"]:
        stalls = ", ".join(f"{stall['reason']} {stall['share']:.0%}" for stall in kernel["stalls"])
        lines += ["", f"{kernel['name']}, grid {kernel['grid']}, block {kernel['block']}"]
        lines += [SUMMARY.format(**{key: _short(kernel[key]) for key in METRICS})]
        lines.append(f"  warps wait for   {stalls or '-'}")
    return render_document(document, lines)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
