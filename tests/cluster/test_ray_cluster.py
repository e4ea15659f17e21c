"""A cluster of two nodes on this machine, each a process with one core: verdicts, and walls that hold there.

One cluster serves all tests of this file. The loss of a real node is in `benchmarks/repeatability.py`.
"""

import importlib.util
import os
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from flashinfer_bench import Engine
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError
from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.process_tree import descendants
from flashinfer_bench.sandbox.seccomp import can_filter
from tests.conftest import CHECKOUT
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import wait_until_gone

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (extra: cluster)"),
    pytest.mark.filterwarnings("default"),  # Ray's own are not ours
]
HAS_SANDBOX = sys.platform == "linux" and landlock.version() >= 3 and can_filter()
SIZE = {"num_cpus": 1, "object_store_memory": 100 << 20}
STORED = {"x": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}}
SPY = """
import glob, os, socket
def attempt(what, act):
    try:
        found = act()
    except OSError as error:
        print(what, "refused", error.errno)
    else:
        print(what, "open" if found else "empty", found)
def knock(port):
    socket.create_connection(("127.0.0.1", port), 1).close()
    return port
def call(path):
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)
    return path
PARENTS = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
def read_memory():
    for pid in PARENTS:
        try:
            line = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        if "SlotActor" in line or "raylet" in line:
            for name in ("environ", "maps", "mem"):
                try:
                    open(f"/proc/{pid}/{name}", "rb").read(1)
                    return pid, name
                except OSError:
                    pass
            try:
                return pid, [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                pass
attempt("port", lambda: knock(PORT))
attempt("raylet", lambda: call(SOCKETS + "/raylet"))
attempt("store", lambda: call(SOCKETS + "/plasma_store"))
attempt("folder", lambda: os.listdir(SOCKETS + "/../.."))
attempt("shared memory", lambda: os.listdir("/dev/shm"))
attempt("processes", read_memory)
print("variables", sorted(name for name in os.environ if name.startswith("RAY")))
print("descriptors", sorted(
    link for link in (os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if
    os.path.lexists(f"/proc/self/fd/{fd}")) if "plasma" in link or link.startswith(FOLDER)))
def run(x):
    return x * 2
"""


@pytest.fixture(scope="module")
def ray_cluster():
    # A short path: sockets lie in it.
    short = tempfile.TemporaryDirectory(prefix="fib-ray-", ignore_cleanup_errors=True)
    with short as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "100")
        patch.setenv("RAY_TMPDIR", folder)  # Ray notes its address in a folder below, which has to be there
        from ray.cluster_utils import Cluster

        Path(folder, "ray").mkdir()
        head = {**SIZE, "include_dashboard": False, "temp_dir": f"{folder}/ray"}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**SIZE)
        yield cluster
        cluster.shutdown()


@pytest.fixture
def trace_set(tmp_path, ray_cluster):
    safetensors = pytest.importorskip("safetensors.torch")
    import torch

    head = ray_cluster.head_node
    sockets, folder = str(Path(head.raylet_socket_name).parent), os.environ["RAY_TMPDIR"]
    spy = f"PORT = {ray_cluster.address.rpartition(':')[2]}\nSOCKETS, FOLDER = {sockets!r}, {folder!r}\n{SPY}"
    write_trace_set(
        tmp_path / "set",
        definitions=[make_definition()],
        solutions=[
            make_solution(),
            make_solution("wrong", source="def run(x):\n    return x * 3\n"),
            make_solution("spy", source=spy),
        ],
        workloads=[
            make_trace(workload=one, solution=None)
            for one in (make_workload("w0", axes={"n": 64}), make_workload("w1", axes={"n": 8}, inputs=STORED))
        ],
    )
    (tmp_path / "set" / "blob").mkdir()
    safetensors.save_file({"x": torch.arange(8.0)}, tmp_path / "set" / "blob" / "x.safetensors")
    return TraceSet.from_path(tmp_path / "set")


def make_config(cluster, **settings):
    counts = {"warmup_runs": 1, "iterations": 5, "num_trials": 1, "profile_baseline": False}
    return BenchmarkConfig.default(cluster="ray", cluster_address=cluster.address, **counts, **settings)


def test_an_engine_on_two_nodes_gives_the_verdicts_and_no_worker_reaches_anything_of_ray(
    ray_cluster, trace_set, tmp_path
):
    with Engine(trace_set, make_config(ray_cluster), cache=tmp_path / "cache") as engine:
        tasks = {name: engine.submit(name) for name in ("double_python", "wrong", "spy")}
        traces = {name: task.result(timeout_s=100) for name, task in tasks.items()}
        nodes = {device.node: device.kind for device in engine.context.machine.devices}
        assert list_actors(ray_cluster) != []
    assert wait_until_gone(lambda: list_actors(ray_cluster), 100.0) == []
    assert {name: [one.evaluation.status.value for one in reported] for name, reported in traces.items()} == {
        "double_python": ["PASSED"] * 2,
        "wrong": ["INCORRECT_NUMERICAL"] * 2,
        "spy": ["PASSED"] * 2,
    }
    assert len(TraceSet.from_path(tmp_path / "set").traces["double"]) == 6  # the host alone has written them
    ran = [one.evaluation.extra["run"] for reported in traces.values() for one in reported]
    assert [*nodes.values()] == ["cpu", "cpu"]
    assert {one["device"]["node"] for one in ran} <= nodes.keys()
    assert all(one["sandbox"]["level"] == "auto" for one in ran)
    if HAS_SANDBOX:
        said = traces["spy"][0].evaluation.log.splitlines()
        reported = {line.rsplit(" refused", 1)[0]: line for line in said}
        for what in ("port", "raylet", "store", "folder", "shared memory"):
            assert "refused" in reported[what], reported
        assert "processes empty None" in said
        assert "variables []" in said
        assert "descriptors []" in said


def list_actors(cluster):
    """Return the processes of a cluster's actors: this machine may have other clusters."""
    raylets = [process.process.pid for node in cluster.list_all_nodes() for process in node.all_processes["raylet"]]
    found = []
    for pid in {child for raylet in raylets for child in descendants(raylet)}:
        with suppress(OSError):  # it has ended meanwhile
            if b"ray::SlotActor" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_what_cannot_be_had_is_said_in_one_line_and_ray_prints_nothing_where_results_go(ray_cluster, trace_set, capsys):
    import ray._private.worker as worker

    for words, settings in {
        "only cpu can be asked for": {"devices": ["0"], "cluster_address": ray_cluster.address},
        "not through ray://": {"cluster_address": "ray://10.0.0.1:10001"},
    }.items():
        with pytest.raises(ConfigError, match=words):
            Benchmark(trace_set, BenchmarkConfig.default(cluster="ray", **settings))
    Benchmark(trace_set, make_config(ray_cluster)).close()
    reported = {"lines": ["Raylet is terminated."], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(reported, ignore_prefix=False)
    assert capsys.readouterr().out == ""


def test_the_program_of_the_guide_judges_on_a_node(ray_cluster, monkeypatch, tmp_path, capsys):
    program = re.search(r"```python\n(.*?)```", (CHECKOUT / "docs" / "cluster.md").read_text(), re.DOTALL)[1]
    (tmp_path / "flashinfer-trace").symlink_to(CHECKOUT / "flashinfer-trace")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    exec(program, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines] == [["d011721d-a06f-50f4-978f-04236347ca88", "PASSED"]]
