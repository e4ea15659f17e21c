"""Check `inspect` on a machine with an NVIDIA GPU, ncu and compute-sanitizer.

    python -m benchmarks.check_inspect [--raw FILE] [--limit SECONDS] [--only walls sanitizer ncu command]

It runs ncu without walls, then in the closest ones, and in further ones only where these do not do. A tool that hangs
is looked at before it is ended (`benchmarks/hanging.py`). It has planted faults found with their lines: a write out of
bounds, a race, a read of memory that nobody wrote. It holds ncu's duration of four kernels against our busy time
(within 5 %). Prints a line for each, and exits with 1 where one is wrong or was left out. All that the tools said goes
to FILE. Run it from the root of the repository, with nothing else on the GPU.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.hanging import HangWatch
from flashinfer_bench import agents
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.bench.runner.client import LocalPlaces
from flashinfer_bench.bench.runner.sandbox import find_sandbox
from flashinfer_bench.compile import BuildFarm, BuildTarget
from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload
from flashinfer_bench.examine.inspect.look import find_tool, look, with_line_info
from flashinfer_bench.examine.inspect.ncu import list_metrics, plan_ncu, read_profile, render_profile
from flashinfer_bench.examine.inspect.sanitizer import TYPES, plan_sanitizer, read_findings, render_findings
from flashinfer_bench.sandbox.namespaces import has_own_network

NCU, SANITIZER = "ncu", "compute-sanitizer"
TRIAL_S = 30
"""Seconds that a tool has with a sandbox, and without."""
WITHIN = 0.05

TVM_FFI = """
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>
void run(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
  launch(static_cast<const float*>(x.data_ptr()), static_cast<float*>(y.data_ptr()), x.size(0), stream);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);
"""
TORCH = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
void run(torch::Tensor x, torch::Tensor y) {
  launch(x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), at::cuda::getCurrentCUDAStream());
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""
CUDA = """#include <cuda_runtime.h>

__global__ void kernel(const float* __restrict__ x, float* y, long n) {
  long i = blockIdx.x * 256L + threadIdx.x;
%s
}

static void launch(const float* x, float* y, long n, cudaStream_t stream) {
  kernel<<<(n + 256) / 256, 256, 0, stream>>>(x, y, n);
}
"""
RIGHT = "  if (i < n) y[i] = 2.0f * x[i];"
VECTOR = """  for (long v = i * 4; v < n; v += gridDim.x * 1024L) {
    float4 four = *reinterpret_cast<const float4*>(x + v);
    *reinterpret_cast<float4*>(y + v) = make_float4(2.0f * four.x, 2.0f * four.y, 2.0f * four.z, 2.0f * four.w);
  }"""
"""Four elements a thread; for counts that four divides."""
PLANTED = {
    "memcheck": "  if (i <= n) {\n    float v = i < n ? 2.0f * x[i] : 0.0f;\n    y[i] = v;  // here\n  }",
    "racecheck": "  __shared__ float s[256];\n  s[threadIdx.x] = i < n ? x[i] : 0.0f;  // here\n"
    "  float v = s[255 - threadIdx.x];  // here\n  if (i < n) y[i] = 2.0f * v;",
    "initcheck": "  if (i < n) {\n    float before = y[i];  // here\n    y[i] = 2.0f * x[i] + 0.0f * before;\n  }",
}
TRITON = """import torch
import triton
import triton.language as tl


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2.0 * tl.load(x + at, mask=at < n), mask=at < n{more})  # here


def run(x, y):
    double[(triton.cdiv(x.numel() + 1, 1024),)](x, y, x.numel(), BLOCK=1024)
"""
MATMUL = "import torch\n\n\ndef run(a, b):\n    return a @ b.T\n"
DOUBLE = "def run(x):\n    return x * 2\n"

DEFINITIONS = {
    "double": {
        "axes": {"n": {"type": "var"}},
        "inputs": {"x": {"shape": ["n"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["n"], "dtype": "float32"}},
        "reference": DOUBLE,
    },
    "matmul": {
        "axes": {"m": {"type": "var"}, "n": {"type": "const", "value": 4096}, "k": {"type": "const", "value": 4096}},
        "inputs": {
            "a": {"shape": ["m", "k"], "dtype": "bfloat16"},
            "b": {"shape": ["n", "k"], "dtype": "bfloat16"},
        },
        "outputs": {"c": {"shape": ["m", "n"], "dtype": "bfloat16"}},
        "reference": MATMUL,
    },
}


def make_solution(name, source, *, language, definition="double", style=True):
    entry = "main.cu" if language == "cuda" else "main.py"
    spec = {"language": language, "target_hardware": ["cuda"], "entry_point": f"{entry}::run"}
    spec["destination_passing_style"] = style
    if language == "cuda":
        has_tvm = importlib.util.find_spec("tvm_ffi") is not None
        spec["binding"] = "tvm-ffi" if has_tvm else "torch"
        source = CUDA % source + (TVM_FFI if has_tvm else TORCH)
    sources = [{"path": entry, "content": source}]
    described = {"name": name, "definition": definition, "author": "check", "spec": spec, "sources": sources}
    return Solution.model_validate(described)


def make_set(solutions, sizes):
    """Return a trace set in memory, and the subject of each solution by name."""
    definitions = {
        name: Definition.model_validate({"name": name, "op_type": "gemm" if name == "matmul" else "test", **rest})
        for name, rest in DEFINITIONS.items()
    }
    workloads = {}
    for name, axes in sizes.items():
        inputs = {one: {"type": "random"} for one in DEFINITIONS[name]["inputs"]}
        workload = Workload.model_validate({"uuid": f"{name}-1", "axes": axes, "inputs": inputs})
        workloads[name] = [Trace(definition=name, workload=workload)]
    groups = {}
    for solution in solutions:
        groups.setdefault(solution.definition, []).append(solution)
    trace_set = TraceSet(definitions=definitions, solutions=groups, workloads=workloads)
    subjects = {one.name: (trace_set, one, workloads[one.definition][0].workload) for one in solutions}
    return trace_set, subjects


class Checks:
    """Prints and counts; what the tools said goes to a file."""

    def __init__(self, raw, device, limit_s):
        self.raw = raw.open("w", encoding="utf-8")
        self.device = device
        self.deadline = time.monotonic() + limit_s
        self.wrong = 0
        self.cache = Path(tempfile.mkdtemp(prefix="check-inspect-"))
        self.cache.chmod(0o755)
        self.sandbox = {NCU: "auto", SANITIZER: "auto"}
        self.lock = threading.Lock()

    def say(self, text):
        with self.lock:
            print(text, flush=True)
        self.write(text + "\n")

    def write(self, text):
        with self.lock:
            self.raw.write(text)
            self.raw.flush()

    def check(self, is_right, text):
        self.wrong += not is_right
        self.say(f"{'ok   ' if is_right else 'WRONG'} {text}")
        return is_right

    def has_time(self, what, seconds):
        """Say whether so much is left; what is left out counts as wrong."""
        left = self.deadline - time.monotonic()
        return left >= seconds or self.check(False, f"{what} was left out: {left:.0f} s are left")

    def look(self, subject, plan, *, sandbox="auto"):
        start = time.monotonic()
        with HangWatch(Path(plan[0].argv[0]), after_s=plan[0].limit_s - 5) as watch:
            done = look(*subject, plan, self.device, sandbox=sandbox, cache=self.cache, tell=self.say)
        text = f"\n##### {subject[1].name} {plan[0].argv[0]} {sandbox}\n"
        for step in done.steps:
            text += f"##### step {step.name} ended {step.ended!r} error {step.error!r}\n"
            text += f"##### argv {' '.join(next(one.argv for one in plan if one.name == step.name))}\n"
            text += step.text + "\n"
        self.write(f"{text}##### notes {done.notes}, {time.monotonic() - start:.1f} s\n{watch.found}")
        if watch.found:
            self.say(f"      it hung:\n{watch.summary}")
        return done

    def look_at(self, tool, subject, plan):
        return self.look(subject, plan, sandbox=self.sandbox[tool])


def tell_machine(checks):
    checks.say(f"{platform.platform()}, Python {platform.python_version()}, uid {os.getuid()}, {checks.device}")
    checks.say(f"own network: {has_own_network()}, sandbox: {find_sandbox('auto', checks.cache)}")
    for command in (["ncu", "--version"], ["compute-sanitizer", "--version"], ["nvcc", "--version"], ["nvidia-smi"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            checks.write(f"{command}: {done.stdout}{done.stderr}\n")
            line = [one for one in done.stdout.splitlines() if "ersion" in one]
            checks.say(f"{command[0]}: {line[0].strip() if line else done.stdout[:200]}")
        except OSError as error:
            checks.say(f"{command[0]}: {error}")
    checks.say(
        f"tvm_ffi {importlib.util.find_spec('tvm_ffi') is not None}, triton, cupti: "
        f"{importlib.util.find_spec('triton') is not None}, {importlib.util.find_spec('cupti') is not None}"
    )


def check_walls(checks, subjects):
    """Profile a kernel without a sandbox, and with one."""
    plan = plan_ncu(find_tool(NCU), set="basic", timeout=TRIAL_S)
    for sandbox in ("off", "auto"):
        if not checks.has_time(f"ncu with --sandbox {sandbox}", 20):
            return
        start = time.monotonic()
        try:
            done = checks.look(subjects["right_cuda"], plan, sandbox=sandbox)
            document, _ = read_profile(done)
            found = f"{document['kernels'][0]['duration_us']} us"
        except Exception as error:
            checks.check(False, f"ncu with --sandbox {sandbox}: {str(error)[:600]}")
            if sandbox == "off":
                try_plain_ncu(checks)
            continue
        took = time.monotonic() - start
        checks.check(True, f"ncu works with --sandbox {sandbox}: {found}, {took:.1f} s; {done.notes}")
        checks.sandbox[NCU] = sandbox


def try_plain_ncu(checks):
    """Run ncu as a user would, without this package."""
    code = "import torch; print(torch.ones(1000, device='cuda').mul(2).sum().item())"
    command = [str(find_tool(NCU)), "--clock-control", "none", "--set", "basic", sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_S, check=False)
        said = f"exit code {done.returncode}\n{(done.stdout + done.stderr)[-1500:]}"
    except subprocess.TimeoutExpired as error:
        said = str(error)
    checks.say(f"      plain ncu: {said}")


def check_ncu(checks, trace_set, subjects):
    """Hold ncu's durations against busy times of runs."""
    config = BenchmarkConfig.default().model_copy(update={"profile_baseline": False})
    with Benchmark(trace_set, config, cache=checks.cache) as benchmark:
        judged = benchmark.run_all(save_results=False)
        for fault in benchmark.faults:
            checks.check(False, f"fault: {fault}")
    program = find_tool(NCU)
    known = list_metrics(program)
    tensor = sorted(name for name in known if "tensor" in name)
    checks.write(f"{len(known)} metrics, of tensor cores: {tensor}\n")
    checks.check(len(known) > 100, f"ncu knows {len(known)} metrics; {len(tensor)} of tensor cores")
    for traces in judged.traces.values():
        for trace in traces:
            evaluation = trace.evaluation
            measurement = (evaluation.extra or {}).get("measurement", {})
            busy_ms = measurement.get("busy_ms")
            checks.write(f"{trace.solution}: {json.dumps(measurement)}\n{evaluation.log}\n")
            if busy_ms is None:
                latency = evaluation.performance.latency_ms if evaluation.performance else None
                checks.check(False, f"{trace.solution}: {evaluation.status}, no busy time; latency {latency}")
                continue
            subject = subjects[trace.solution]
            if not checks.has_time(f"ncu of {trace.solution}", 15):
                continue
            try:
                done = checks.look_at(NCU, subject, plan_ncu(program, known))
                document, _ = read_profile(done)
            except Exception as error:
                checks.check(False, f"{trace.solution}: {str(error)[:600]}")
                continue
            checks.write(json.dumps(document, indent=1) + "\n")
            ratio = (document["duration_us"] or 0) / 1e3 / busy_ms
            text = f"{trace.solution}: ncu {document['duration_us']} us, busy {busy_ms * 1e3:.2f} us, ratio {ratio:.4f}"
            checks.check(abs(ratio - 1) <= WITHIN, text)
            checks.say(render_profile(document))
            missing = [key for key, value in document["kernels"][0].items() if value in (None, [])]
            checks.check(
                not missing, f"{trace.solution}: all metrics are there{'; not: ' * bool(missing)}{missing or ''}"
            )


def check_sanitizer(checks, subjects):
    """Have planted faults found, and nothing in a right solution; nothing is timed, so all run side by side."""
    for sandbox in ("auto", "off"):
        if not checks.has_time(f"compute-sanitizer with --sandbox {sandbox}", 20):
            return
        checks.sandbox[SANITIZER] = sandbox
        if check_planted(checks, "memcheck_cuda", subjects["memcheck_cuda"]):
            break
    checks.say(f"compute-sanitizer with --sandbox {checks.sandbox[SANITIZER]}")
    if not checks.has_time("the other planted faults", 20):
        return
    LocalPlaces.lock = lambda *_: iter(())  # nothing else is on the GPU
    rest = {name: subject for name, subject in subjects.items() if name != "memcheck_cuda"}
    with ThreadPoolExecutor(len(rest)) as threads:
        list(threads.map(lambda item: check_planted(checks, *item), rest.items()))


def check_planted(checks, name, subject):
    """Check one solution; tell whether that is found which was planted."""
    type_, _, language = name.rpartition("_")
    types = [type_]
    if type_ == "right":
        types = list(TYPES) if language == "cuda" else ["memcheck"]
    source = subject[1].sources[0]
    marked = [n for n, line in enumerate(source.content.splitlines(), 1) if line.endswith(("# here", "// here"))]
    limit_s = TRIAL_S if name == "memcheck_cuda" else 60
    try:
        done = checks.look_at(SANITIZER, subject, plan_sanitizer(find_tool(SANITIZER), types, limit_s))
    except Exception as error:
        return checks.check(False, f"{name}: {str(error)[:600]}")
    document = read_findings(done)
    findings = document["findings"]
    checks.say(render_findings(document).rstrip())
    if type_ == "right":
        return checks.check(not findings and not document["problems"], f"{name}: nothing found")
    places = [(place["file"], place["line"]) for finding in findings for place in finding["places"]]
    text = f"{name}: lines {marked}, found {sorted(set(places), key=str)[:8]} in {language}"
    return checks.check(all((source.path, line) in places for line in marked), text)


def check_command(checks):
    """Call the command as a user does."""
    base = [sys.executable, "-m", "flashinfer_bench", "inspect"]
    given = ["--local", "flashinfer-trace", "--solution", "triton_rmsnorm_h4096", "--workload", "rms-1"]
    trace_set = TraceSet.from_path("flashinfer-trace")
    workloads = [one.workload.uuid for one in trace_set.workloads["rmsnorm_h4096"]]
    names = [one.name for one in trace_set.solutions["rmsnorm_h4096"] if one.spec.language.value == "triton"]
    given[3], given[5] = (names or [given[3]])[0], workloads[-1]
    for tool, more in (("ncu", ["--format", "json"]), ("sanitizer", ["--checks", "memcheck"])):
        if not checks.has_time(f"inspect {tool}", 20):
            continue
        command = [*base, tool, *given, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        checks.say(f"{' '.join(command[2:])}: exit code {done.returncode}\n{done.stdout[:3000]}{done.stderr[-1500:]}")
        checks.check(done.returncode == 0, f"inspect {tool}")
    if not checks.has_time("agents", 60):
        return
    options = agents.flashinfer_bench_list_ncu_options()
    checks.write(options + "\n")
    checks.check("WarpStateStats" in options, f"list_ncu_options: {len(options.splitlines())} lines")
    text = agents.flashinfer_bench_run_ncu(given[3], given[5], trace_set_path=given[1], set="basic", max_lines=40)
    checks.write(text + "\n")
    checks.check(not text.startswith("ERROR") and len(text.splitlines()) == 40, f"run_ncu: {text[:300]}")
    text = agents.flashinfer_bench_run_sanitizer(
        given[3], given[5], trace_set_path=given[1], sanitizer_types=["memcheck"]
    )
    checks.write(text + "\n")
    checks.check("memcheck: nothing found" in text, f"run_sanitizer: {text[:300]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--raw", type=Path, default=Path("check_inspect.txt"), help="file for all that the tools say")
    parser.add_argument("--limit", type=float, default=140, help="nothing is begun after so many seconds (140)")
    parts = ("walls", "sanitizer", "ncu", "command")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    args = parser.parse_args()
    checks = Checks(args.raw, discover_devices(None)[0], args.limit)
    tell_machine(checks)
    timed = [
        make_solution("right_cuda", RIGHT, language="cuda"),
        make_solution("vector_cuda", VECTOR, language="cuda"),
        make_solution("right_triton", TRITON.format(more=""), language="triton"),
        make_solution("torch_matmul", MATMUL, language="python", definition="matmul", style=False),
    ]
    faulty = [make_solution(f"{type_}_cuda", source, language="cuda") for type_, source in PLANTED.items()]
    faulty.append(make_solution("memcheck_triton", TRITON.format(more=" + 1"), language="triton"))
    trace_set, large = make_set(timed, {"double": {"n": 1 << 26}, "matmul": {"m": 4096}})
    _, small = make_set([timed[0], timed[2], *faulty], {"double": {"n": 1000}})
    with BuildFarm(checks.cache, target=BuildTarget.of([checks.device.capability])) as farm:
        for built in farm.build_all(
            [one for solution in (*timed, *faulty) for one in (solution, with_line_info(solution))]
        ):
            checks.say(f"built {built.solution.name} in {built.seconds:.1f} s {built.error or ''}")
    steps = {
        "walls": lambda: check_walls(checks, small),
        "ncu": lambda: check_ncu(checks, trace_set, large),
        "sanitizer": lambda: check_sanitizer(checks, small),
        "command": lambda: check_command(checks),
    }
    for name in args.only:
        start = time.monotonic()
        try:
            steps[name]()
        except Exception:
            checks.check(False, f"{name}: {traceback.format_exc()}")
        checks.say(f"----- {name}: {time.monotonic() - start:.0f} s")
    checks.say(f"{checks.wrong} wrong; all that was said is in {args.raw}")
    return 1 if checks.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
