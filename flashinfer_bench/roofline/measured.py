"""The measured peaks of GPUs, in the cache. `doctor --peaks` writes them.

    <cache>/peaks/<digest of the GPU's uuid>.json      the fields of `MeasuredPeaks`

A damaged or too large file, or a file of another version, counts as missing. Then the vendor's figures count.

History: 1 the first version.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.roofline.peaks import Peak

PEAKS_FOLDER: Final = "peaks"
MOST_BYTES: Final = 1 << 16
"""A file of more bytes is not read."""
Rates = Mapping[str, Annotated[float, msgspec.Meta(gt=0, lt=1e9)]]


@dataclass(frozen=True)
class MeasuredPeaks:
    """The rates that simple calls reach on one GPU. The true limits are higher."""

    version: Literal[1]
    device: str
    """The vendor's name."""
    date: str
    """Time of the measurement, UTC."""
    versions: Mapping[str, str | None]
    """Package or driver → version."""
    tb_per_sec: Annotated[Rates, msgspec.Meta(min_length=1)]
    """"copy" and "triad" → 10^12 bytes a second."""
    tflops: Rates
    """Unit, as in `Peak.tflops` → 10^12 operations a second of a matrix product."""
    gpu: Mapping[str, Any]
    """Name of a rate → clocks, power and temperature before and after it, as in a measurement's record."""

    @property
    def peak(self) -> Peak:
        """The rates as limits. The faster of copy and triad counts."""
        name, source = self.device.removeprefix("NVIDIA "), f"measured {self.date[:10]}"
        return Peak(name, self.tflops, max(self.tb_per_sec.values()), source=source)


def find_peaks_file(cache: Path, uuid: str) -> Path:
    """Return the file of a GPU. It may not exist."""
    return cache / PEAKS_FOLDER / f"{digest_of(uuid)}.json"


def read_peaks(file: Path) -> MeasuredPeaks | None:
    """Return the measured peaks of a file; None if the file counts as missing."""
    with suppress(OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return msgspec.json.decode(read_whole(file, MOST_BYTES), type=MeasuredPeaks)
    return None
