"""A worker that somebody else ends is not its solution's fault; a solution that ends itself is RUNTIME_ERROR."""

import os
import signal
import tempfile
import threading
import time

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.runner import client as session_client
from flashinfer_bench.data import EvaluationStatus, TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

HONEST = "def run(x):\n    return x * 2\n"
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
    "import": "{waits}wait()\ndef run(x):\n    return x * 2\n",
    "setup": "{waits}def setup(x):\n    wait()\n    return {{}}\ndef run(x):\n    return x * 2\n",
    "call": "{waits}def run(x):\n    wait()\n    return x * 2\n",
    "late": "{waits}calls = []\ndef run(x):\n    calls.append(1)\n    len(calls) == 9 and wait()\n    return x * 2\n",
}


@pytest.fixture
def kill_from_outside(tmp_path):
    """Kill each process that leaves its id in the folder, as often as is asked for."""
    folder = tmp_path / "pids"
    folder.mkdir()
    is_over = threading.Event()

    def kill(kills, number):
        deadline, killed = time.monotonic() + 50, set()
        while len(killed) < kills and time.monotonic() < deadline and not is_over.is_set():
            for pid in {int(path.name) for path in folder.iterdir()} - killed:
                os.kill(pid, number)
                killed.add(pid)
            time.sleep(0.01)

    def start(kills, number=signal.SIGKILL):
        thread = threading.Thread(target=kill, args=(kills, number))
        thread.start()
        threads.append(thread)
        return WAITS.format(folder=str(folder), kills=kills)

    threads = []
    yield start
    is_over.set()
    for thread in threads:
        thread.join()


def run(root, source, reference=HONEST, **overrides):
    """Run one solution on one workload; return the evaluation, or the fault's message."""
    write_trace_set(
        root,
        definitions=[make_definition("double", reference=reference)],
        solutions=[make_solution("one", definition="double", source=source, destination_passing_style=False)],
        workloads=[make_trace(definition="double", workload=make_workload("w", axes={"n": 8}), solution=None)],
    )
    config = BenchmarkConfig.default(
        devices=["cpu"], warmup_runs=1, iterations=10, num_trials=1, sandbox="off", **overrides
    )
    benchmark = Benchmark(TraceSet.from_path(root), config)
    events = list(benchmark.run(benchmark.plan(), save_results=False))
    (answer,) = [event for event in events if isinstance(event, (JobFinished, JobFaulted))]
    return answer.message if isinstance(answer, JobFaulted) else answer.trace.evaluation


@pytest.mark.parametrize("place", PLACES)
def test_a_solution_whose_worker_is_killed_once_from_outside_passes(tmp_path, kill_from_outside, place):
    evaluation = run(tmp_path / "set", PLACES[place].format(waits=kill_from_outside(1)))
    assert evaluation.status is EvaluationStatus.PASSED, evaluation.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_other_signals_from_outside_count_as_well(tmp_path, kill_from_outside, number):
    evaluation = run(
        tmp_path / "set", PLACES["call"].format(waits=kill_from_outside(1, number)), use_isolated_runner=True
    )
    assert evaluation.status is EvaluationStatus.PASSED, evaluation.log


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.kill(os.getpid(), 9)\ndef run(x):\n    return x * 2\n",
        "import os\ndef run(x):\n    os.kill(os.getpid(), 9)\n",
    ],
    ids=["import", "call"],
)
def test_a_solution_that_kills_itself_is_a_runtime_error_after_the_second_time(tmp_path, source):
    evaluation = run(tmp_path, source)
    assert evaluation.status is EvaluationStatus.RUNTIME_ERROR
    assert "ended by signal 9 twice" in evaluation.log


@pytest.mark.parametrize("kills", [1, 2])
def test_a_killed_worker_of_a_reference_is_never_held_against_the_solution(tmp_path, kill_from_outside, kills):
    # The session calls the reference once, too: only its worker has this folder for its home.
    waits = kill_from_outside(kills)
    reference = f"{waits}\ndef run(x):\n    'worker-' in os.getcwd() and wait()\n    return x * 2\n"
    answer = run(tmp_path / "set", HONEST, reference)
    assert "it was killed by SIGKILL" in answer if kills == 2 else answer.status is EvaluationStatus.PASSED


HIDES = """
import ctypes, mmap
libc = ctypes.CDLL(None)
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []
def run(x):
    if len(kept) < 100:
        kept.append(mmap.mmap(-1, 64 << 20))
        at = ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))
        ctypes.memset(at, 1, 64 << 20)
        libc.madvise(at, 64 << 20, 4)  # MADV_DONTNEED: the pages stay, and no process shows them
        return run(x)
    return x * 2
"""


def test_memory_that_no_process_shows_is_a_fault_of_the_solution_that_runs(tmp_path):
    message = run(tmp_path, HIDES, worker_memory_gb=1.0)
    assert "no process shows" in message
    assert "worker_memory_gb" in message


LITTERS = """
import os
for index in range(20_000):
    open(f"{os.environ['TMPDIR']}/{index}", "w").close()
def run(x):
    return x * 2
"""


def test_a_run_leaves_no_folder_where_its_template_is_killed_before_all_is_removed(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(session_client, "CLOSE_LIMIT_S", 0.0)
    assert run(tmp_path / "set", LITTERS).status is EvaluationStatus.PASSED
    assert not list(temporary.iterdir())
