"""Nsight Compute: the commands, and the metrics of its table of raw values.

A call is profiled once, between the profiler's start and stop, after a few calls that warm it up. Clocks are left as
they are, as in a run. Each kernel is profiled alone, several times: with a cold L2, or as the passes leave it.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect.order import WORK, Inspected, StepDone, ToolStep
from flashinfer_bench.examine.inspect.tools import ToolPlan

REPORT: Final = f"{WORK}/report.ncu-rep"
PROFILE, DETAILS, RAW = "profile", "details", "raw"
"""Names of the steps."""
READ_LIMIT_S: Final = 120.0
"""Seconds that one reading of the report may take."""
OWN_SECTIONS: Final = ("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats")
"""They have the metrics that cannot be asked for by name, and the reasons why warps wait."""
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
"""Key → by what its value in seconds or bytes is multiplied."""
STALL: Final = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
NO_STALL: Final = "selected"
"""The state of a warp that issues."""
TOP_STALLS: Final = 5
PREFIXES: Final = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
UNIT: Final = re.compile(r"(n|u|m|K|M|G|T)?(s|second|byte|B)(/.*)?")
NO_RIGHT: Final = "ERR_NVGPUCTRPERM"
NO_RIGHT_MEANS: Final = (
    "the driver lets no ordinary user read the GPU's counters: an administrator can allow it "
    "(NVreg_RestrictProfilingToAdminUsers=0), or start this as root with --sandbox off"
)
NO_KERNELS: Final = "No kernels were profiled"


@dataclass(frozen=True)
class NcuOptions:
    """What is profiled, and how it is shown."""

    set: str = "detailed"
    sections: Sequence[str] = ()
    """Further ones."""
    kernel_name: str | None = None
    page: str = "details"
    cache: Literal["cold", "warm"] = "cold"
    warm_up_calls: int = 2
    timeout_s: float = 300.0


@dataclass(frozen=True)
class KernelProfile:
    """One kernel of the call."""

    name: str
    grid: str
    block: str
    values: Mapping[str, float]
    """Key of METRICS → value; a metric that the chip lacks is not there."""
    stalls: Sequence[tuple[str, float]] = field(default_factory=tuple)
    """Reason → its share of the time that warps waited, the largest first."""

    def document(self) -> dict[str, Any]:
        """Return the profile as JSON-able values; null for what is not known."""
        stalls = [{"reason": reason, "share": share} for reason, share in self.stalls]
        known = {key: self.values.get(key) for key in METRICS}
        return {"name": self.name, "grid": self.grid, "block": self.block, **known, "stalls": stalls}


def list_metrics(program: Path) -> frozenset[str]:
    """Return the names of all metrics of the GPU here, without their roll-ups; none where ncu does not tell them."""
    try:
        done = subprocess.run(
            [str(program), "--query-metrics"], capture_output=True, text=True, timeout=READ_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return frozenset()
    return frozenset(METRIC.findall(done.stdout))


def plan_ncu(program: Path, options: NcuOptions, known: Container[str] = ()) -> ToolPlan:
    """Return the steps: profile the call, then read the report twice.

    Args:
        program: ncu.
        options: what is profiled.
        known: the metrics of the GPU. A kernel for which others are asked is not profiled at all.
    """
    wanted = [name for names in METRICS.values() for name in names if name.partition(".")[0] in known]
    wanted = wanted or [DURATION]
    sections = [word for section in (*options.sections, *OWN_SECTIONS) for word in ("--section", section)]
    kernels = ["--kernel-name", options.kernel_name] if options.kernel_name else []
    cache = "all" if options.cache == "cold" else "none"
    profile = [
        *(str(program), "--target-processes", "application-only", "--profile-from-start", "off"),
        *("--clock-control", "none", "--cache-control", cache, "--set", options.set, *sections),
        *("--metrics", ",".join(wanted), *kernels, "--force-overwrite", "--export", REPORT),
    ]
    read = [str(program), "--import", REPORT]
    # It would copy its sections to the new HOME each time.
    environment = {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}
    raw = [*read, "--page", "raw", "--csv", "--print-units", "base"]
    steps = [
        ToolStep(
            name=PROFILE,
            argv=profile,
            calls=True,
            warm_up_calls=options.warm_up_calls,
            limit_s=options.timeout_s,
            environment=environment,
        ),
        ToolStep(name=RAW, argv=raw, calls=False, limit_s=READ_LIMIT_S, environment=environment),
        ToolStep(
            name=DETAILS,
            argv=[*read, "--page", options.page],
            calls=False,
            limit_s=READ_LIMIT_S,
            environment=environment,
        ),
    ]
    return ToolPlan(program, steps)


def read_profile(done: Inspected) -> tuple[list[KernelProfile], str]:
    """Return the kernels of a call, and the page of the report as text.

    Raises:
        FlashInferBenchError: there is no profile; the message has what the tool said.
    """
    steps = {step.name: step for step in done.steps}
    profile = steps[PROFILE]
    if profile.ended or NO_KERNELS in profile.text or NO_RIGHT in profile.text or RAW not in steps:
        raise FlashInferBenchError(_tell_failure(profile))
    raw = steps[RAW]
    kernels = list(parse_raw(raw.text))
    if not kernels:
        raise FlashInferBenchError(f"ncu told no values of its report:\n{_indent(raw.text)}")
    return kernels, steps[DETAILS].text if DETAILS in steps else ""


def _tell_failure(step: StepDone) -> str:
    if step.error:
        return f"the solution failed while ncu looked at it:\n{_indent(step.error)}"
    if NO_RIGHT in step.text:
        return NO_RIGHT_MEANS
    if NO_KERNELS in step.text:
        return "the call launched no kernel that was asked for: nothing was profiled"
    return f"ncu made no profile; {step.ended or 'it told no reason'}:\n{_indent(step.text)}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())


def parse_raw(text: str) -> Iterator[KernelProfile]:
    """Yield the kernels of a raw page in CSV: a row of names, a row of units, a row for each kernel."""
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return
    rows = csv.reader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"'))))
    names, units = next(rows, []), next(rows, [])
    for row in rows:
        if len(row) == len(names) == len(units):
            yield _read_kernel(dict(zip(names, zip(row, units, strict=True), strict=True)))


def _read_kernel(cells: Mapping[str, tuple[str, str]]) -> KernelProfile:
    values: dict[str, float] = {}
    for key, names in METRICS.items():
        found = [value for name in names if (value := _number(cells.get(name))) is not None]
        if found:
            # A chip has several pipes of tensor cores, and a kernel uses one of them.
            values[key] = (max(found) if key == "tensor_percent" else found[0]) * SCALES.get(key, 1.0)
    waits = {match[1]: _number(cells[name]) or 0.0 for name in cells if (match := STALL.fullmatch(name))}
    waits.pop(NO_STALL, None)
    whole = sum(waits.values())
    ordered = sorted(waits.items(), key=lambda item: -item[1])[:TOP_STALLS]
    stalls = [(reason, value / whole) for reason, value in ordered if value > 0]
    name, grid, block = (cells.get(title, ("", ""))[0] for title in ("Kernel Name", "Grid Size", "Block Size"))
    return KernelProfile(name, grid, block, values, stalls)


def _number(cell: tuple[str, str] | None) -> float | None:
    """Return a value in seconds, bytes or its own unit; None where the tool has none."""
    if cell is None:
        return None
    try:
        value = float(cell[0].replace(",", ""))
    except ValueError:
        return None
    unit = UNIT.fullmatch(cell[1])
    return value * PREFIXES[unit[1] or ""] if unit else value
