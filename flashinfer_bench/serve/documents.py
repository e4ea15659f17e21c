"""What the server answers, as JSON-able values: tasks, their events, definitions and workloads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from flashinfer_bench.data import Trace, TraceSet
from flashinfer_bench.report.summary import measured_speedup
from flashinfer_bench.serve.ledger import TaskRow

OVER: Final = ("completed", "failed", "cancelled")
"""The statuses of a task that is over. Completed: every workload has a verdict, whatever it is."""

END: Final = "end"
"""The event that is the last of a task."""


def task_document(row: TaskRow, status: str, traces: Mapping[str, str] | None) -> dict[str, Any]:
    """Describe a task.

    Args:
        row: as it was accepted.
        status: how it stands.
        traces: workload → recorded trace as JSON; None where traces are left out.
    """
    document: dict[str, Any] = {
        "task_id": row.id,
        "status": status,
        "definition": row.definition,
        "solution": row.solution_name,
        "submitter": row.submitter,
        "priority": row.priority,
        "workload_uuids": list(row.workloads),
        "accepted_at": row.accepted_at,
        "ended_at": row.ended_at,
    }
    if traces:
        document["traces"] = [json.loads(traces[workload]) for workload in row.workloads if workload in traces]
    if row.error is not None:
        document["error"] = row.error
    return document


def verdict_event(trace: Trace) -> dict[str, Any]:
    """Describe a verdict in one line."""
    evaluation = trace.evaluation
    if evaluation is None:
        return {"event": "verdict", "workload_uuid": trace.workload.uuid}
    performance = evaluation.performance
    return {
        "event": "verdict",
        "workload_uuid": trace.workload.uuid,
        "status": evaluation.status.value,
        "latency_ms": performance.latency_ms if performance is not None else None,
        "speedup": measured_speedup(evaluation),
    }


def end_event(status: str, error: str | None) -> dict[str, Any]:
    """Describe how a task ended."""
    return {"event": END, "status": status, "error": error}


def definition_list(trace_set: TraceSet) -> list[dict[str, Any]]:
    """List the definitions with what there is of each."""
    return [
        {
            "name": definition.name,
            "op_type": definition.op_type,
            "description": definition.description,
            "workloads": len(trace_set.workloads.get(name, [])),
        }
        for name, definition in trace_set.definitions.items()
    ]


def workload_list(trace_set: TraceSet, definition: str) -> list[dict[str, Any]]:
    """List the workloads of a definition."""
    return [line.workload.to_dict() for line in trace_set.workloads.get(definition, [])]
