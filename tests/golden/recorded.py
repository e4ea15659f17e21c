"""A set whose traces were recorded: three forms of a trace, with times and errors that are known by value.

`public` has nothing beside the public schema; `early` is of early 2025 (`device`, `log_file`); `protocol 9` has what an
older version of this package wrote under `extra`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.golden.face import SmallSet, spec, write_json, write_lines

HARDWARE = "NVIDIA H100"
DOUBLE = "def run(x):\n    return x * 2\n"
TIMES = {
    ("double", "w1"): {"base": 4.0, "alice_1": 1.0, "alice_2": 2.0, "bob_1": 8.0},
    ("double", "w2"): {"base": 8.0, "alice_1": 4.0, "alice_2": 2.0, "bob_1": 8.0},
    ("triple", "v1"): {"base_3": 3.0, "bob_3": 1.0},
}
"""(definition, workload) → solution → latency in milliseconds; the reference always takes 16."""
AUTHORS = {
    "base": "baseline",
    "base_3": "baseline",
    "alice_1": "alice",
    "alice_2": "alice",
    "bob_1": "bob",
    "bob_3": "bob",
}
FAILED = ("double", "w2", "bob_1")
"""This one is INCORRECT_NUMERICAL: its latency does not count."""


def make_trace(definition: str, uuid: str, solution: str, status: str = "PASSED", **more: Any) -> dict[str, Any]:
    """Return a trace of the public schema."""
    evaluation: dict[str, Any] = {
        "status": status,
        "log": "",
        "timestamp": "2025-06-01T12:00:00",
        "environment": {"hardware": HARDWARE, "libs": {"torch": "2.6.0"}},
        "correctness": None,
        "performance": None,
    }
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        evaluation["correctness"] = {"max_relative_error": 0.001, "max_absolute_error": 0.002, "extra": None}
    if status == "PASSED":
        latency = TIMES[definition, uuid][solution]
        evaluation["performance"] = {
            "latency_ms": latency,
            "reference_latency_ms": 16.0,
            "speedup_factor": 16.0 / latency,
        }
    workload = {"uuid": uuid, "axes": {"m": 2 if uuid == "w2" else 1}, "inputs": {"x": {"type": "random"}}}
    return {"definition": definition, "workload": workload, "solution": solution, "evaluation": evaluation | more}


def older(trace: dict[str, Any]) -> dict[str, Any]:
    """Add what an older version of this package wrote beside the public schema."""
    latency = trace["evaluation"]["performance"]["latency_ms"]
    same = ("mean_ms", "median_ms", "min_ms", "max_ms", "q25_ms", "q75_ms")
    measurement = dict.fromkeys(same, latency) | {
        "method": "cupti", "cache_state": "cold", "launch": "stream", "trials": 3, "samples": 150, "std_ms": 0.01,
        "interval95_ms": [latency * 0.99, latency * 1.01], "interval": "workers", "confirmed": True, "flags": [],
    }  # fmt: skip
    fingerprint = {"definition": "d", "solution": "s", "workload": "w", "config": "c", "hardware": HARDWARE}
    run = {
        "fingerprint": fingerprint | {"protocol": "9", "evaluator": "DefaultEvaluator 1"},
        "seed": 5,
        "runner": "persistent",
    }
    trace["evaluation"]["extra"] = {"evaluator": "DefaultEvaluator", "measurement": measurement, "run": run}
    return trace


def write_recorded(root: Path) -> SmallSet:
    """Write the set. Its traces stand in files of author, op type and definition; one file has no author's folder."""
    small = SmallSet(root)
    tensor = spec(["m", "n"], "float32")
    axes = {"m": {"type": "var"}, "n": {"type": "const", "value": 8}}
    for name, op_type in {"double": "scale", "triple": "other"}.items():
        small.definition(name, DOUBLE, {"x": tensor}, {"y": tensor}, axes=axes, op_type=op_type)
    for definition, uuid in TIMES:
        small.workload(definition, uuid, {"x": {"type": "random"}}, {"m": 2 if uuid == "w2" else 1})
    for solution, author in AUTHORS.items():
        small.solution("triple" if solution.endswith("_3") else "double", solution, DOUBLE, author=author)
    lines: dict[str, list[Any]] = {}
    for (definition, uuid), times in TIMES.items():
        for solution in times:
            status = "INCORRECT_NUMERICAL" if (definition, uuid, solution) == FAILED else "PASSED"
            trace = make_trace(definition, uuid, solution, status)
            if solution == "alice_1":
                trace = older(trace)
            if solution == "base" and uuid == "w1":
                trace["evaluation"]["environment"] = {"device": HARDWARE, "libs": {}}
                trace["evaluation"]["log_file"] = "/logs/base.log"
                del trace["evaluation"]["log"]
            lines.setdefault(f"{AUTHORS[solution]}/{small.types[definition]}/{definition}.jsonl", []).append(trace)
    (superseded,) = [make_trace("triple", "v1", "bob_3", "RUNTIME_ERROR", timestamp="2025-05-01T12:00:00")]
    lines["bob/other/triple.jsonl"].insert(0, superseded)
    moved = lines.pop("baseline/scale/double.jsonl")
    for path, entries in lines.items():
        write_lines(root / "traces" / path, entries)
    write_lines(root / "traces" / "scale" / "double.jsonl", moved)  # without an author's folder
    write_json(root / "traces" / "one.json", make_trace("double", "w1", "bob_1", timestamp="2025-05-01T00:00:00"))
    return small
