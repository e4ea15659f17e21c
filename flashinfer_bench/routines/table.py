"""The table of all routines, from the modules of the families. The table is cheap to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.errors import UsageError
from flashinfer_bench.routines.case.spec import Routine
from flashinfer_bench.routines.families import (
    attention,
    comm,
    gdn,
    gemm,
    kda,
    mamba,
    moe,
    moe_comm,
    norm,
    quantization,
    rope,
    sampling,
    sparse_attention,
)

FAMILIES: Final = (
    attention,
    sparse_attention,
    gemm,
    moe,
    moe_comm,
    comm,
    norm,
    quantization,
    sampling,
    rope,
    mamba,
    gdn,
    kda,
)
ROUTINES: Final[Mapping[str, Routine]] = {one.name: one for family in FAMILIES for one in family.ROUTINES}

ALL_NAMES: Final = "flashinfer-bench perf --help lists all routines"


def find_routine(name: str) -> Routine:
    """Return the routine with this name.

    Raises:
        UsageError: the name is unknown. The message has the nearest name.
    """
    if name not in ROUTINES:
        hint = did_you_mean(name, ROUTINES) or f"; {ALL_NAMES}"
        raise UsageError(f"unknown routine {name}{hint}")
    return ROUTINES[name]
