"""The kit's makers give valid models, and its sets load without an issue."""

from __future__ import annotations

from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_solution, make_trace, write_trace_set


def test_a_written_set_loads_as_it_was_made(tmp_path):
    definition, solution = make_definition(), make_solution()
    workload, trace = make_trace(solution=None), make_trace()
    write_trace_set(tmp_path, definitions=[definition], solutions=[solution], workloads=[workload], traces=[trace])
    loaded = TraceSet.from_path(tmp_path)
    assert loaded.issues == []
    assert loaded.definitions == {"double": definition}
    assert loaded.solutions == {"double": [solution]}
    assert loaded.workloads == {"double": [workload]}
    assert loaded.traces == {"double": [trace]}
