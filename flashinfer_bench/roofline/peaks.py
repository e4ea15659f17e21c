"""What devices can do: the vendor's figures for dense data. They are limits; no figure here is measured.

Sources: NVIDIA's data sheets and architecture white papers: T4, A100, L4, L40S, H100, H200, H20, GH200, B200, B300, RTX
4090, RTX 5090, RTX PRO 6000. Boost clocks; memory bandwidth as specified.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
UNITS: Final = ("fp64", "fp32", "tf32", "fp16", "fp8", "fp4")
"""The units of arithmetic, the widest first. The rows of `PEAKS` have their figures in this order."""


@dataclass(frozen=True)
class Peak:
    """The limits of one device."""

    name: str
    """The device as its data sheet names it."""
    tflops: Mapping[str, float]
    """Unit (one of `UNITS`) → 10^12 operations a second. The device lacks a unit that is not listed."""
    tb_per_sec: float
    """Memory bandwidth, 10^12 bytes a second."""
    l2_bytes: int = 0
    """Bytes of the last-level cache. Data that fits in may be read faster than memory allows."""

    @property
    def label(self) -> str:
        """The device, and the source of its figures."""
        return f"{self.name} (vendor)"

    def operations(self, unit: str) -> float:
        """Return 10^12 operations a second of a unit, or of the next wider one where the device lacks it."""
        as_wide = UNITS[UNITS.index(unit) :: -1]
        return next((self.tflops[name] for name in as_wide if name in self.tflops), max(self.tflops.values()))


def _peak(name: str, tflops: tuple[float, ...], tb_per_sec: float, l2_mib: int) -> Peak:
    """Return the figures of one row. The device lacks a unit whose figure is 0."""
    units = {unit: value for unit, value in zip(UNITS, tflops, strict=True) if value}
    return Peak(name, units, tb_per_sec, l2_mib * MIB)


PEAKS: Final[tuple[tuple[str, Peak], ...]] = (
    # pattern, name, figures of fp64, fp32, tf32, fp16, fp8 and fp4 in 10^12 operations a second, TB/s, MiB of L2
    (r"GH200.*144G", _peak("GH200 144GB", (67, 67, 494, 989, 1979, 0), 4.9, 50)),
    (r"GH200", _peak("GH200 96GB", (67, 67, 494, 989, 1979, 0), 4.0, 50)),
    (r"H200 NVL", _peak("H200 NVL", (60, 60, 418, 835, 1671, 0), 4.8, 50)),
    (r"H200", _peak("H200 SXM", (67, 67, 494, 989, 1979, 0), 4.8, 50)),
    (r"H100 PCIe", _peak("H100 PCIe", (51, 51, 378, 756, 1513, 0), 2.0, 50)),
    (r"H100 NVL", _peak("H100 NVL", (60, 60, 418, 835, 1671, 0), 3.9, 50)),
    (r"H100", _peak("H100 SXM", (67, 67, 494, 989, 1979, 0), 3.35, 50)),
    (r"H800", _peak("H800 SXM", (1, 67, 494, 989, 1979, 0), 3.35, 50)),
    (r"H20\b", _peak("H20", (1, 44, 74, 148, 296, 0), 4.0, 60)),
    (r"GB300|B300", _peak("B300", (1.2, 77, 1120, 2250, 4500, 13500), 8.0, 126)),
    (r"GB200|B200", _peak("B200", (37, 75, 1120, 2250, 4500, 9000), 8.0, 126)),
    (r"A100.*80GB PCIe", _peak("A100 80GB PCIe", (19.5, 19.5, 156, 312, 0, 0), 1.935, 40)),
    (r"A100.*80GB", _peak("A100 80GB SXM", (19.5, 19.5, 156, 312, 0, 0), 2.039, 40)),
    (r"A100", _peak("A100 40GB", (19.5, 19.5, 156, 312, 0, 0), 1.555, 40)),
    (r"A800", _peak("A800 80GB", (9.7, 19.5, 156, 312, 0, 0), 2.039, 40)),
    (r"L40S", _peak("L40S", (1.4, 91.6, 183, 362, 733, 0), 0.864, 96)),
    (r"L4\b", _peak("L4", (0.5, 30.3, 60, 121, 242, 0), 0.3, 48)),
    (r"RTX PRO 6000", _peak("RTX PRO 6000", (2, 125, 250, 500, 1000, 2000), 1.792, 128)),
    (r"RTX 5090", _peak("RTX 5090", (1.6, 105, 105, 210, 419, 1676), 1.792, 96)),
    (r"RTX 4090", _peak("RTX 4090", (1.3, 82.6, 82.6, 165, 330, 0), 1.008, 72)),
    (r"T4\b", _peak("T4", (0.25, 8.1, 8.1, 65, 0, 0), 0.32, 4)),
)
"""Regular expression for the device's name → its figures. The first expression that is found counts."""


def find_peak(device_name: str) -> Peak | None:
    """Return the figures of a device by the vendor's name ("NVIDIA H200"); None where it is not listed."""
    return next((peak for pattern, peak in PEAKS if re.search(pattern, device_name)), None)
