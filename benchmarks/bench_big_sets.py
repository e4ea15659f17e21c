"""How long a big set takes: loading it, `report summary`, `report html`, a plan of all with `run --resume --dry-run`.

    python benchmarks/bench_big_sets.py FOLDER [--solutions 200] [--workloads 100] [--repeats 3]

Makes a set of 5 definitions in FOLDER, with a trace of 3 kB for each of its jobs, as the engine writes them; a set that
is there already is used again. One solution in ten has changed since its traces were made. Prints the seconds, the
processor's seconds and the peak of memory of each step, which is a process from its start to its end: the best of the
repeats. Exits with 1 where a goal is missed. The goals are for 100,000 traces, which the defaults make, and for a
machine with nothing else to do; on a busy one look at the processor's seconds.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.data.store import layout

DEFINITIONS = 5
AUTHORS = 10
CHANGED = 10
"""One solution in so many differs from what was recorded."""
LOAD = "import sys; from flashinfer_bench.data import TraceSet; TraceSet.from_path(sys.argv[1])"
STEPS = {
    # step: (command, seconds, peak in GB)
    "load": (["-c", LOAD, "{root}"], 3.0, 1.0),
    "report summary": (["-m", "flashinfer_bench", "report", "summary", "--local", "{root}"], 3.0, 1.0),
    "report html": (["-m", "flashinfer_bench", "report", "html", "{root}_pages", "--local", "{root}"], 20.0, 2.0),
    "plan with --resume": (["-m", "flashinfer_bench", "run", "--resume", "--dry-run", "--local", "{root}"], 5.0, None),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--solutions", type=int, default=200, help="of each definition")
    parser.add_argument("--workloads", type=int, default=100, help="of each definition")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    root = arguments.folder / f"big_{arguments.solutions}x{arguments.workloads}"
    if not (root / layout.TRACES).is_dir():
        make_set(root, arguments.solutions, arguments.workloads)
    files = list((root / layout.TRACES).rglob("*.jsonl"))
    print(
        f"{DEFINITIONS * arguments.solutions * arguments.workloads:,} traces, {sum(map(size_of, files)) / 1e6:.0f} MB"
    )
    is_missed = False
    for step, (command, most_s, most_gb) in STEPS.items():
        seconds, cpu_seconds, gigabytes = measure([part.format(root=root) for part in command], arguments.repeats)
        missed = seconds > most_s or (most_gb is not None and gigabytes > most_gb)
        is_missed = is_missed or missed
        goal = f"at most {most_s:g} s" + (f" and {most_gb:g} GB" if most_gb is not None else "")
        taken = f"{seconds:6.2f} s {cpu_seconds:6.2f} s CPU {gigabytes:6.2f} GB"
        print(f"{step:20} {taken}   {'MISSED' if missed else 'held'}: {goal}", flush=True)
    return 1 if is_missed else 0


def measure(command, repeats):
    """Return the least seconds, seconds of the processor, and peak of memory in GB of a command."""
    seconds, cpu_seconds, peaks = [], [], []
    for _ in range(repeats):
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, code, usage = os.wait4(child.pid, 0)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(usage.ru_utime + usage.ru_stime)
        child.returncode = os.waitstatus_to_exitcode(code)
        if child.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
        peaks.append(usage.ru_maxrss * 1024 / 1e9)
    return min(seconds), min(cpu_seconds), min(peaks)


def size_of(path):
    return path.stat().st_size


def make_set(root, solutions, workloads):
    """Write the set: what is judged first, then a trace of each job, with the fingerprint that its plan gives it."""
    definitions = [make_definition(index) for index in range(DEFINITIONS)]
    for definition in definitions:
        at = {"op_type": definition.op_type, "definition": definition.name}
        write(layout.definition_path(root, **at), definition.to_json(indent=1))
        lines = [Trace(definition=definition.name, workload=make_workload(index)) for index in range(workloads)]
        write(layout.workloads_path(root, **at), "".join(f"{line.to_json()}\n" for line in lines))
        for index in range(solutions):
            solution = make_solution(definition, index)
            path = layout.solution_path(root, author=solution.author, solution=solution.name, **at)
            write(path, solution.to_json(indent=1))
    draw = random.Random(0)
    groups = {}
    for job in Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(devices=["cpu"])).plan().jobs:
        key = (job.solution.author, job.definition)
        path = layout.traces_path(root, author=key[0], op_type=key[1].op_type, definition=key[1].name)
        groups.setdefault(path, []).append(json.dumps(make_trace(job, draw), separators=(",", ":")))
    for path, lines in groups.items():
        write(path, "".join(f"{line}\n" for line in lines))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def make_definition(index):
    tensor = {"shape": ["rows", "columns"], "dtype": "float32"}
    return Definition.model_validate(
        {
            "name": f"scale_{index}_h4096",
            "op_type": "scale",
            "axes": {"rows": {"type": "var"}, "columns": {"type": "const", "value": 4096}},
            "inputs": {"hidden_states": tensor, "weight": tensor},
            "outputs": {"logits": tensor},
            "reference": f"def run(hidden_states, weight):\n    return hidden_states * weight * {index + 1}\n",
        }
    )


def make_workload(index):
    inputs = {"hidden_states": {"type": "random"}, "weight": {"type": "random"}}
    return Workload.model_validate(
        {"uuid": f"{index:08x}-cc60-59c5-a763-d17742b2b07a", "axes": {"rows": index + 1}, "inputs": inputs}
    )


def make_solution(definition, index):
    code = f"def run(hidden_states, weight):\n    return hidden_states * weight  # {index}\n"
    return Solution.model_validate(
        {
            "name": f"solution_{index:04}_of_{definition.name}",
            "definition": definition.name,
            "author": f"author_{index % AUTHORS}",
            "spec": {
                "language": "python",
                "target_hardware": ["cpu", "cuda"],
                "entry_point": "main.py::run",
                "destination_passing_style": False,
            },
            "sources": [{"path": "main.py", "content": code}],
        }
    )


def make_trace(job, draw):
    """Give a trace as the engine writes it: four in five passed, the others failed in one of two ways."""
    status = draw.choices(["PASSED", "INCORRECT_NUMERICAL", "RUNTIME_ERROR"], [8, 1, 1])[0]
    latency, error = draw.uniform(0.1, 0.2), draw.uniform(1e-6, 1e-4)
    solution = int(job.solution.name.split("_")[1])
    fingerprint = dict(job.fingerprint)
    if solution % CHANGED == 0:
        fingerprint["solution"] = "0" * 64
    evaluation = {
        "status": status,
        "log": "RuntimeError: the solution failed\n" if status == "RUNTIME_ERROR" else "",
        "timestamp": f"2026-11-22T14:{draw.randrange(60):02}:{draw.randrange(60):02}Z",
        "environment": {"hardware": fingerprint["hardware"], "libs": LIBS},
        "correctness": None if status == "RUNTIME_ERROR" else make_correctness(error),
        "performance": None if status != "PASSED" else make_performance(latency, draw.uniform(0.1, 0.4)),
        "extra": {
            "evaluator": "DefaultEvaluator",
            **({} if status != "PASSED" else {name: make_record(latency) for name in ("measurement", "baseline")}),
            "reads": 10,
            "regimes": {"heavy_tails": "judged", "smaller": "judged", "larger": "judged", "few_large": "judged"},
            "run": {"fingerprint": fingerprint, "config": job.config.values(), **RUN, "seed": draw.getrandbits(62)},
        },
    }
    workload = job.workload.model_dump(mode="json", exclude_unset=True)
    names = {"definition": job.definition.name, "workload": workload, "solution": job.solution.name}
    return {**names, "evaluation": evaluation}


LIBS = {
    "flashinfer_bench": "0.1.0",
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "triton": "3.9.0",
    "numpy": "2.4.6",
    "apache-tvm-ffi": "0.1.15.post2",
}
RUN = {
    "timeout_seconds": 300,
    "worker_memory_gb": None,
    "seeded": False,
    "device": {"kind": "cpu", "index": 0, "uuid": "cpu"},
    "sandbox": {"level": "auto", "reached": ["files", "calls", "root"], "missing": {}, "user": "root without rights"},
    "runner": "persistent",
}


def make_correctness(error):
    output = {
        "elements": 128,
        "mismatched": 0,
        "nonfinite_mismatched": 0,
        "matched_ratio": 1.0,
        "required_matched_ratio": 1.0,
        "max_absolute_error": error,
        "max_relative_error": error,
        "max_expected": 164.86996459960938,
        "worst": {"index": [0, 31], "expected": -0.7199697494506836, "got": -0.7199935913085938},
        "error_norm": error,
        "worst_row_norm": error,
    }
    extra = {"trials": 3, "matched_ratio": 1.0, "outputs": {"logits": output}}
    return {"max_relative_error": error, "max_absolute_error": error, "extra": extra}


def make_performance(latency, reference):
    return {"latency_ms": latency, "reference_latency_ms": reference, "speedup_factor": reference / latency}


def make_record(latency):
    return {
        "trials_ms": [latency, latency * 1.01, latency * 0.99],
        "method": "wall",
        "cache_state": "warm",
        "calls": 20,
        "trials": 3,
        "samples": 30,
        "stop": "count",
        "mean_ms": latency,
        "std_ms": latency / 100,
        "min_ms": latency * 0.9,
        "q25_ms": latency * 0.98,
        "median_ms": latency,
        "q75_ms": latency * 1.02,
        "max_ms": latency * 1.1,
        "interval95_ms": [latency * 0.99, latency * 1.01],
        "flags": ["noisy", "unconfirmed"],
        "assurance": "full",
        "bound": "batch",
        "burst_resolution_ms": 0.031163,
        "burst_ms": latency * 1.05,
        "why_unconfirmed": f"a call in a burst takes {latency * 1.05} ms, while other processes held the processors",
    }


if __name__ == "__main__":
    sys.exit(main())
