"""The same code must give the same number, and what is decided from numbers must be right.

    python -m benchmarks.repeatability --rows identical                       (a GPU: a minute)
    python -m benchmarks.repeatability --rows identical --settings '{"precision": 0.02}'
    python -m benchmarks.repeatability --rows reference --root SET --runs 5   (the references of a set)
    python -m benchmarks.repeatability --rows ncu sanitizer                   (a GPU with NVIDIA's tools)
    python -m benchmarks.repeatability --small --no-save                      (does every row work here?)

Nothing is saved in a set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from math import log
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from benchmarks.kit import sets
from benchmarks.kit.commands import CHECKOUT
from benchmarks.kit.script import Bench, Figure, Row, judge, make_parser, run_rows
from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import Solution, TraceSet
from tests.kit.packed import pack_reference
from tests.kit.small_workloads import input_bytes, missing_blobs

RMS: Final = (
    "h = x.float()\nh = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)\nreturn (h * h.sign()).to(x.dtype)"
)
CHAIN: Final = "y = x\nfor _ in range({count}):\n    y = y + 1\nreturn y"
BRANCHES: Final = """if not STREAMS:
    STREAMS.append(torch.cuda.Stream())
side, now = STREAMS[0], torch.cuda.current_stream()
side.wait_stream(now)
a = x + 1
with torch.cuda.stream(side):
    b = x * 2
    b = b + 1
a = a * 2
now.wait_stream(side)
return a + b"""
KERNELS: Final[dict[str, tuple[tuple[int, int], str]]] = {
    **{f"add_{size}": ((rows, 4096), "return x + 1") for size, rows in (("16k", 4), ("256k", 64), ("16m", 4096))},
    **{f"add_{size}": ((rows, 4096), "return x + 1") for size, rows in (("64m", 16384), ("512m", 131072))},
    "add_2g": ((524288, 4096), "return x + 1"),
    "softmax_2m": ((512, 4096), "return torch.softmax(x, -1)"),
    "softmax_16m": ((4096, 4096), "return torch.softmax(x, -1)"),
    "layer_norm_256k": ((64, 4096), "return torch.nn.functional.layer_norm(x, (x.shape[-1],))"),
    **{f"matmul_{n}k": ((1024 * n, 1024 * n), "return x @ x") for n in (1, 2, 4, 8)},
    "chain_2": ((64, 4096), CHAIN.format(count=2)),
    "chain_12": ((64, 4096), CHAIN.format(count=12)),
    "chain_12_large": ((110592, 4096), CHAIN.format(count=12)),
    **{f"rms_{rows}": ((rows, 4096), RMS) for rows in (1, 64, 4096)},
    "branches": ((64, 4096), BRANCHES),
}
"""Name → rows and columns, and the body: 1 to 12 GPU operations of 1.5 us to 5 ms."""
LANGUAGES: Final = ("python", "triton")
"""Called so by turns, since a worker for Triton gets a context of one connection."""
STEPS: Final = "import torch\n\n\ndef run(x):\n    for _ in range({count}):\n        x = torch.neg(x)\n    return x\n"
LENGTHS: Final = ((10, 2048), (100, 8192), (1000, 8192))
"""Steps and elements of references on a CPU; few enough elements that one thread computes them."""
COMPARED: Final = {"cuda": (33, 1, 0.02, 1 << 14), "cpu": (25, 2, 0.05, 1 << 14)}
"""Steps of a kernel, steps more of its slower solution, the threshold, elements."""
OUT_OF_BOUNDS: Final = """
import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n + 1)  # here


def run(x, y):
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
"""


def make_source(body: str, name: str) -> str:
    """Return a source that differs from others in its comment."""
    indented = "\n    ".join(body.splitlines())
    return f"# {name}\nimport torch\n\nSTREAMS = []\n\n\n@torch.no_grad()\ndef run(x):\n    {indented}\n"


def make_trace_set(names: Iterable[str], workers: int, workloads_each: int) -> TraceSet:
    """Return a set with a definition for each kernel, and identical solutions and identical workloads of it."""
    parts = []
    for name in names:
        (m, n), body = KERNELS[name]
        tensors = ({"x": "bfloat16 m n"}, {"y": "bfloat16 m n"})
        made = sets.definition(name, *tensors, {"m": m, "n": n}, make_source(body, name), op_type="elementwise")
        same = [
            sets.solution(name, f"{name}_{at}", make_source(body, f"{name} {at}"), language=LANGUAGES[at % 2])
            for at in range(workers)
        ]
        parts.append((made, same, sets.workloads(made, sizes=range(workloads_each))))
    return sets.in_memory(*parts)


def take_identical(bench: Bench) -> Iterator[Figure]:
    """Twenty kernels, six identical solutions each, in workers of their own: ratios of all pairs of latencies."""
    names, workers = (["add_16k", "rms_1"], 2) if bench.is_small or bench.kind == "cpu" else (list(KERNELS), 6)
    times: dict[str, list[float]] = defaultdict(list)
    left_out = set()
    traces, odd = judge(bench, make_trace_set(names, workers, 1), profile_baseline=False)
    for trace in traces:
        evaluation = trace.evaluation
        flags = evaluation.extra["measurement"].get("flags", [])
        left_out |= {trace.definition} if "throttled" in flags else set()
        times[trace.definition].append(evaluation.performance.latency_ms)
    off = {name: [abs(a / b - 1) for a, b in combinations(found, 2)] for name, found in times.items()}
    held = [value for name, values in off.items() if name not in left_out for value in values]
    worst = max(off, key=lambda name: max(off[name]))
    note = f"{len(held)} pairs; a GPU that slows itself down: {', '.join(left_out) or 'none'}"
    yield Figure(f"identical-within{bench.suffix}", fmean(value <= 0.015 for value in held), "", note, odd)
    yield Figure(f"identical-worst{bench.suffix}", max(held), "", worst)


def take_intervals(bench: Bench) -> Iterator[Figure]:
    """Twelve byte-identical solutions on four workloads: pairs whose 95 % intervals do not meet, in three ways."""
    sizes = (1 << 11, 1 << 12, 1 << 13, 1 << 14)
    made = sets.definition("steps", {"x": "float32 n"}, {"y": "float32 n"}, {"n": None}, STEPS.format(count=25))
    copies = [sets.solution("steps", f"copy_{n}", STEPS.format(count=25)) for n in range(2 if bench.is_small else 12)]
    trace_set, cache = sets.in_memory((made, copies, sets.workloads(made, "n", sizes))), bench.empty("cache")
    for way, repeats in (("default", 1), ("repeated", 3), ("learned", 1)):
        traces, odd = judge(bench, trace_set, cache, repeats, profile_baseline=False)
        spans: dict[str, list[Sequence[float]]] = defaultdict(list)
        for trace in traces:
            spans[trace.workload.uuid].append(trace.evaluation.extra["measurement"]["interval95_ms"])
        pairs = [pair for found in spans.values() for pair in combinations(found, 2)]
        apart = fmean(a[1] < b[0] or b[1] < a[0] for a, b in pairs)
        half = median((high - low) / (high + low) for found in spans.values() for low, high in found)
        name = "intervals-apart" if way == "default" else f"intervals-apart-{way}"
        yield Figure(name, apart, "", f"{way}: {len(pairs)} pairs, half an interval {half:.1%}", odd)


def take_reference(bench: Bench) -> Iterator[Figure]:
    """References as their own solutions: speed-up of 1; then how far the times of references differ between runs."""
    if bench.asked.root is None and bench.kind == "cpu":
        parts = []
        for count, size in LENGTHS:
            text = STEPS.format(count=count)
            made = sets.definition(f"steps_{count}", {"x": "float32 n"}, {"y": "float32 n"}, {"n": None}, text)
            parts.append((made, [sets.solution(made["name"], made["name"], text)], sets.workloads(made, "n", (size,))))
        trace_set = sets.in_memory(*parts)
    else:
        trace_set = take_references(bench.asked.root or sets.BUNDLED, bench)
    speedups, times, odd = defaultdict(list), defaultdict(list), []
    runs = 1 if bench.is_small else bench.asked.runs
    for _ in range(runs):
        traces, found = judge(bench, trace_set, fresh_baselines=True)
        odd += found
        for trace in traces:
            performance, key = trace.evaluation.performance, (trace.definition, trace.workload.uuid)
            speedups[key].append(performance.speedup_factor)
            times[key].append(performance.reference_latency_ms)
    off = {key: abs(median(values) - 1) for key, values in speedups.items()}
    worst = max(off, key=lambda key: off[key])
    name = f"reference-off-{bench.kind}"
    yield Figure(name, off[worst], "", f"{worst[0]}; {len(off)} workloads, {runs} runs", odd)
    later = {key: abs(median(values[1:]) / values[0] - 1) for key, values in times.items() if len(values) > 1}
    if later:
        yield Figure(f"baseline-off{bench.suffix}", max(later.values()))


def take_references(root: Path, bench: Bench) -> TraceSet:
    """Return a set's references as solutions, on the smallest workload of each definition."""
    whole = TraceSet.from_path(root)
    trace_set = TraceSet(root=root, definitions=dict(whole.definitions))
    for name, made in list(whole.definitions.items())[: 2 if bench.is_small else None]:
        there = [one for one in whole.workloads.get(name, []) if not missing_blobs(whole, made, one.workload)]
        trace_set.workloads[name] = sorted(there, key=lambda one: input_bytes(made, one.workload))[:1]
        trace_set.solutions[name] = [pack_reference(made, style="value")]
    return trace_set


def take_compare(bench: Bench) -> Iterator[Figure]:
    """Decisions of `compare` on copies of a solution, and on solutions that are slower by a known share."""
    from flashinfer_bench.examine.compare.measuring import measure
    from flashinfer_bench.examine.compare.sides import Pairing

    steps, more, threshold, size = COMPARED[bench.kind]
    count = 1 if bench.is_small else bench.asked.comparisons
    made = sets.definition("steps", {"x": "float32 n"}, {"y": "float32 n"}, {"n": None}, STEPS.format(count=steps))
    source = STEPS.replace("return", "for _ in range({idle}):\n        torch.neg(x)\n    return")

    def make(name: str, idle: int) -> Solution:
        text = f"# {name}\n{source.format(count=steps, idle=idle)}"
        return Solution.model_validate(sets.solution("steps", name, text))

    sides = [(f"{kind}_{n}", idle) for n in range(count) for kind, idle in (("copy", 0), ("slower", more))]
    comparison = measure(
        sets.in_memory((made, [], sets.workloads(made, "n", (size,)))),
        [Pairing(make("one", 0), make(*side), side[0]) for side in sides],
        BenchmarkConfig.default(devices=bench.names[:1]),
        threshold=threshold,
        budget_s=5.0 * len(sides),
    )
    wrong, known = [], {"copy": 1.0, "slower": 1 + more / steps}
    for kind, name, right in (("copy", "compare-same", "same"), ("slower", "compare-slower", "slower")):
        rows = [row for row in comparison.rows if row.solutions.startswith(kind)]
        reported = [row.ratio.decide(threshold) if row.ratio else "none" for row in rows]
        decided = fmean(one.startswith(right) for one in reported)
        wrong += [one for one in reported if one in {"same", "slower", "faster"} - {right}]
        held = fmean(
            bool(row.ratio and row.ratio.log_half) and abs(row.ratio.log_mean - log(known[kind])) <= row.ratio.log_half
            for row in rows
        )
        note = f"of {len(rows)}; {held:.0%} of intervals hold {known[kind]:.3f}; threshold {threshold:.0%}"
        yield Figure(name, decided, "", note, [row.problem for row in rows if row.problem])
    note = f"{comparison.seconds / len(comparison.rows):.1f} s a comparison"
    yield Figure("compare-wrong", len(wrong) / len(comparison.rows), "", note)


def inspect(tool: str, root: Path, solution: str, workload: str) -> dict[str, Any]:
    """Return the document of `flashinfer-bench inspect`; its exit code says whether there is a finding."""
    command = [sys.executable, "-m", "flashinfer_bench", "inspect", tool, "--local", str(root), "--format", "json"]
    command += ["--solution", solution, "--workload", workload]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    document: dict[str, Any] = json.loads(done.stdout or "{}")
    return document


def take_ncu(bench: Bench) -> Iterator[Figure]:
    """ncu's duration of three kernels beside our busy time."""
    off, odd = {}, []
    for which, author, axis in ((sets.RMSNORM, "triton", "batch_size"), (sets.GEMM, "torch", "M")):
        made = sets.bundled(which)
        root = bench.empty()
        sets.write(root, made, [sets.copy(which, author, author)], sets.workloads(made, axis, (16384,)), None)
        traces, found = judge(bench, TraceSet.from_path(root), profile_baseline=False)
        busy_us = traces[0].evaluation.extra["measurement"]["busy_ms"] * 1e3 if traces else 0.0
        ncu_us = inspect("ncu", root, author, "w00").get("duration_us")
        odd += found + ([] if ncu_us and busy_us else [f"{author}: ncu {ncu_us} us, busy {busy_us} us"])
        off[author] = abs(ncu_us / busy_us - 1) if ncu_us and busy_us else 1.0
    yield Figure("ncu-off", max(off.values()), "", ", ".join(f"{name} {one:.2%}" for name, one in off.items()), odd)


def take_sanitizer(bench: Bench) -> Iterator[Figure]:
    """A planted write out of bounds is found with its line, and nothing in a right solution."""
    made = sets.definition("copy", {"x": "float32 n"}, {"y": "float32 n"}, {"n": None}, "def run(x):\n    return x\n")
    root, odd = bench.empty(), []
    texts = {"faulty": OUT_OF_BOUNDS, "right": OUT_OF_BOUNDS.replace("n + 1", "n")}
    solutions = [sets.solution("copy", name, text, language="triton", fills=True) for name, text in texts.items()]
    sets.write(root, made, solutions, sets.workloads(made, "n", (1000,)), None)
    line = next(n for n, text in enumerate(OUT_OF_BOUNDS.splitlines(), 1) if text.endswith("# here"))
    for name in texts:
        document = inspect("sanitizer", root, name, "w00")
        lines = {place["line"] for one in document.get("findings", []) for place in one["places"]}
        is_right = line in lines if name == "faulty" else not lines and "findings" in document
        odd += [] if is_right else [f"{name}: line {line} is planted, found {sorted(lines)}; {document}"[:400]]
    yield Figure("sanitizer-wrong", len(odd), odd=odd)


@contextmanager
def ray_cluster(nodes: int) -> Iterator[Any]:
    """Start a Ray cluster of N nodes on this machine."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 100 << 20}
    folder = tempfile.mkdtemp(prefix="fib-ray-")  # a short path: sockets lie in it
    os.environ["RAY_TMPDIR"] = folder
    Path(folder, "ray").mkdir()
    head = {**size, "include_dashboard": False, "temp_dir": f"{folder}/ray"}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**size)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def take_cluster(bench: Bench) -> Iterator[Figure]:
    """Kill one of three nodes in the middle of a run: every job has the verdict that it has without a cluster, once."""
    made = sets.python(bench.empty(), 3 if bench.is_small else 8)
    killed: list[str] = []
    begin_s = time.monotonic()
    with ray_cluster(3) as cluster:
        ids = {node.node_id[:6]: node for node in cluster.list_all_nodes()[1:]}  # not the head, which has the list

        def disturb(event: JobFinished) -> None:
            node = ids.get((event.device.node or "")[-6:])
            if node is not None and not killed:
                killed.append(event.device.label)
                cluster.remove_node(node, allow_graceful=False)

        far = {"cluster": "ray", "cluster_address": cluster.address, "devices": ["cpu"], "quick": True}
        traces, odd = judge(bench, TraceSet.from_path(made.root), heard=disturb, **far)
    seen = [(trace.definition, trace.solution, trace.workload.uuid) for trace in traces]
    odd += [] if killed else ["no node was killed: the run was over too soon"]
    odd += [str(job) for job in made.expected or () if seen.count(job) != 1]
    yield Figure("cluster-wrong", len(odd), "", f"{len(seen)} jobs in {time.monotonic() - begin_s:.0f} s", odd)


ROWS: Final = {
    "identical": Row(take_identical),
    "intervals": Row(take_intervals),
    "reference": Row(take_reference),
    "compare": Row(take_compare),
    "ncu": Row(take_ncu, "gpu"),
    "sanitizer": Row(take_sanitizer, "gpu"),
    "cluster": Row(take_cluster),
}


def main() -> int:
    """Take the rows."""
    parser = make_parser(__doc__ or "", ROWS)
    parser.add_argument("--settings", type=json.loads, default={}, help='of the engine: {"precision": 0.02}')
    parser.add_argument(
        "--root", type=Path, help="reference: the set (default: the bundled one; on a CPU made-up ones)"
    )
    parser.add_argument("--runs", type=int, default=5, help="reference: runs of each (default: %(default)s)")
    parser.add_argument(
        "--comparisons", type=int, default=20, help="compare: with copies, and as many with slower solutions"
    )
    return run_rows(ROWS, parser.parse_args(), "repeatability")


if __name__ == "__main__":
    sys.exit(main())
