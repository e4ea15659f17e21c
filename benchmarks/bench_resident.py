"""How fast the resident engine answers: from submit to verdict, one after the other, and many at once.

    python benchmarks/bench_resident.py [--count 100] [--device cpu|cuda] [--profile FILE] [--no-goals] > resident.json

All solutions are distinct and right, of one definition with one workload: in Python on a CPU, in Triton on a GPU. A
first one starts the sessions and is not counted. Then `--count` of them are submitted one after the other, and as many
new ones at once. On a GPU, what Triton's own compilation takes is told apart: each solution times its first call, which
compiles, and prints it; that is taken off.

The table goes to stderr, one JSON document to stdout. Exits with 1 where a goal is missed, unless --no-goals is given.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from flashinfer_bench import BenchmarkConfig, Engine, Solution, Trace, TraceSet
from flashinfer_bench.bench.machine import discover_devices

GOALS: Final = {"cpu": (0.25, None), "cuda": (0.5, 4.0)}
"""Device → the median seconds from submit to verdict (beside Triton's compilation), and the verdicts a second of many
that are submitted at once."""
SIZE: Final = 4096
PYTHON: Final = """
# {number}
import torch
def run(x):
    return x * 2
"""
TRITON: Final = """
import time
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0 + {number} * 0.0, mask=at < n)

is_first = True

def run(x):
    global is_first
    y = torch.empty_like(x)
    start = time.monotonic()
    double[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    if is_first:
        print("compiled in", time.monotonic() - start, flush=True)
        is_first = False
    return y
"""
COMPILED: Final = re.compile(r"compiled in ([\d.]+)")


def make_set(folder: Path) -> TraceSet:
    """Write a set of one definition with one workload, and read it."""
    definition = {
        "name": "double",
        "op_type": "elementwise",
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
        "reference": "def run(x):\n    return x * 2\n",
    }
    workload = {"uuid": "one", "axes": {"n": SIZE}, "inputs": {"x": {"type": "random"}}}
    (folder / "definitions/elementwise").mkdir(parents=True)
    (folder / "workloads/elementwise").mkdir(parents=True)
    (folder / "definitions/elementwise/double.json").write_text(json.dumps(definition))
    line = {"definition": "double", "workload": workload, "solution": None, "evaluation": None}
    (folder / "workloads/elementwise/double.jsonl").write_text(json.dumps(line) + "\n")
    return TraceSet.from_path(folder)


def make_solution(number: int, device: str) -> Solution:
    """Make a solution whose text no other one has."""
    language, source = ("triton", TRITON) if device == "cuda" else ("python", PYTHON)
    return Solution.model_validate(
        {
            "name": f"double_{number}",
            "definition": "double",
            "author": "bench",
            "sources": [{"path": "main.py", "content": source.replace("{number}", str(number))}],
            "spec": {"language": language, "target_hardware": [device], "entry_point": "main.py::run"},
        }
    )


def read_compile_s(trace: Trace) -> float:
    """Return the seconds that the solution's first call took, as it printed them; 0 where it printed none."""
    found = COMPILED.search(trace.evaluation.log if trace.evaluation is not None else "")
    return float(found.group(1)) if found else 0.0


def check(trace: Trace) -> Trace:
    """Return a trace that is PASSED; all solutions are right."""
    evaluation = trace.evaluation
    if evaluation is None or evaluation.status.value != "PASSED":
        raise SystemExit(f"{trace.solution}: {evaluation.status.value if evaluation else 'no verdict'}: {evaluation}")
    return trace


def submit_in_turn(engine: Engine, solutions: list[Solution]) -> list[tuple[float, float]]:
    """Return (seconds from submit to verdict, seconds of them that compiling took) of each solution."""
    taken = []
    for solution in solutions:
        start = time.monotonic()
        (trace,) = engine.submit(solution).result(timeout_s=300)
        taken.append((time.monotonic() - start, read_compile_s(check(trace))))
    return taken


def submit_at_once(engine: Engine, solutions: list[Solution]) -> float:
    """Return the seconds from the first submit to the last verdict."""
    start = time.monotonic()
    for task in [engine.submit(solution) for solution in solutions]:
        check(task.result(timeout_s=600)[0])
    return time.monotonic() - start


def measure(count: int, device: str, modules: list[str]) -> dict[str, Any]:
    """Take all figures; `modules` are plug-ins."""
    with tempfile.TemporaryDirectory() as folder:
        trace_set = make_set(Path(folder, "set"))
        config = BenchmarkConfig.default(devices=["cuda:0" if device == "cuda" else device], evaluator_modules=modules)
        with Engine(trace_set, config, cache=Path(folder, "cache")) as engine:
            ((first_s, _),) = submit_in_turn(engine, [make_solution(0, device)])
            taken = submit_in_turn(engine, [make_solution(1 + number, device) for number in range(count)])
            at_once_s = submit_at_once(engine, [make_solution(1 + count + number, device) for number in range(count)])
        lines = [line for path in Path(folder, "set", "traces").rglob("*.jsonl") for line in path.open()]
    beside = sorted(total - compiling for total, compiling in taken)
    return {
        "device": discover_devices(config.devices)[0].name,
        "count": count,
        "confirmations": len(lines) - 1 - 2 * count,
        "first_s": first_s,
        "median_s": statistics.median(beside),
        "p90_s": beside[int(0.9 * (len(beside) - 1))],
        "median_with_compiling_s": statistics.median(total for total, _ in taken),
        "median_compiling_s": statistics.median(compiling for _, compiling in taken),
        "at_once_s": at_once_s,
        "verdicts_per_s": count / at_once_s,
    }


def main() -> int:
    """Take the figures; print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="solutions in turn, and as many at once")
    parser.add_argument("--device", choices=sorted(GOALS), default="cpu")
    parser.add_argument("--profile", metavar="FILE", help="log the steps of sessions there (session_profile.py)")
    parser.add_argument("--no-goals", action="store_true", help="exit with 0 also where a goal is missed")
    asked = parser.parse_args()
    if asked.profile:
        os.environ["SESSION_PROFILE"] = asked.profile
    figures = measure(asked.count, asked.device, ["benchmarks.session_profile"] if asked.profile else [])
    most_s, least_per_s = GOALS[asked.device]
    is_met = figures["median_s"] <= most_s and (least_per_s is None or figures["verdicts_per_s"] >= least_per_s)
    sys.stdout.write(json.dumps({**figures, "goals_met": is_met}, indent=1) + "\n")
    for name, value in figures.items():
        sys.stderr.write(f"{name:>24} {value if isinstance(value, (str, int)) else format(value, '.3f')}\n")
    return 0 if is_met or asked.no_goals else 1


if __name__ == "__main__":
    sys.exit(main())
