"""The engine with walls round its workers: what a solution tries against others fails, and the run goes on."""

import sys

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.runner import sandbox
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.seccomp import can_filter
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

HAS_WALLS = sys.platform == "linux" and landlock.version() >= 3 and can_filter()
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_WALLS, reason="this kernel has no walls"),
]

ATTACKS = """
import glob, os, socket
targets = {
    "data set": glob.glob(DATASET + "/**/*.json*", recursive=True),
    "artifacts": glob.glob(CACHE + "/artifacts/*/*/files/*"),
    "caches": glob.glob(CACHE + "/jit/*/*"),
    "baselines": glob.glob(CACHE + "/baselines/*"),
}
for kind, paths in targets.items():
    print("listed", kind, len(paths))
for act in (
    lambda: open(DATASET + "/definitions/new.json", "w"),
    lambda: os.chmod(DATASET + "/definitions", 0),
    lambda: os.mkdir(CACHE + "/jit/00"),
    lambda: open(CACHE + "/baselines/forged.json", "w"),
    lambda: os.rename(CACHE + "/baselines", os.environ["HOME"] + "/baselines"),
    lambda: open(os.path.dirname(os.path.abspath(__file__)) + "/main.py", "a"),
    lambda: open("/dev/shm/fib-left", "w"),
    lambda: socket.create_connection(("127.0.0.1", 9), 1),
):
    try:
        act()
        print("done")
    except OSError as error:
        print("refused", error.errno)
"""
HONEST = "def run(x):\n    return x * 2\n"
KEEPS = """
import os
from pathlib import Path
seen = []
for variable in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "FLASHINFER_WORKSPACE_BASE"):
    folder = Path(os.environ[variable])
    folder.mkdir(parents=True, exist_ok=True)
    seen.append((folder / "kept").exists())
    (folder / "kept").write_text("x")
import tempfile
with tempfile.NamedTemporaryFile("w", dir=None) as file:
    print("kept", seen, file.name.startswith(os.environ["HOME"]), os.environ["USER"])
def run(x):
    return x * 2
"""


def run(root, solutions, *, workloads=2, **settings):
    """Run solutions (name → source) with walls; return the traces."""
    write_trace_set(
        root,
        definitions=[make_definition()],
        solutions=[make_solution(name, source=source) for name, source in solutions.items()],
        workloads=[
            make_trace(workload=make_workload(f"w{n}", axes={"n": n}), solution=None) for n in range(4, 4 + workloads)
        ],
    )
    counts = {"warmup_runs": 2, "iterations": 10, "num_trials": 1, "profile_baseline": False}
    config = BenchmarkConfig.default(devices=["cpu"], **{"sandbox": "strict", **counts, **settings})
    benchmark = Benchmark(TraceSet.from_path(root), config)
    events = [event for event in benchmark.run(benchmark.plan(), save_results=False) if isinstance(event, JobFinished)]
    assert benchmark.faults == []
    return [event.trace for event in events]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_a_solution_tries_against_others_is_refused_and_the_run_goes_on(tmp_path, cache):
    root = tmp_path / "set"
    source = f"DATASET, CACHE = {str(root)!r}, {str(cache)!r}\n{ATTACKS}{HONEST}"
    (cache / "baselines").mkdir(parents=True)
    (cache / "baselines" / "kept.json").write_text("{}")
    traces = run(root, {"attacker": source, "honest": HONEST})
    assert [trace.evaluation.log for trace in traces if trace.evaluation.status.value != "PASSED"] == []
    assert len(traces) == 4
    said = next(trace.evaluation.log for trace in traces if trace.solution == "attacker").splitlines()
    assert [line.rsplit(" ", 1)[1] for line in said if line.startswith("listed")] == ["0"] * 4
    assert [line for line in said if not line.startswith("listed")] != []
    assert {line for line in said if not line.startswith("listed")} <= {"refused 1", "refused 13"}


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_what_a_solution_compiles_stays_its_own_and_is_there_in_the_next_run(tmp_path, isolated):
    solutions = {name: f"# {name}\n{KEEPS}" for name in "ab"}
    for known in (False, True):
        traces = run(tmp_path / "set", solutions, workloads=1, use_isolated_runner=isolated)
        assert [trace.evaluation.status.value for trace in traces] == ["PASSED"] * 2
        assert {trace.evaluation.log for trace in traces} == {f"kept {[known] * 3} True worker"}


def test_a_worker_that_fails_is_followed_by_one_for_the_same_solution(tmp_path):
    crash = "import os\ndef run(x):\n    if len(x) == 4:\n        os._exit(3)\n    return x * 2\n"
    traces = run(tmp_path / "set", {"a": crash, "b": HONEST}, workloads=3)
    status = {(trace.solution, trace.workload.uuid): trace.evaluation.status.value for trace in traces}
    assert status.pop(("a", "w4")) == "RUNTIME_ERROR"
    assert set(status.values()) == {"PASSED"}
    assert len(status) == 5


def test_a_trace_tells_the_level_and_what_was_reached(tmp_path):
    record = run(tmp_path / "set", {"a": HONEST}, workloads=1)[0].evaluation.extra["run"]
    assert record["sandbox"]["level"] == "strict"
    assert record["sandbox"]["reached"] == ["files", "calls", "root"]
    assert record["fingerprint"]["sandbox"] == "walls"
    record = run(tmp_path / "set", {"a": HONEST}, workloads=1, sandbox="off")[0].evaluation.extra["run"]
    assert (record["sandbox"]["reached"], record["fingerprint"]["sandbox"]) == ([], "none")


def test_strict_is_refused_where_something_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.landlock, "version", lambda: 1)
    with pytest.raises(ConfigError, match="Landlock is of version 1, and version 3"):
        run(tmp_path / "set", {"a": HONEST})
    monkeypatch.undo()
