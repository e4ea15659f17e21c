"""Small valid models with every part replaceable, and trace sets on disk made of them.

The default definition is `double`: one var axis `n`, one float32 input `x`, one float32 output `y`, and y = 2 x.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.evaluation import Evaluation
from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import Workload

DOUBLE = "def run(x):\n    return x * 2\n"
DOUBLE_INTO = "def run(x, y):\n    y.copy_(x * 2)\n"


def make_definition(
    name: str = "double",
    *,
    op_type: str = "test",
    axes: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    reference: str = DOUBLE,
    **others: Any,
) -> Definition:
    """Make a definition.

    Args:
        axes: name → None (var), a number (const), a text (expression), or the axis as in a file.
        inputs, outputs: name → "float32[n, 4]", "int32[]" (0-d), "float32" (scalar), or the spec as in a file.
    """
    return Definition.model_validate(
        {
            "name": name,
            "op_type": op_type,
            "axes": {axis: _axis(size) for axis, size in ({"n": None} if axes is None else axes).items()},
            "inputs": _specs({"x": "float32[n]"} if inputs is None else inputs),
            "outputs": _specs({"y": "float32[n]"} if outputs is None else outputs),
            "reference": reference,
            **others,
        }
    )


def make_solution(
    name: str = "double_python",
    *,
    definition: str = "double",
    author: str = "alice",
    source: str = DOUBLE,
    sources: Mapping[str, str] | None = None,
    language: str = "python",
    entry_point: str = "main.py::run",
    destination_passing_style: bool | None = None,
    **spec: Any,
) -> Solution:
    """Make a solution of one file, main.py, or of `sources` (path → content); a style of None is not declared."""
    if destination_passing_style is not None:
        spec["destination_passing_style"] = destination_passing_style
    files = {"main.py": source} if sources is None else sources
    return Solution.model_validate(
        {
            "name": name,
            "definition": definition,
            "author": author,
            "sources": [{"path": path, "content": content} for path, content in files.items()],
            "spec": {"language": language, "target_hardware": ["any"], "entry_point": entry_point, **spec},
        }
    )


def make_workload(
    uuid: str = "w0",
    *,
    axes: Mapping[str, int] | None = None,
    inputs: Mapping[str, Any] | None = None,
    **others: Any,
) -> Workload:
    """Make a workload; inputs: name → "random", a number (scalar), or the descriptor as in a file."""
    sources = {"x": "random"} if inputs is None else inputs
    return Workload.model_validate(
        {
            "uuid": uuid,
            "axes": {"n": 8} if axes is None else dict(axes),
            "inputs": {name: _source(source) for name, source in sources.items()},
            **others,
        }
    )


def make_evaluation(
    status: str = "PASSED",
    *,
    log: str = "",
    latency_ms: float = 1.0,
    speedup: float = 2.0,
    max_absolute_error: float = 0.0,
    max_relative_error: float = 0.0,
    **others: Any,
) -> Evaluation:
    """Make an evaluation that has the parts that its status needs."""
    parts: dict[str, Any] = {}
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        errors = {"max_absolute_error": max_absolute_error, "max_relative_error": max_relative_error}
        parts["correctness"] = errors
    if status == "PASSED":
        parts["performance"] = {
            "latency_ms": latency_ms,
            "reference_latency_ms": latency_ms * speedup,
            "speedup_factor": speedup,
        }
    return Evaluation.model_validate(
        {
            "status": status,
            "log": log,
            "timestamp": "2025-01-02T03:04:05+00:00",
            "environment": {"hardware": "test device", "libs": {"torch": "2"}},
            **parts,
            **others,
        }
    )


def make_trace(
    *,
    definition: str = "double",
    workload: Workload | None = None,
    solution: str | None = "double_python",
    evaluation: Evaluation | None = None,
    **evaluation_parts: Any,
) -> Trace:
    """Make a trace; `solution=None` makes a workload's line. Other keywords go to `make_evaluation`."""
    if solution is not None and evaluation is None:
        evaluation = make_evaluation(**evaluation_parts)
    return Trace(definition=definition, workload=workload or make_workload(), solution=solution, evaluation=evaluation)


def write_trace_set(
    root: Path,
    files: Mapping[str, Any] | None = None,
    *,
    definitions: Sequence[Definition] = (),
    solutions: Sequence[Solution] = (),
    workloads: Sequence[Trace] = (),
    traces: Sequence[Trace] = (),
) -> Path:
    """Write a trace set and return its root.

    Args:
        root: made when it is not there.
        files: relative path → text or bytes as they stand, or an object as JSON; for .jsonl, a list of lines.
        definitions, solutions, workloads, traces: models, put where the layout has them.
    """
    op_types = {definition.name: definition.op_type for definition in definitions}
    authors = {solution.name: solution.author for solution in solutions}
    for definition in definitions:
        path = layout.definition_path(root, op_type=definition.op_type, definition=definition.name)
        _write(path, definition)
    for solution in solutions:
        names = {"author": solution.author, "definition": solution.definition, "solution": solution.name}
        _write(layout.solution_path(root, op_type=op_types.get(solution.definition, "test"), **names), solution)
    for trace in workloads:
        op_type = op_types.get(trace.definition, "test")
        _append(layout.workloads_path(root, op_type=op_type, definition=trace.definition), trace)
    for trace in traces:
        names = {"author": authors.get(str(trace.solution), "alice"), "definition": trace.definition}
        _append(layout.traces_path(root, op_type=op_types.get(trace.definition, "test"), **names), trace)
    for name, content in (files or {}).items():
        _write(root / name, content)
    root.mkdir(parents=True, exist_ok=True)
    return root


def _axis(size: Any) -> Any:
    if size is None:
        return {"type": "var"}
    if isinstance(size, int):
        return {"type": "const", "value": size}
    return {"type": "expr", "expression": size} if isinstance(size, str) else size


def _specs(specs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _spec(text) if isinstance(text, str) else text for name, text in specs.items()}


def _spec(text: str) -> dict[str, Any]:
    dtype, bracket, axes = text.partition("[")
    return {"dtype": dtype, "shape": re.findall(r"[^\s,\]]+", axes) if bracket else None}


def _source(source: Any) -> Any:
    if source == "random":
        return {"type": "random"}
    return {"type": "scalar", "value": source} if isinstance(source, (bool, int, float)) else source


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif path.suffix == ".jsonl" and isinstance(content, list):
        path.write_text("".join(_json(line) + "\n" for line in content), encoding="utf-8")
    else:
        path.write_text(_json(content), encoding="utf-8")


def _append(path: Path, trace: Trace) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as handle:
        handle.write(trace.to_json() + "\n")


def _json(content: Any) -> str:
    if isinstance(content, str):
        return content
    return content.to_json() if isinstance(content, DataModel) else json.dumps(content)
