"""How long a folder of problems takes to load (SOL-ExecBench's layout: docs/formats.md).

    python benchmarks/bench_problems.py FOLDER [--problems 200] [--workloads 16] [--solutions 2] [--repeats 3]

Makes the problems in FOLDER: chained axes, custom inputs, tolerances, solutions with lists of languages and sources
beside them; problems that are there already are used again. Prints the seconds and the processor's seconds of a process
that loads them, from its start to its end: the best of the repeats. Exits with 1 where the goal is missed. It is one of
processor time, so that a busy machine does not matter.
"""

import argparse
import json
import sys
from pathlib import Path

from bench_big_sets import measure, write

GOAL_S = 2.0
"""Seconds of the processor for 200 problems."""
LOAD = "import sys; from flashinfer_bench.data import TraceSet; TraceSet.from_path(sys.argv[1])"
REFERENCE = '''\
import torch
import torch.nn.functional as F


def get_inputs(axes_and_scalars, device):
    """Make activations and weights of the block."""
    rows, wide = axes_and_scalars["rows"], axes_and_scalars["wide"]
    return {"x": torch.randn(rows, wide, device=device), "weight": torch.randn(wide, wide, device=device) / wide**0.5}


def normalise(x, eps):
    """Divide each row by its root mean square."""
    return x * torch.rsqrt(x.float().pow(2).mean(dim=-1, keepdim=True) + eps).to(x.dtype)


def run(x, weight, eps, scale):
    """Compute problem NUMBER: a norm, a product, an activation, and a residual."""
    hidden = normalise(x, eps)
    gate, up = (hidden @ weight).chunk(2, dim=-1)
    hidden = torch.cat([F.silu(gate) * up, up], dim=-1)
    return x + hidden * scale
'''
KERNEL = "import torch\n\n\ndef run(x, weight, eps, scale):\n    return torch.addcmul(x, x @ weight, scale)\n" * 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--workloads", type=int, default=16, help="of each problem")
    parser.add_argument("--solutions", type=int, default=2, help="of each problem")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    root = arguments.folder / f"problems_{arguments.problems}x{arguments.workloads}x{arguments.solutions}"
    if not root.is_dir():
        for number in range(arguments.problems):
            write_problem(root / f"L{number % 4}" / f"problem_{number:03}", number, arguments)
    seconds, cpu_seconds, gigabytes = measure(["-c", LOAD, str(root)], arguments.repeats)
    is_missed = cpu_seconds > GOAL_S
    told = f"{seconds:.2f} s {cpu_seconds:.2f} s CPU {gigabytes:.2f} GB"
    print(f"{arguments.problems} problems: {told}   {'MISSED' if is_missed else 'held'}: at most {GOAL_S:g} s CPU")
    return int(is_missed)


def write_problem(folder, number, arguments):
    definition = {
        "name": folder.name,
        "description": "A block of a model, as its forward pass computes it. " * 4,
        "axes": {
            "rows": {"type": "var", "description": "Tokens of the batch."},
            "heads": {"type": "const", "value": 4 + number % 5},
            "half": {"type": "expr", "expression": "heads * 8"},
            "wide": {"type": "expr", "expression": "half * 2"},
        },
        "custom_inputs_entrypoint": "get_inputs",
        "inputs": {
            "x": {"shape": ["rows", "wide"], "dtype": "float32"},
            "weight": {"shape": ["wide", "wide"], "dtype": "float32"},
            "eps": {"shape": None, "dtype": "float32"},
            "scale": {"shape": None, "dtype": "float32"},
        },
        "outputs": {"y": {"shape": ["rows", "wide"], "dtype": "float32"}},
        "reference": REFERENCE.replace("NUMBER", str(number)),
    }
    write(folder / "definition.json", json.dumps(definition, indent=2))
    lines = [json.dumps(make_workload(number, index)) for index in range(arguments.workloads)]
    write(folder / "workload.jsonl", "".join(f"{line}\n" for line in lines))
    for index in range(arguments.solutions):
        solution = {
            "name": f"solution_{index}_of_{folder.name}",
            "definition": folder.name,
            "author": f"author_{index}",
            "spec": {
                "languages": ["pytorch"],
                "target_hardware": ["LOCAL"],
                "entry_point": f"kernel_{index}.py::run",
                "destination_passing_style": False,
            },
            "sources": [{"path": f"kernel_{index}.py"}],
        }
        write(folder / f"solution_{index}.json", json.dumps(solution, indent=2))
        write(folder / f"kernel_{index}.py", f"# {number} {index}\n{KERNEL}")


def make_workload(number, index):
    return {
        "uuid": f"{number:08x}-{index:04x}-59c5-a763-d17742b2b07a",
        "axes": {"rows": index + 1},
        "inputs": {
            "x": {"type": "custom"},
            "weight": {"type": "custom"},
            "eps": {"type": "scalar", "value": 1e-6},
            "scale": {"type": "scalar", "value": 0.5},
        },
        "tolerance": {"max_atol": 1e-3, "max_rtol": 1e-2, "required_matched_ratio": 0.99, "max_error_cap": 0.1},
    }


if __name__ == "__main__":
    sys.exit(main())
