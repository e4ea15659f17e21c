"""The cost of a case travels with its workload: rows of `perf`, its traces and `run` tell the same numbers."""

from __future__ import annotations

import pytest

from flashinfer_bench.cli.perf.results import make_judged
from flashinfer_bench.data import TraceSet
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.roofline.workloads import cost_of_workload
from flashinfer_bench.routines.case.materials import write_material
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.table import ROUTINES
from tests.kit.make import make_evaluation
from tests.routines.small import SMALL, ask

pytestmark = pytest.mark.cpu
H200 = "NVIDIA H200"
PLACE = Platform(H200, "9.0", {}, frozenset({"flashinfer", "cudnn"}))


@pytest.mark.parametrize("routine", ROUTINES)
def test_a_saved_case_tells_what_the_row_tells(routine, tmp_path):
    (request,) = ask(f"--routine {routine} {SMALL[routine]} --backends torch", PLACE)
    evaluation = make_evaluation(latency_ms=0.25, environment={"hardware": H200, "libs": {}})
    row = make_judged(request, "torch", PLACE, evaluation, H200)
    write_material(tmp_path, request.material)
    saved = TraceSet.from_path(tmp_path)
    assert saved.issues == []
    (definition,) = saved.definitions.values()
    ((line,),) = saved.workloads.values()
    facts = describe_time(cost_of_workload(definition, line.workload, tmp_path), H200, 0.25)
    same = {"roofline_share": "share", "roofline_bound": "bound", "roofline_ms": "floor_ms", "roofline_peak": "peak"}
    told = {same.get(name, name): value for name, value in row["facts"].items() if not name.startswith("max_")}
    assert {**facts, "too_fast": facts.get("too_fast", "")} == told
