"""A fault of ours has no verdict, is reported, and leaves the other jobs alone; a solution's end is its own."""

import os
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from flashinfer_bench import Benchmark, BenchmarkConfig, Engine, TraceSet
from flashinfer_bench.bench.runner import client as session_client
from flashinfer_bench.bench.runner.known_failures import HungCalls
from tests.bench.small_runs import HONEST, QUICKLY, judge, write_set
from tests.kit.make import make_solution, make_trace, make_workload

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

RAISES_ODDLY = """
import torch
class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise RuntimeError("an error that nobody knows")
def run(x):
    y = x * 2
    return y.as_subclass(Odd) if len(x) == 8 else y
"""
"""On the first workload it returns an object that raises when the session reads it."""
REFERENCES = {
    "bad": "def run(x):\n    raise ValueError('no such axis')\n",
    "random": "import torch\ndef run(x):\n    return torch.rand_like(x)\n",
    "odd": RAISES_ODDLY,
    "deadly": "import os\ndef run(x):\n    os._exit(3)\n",
    "good": HONEST,
}


def test_bad_references_and_a_missing_blob_fault_their_jobs_and_no_other(tmp_path):
    """A reference that ends the session is tried twice, by one job alone."""
    trace_set = write_set(tmp_path, {"a": HONEST, "b": HONEST}, REFERENCES, sizes=(8, 9))
    blob = {"type": "safetensors", "path": "none.safetensors", "tensor_key": "x"}
    (tmp_path / "none.safetensors").touch()
    lost = make_workload("lost", inputs={"x": blob})
    trace_set.workloads["good"].append(make_trace(definition="good", workload=lost, solution=None))
    run = judge(trace_set, between=(tmp_path / "none.safetensors").unlink)
    judged = {("good", "w0"), ("good", "w1"), ("odd", "w1")}
    assert set(run.done) == {(f"{name}_{definition}", uuid) for name in "ab" for definition, uuid in judged}
    reported = {fault.job.definition.name: fault.message for fault in run.faults}
    assert Counter(fault.job.definition.name for fault in run.faults) == dict.fromkeys(reported, 4) | {
        "good": 2,
        "odd": 2,
    }
    assert "reference of bad: ValueError: no such axis" in reported["bad"]
    assert "reference of random: a second call with equal inputs gives something else" in reported["random"]
    assert "none.safetensors" in reported["good"]
    assert "an error that nobody knows" in reported["odd"]
    assert "exit code 3" in reported["deadly"]
    assert sum("go back to the queue" in notice for notice in run.notices) <= 6


def test_a_reference_that_hangs_is_ended_by_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr(session_client, "PHASE_GRACE_S", 1.0)
    references = {"endless": "def run(x):\n    while True: pass\n", "good": HONEST}
    run = judge(write_set(tmp_path, {"a": HONEST, "b": HONEST}, references, sizes=(8, 9, 10)), timeout_seconds=2.0)
    reported = [fault.message for fault in run.faults]
    assert "stopped answering in phase 'reference', which may take 3 s" in reported[0]
    assert reported[-1] == "reference of endless ran out of time on workloads w0 and w1"
    # Two workloads are tried, once each, and then no other.
    assert (len(run.notices), len(reported), len(run.done)) == (2, 6, 6)


# Solutions that do not end cost their limit once; the other jobs are skipped, and a resumed run judges them.

ENDLESS = "def run(x):\n    while True: pass\n"
SLOW = {
    "right": (HONEST, 3, None),
    "endless": (ENDLESS, 1, "endless ran out of time on workload w0"),
    "later": (
        "calls = []\ndef run(x):\n    calls.append(x)\n    while len(calls) > 3: pass\n    return x * 2\n",
        1,
        "later ran out of time on workload w0",
    ),
    "may_compile": (
        f"{ENDLESS}    import triton\n",
        2,
        "may_compile ran out of time on workloads w0 and w1",
    ),
    "imports": ("while True: pass\ndef run(x): ...\n", 1, "imports ran out of time on workload w0"),
}
LIMITED = {**QUICKLY, "timeout_seconds": 2.0}


def test_the_other_jobs_of_a_solution_that_does_not_end_are_skipped(tmp_path):
    trace_set = write_set(tmp_path, {name: source for name, (source, *_) in SLOW.items()}, sizes=(8,) * 3)
    config = BenchmarkConfig.default(**LIMITED)
    with Benchmark(trace_set, config) as benchmark:
        traces = benchmark.run_all().traces["double"]
    assert Counter(one.solution for one in traces) == {name: judged for name, (_, judged, _) in SLOW.items()}
    assert {one.evaluation.status.value for one in traces if one.solution != "right"} == {"TIMEOUT"}
    assert all(fault.is_left_out for fault in benchmark.faults)
    assert {fault.message for fault in benchmark.faults} == {message for *_, message in SLOW.values()} - {None}
    again = Benchmark(TraceSet.from_path(tmp_path), config).plan(resume=True)
    left = {(fault.job.solution.name, fault.job.workload.uuid) for fault in benchmark.faults}
    assert {(job.solution.name, job.workload.uuid) for job in again.jobs} == left


def test_a_task_of_an_engine_is_completed_without_them_and_judged_anew_when_submitted_again(tmp_path):
    trace_set = write_set(tmp_path, {"right": HONEST}, sizes=(8,) * 4)
    with Engine(trace_set, BenchmarkConfig.default(**LIMITED), cache=tmp_path / "cache") as engine:
        for _ in range(2):
            task = engine.submit(make_solution("slow", source=ENDLESS), ["w0", "w1", "w2"], save_results=False)
            assert [trace.evaluation.status.value for trace in task.result(60)] == ["TIMEOUT"]
            assert (task.state, [fault.is_left_out for fault in task.faults]) == ("completed", [True, True])


# A worker that another process ends is not its solution's fault.

WAITS = """
import os, time
from pathlib import Path
def wait():
    mine = Path({folder!r}, str(os.getpid()))
    mine.touch()
    while len(list(mine.parent.iterdir())) <= {kills}:
        time.sleep(0.01)
"""
"""Waits to be killed, in this many processes; the next one goes on."""
PLACES = {
    "import": "wait()\ndef run(x):\n    return x * 2\n",
    "call": "def run(x):\n    wait()\n    return x * 2\n",
    "late": "calls = []\ndef run(x):\n    calls.append(1)\n    len(calls) == 9 and wait()\n    return x * 2\n",
    # The session calls the reference once, too: only its worker has this folder for its home.
    "reference": "def run(x):\n    'worker-' in os.getcwd() and wait()\n    return x * 2\n",
}


@pytest.mark.parametrize(
    ("place", "number", "kills"),
    [
        ("import", signal.SIGKILL, 1),
        ("late", signal.SIGKILL, 1),
        ("call", signal.SIGTERM, 1),
        ("reference", signal.SIGKILL, 1),
        ("reference", signal.SIGKILL, 2),
    ],
)
def test_a_worker_that_is_killed_from_outside_is_not_held_against_the_solution(tmp_path, place, number, kills):
    folder, is_over, killed = tmp_path / "pids", threading.Event(), set()
    folder.mkdir()

    def kill():
        while len(killed) < kills and not is_over.wait(0.01):
            for pid in {int(path.name) for path in folder.iterdir()} - killed:
                os.kill(pid, number)
                killed.add(pid)

    waits = WAITS.format(folder=str(folder), kills=kills) + PLACES[place]
    one, reference = (HONEST, waits) if place == "reference" else (waits, HONEST)
    trace_set = write_set(tmp_path / "set", {"one": one}, {"double": reference})
    with ThreadPoolExecutor() as pool:
        pool.submit(kill)
        run = judge(trace_set, sandbox="off", iterations=10, use_isolated_runner=number != signal.SIGKILL)
        is_over.set()
    if kills == 2:
        assert "it was killed by SIGKILL" in run.faults[0].message
    else:
        assert run.statuses == {"one": "PASSED"}, run.logs


HIDES = """
import ctypes, mmap, time
libc = ctypes.CDLL(None)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []
def run(x):
    while len(kept) < 20:
        kept.append(mmap.mmap(-1, 64 << 20))
        at = ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))
        ctypes.memset(at, 1, 64 << 20)
        libc.madvise(at, 64 << 20, 4)  # MADV_DONTNEED: the pages stay, and no process shows them
    time.sleep(9)
    return x * 2
"""
LITTERS = """
import os
for index in range(5_000):
    open(f"{os.environ['TMPDIR']}/{index}", "w").close()
def run(x):
    return x * 2
"""


def test_memory_that_no_process_shows_is_a_fault_of_the_solution_that_runs(tmp_path):
    run = judge(write_set(tmp_path, {"hides": HIDES}), sandbox="off", worker_memory_gb=0.4)
    assert "no process shows" in run.faults[0].message
    assert "worker_memory_gb" in run.faults[0].message


def test_a_run_leaves_no_folder_where_its_template_is_killed_before_all_is_removed(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(session_client, "CLOSE_LIMIT_S", 0.0)
    assert judge(write_set(tmp_path / "set", {"litters": LITTERS}), sandbox="off").statuses == {"litters": "PASSED"}
    assert not list((tmp_path / "tmp").iterdir())


# A fault of the machine or the toolchain is no solution's verdict; a solution's claim of a fault is.

SAYS = {
    "imported": "raise OSError('x.so: failed to map segment from shared object: Permission denied')\n",
    "called": "def run(x):\n    raise RuntimeError('libfoo.so: undefined symbol: GLIBCXX_3.4.99 not found')\n",
    "kills_itself": "import os\nos.kill(os.getpid(), 9)\ndef run(x):\n    return x * 2\n",
    "kills_itself_late": "import os\ndef run(x):\n    os.kill(os.getpid(), 9)\n",
}
LOADS = """
import ctypes, os, shutil, torch
copy = os.path.join(os.environ["TRITON_CACHE_DIR"], "mine.so")
os.makedirs(os.path.dirname(copy), exist_ok=True)
shutil.copyfile(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_global_deps.so"), copy)
ctypes.CDLL(copy)
def run(x):
    return x * 2
"""


def test_a_solution_that_merely_says_so_or_ends_itself_is_to_blame(tmp_path):
    run = judge(write_set(tmp_path / "set", SAYS), cache=tmp_path / "cache")
    assert run.statuses == {**dict.fromkeys(SAYS, "RUNTIME_ERROR"), "imported": "COMPILE_ERROR"}
    assert all("ended by signal 9 twice" in run.logs[name] for name in SAYS if name.startswith("kills"))


def test_a_compiler_of_torch_that_does_not_work_is_a_fault_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    sources = {"compiled": f"import torch\n@torch.compile\n{HONEST}", "plain": HONEST}
    run = judge(write_set(tmp_path / "set", sources), cache=tmp_path / "cache")
    assert run.statuses == {"plain": "PASSED"}
    (fault,) = run.faults
    assert fault.message.startswith("torch.compile does not work on this machine: a program of ours fails, too")
    assert "what CC, CXX and CUDA_HOME name" in fault.message


def test_a_cache_mounted_noexec_is_a_fault_that_names_the_folder(tmp_path):
    folder = tmp_path / "noexec"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "noexec,size=64m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    try:
        (fault,) = judge(write_set(tmp_path / "set", {"loads": LOADS}), cache=folder / "cache").faults
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert f"(the cache is {folder / 'cache'})" in fault.message
    assert "noexec" in fault.message
    assert "FIB_CACHE_PATH" in fault.message


def test_a_reference_that_hangs_on_two_devices_at_once_hangs_on_one_workload():
    hung = HungCalls()
    for workload, reason in (("w0", None), ("w0", None), ("w1", "r ran out of time on workloads w0 and w1")):
        hung.note("r", "r", workload, "first call")
        assert hung.reason("r") == reason
