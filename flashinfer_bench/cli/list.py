"""`list`: the definitions of a trace set and how much there is of each."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from flashinfer_bench.cli.choice import choose_definitions
from flashinfer_bench.cli.output import write_out
from flashinfer_bench.cli.sets import open_trace_set
from flashinfer_bench.cli.tables import Column, available_width, render_table
from flashinfer_bench.data import Definition, TraceSet

COLUMNS = (
    *(Column("Definition"), Column("Op type")),
    *(Column("Workloads", True), Column("Solutions", True), Column("Traces", True)),
)


def execute(args: argparse.Namespace) -> int:
    """Print the list."""
    trace_set = open_trace_set(args)
    items = [_describe(trace_set, definition) for definition in choose_definitions(trace_set, args)]
    if args.format == "json":
        roots = [str(root) for root in trace_set.roots]
        write_out(json.dumps({"roots": roots, "definitions": items}, indent=2) + "\n")
        return 0
    rows = [
        [item["name"], item["op_type"], str(item["workloads"]), str(len(item["solutions"])), str(item["traces"])]
        for item in items
    ]
    write_out(render_table(COLUMNS, rows, available_width(sys.stdout)))
    return 0


def _describe(trace_set: TraceSet, definition: Definition) -> dict[str, Any]:
    name = definition.name
    return {
        "name": name,
        "op_type": definition.op_type,
        "workloads": len(trace_set.workloads.get(name, [])),
        "solutions": [solution.name for solution in trace_set.solutions.get(name, [])],
        "traces": len(trace_set.traces.get(name, [])),
        "not_runnable": definition.not_runnable_reason,
    }
