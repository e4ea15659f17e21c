"""How well many CUDA builds share the cores, and whether a GPU measures meanwhile.

    python benchmarks/bench_build_farm.py [--count 24] [--seconds 20] [--jobs N] [--binding torch] [--compile-only]
    python benchmarks/bench_build_farm.py --binding torch --count 96 --kernels 2 [--plain-headers]

Generates CUDA solutions of y = 2 x that take about so many seconds each to compile (calibrated first, or of so many
kernels), runs them with an empty cache on every visible GPU beside one solution in Python, then once more with the full
cache. Goals: all are built within 1.5 x (sum of compile times / cores), a GPU has measured a job before the last is
built, and the second run compiles nothing. Exits with 1 where a goal is missed. --compile-only needs no GPU. Nothing is
saved.

The second line is 96 small solutions as people write them: a .cpp file that begins with <torch/extension.h>, and a .cu
file. --plain-headers never precompiles that header, --one-file puts all into the .cu file, where nothing helps.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, JobStarted, Notice
from flashinfer_bench.compile import BuildFarm
from flashinfer_bench.compile import farm as farm_module
from flashinfer_bench.compile.cache import ArtifactCache
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload

GOAL = 1.5
CALIBRATION = (20, 220)
"""Numbers of kernels that are compiled to learn what one costs; fewer, and the compiler's start hides it."""
LENGTHS = (256, 4096, 65536, 1 << 20)
DEFINITION = {
    "name": "double",
    "op_type": "build_farm",
    "axes": {"n": {"type": "var"}},
    "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
    "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x * 2\n",
}
KERNELS = """
#include <cuda_runtime.h>
// Solution number {number}.
template <int N> __global__ void heavy(const float* x, float* y, long n) {{
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i >= n) return;
  float v[16];
#pragma unroll
  for (int k = 0; k < 16; ++k) v[k] = x[(i + k * N) % n];
#pragma unroll
  for (int k = 0; k < 96; ++k) v[(k * 7 + N) % 16] = fmaf(v[k % 16], v[(k + 3) % 16], v[(k * N) % 16]);
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 16; ++k) sum += v[k];
  y[i] = sum;
}}
__global__ void twice(const float* x, float* y, long n) {{
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}}
void launch(const float* x, float* y, long n, int which, cudaStream_t stream) {{
  dim3 grid((n + 255) / 256);
  switch (which) {{
{cases}
    default: twice<<<grid, 256, 0, stream>>>(x, y, n);
  }}
}}
"""
TVM_FFI = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  launch(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.size(0), -1, stream);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
TORCH = """
#include <torch/extension.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
void launch(const float* x, float* y, long n, int which, cudaStream_t stream);
void run(torch::Tensor x, torch::Tensor y) {
  launch(x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), -1, c10::cuda::getCurrentCUDAStream());
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=24, help="how many solutions")
    parser.add_argument("--seconds", type=float, default=20.0, help="what each should take to compile")
    parser.add_argument("--kernels", type=int, help="kernels of a solution, instead of finding out how many it takes")
    parser.add_argument("--jobs", type=int, help="compilers at once (default: one less than there are cores)")
    parser.add_argument("--binding", choices=("tvm-ffi", "torch"), default="tvm-ffi")
    parser.add_argument(
        "--one-file", action="store_true", help="with torch: one .cu file, in place of a .cpp and a .cu"
    )
    parser.add_argument("--plain-headers", action="store_true", help="precompile no header")
    parser.add_argument("--compile-only", action="store_true", help="run nothing on a GPU")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FIB_CACHE_PATH"] = folder
        if arguments.plain_headers:
            farm_module.LEAST_BUILDS = sys.maxsize
        kernels = arguments.kernels
        if kernels is None:
            kernels, alone_s = calibrate(Path(folder) / "calibration", arguments)
            print(f"{kernels} kernels a solution; one compiled alone: about {alone_s:.1f} s", flush=True)
        solutions = [make_solution(number, kernels, arguments) for number in range(arguments.count)]
        seen = measure(solutions, Path(folder), arguments)
        entries = ArtifactCache(Path(folder)).entries()
        headers = [one.manifest.build_seconds for one in entries if one.manifest and one.manifest.kind == "header"]
        sys.exit(report({**seen, "headers": headers}, arguments))


def make_solution(number, kernels, arguments):
    """Make a solution with so many kernels that nothing calls and one that does the work."""
    cases = "\n".join(
        f"    case {i}: heavy<{i + 1}><<<grid, 256, 0, stream>>>(x, y, n); break;" for i in range(kernels)
    )
    kernel, binding = KERNELS.format(number=number, cases=cases), arguments.binding
    sources = {"main.cu": kernel + (TVM_FFI if binding == "tvm-ffi" else TORCH)}
    if binding == "torch" and not arguments.one_file:
        sources = {"main.cpp": f"// Solution number {number}.{TORCH}", "kernel.cu": kernel}
    entry = f"{next(iter(sources))}::run"
    spec = {"language": "cuda", "binding": binding, "entry_point": entry, "destination_passing_style": True}
    return parse_solution(f"cuda_{number}", sources, spec)


def parse_solution(name, sources, spec):
    files = [{"path": path, "content": content} for path, content in sources.items()]
    names = {"name": name, "definition": "double", "author": "bench"}
    return Solution.model_validate({**names, "sources": files, "spec": {"target_hardware": ["cuda"], **spec}})


def calibrate(cache, arguments):
    """Return how many kernels make a build last as long as it should, and how long one build then lasts alone."""
    seconds = []
    for kernels in CALIBRATION:
        with BuildFarm(cache, jobs=1) as farm:
            (built,) = farm.build_all([make_solution(-1, kernels, arguments)])
        if built.error is not None:
            sys.exit(f"the generated solution does not compile:\n{built.error}")
        seconds.append(built.seconds)
    each_s = max(0.01, (seconds[1] - seconds[0]) / (CALIBRATION[1] - CALIBRATION[0]))
    kernels = max(1, round(CALIBRATION[0] + (arguments.seconds - seconds[0]) / each_s))
    return kernels, seconds[0] + (kernels - CALIBRATION[0]) * each_s


def measure(solutions, folder, arguments):
    """Build, and run where there is a GPU; return what was seen, times in seconds from the start."""
    seen = {"builds": [], "finished": [], "bad": [], "second": 0}
    if arguments.compile_only:
        watch_builds(seen, time.monotonic())
        with BuildFarm(folder, jobs=arguments.jobs) as farm:
            for built in farm.build_all(solutions):
                seen["bad"] += [str(built.error)] if built.error else []
        with BuildFarm(folder, jobs=arguments.jobs) as farm:
            farm.add(solutions)
            seen["second"] = farm.open_builds
        return seen
    run(solutions, arguments, seen)
    again = {"builds": [], "finished": [], "bad": []}
    run(solutions, arguments, again)
    seen["second"] = len(again["builds"])
    seen["bad"] += again["bad"]
    return seen


def watch_builds(seen, start):
    """Note every build that ends: when, and how long it took."""
    poll = getattr(BuildFarm.poll, "__wrapped__", BuildFarm.poll)

    def watched(farm):
        finished = poll(farm)
        seen["builds"] += [(time.monotonic() - start, built.seconds) for built in finished if not built.was_cached]
        return finished

    watched.__wrapped__ = poll
    BuildFarm.poll = watched


def run(solutions, arguments, seen):
    """Run the solutions and one in Python on every GPU."""
    python = parse_solution(
        "python",
        {"main.py": "def run(x, y):\n    y.copy_(x * 2)\n"},
        {"language": "python", "entry_point": "main.py::run", "destination_passing_style": True},
    )
    workloads = [Workload.model_validate({"uuid": f"n{n}", "axes": {"n": n}, "inputs": {}}) for n in LENGTHS]
    trace_set = TraceSet(
        definitions={"double": Definition.model_validate(DEFINITION)},
        solutions={"double": [*solutions, python]},
        workloads={"double": [Trace(definition="double", workload=one) for one in workloads]},
        traces={},
    )
    start = time.monotonic()
    watch_builds(seen, start)
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(build_jobs=arguments.jobs, iterations=20))
    if benchmark.machine.kind != "cuda":
        sys.exit("there is no GPU here; --compile-only needs none")
    for event in benchmark.run(benchmark.plan(), save_results=False):
        now = time.monotonic() - start
        if isinstance(event, JobStarted):
            seen.setdefault("first_start", now)
        elif isinstance(event, JobFinished):
            evaluation = event.trace.evaluation
            seen["finished"].append((now, event.job.solution.spec.language.value))
            if evaluation.status.value != "PASSED":
                seen["bad"].append(f"{event.job.solution.name}: {evaluation.status.value}: {evaluation.log[:500]}")
        elif isinstance(event, JobFaulted):
            seen["bad"].append(f"{event.job.solution.name}: {event.message[:500]}")
        elif isinstance(event, Notice):
            print(f"  {now:6.1f} s  {event.message}", flush=True)
    seen["wall"] = time.monotonic() - start


def report(seen, arguments):
    """Print the table; return 1 where a goal is missed."""
    cores = len(os.sched_getaffinity(0))
    builds = seen["builds"]
    total_s = sum(seconds for _, seconds in builds)
    last_s = max((end for end, _ in builds), default=0.0)
    ratio = last_s / (total_s / cores) if builds else float("inf")
    rows = [
        ("cores, compilers at once", f"{cores}, {arguments.jobs or max(1, cores - 1)}"),
        ("solutions built", f"{len(builds)} of {arguments.count}"),
        ("a build, mean", f"{total_s / max(1, len(builds)):.1f} s"),
        ("headers precompiled", ", ".join(f"{seconds:.1f} s" for seconds in seen["headers"]) or "none"),
        ("first build done after", f"{min((end for end, _ in builds), default=float('nan')):.1f} s"),
        ("sum of compile times / cores", f"{total_s / cores:.1f} s"),
        ("last build done after", f"{last_s:.1f} s"),
        ("ratio (goal: at most 1.5)", f"{ratio:.2f}"),
        ("compiled in the second run (goal: 0)", str(seen["second"])),
    ]
    goals = [len(builds) == arguments.count, ratio <= GOAL, seen["second"] == 0, not seen["bad"]]
    if not arguments.compile_only:
        compiled = [end for end, language in seen["finished"] if language == "cuda"]
        early = sum(end < last_s for end, _ in seen["finished"])
        rows += [
            ("first job started after", f"{seen.get('first_start', float('nan')):.1f} s"),
            ("first CUDA job measured after", f"{min(compiled, default=float('nan')):.1f} s"),
            ("jobs measured before the last build was done", f"{early} of {len(seen['finished'])}"),
            ("whole run", f"{seen['wall']:.1f} s"),
        ]
        goals.append(bool(compiled) and min(compiled) < last_s)
    for problem in seen["bad"]:
        print(f"NOT PASSED {problem}")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    print("all goals are met" if all(goals) else "a goal is MISSED")
    return 0 if all(goals) else 1


if __name__ == "__main__":
    main()
