"""How fast the engine is, as its user sees it: a table of rows, each held against its goal.

    python -m benchmarks.speed --list
    python -m benchmarks.speed --rows help edit-loop big-sets             (any machine)
    python -m benchmarks.speed --rows resident --count 100 --device cuda
    python -m benchmarks.speed --small --no-save                          (does every row work here?)

Rows of whole commands count the seconds from the start of a process to its end, less those of `import torch`. A run of
the same set goes before, so that kernels are compiled; baselines are taken anew. Nothing is saved in the sets.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from benchmarks.kit import sets
from benchmarks.kit.commands import (
    CHECKOUT,
    VERDICT,
    calibrate,
    count_statuses,
    measure_process,
    run_set,
)
from benchmarks.kit.script import Bench, Figure, Row, make_parser, run_rows

FRESH: Final = "--fresh-baselines"
COMPILED: Final = re.compile(r"compiled in ([\d.]+)")
DOUBLE: Final = "# {number}\nimport torch\ndef run(x):\n    return x * 2\n"
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
CUDA: Final = """
#include <torch/extension.h>
// {number}
__global__ void twice(const float* x, float* y, long n) {{
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}}
torch::Tensor run(torch::Tensor x) {{
  auto y = torch::empty_like(x);
  twice<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("run", &run); }}
"""
CPP: Final = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
// {number}
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {{}}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
BIG: Final = (5, 200, 100)
"""Definitions, solutions of each, workloads of each: 100,000 traces."""
AUTHORS: Final = 10
"""Each has a file of traces for each definition."""
CHANGED: Final = 10
"""One solution in N has changed since its traces were recorded."""
FLOOD: Final = 100
QUIET_CLIENTS: Final = 19


def take_help(_bench: Bench) -> Iterator[Figure]:
    """`run --help`, whole."""
    seconds, cpu_seconds, _ = measure_process(["-m", "flashinfer_bench", "run", "--help"], 5)
    yield Figure("help", seconds, "s", f"{cpu_seconds:.2f} s of the processor")


def take_whole(bench: Bench, name: str, make: Callable[..., sets.MadeSet], small: dict[str, Any]) -> Iterator[Figure]:
    """Run a set on one device with what it compiles compiled."""
    made, cache, device = make(bench.empty(), **(small if bench.is_small else {})), bench.empty("cache"), bench.names[0]
    before = run_set(made.root, "--devices", device, cache=cache)
    run = run_set(made.root, "--devices", device, FRESH, cache=cache)
    note = f"whole {run.wall_s:.1f} s, I {bench.import_s:.1f} s, first verdict {run.first_s or 0:.1f} s"
    note += f", run before {before.wall_s:.1f} s; {count_statuses(run)}"
    yield Figure(name, run.wall_s - bench.import_s, "s", note, run.odd(made.expected))


def take_isolated(bench: Bench) -> Iterator[Figure]:
    """A worker for each job beside a worker for each solution."""
    make = sets.triton if bench.kind == "cuda" else sets.python
    made = make(bench.empty(), **({"solutions": 2, "batches": (1, 2)} if bench.is_small else {}))
    flags, cache = ("--devices", bench.names[0], FRESH), bench.empty("cache")
    run_set(made.root, *flags, cache=cache)
    kept = run_set(made.root, *flags, cache=cache)
    each = run_set(made.root, *flags, "--use-isolated-runner", cache=cache)
    note = f"{each.wall_s:.1f} s beside {kept.wall_s:.1f} s"
    yield Figure("isolated-ratio", each.wall_s / kept.wall_s, "x", note, kept.odd(made.expected) + each.odd())


def take_scaling(bench: Bench) -> Iterator[Figure]:
    """All GPUs beside one: 64 Triton solutions x 32 workloads, the start left out."""
    made, cache = sets.triton(bench.empty(), 4 if bench.is_small else 64, sets.BATCHES_OF_32), bench.empty("cache")
    run_set(made.root, "--quick", "--workloads", "w00", cache=cache)
    together = run_set(made.root, "--devices", *bench.names, FRESH, cache=cache)
    alone = run_set(made.root, "--devices", bench.names[0], FRESH, cache=cache)
    note = f"{alone.busy_s:.1f} s on one, {together.busy_s:.1f} s on all"
    odd = together.odd(made.expected) + alone.odd(made.expected)
    yield Figure(f"scaling-{len(bench.names)}", alone.busy_s / together.busy_s, "x", note, odd)


def take_slow_reference(bench: Bench) -> Iterator[Figure]:
    """A reference of 24 ms on 47 workloads with an empty cache, then with the baselines that were kept."""
    is_large = bench.kind == "cuda" and not bench.is_small
    width, count = (4096, sets.SLOW_WORKLOADS) if is_large else (256, 3)
    rows = range(width // 2, width // 2 + 8 * count, 8)
    steps = calibrate(sets.REFERENCE_MS if is_large else 2.0, rows[count // 2], width)
    made = sets.slow_reference(bench.empty(), steps=steps, width=width, rows=rows)
    flags, cache = ("--devices", bench.names[0]), bench.empty("cache")
    run, again = (run_set(made.root, *flags, cache=cache) for _ in range(2))
    odd = run.odd(made.expected) + again.odd(made.expected)
    yield Figure(f"slow-reference-first{bench.suffix}", (run.first_s or run.wall_s) - bench.import_s, "s")
    note = f"whole {run.wall_s:.1f} s, with kept baselines {again.wall_s:.1f} s"
    yield Figure(f"slow-reference{bench.suffix}", run.wall_s - bench.import_s, "s", note, odd)


def take_bundled(bench: Bench) -> Iterator[Figure]:
    """The bundled set in the cache of this user, whose builds a run before has made."""
    flags = ["--devices", bench.names[0], *(["--definitions", "rmsnorm_h4096", "--quick"] if bench.is_small else [])]
    run_set(sets.BUNDLED, *flags)
    run = run_set(sets.BUNDLED, *flags, FRESH)
    yield Figure(f"bundled{bench.suffix}", run.wall_s, "s", count_statuses(run), run.odd())


def take_edit_loop(bench: Bench) -> Iterator[Figure]:
    """From the save of a solution to its next verdict, with `run --solution FILE --watch`."""
    made, file, saves = sets.python(bench.empty(), 1, (1, 2)), bench.folder / "draft.py", 2 if bench.is_small else 10
    file.write_text(sets.SMALL_RMSNORM)
    command = [sys.executable, "-m", "flashinfer_bench", "run", "--local", str(made.root), "--watch"]
    command += ["--solution", str(file), "--definition", "rmsnorm_h1024", "--devices", "cpu", "--no-save-results"]
    process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    taken: list[float] = []
    saved_s = 0.0
    for line in process.stderr:
        if VERDICT.match(line) and saved_s:
            taken.append(time.monotonic() - saved_s)
            saved_s = 0.0
        elif line.startswith("waiting until"):
            if len(taken) == saves:
                process.send_signal(signal.SIGINT)
                break
            file.write_text(f"# {len(taken)}\n{sets.SMALL_RMSNORM}")
            saved_s = time.monotonic()
    process.communicate(timeout=60)
    odd = [] if len(taken) == saves else [f"{len(taken)} of {saves} saves were judged"]
    note = f"{min(taken):.2f} to {max(taken):.2f} s" if taken else ""
    yield Figure("edit-loop", statistics.median(taken) if taken else None, "s", note, odd)


def take_resident(bench: Bench) -> Iterator[Figure]:
    """Distinct solutions submitted to an `Engine` one after the other, and as many at once (--count)."""
    from flashinfer_bench import BenchmarkConfig, Engine, Solution, Trace, TraceSet

    kind, count = bench.kind, 2 if bench.is_small else bench.asked.count
    made = sets.definition("double", {"x": "float32 n"}, {"y": "float32 n"}, {"n": None}, DOUBLE.format(number=0))
    root = sets.write(bench.empty(), made, [], sets.workloads(made, "n", (4096,)), None).root
    spec = {"language": "triton" if kind == "cuda" else "python"}
    texts = [(TRITON if kind == "cuda" else DOUBLE).replace("{number}", str(n)) for n in range(2 * count + 1)]
    solutions = [
        Solution.model_validate(sets.solution("double", f"double_{n}", text, **spec)) for n, text in enumerate(texts)
    ]
    odd: list[str] = []

    def check(traces: list[Trace]) -> float:
        """Note a trace that is not PASSED; return the seconds that its first call compiled."""
        evaluation = traces[0].evaluation
        odd.extend([] if evaluation and evaluation.status.value == "PASSED" else [str(evaluation)])
        found = COMPILED.search(evaluation.log if evaluation else "")
        return float(found.group(1)) if found else 0.0

    def submit(solution: Solution) -> tuple[float, float]:
        begin_s = time.monotonic()
        traces = engine.submit(solution).result(timeout_s=300)
        return time.monotonic() - begin_s, check(traces)

    device = f"cuda:{bench.names[0]}" if kind == "cuda" else "cpu"
    config = BenchmarkConfig.default(devices=[device])
    with Engine(TraceSet.from_path(root), config, cache=bench.empty("cache")) as engine:
        first_s, _ = submit(solutions[0])
        taken = [submit(one) for one in solutions[1 : count + 1]]
        begin_s = time.monotonic()
        for task in [engine.submit(one) for one in solutions[count + 1 :]]:
            check(task.result(timeout_s=600))
        at_once_s = time.monotonic() - begin_s
    lines = sum(len(path.read_text().splitlines()) for path in (root / "traces").rglob("*.jsonl"))
    beside = sorted(whole_s - compiling_s for whole_s, compiling_s in taken)
    whole_s, compiling_s = (statistics.median(column) for column in zip(*taken, strict=True))
    note = f"of {count}, {lines - len(solutions)} confirmations, first {first_s:.2f} s"
    yield Figure(f"resident-median-{kind}", statistics.median(beside), "s", note, odd)
    yield Figure(f"resident-p90-{kind}", beside[int(0.9 * (count - 1))], "s")
    yield Figure(f"resident-whole-{kind}", whole_s, "s", f"compiling {compiling_s:.3f} s")
    yield Figure(f"resident-rate-{kind}", count / at_once_s, "/s", f"{count} at once in {at_once_s:.2f} s")


def take_big_sets(bench: Bench) -> Iterator[Figure]:
    """100,000 recorded traces: load, `report summary`, `report html`, plan of `run --resume` (best of three)."""
    root, pages = bench.empty(), bench.empty("pages")
    write_big_set(root, *((1, 3, 4) if bench.is_small else BIG))
    load = "import sys; from flashinfer_bench.data import TraceSet; TraceSet.from_path(sys.argv[1])"
    main, local = ["-m", "flashinfer_bench"], ["--local", str(root)]
    steps = {
        "load": ["-c", load, str(root)],
        "summary": [*main, "report", "summary", *local],
        "html": [*main, "report", "html", str(pages / "pages"), *local],
        "resume-plan": [*main, "run", "--resume", "--dry-run", "--devices", "cpu", *local],
    }
    for name, command in steps.items():
        seconds, cpu_seconds, gigabytes = measure_process(command, 1 if bench.is_small else 3)
        yield Figure(name, seconds, "s", f"{cpu_seconds:.2f} s of the processor")
        yield Figure(f"{name}-memory", gigabytes, "GB")


def write_big_set(root: Path, definitions: int, solutions: int, workloads: int) -> None:
    """Write a set, judge one job of it, and record a trace like that one for each job."""
    from flashinfer_bench import Benchmark, BenchmarkConfig, TraceSet
    from flashinfer_bench.data.store import layout

    for index in range(definitions):
        axes = {"n": None, "m": 64}
        made = sets.definition(f"double_{index}", {"x": "float32 n m"}, {"y": "float32 n m"}, axes, DOUBLE)
        written = [
            {**sets.solution(made["name"], f"one_{index}_{n}", DOUBLE.format(number=n)), "author": f"a{n % AUTHORS}"}
            for n in range(solutions)
        ]
        sets.write(root, made, written, sets.workloads(made, "n", range(1, workloads + 1)), None)
    job = {"solutions": ["one_0_0"], "workloads": ["w00"], "definitions": ["double_0"]}
    with Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(devices=["cpu"], **job)) as benchmark:
        benchmark.run_all()
    (file,) = (root / "traces").rglob("*.jsonl")
    recorded = json.loads(file.read_text())
    extra = recorded["evaluation"]["extra"]["run"]
    with Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(devices=["cpu"])) as benchmark:
        jobs = benchmark.plan().jobs
    lines: dict[Path, list[str]] = {}
    for number, one in enumerate(jobs):
        recorded |= {"definition": one.definition.name, "solution": one.solution.name}
        recorded["workload"] = one.workload.model_dump(mode="json", exclude_unset=True)
        changed = {"solution": "0" * 64} if int(one.solution.name.rpartition("_")[2]) % CHANGED == 0 else {}
        extra |= {"fingerprint": {**one.fingerprint, **changed}, "seed": number}
        at = {"author": one.solution.author, "op_type": "bench", "definition": one.definition.name}
        path = layout.traces_path(root, **at)
        lines.setdefault(path, []).append(json.dumps(recorded, separators=(",", ":")))
    for path, texts in lines.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{text}\n" for text in texts))


def take_builds(bench: Bench) -> Iterator[Figure]:
    """96 CUDA solutions that begin with torch's header, built at once; on a machine without nvcc two small C++ ones."""
    from flashinfer_bench.base.host import usable_cores
    from flashinfer_bench.compile import BuildPool
    from flashinfer_bench.data import Solution

    is_cuda = shutil.which("nvcc") is not None and not bench.is_small
    count, text, path = (96, CUDA, "main.cu") if is_cuda else (2, CPP, "main.cpp")
    spec = {"entry_point": f"{path}::run", "language": "cuda" if is_cuda else "cpp"}
    spec |= {"binding": "torch", "target_hardware": ["cuda"]} if is_cuda else {"target_hardware": ["cpu"]}
    documents = [
        sets.solution("double", f"built_{n}", text.format(number=n), fills=not is_cuda, **spec) for n in range(count)
    ]
    cache, begin_s = bench.empty("cache"), time.monotonic()
    solutions = [Solution.model_validate(one) for one in documents]
    with BuildPool(cache) as build_pool:
        built = list(build_pool.build_all(solutions))
    wall_s = time.monotonic() - begin_s
    with BuildPool(cache) as build_pool:
        build_pool.add(solutions)
        again = build_pool.open_builds
    odd = [str(one.error)[:300] for one in built if one.error] + ["built twice"] * bool(again)
    total_s = sum(one.seconds for one in built)
    yield Figure(
        "build-ratio" if is_cuda else "build-ratio-cpp",
        wall_s * usable_cores() / total_s,
        "x",
        f"{count} builds in {wall_s:.1f} s",
        odd,
    )


def take_measurement(_bench: Bench) -> Iterator[Figure]:
    """3 trials of 10 + 50 calls of a 2 us kernel in a process that is up."""
    import torch

    from flashinfer_bench.timing.clocks import CuptiClock
    from flashinfer_bench.timing.cupti import CuptiRecorder
    from flashinfer_bench.timing.flush import GpuQueue
    from flashinfer_bench.timing.procedure import Procedure, take_trial
    from flashinfer_bench.timing.timeline import Operation, busy_time

    class Tally(CuptiRecorder):
        """A recorder that sums the time in which the GPU did anything."""

        busy_ns = 0

        def take(self) -> list[Operation]:
            operations = super().take()
            self.busy_ns += busy_time(operations)
            return operations

    device = torch.device("cuda", 0)
    x = torch.randn(64, 4096, device=device).bfloat16()
    y, recorder = torch.empty_like(x), Tally()
    clock = CuptiClock(GpuQueue(device), recorder)
    procedure = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)
    taken = []
    for _ in range(4):  # the first warms up
        recorder.busy_ns, begin_s = 0, time.perf_counter()
        for _ in range(3):
            take_trial(lambda _index: lambda: torch.add(x, 1, out=y), clock, procedure)
        wall_ms = (time.perf_counter() - begin_s) * 1e3
        taken.append((wall_ms, recorder.busy_ns / 1e6 / wall_ms))
    yield Figure("measurement-cost", max(wall_ms for wall_ms, _ in taken[1:]), "ms")
    yield Figure("measurement-busy", min(share for _, share in taken[1:]))


def take_comparison(bench: Bench) -> Iterator[Figure]:
    """Comparing 1 GB of bfloat16, beyond the time of reading both sides twice; one wrong element is found."""
    import torch

    from flashinfer_bench.bench.evaluators.compare.outputs import compare
    from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance

    elements = 1 << (16 if bench.is_small else 29)
    device = torch.device(bench.kind)
    expected = torch.randn(elements, dtype=torch.bfloat16, device=device)
    got = expected.clone()
    got[elements // 4 * 3] = 100.0

    def time_ms(call: Callable[[], object]) -> float:
        taken = []
        for _ in range(6):
            begin_s = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken.append((time.perf_counter() - begin_s) * 1e3)
        return statistics.median(taken[1:])

    reading_ms = 2 * time_ms(lambda: [side.view(torch.int64).sum() for side in (expected, got)])
    call = partial(compare, expected, got, Tolerance(1e-2, 1e-2, 1.0))
    found = call()
    odd = [] if found.mismatched == 1 else [f"{found.mismatched} wrong elements were found"]
    yield Figure(f"compare-1gb{bench.suffix}", time_ms(call) - reading_ms, "ms", odd=odd)


def take_server(bench: Bench) -> Iterator[Figure]:
    """A server with 19 clients that ask in turn, then beside one that floods it: growth of the others' wait."""
    from flashinfer_bench.client import Client
    from flashinfer_bench.data import Solution

    clients, flood = (2, 4) if bench.is_small else (QUIET_CLIENTS, FLOOD)
    made = sets.definition("double", {"x": "float32 n"}, {"y": "float32 n"}, {"n": None}, DOUBLE.format(number=0))
    root = sets.write(bench.empty(), made, [], sets.workloads(made, "n", (256,)), None).root
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "flashinfer_bench", "serve", "--local", str(root), "--port", str(port)]
    command += ["--devices", bench.names[0], "--quick"]
    server = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True)

    def submit(client: Client, name: str) -> str:
        solution = sets.solution("double", name, DOUBLE.format(number=name))
        return client.submit(Solution.model_validate(solution))

    def talk(prefix: str, number: int) -> list[float]:
        with Client(f"http://127.0.0.1:{port}", submitter=f"quiet{number}") as client:
            return [time_one(client, f"{prefix}_{number}_{turn}") for turn in range(5)]

    def time_one(client: Client, name: str) -> float:
        begin_s = time.monotonic()
        client.wait(submit(client, name))
        return time.monotonic() - begin_s

    def talk_all(prefix: str) -> float:
        with ThreadPoolExecutor(clients) as pool:
            waits = pool.map(partial(talk, prefix), range(clients))
            return statistics.median(chain.from_iterable(waits))

    try:
        if not any("serving on" in line for line in server.stderr or ()):
            raise SystemExit("the server did not start")
        with Client(f"http://127.0.0.1:{port}", submitter="flood") as client:
            time_one(client, "first")
            alone_s = talk_all("alone")
            tasks = [submit(client, f"flood_{number}") for number in range(flood)]
            beside_s = talk_all("beside")
            ended = Counter(client.wait(task).status for task in tasks)
    finally:
        server.terminate()
        server.communicate(timeout=90)
    lines = [json.loads(line) for path in (root / "traces").rglob("*.jsonl") for line in path.open()]
    passed = {line["solution"] for line in lines if line["evaluation"]["status"] == "PASSED"}
    is_right = len(passed) == len(lines) == flood + 10 * clients + 1
    odd = [] if is_right else [f"{len(lines)} verdicts, {len(passed)} PASSED; the flood's tasks: {ended}"]
    yield Figure("server-wait", alone_s, "s", f"{clients} clients")
    yield Figure("server-wait-growth", beside_s / alone_s - 1, "", f"{flood} tasks beside", odd)


FEW: Final = {"batches": (1, 2)}
TWO: Final = {"solutions": 2, **FEW}
many: Final = partial(sets.triton, solutions=16, batches=sets.BATCHES_OF_32)
ROWS: Final = {
    "help": Row(take_help),
    **{
        name: Row(partial(take_whole, name=name, make=make, small=small), "gpu", about)
        for name, make, small, about in (
            ("verdicts", sets.verdicts, FEW, "4 rmsnorm solutions x 5 workloads, half of them wrong or raising"),
            ("gemm", sets.gemm, FEW, "2 gemm solutions x 4 workloads"),
            ("sampler", sets.sampler, {}, "one sampler, batch 2, 32,000 tokens"),
            ("runners", sets.triton, TWO, "8 Triton solutions x 8 workloads"),
            ("many", many, TWO, "16 Triton solutions x 32 workloads"),
        )
    },
    "cold-run": Row(partial(take_whole, name="cold-run", make=sets.python, small=TWO), "", "8 Python solutions x 8"),
    "isolated": Row(take_isolated),
    "scaling": Row(take_scaling, "gpus"),
    "slow-reference": Row(take_slow_reference),
    "bundled": Row(take_bundled),
    "edit-loop": Row(take_edit_loop),
    "resident": Row(take_resident),
    "big-sets": Row(take_big_sets),
    "builds": Row(take_builds),
    "measurement": Row(take_measurement, "gpu"),
    "comparison": Row(take_comparison),
    "server": Row(take_server),
}


def main() -> int:
    """Take the rows."""
    parser = make_parser(__doc__ or "", ROWS)
    parser.add_argument("--count", type=int, default=100, help="resident: solutions in turn, and as many at once")
    return run_rows(ROWS, parser.parse_args(), "speed")


if __name__ == "__main__":
    sys.exit(main())
