"""Makes workloads of sizes that the user gives. A trace has all data to make its workload again."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

from flashinfer_bench.data.check import check_workload
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import SafetensorsInput, Workload
from flashinfer_bench.errors import UsageError

Sizes = Mapping[str, Sequence[int]]
"""Axis → its sizes."""
_NAMESPACE: Final = uuid.UUID("2b8c2a1e-7d1f-5c39-8a53-6e0b9a4f7c11")
"""Namespace for uuids of generated workloads. Equal workloads get equal uuids."""


def make_workloads(definition: Definition, sizes: Sizes, inputs: Mapping[str, Any]) -> list[Workload]:
    """Return a workload for each combination of sizes.

    Args:
        sizes: the sizes of the var axes.
        inputs: input → its source, as in a workload's line. Any other input is random.

    Raises:
        UsageError: a size or an input does not fit the definition; the message has all reasons.
    """
    found = []
    for values in product(*sizes.values()):
        axes = dict(zip(sizes, values, strict=True))
        plain = Workload.model_validate({"uuid": "new", "axes": axes, "inputs": inputs})
        if findings := check_workload(definition, plain):
            sized, named = ", ".join(definition.var_axes) or "none", ", ".join(definition.inputs)
            expected = f"  {definition.name} has the axes (--axis NAME=64) {sized}, and the inputs {named}"
            raise UsageError("\n".join([*(reason for _, reason in findings), expected]))
        found.append(plain.model_copy(update={"uuid": _uuid_of(definition.name, plain)}))
    return found


def sweep(trace_set: TraceSet, definition: Definition, sizes: Sizes) -> None:
    """Replace the workloads of a definition in memory by the workloads of a sweep.

    The set's first workload gives the sizes of axes that are not swept, the scalars and the custom inputs. All other
    inputs are random, since a stored input fits only the sizes of its own workload. A workload of the set with equal
    sizes and inputs is used instead of a new workload.

    Raises:
        UsageError: a size does not fit the definition, or an axis has no size.
    """
    lines = trace_set.workloads.get(definition.name, [])
    like = lines[0].workload if lines else Workload(uuid="none", axes={})
    inputs = {name: source for name, source in like.inputs.items() if not isinstance(source, SafetensorsInput)}
    known = {line.workload.digest(): line.workload for line in lines}
    made = make_workloads(definition, {**{axis: [size] for axis, size in like.axes.items()}, **sizes}, inputs)
    workloads = [known.get(one.digest(), one) for one in made]
    trace_set.workloads[definition.name] = [Trace(definition=definition.name, workload=one) for one in workloads]


def is_generated(trace: AnyTrace) -> bool:
    """Return whether the workload of a trace was made from the user's sizes."""
    return trace.workload.uuid == _uuid_of(trace.definition, trace.workload)


def add_generated(trace_set: TraceSet, traces: Iterable[AnyTrace]) -> None:
    """Add the generated workloads of traces to a set in memory, so that they are judged again."""
    for trace in traces:
        lines = trace_set.workloads.setdefault(trace.definition, [])
        if is_generated(trace) and all(line.workload.uuid != trace.workload.uuid for line in lines):
            lines.append(Trace(definition=trace.definition, workload=trace.workload))


def _uuid_of(definition: str, workload: Workload) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{definition} {workload.digest()}"))
