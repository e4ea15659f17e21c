"""A trace set of honest calls of torch's own, most of which several threads compute, for `bench_honest_jobs.py`.

The sizes are those at which torch and its libraries begin to share a call out: there two threads on two cores get in
the way of whoever times them.
"""

from __future__ import annotations

from pathlib import Path

from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload

CALLS = {
    "product_64": ({"n": 64}, ("n, n", "n, n"), "n, n", "x @ w"),
    "product_128": ({"n": 128}, ("n, n", "n, n"), "n, n", "x @ w"),
    "product_256": ({"n": 256}, ("n, n", "n, n"), "n, n", "x @ w"),
    "product_512": ({"n": 512}, ("n, n", "n, n"), "n, n", "x @ w"),
    "sum_64k": ({"n": 65536}, ("n", "n"), "n", "x + w"),
    "sines_64k": ({"n": 65536}, ("n",), "n", "torch.exp(torch.sin(x))"),
    "sines_256k": ({"n": 262144}, ("n",), "n", "torch.exp(torch.sin(x))"),
    "softmax_512": ({"n": 512}, ("n, n",), "n, n", "torch.softmax(torch.tanh(x), -1)"),
    "chain_256": ({"n": 256}, ("n, n", "n, n"), "n, n", "torch.softmax(x @ w, -1) @ w"),
    "norm_300k": ({"n": 300000}, ("n",), "n", "x * (x.square().mean() + 1e-6).rsqrt()"),
    "row_sums": ({"n": 512, "m": 1024}, ("n, m",), "n", "x.square().sum(-1)"),
}
"""Name → axes, shapes of inputs, shape of the output, what is computed."""


def make_set(root: Path, workloads: int = 2) -> TraceSet:
    """Return a set in memory with each call as a definition and, twice, as a solution: returned and written in place.

    Args:
        root: a folder; nothing is written there.
        workloads: of each definition.
    """
    definitions, solutions, traces = {}, {}, {}
    for name, (axes, shapes, output, expression) in CALLS.items():
        inputs = dict(zip(("x", "w"), shapes, strict=False))
        given = ", ".join(inputs)
        source = f"import torch\n\ndef run({given}):\n    return {expression}\n"
        in_place = f"import torch\n\ndef run({given}, y):\n    y.copy_({expression})\n"
        definitions[name] = Definition(
            name=name,
            op_type="honest",
            axes={axis: {"type": "const", "value": value} for axis, value in axes.items()},
            inputs={one: {"shape": shape.split(", "), "dtype": "float32"} for one, shape in inputs.items()},
            outputs={"y": {"shape": output.split(", "), "dtype": "float32"}},
            reference=source,
        )
        solutions[name] = [
            make_solution(f"{name}_returned", name, source, in_place=False),
            make_solution(f"{name}_in_place", name, in_place, in_place=True),
        ]
        random = {one: {"type": "random"} for one in inputs}
        traces[name] = [
            Trace(definition=name, workload=Workload(uuid=f"{name}-{at}", axes={}, inputs=random))
            for at in range(workloads)
        ]
    return TraceSet(root=root, definitions=definitions, solutions=solutions, workloads=traces, traces={})


def make_solution(name: str, definition: str, source: str, *, in_place: bool) -> Solution:
    """Return a solution of one Python file."""
    return Solution(
        name=name,
        definition=definition,
        author="honest",
        spec={
            "language": "python",
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": in_place,
        },
        sources=[{"path": "main.py", "content": source}],
    )
