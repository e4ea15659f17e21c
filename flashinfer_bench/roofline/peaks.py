"""The roofline of a device: the vendor's figures, the share that a time reaches, and impossible times.

If the peaks of a GPU were measured (`roofline/measured.py`), shares and floors use the measured peaks. Measured peaks
are below the true limits, so only the vendor's figures can show that a time is impossible.

A call is bound by its arithmetic or by its bytes, whichever takes longer (S. Williams, A. Waterman, D. Patterson:
"Roofline", CACM 52(4), 2009). The vendor's figures are limits for dense data. They come from NVIDIA's data sheets
and architecture white papers: T4, A100, L4, L40S, H100, H200, H20, GH200, B200, B300, RTX 4090, RTX 5090, RTX PRO 6000.
They use boost clocks and the specified memory bandwidth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flashinfer_bench.roofline.cost import TERA, Cost

SLACK: Final = 1.05
"""A time is impossible if its product with this factor is below the floor. Clocks and vendors' figures are rounded."""
UNITS: Final = ("fp64", "fp32", "tf32", "fp16", "fp8", "fp4")
"""The units of arithmetic, the widest first. The rows of `PEAKS` have their figures in this order."""


@dataclass(frozen=True)
class Peak:
    """The limits of one device."""

    name: str
    """The device as its data sheet names it."""
    tflops: Mapping[str, float]
    """Unit (one of `UNITS`) → 10^12 operations a second. The device lacks units that are not listed."""
    tb_per_sec: float
    """Memory bandwidth, 10^12 bytes a second."""
    l2_bytes: int = 0
    """Bytes of the last-level cache. Data that fits into this cache may be read faster than memory allows."""
    source: str = "vendor"
    """The source of the figures."""

    @property
    def label(self) -> str:
        """The device, and the source of its figures."""
        return f"{self.name} ({self.source})"

    def operations(self, unit: str) -> float:
        """Return the rate of a unit, in 10^12 operations a second. If the device lacks the unit, the next wider one
        counts."""
        as_wide = UNITS[UNITS.index(unit) :: -1]
        return next((self.tflops[name] for name in as_wide if name in self.tflops), max(self.tflops.values()))

    def floor(self, cost: Cost, *, from_memory: bool = False) -> tuple[float, str]:
        """Return the least time of a call in ms, and what binds it: "compute" or "memory".

        Args:
            cost: the cost of the call.
            from_memory: whether bytes count that fit into the cache. Then a call with a warm cache may take less time.
        """
        compute_ms = cost.flops / TERA / self.operations(cost.unit) * 1e3
        memory_ms = cost.bytes / TERA / self.tb_per_sec * 1e3
        is_bound = memory_ms > compute_ms and (from_memory or cost.bytes > self.l2_bytes)
        return (memory_ms, "memory") if is_bound else (compute_ms, "compute")


PEAKS: Final = (
    # pattern, name, figures of fp64, fp32, tf32, fp16, fp8 and fp4 in 10^12 operations a second, TB/s, MiB of L2
    (r"GH200.*144G", "GH200 144GB", (67, 67, 494, 989, 1979, 0), 4.9, 50),
    (r"GH200", "GH200 96GB", (67, 67, 494, 989, 1979, 0), 4.0, 50),
    (r"H200 NVL", "H200 NVL", (60, 60, 418, 835, 1671, 0), 4.8, 50),
    (r"H200", "H200 SXM", (67, 67, 494, 989, 1979, 0), 4.8, 50),
    (r"H100 PCIe", "H100 PCIe", (51, 51, 378, 756, 1513, 0), 2.0, 50),
    (r"H100 NVL", "H100 NVL", (60, 60, 418, 835, 1671, 0), 3.9, 50),
    (r"H100", "H100 SXM", (67, 67, 494, 989, 1979, 0), 3.35, 50),
    (r"H800", "H800 SXM", (1, 67, 494, 989, 1979, 0), 3.35, 50),
    (r"H20\b", "H20", (1, 44, 74, 148, 296, 0), 4.0, 60),
    (r"GB300|B300", "B300", (1.2, 77, 1120, 2250, 4500, 13500), 8.0, 126),
    (r"GB200|B200", "B200", (37, 75, 1120, 2250, 4500, 9000), 8.0, 126),
    (r"A100.*80GB PCIe", "A100 80GB PCIe", (19.5, 19.5, 156, 312, 0, 0), 1.935, 40),
    (r"A100.*80GB", "A100 80GB SXM", (19.5, 19.5, 156, 312, 0, 0), 2.039, 40),
    (r"A100", "A100 40GB", (19.5, 19.5, 156, 312, 0, 0), 1.555, 40),
    (r"A800", "A800 80GB", (9.7, 19.5, 156, 312, 0, 0), 2.039, 40),
    (r"L40S", "L40S", (1.4, 91.6, 183, 362, 733, 0), 0.864, 96),
    (r"L4\b", "L4", (0.5, 30.3, 60, 121, 242, 0), 0.3, 48),
    (r"RTX PRO 6000", "RTX PRO 6000", (2, 125, 250, 500, 1000, 2000), 1.792, 128),
    (r"RTX 5090", "RTX 5090", (1.6, 105, 105, 210, 419, 1676), 1.792, 96),
    (r"RTX 4090", "RTX 4090", (1.3, 82.6, 82.6, 165, 330, 0), 1.008, 72),
    (r"T4\b", "T4", (0.25, 8.1, 8.1, 65, 0, 0), 0.32, 4),
)
"""One row for each device. The first row whose pattern is in the name counts. A figure of 0 means that the device lacks
the unit."""


def find_peak(device_name: str) -> Peak | None:
    """Return the figures of a device by the vendor's name ("NVIDIA H200"); None if it is not listed."""
    for pattern, name, figures, tb_per_sec, mib in PEAKS:
        if re.search(pattern, device_name):
            tflops = {unit: figure for unit, figure in zip(UNITS, figures, strict=True) if figure}
            return Peak(name, tflops, tb_per_sec, mib << 20)
    return None


def choose_peak(cost: Cost, device_name: str, measured: Peak | None = None) -> Peak | None:
    """Return the measured peaks if they include the unit of the cost, else the vendor's figures, else None."""
    vendor = find_peak(device_name)
    if measured is None or cost.unit not in measured.tflops:
        return vendor
    return replace(measured, l2_bytes=vendor.l2_bytes if vendor is not None else measured.l2_bytes)


def describe_time(
    cost: Cost, device_name: str, milliseconds: float, measured: Peak | None = None
) -> dict[str, Any] | None:
    """Return rates and the share of the roofline as JSON-able values; None for a time of zero.

    Args:
        cost: the cost of one call.
        device_name: the vendor's name of the device. A device that is not listed gets rates and no share.
        milliseconds: the duration of the call.
        measured: the measured peaks of the device; used if they include the unit of the cost.
    """
    if milliseconds <= 0:
        return None
    seconds = milliseconds / 1e3
    record: dict[str, Any] = {"flops": cost.flops, "bytes": cost.bytes, "unit": cost.unit}
    record |= {"tflops": cost.flops / TERA / seconds, "tb_per_sec": cost.bytes / TERA / seconds}
    peak, vendor = choose_peak(cost, device_name, measured), find_peak(device_name)
    if peak is None:
        return record
    floor_ms, bound = peak.floor(cost, from_memory=True)
    record |= {"share": floor_ms / milliseconds, "bound": bound, "floor_ms": floor_ms, "peak": peak.label}
    if vendor is None:
        return record
    floor_ms, bound = vendor.floor(cost)
    if milliseconds * SLACK < floor_ms:
        record["too_fast"] = (
            f"{milliseconds:.6f} ms is faster than the device allows ({floor_ms:.6f} ms, bound by "
            f"{bound}): work was skipped, the clock is wrong, or the cost is counted too high"
        )
    return record
