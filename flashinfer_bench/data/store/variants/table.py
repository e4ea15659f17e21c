"""The upgrade of each kind of file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.variants.beside import Remark, Spot
from flashinfer_bench.data.store.variants.definitions import upgrade_definition
from flashinfer_bench.data.store.variants.lines import upgrade_trace
from flashinfer_bench.data.store.variants.solutions import upgrade_solution
from flashinfer_bench.data.trace import Trace

Upgrade = Callable[[dict[str, Any], Spot], tuple[dict[str, Any], list[Remark]]]
"""Takes one object and where its file lies; gives it in today's form, with what was read otherwise than written."""

UPGRADES: Final[Mapping[type[Any], Upgrade]] = {
    Definition: upgrade_definition,
    Solution: upgrade_solution,
    Trace: upgrade_trace,
}
