"""A cluster that is pretended: slots come, go, or do not fit; each job has one verdict, and winners are confirmed."""

import importlib
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench import Engine
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.runner import client
from flashinfer_bench.bench.runner.client import News
from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.cluster.settings import ClusterSettings
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import ConfigError, DeviceFault
from tests.bench.played import PlayedSession, play
from tests.bench.small_runs import QUICKLY, write_set
from tests.kit.fake_ray import WITH_RAY, FakeRay
from tests.kit.make import make_solution, make_trace, make_workload, write_trace_set

pytestmark = pytest.mark.cpu
SESSION = client.SessionClient
SOURCES = {f"s{at}": f"def run(x):\n    return x * 2  # {at}\n" for at in range(4)}
MANY = (8, 9, 10, 11)


@pytest.fixture
def ray(monkeypatch, tmp_path):
    """A pretended cluster, whose actors are in this process. All sessions pretend, and judge at once."""
    pretended = FakeRay()

    def find_device(handle):
        at = [one for one in pretended.actors if one.node == handle.node].index(handle)
        return Device(handle.actor._kind, at, "a GPU", f"GPU-{handle.node}-{at}", node=handle.actor._node)

    pretended.find_device = find_device
    before = {name: sys.modules.pop(name, None) for name in WITH_RAY}
    for name, module in pretended.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.import_module(WITH_RAY[1]), "POLL_S", 0.0)
    locks = "flashinfer_bench.bench.runner.device_lock.lock_path"
    monkeypatch.setattr(locks, lambda device: tmp_path / "locks" / device.uuid)
    opened = threading.Event()
    opened.set()
    play(monkeypatch, gate=opened, evaluate=staticmethod(by_level))
    yield pretended
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


def by_level(job, name):
    """The first solution is the fastest."""
    latency = 1.0 + int(name[1:])
    record = {"assurance": job.assurance or "standard", "interval95_ms": [0.99 * latency, 1.01 * latency]}
    return {"latency_ms": latency, "extra": {"measurement": record}}


@pytest.fixture
def join(ray):
    def go(**settings):
        return sys.modules[WITH_RAY[1]].Cluster(ClusterSettings(**settings))

    return go


@pytest.fixture
def run(ray, tmp_path):
    """Judge a set on the cluster; `note` is told of each event, and how many verdicts there are.

    Returns: `events`; `judged` (solution, workload) → verdicts; `used`: labels of devices; `faults`, `notices`.
    """

    def go(note=lambda event, verdicts: None, *, confirm=False, sizes=MANY, trace_set=None, **settings):
        trace_set = trace_set or write_set(tmp_path / "set", SOURCES, sizes=sizes)
        config = BenchmarkConfig.default(
            **{**QUICKLY, "devices": None, "cluster": "ray", "confirm": confirm, **settings}
        )
        with Benchmark(trace_set, config, cache=tmp_path / "cache") as benchmark:
            done = SimpleNamespace(events=[], finished=[])
            for event in benchmark.run(benchmark.plan(), save_results=False):
                done.events.append(event)
                if isinstance(event, JobFinished):
                    done.finished.append(event)
                note(event, len(done.finished))
        done.judged = Counter((one.job.solution.name, one.job.workload.uuid) for one in done.finished)
        done.used = {one.device.label for one in done.finished}
        done.faults = [one.message for one in done.events if isinstance(one, JobFaulted)]
        done.notices = [one.message for one in done.events if isinstance(one, Notice)]
        assert all(one.is_killed for one in ray.actors)
        assert all(session.has_ended for session in PlayedSession.all)
        assert not any(one.actor._files.exists() for one in ray.actors if one.actor is not None and not one.is_lost)
        return done

    return go


EACH = Counter((name, f"w{at}") for name in SOURCES for at in range(len(MANY)))


def labels(cluster):
    return sorted(device.label for device in cluster.devices)


@pytest.fixture
def two(ray):
    """Two nodes with a GPU each."""
    for name in ("one", "two"):
        ray.add_node(name, GPU=1.0)
    return ray


def test_each_gpu_of_each_node_is_a_place_and_nodes_without_one_are_not(ray, join):
    for name, gpus in (("one", 2.0), ("two", 1.0), ("three", 0.0)):
        ray.add_node(name, GPU=gpus)
    cluster = join()
    assert labels(cluster) == ["one/cuda:0", "one/cuda:1", "two/cuda:0"]
    assert ([one.options["num_gpus"] for one in ray.actors], cluster.machine.kind) == ([1, 1, 1], "cuda")
    cluster.close()
    assert (all(one.is_killed for one in ray.actors), ray.is_joined) == (True, False)


def test_on_cpus_a_node_is_one_place_and_its_actor_takes_all_of_them(ray, join):
    for name in ("aaaaaaaa", "bbbbbbbb"):
        ray.add_node(name, host="same", GPU=8.0)
    assert labels(join(kind="cpu")) == ["same-aaaaaa/cpu", "same-bbbbbb/cpu"]
    assert [one.options["num_cpus"] for one in ray.actors] == [8.0, 8.0]


def test_a_place_that_comes_later_gets_work(ray, run):
    ray.add_node("one", GPU=1.0)
    done = run(lambda event, verdicts: "two" not in ray.table and verdicts and ray.add_node("two", GPU=1.0))
    assert (done.judged, done.used) == (EACH, {"one/cuda:0", "two/cuda:0"})
    assert done.notices == ["two/cuda:0 (a GPU) is used from now on"]


def test_a_lost_node_loses_nothing_and_only_its_open_jobs_are_repeated(two, run):
    def note(event, verdicts):
        if verdicts == 3 and isinstance(event, JobFinished):
            two.lose_node(event.device.node)

    done = run(note)
    assert (done.judged, done.faults, done.used) == (EACH, [], {"one/cuda:0", "two/cuda:0"})
    assert any("its node or its actor is lost (RayActorError); " in line for line in done.notices)
    assert len(PlayedSession.judged) - len(EACH) <= 4  # of the batch that it was at
    assert all("artifacts" in str(session.session_config.hidden) for session in PlayedSession.all)


def test_an_actor_that_is_lost_is_restarted_twice(ray, run):
    ray.add_node("one", GPU=1.0)
    lost = []

    def note(event, verdicts):
        if isinstance(event, JobFinished) and verdicts in (2, 6, 10) and verdicts not in lost:
            lost.append(verdicts)
            ray.actors[0].lose()

    done = run(note)
    assert len(ray.actors) == 1
    assert "node one is not used: out of memory" in done.notices
    assert {message.partition(":")[0] for message in done.faults} == {"no device is left to run it"}
    assert sum(done.judged.values()) + len(done.faults) == len(EACH)


def test_a_place_whose_session_does_not_start_leaves_its_jobs_to_others(two, run):
    PlayedSession.fails_to_start = 3
    done = run()
    assert (done.judged, done.faults) == (EACH, [])
    assert any("its session does not start" in line for line in done.notices)


def test_a_late_node_that_does_not_fit_is_left_out_with_one_notice(ray, join, monkeypatch):
    monkeypatch.setattr(sys.modules[WITH_RAY[0]], "find_sandbox", lambda *_: Sandbox("auto"))
    ray.add_node("one", GPU=1.0)
    cluster = join()
    ray.differ = {"two": {"sandbox": Sandbox("off")}}
    ray.add_node("two", GPU=2.0)
    why = "its workers would have no sandbox, unlike those of other nodes"
    assert cluster.poll() == News(notices=(f"node two is not used: {why}",))
    ray.add_node("three", GPU=1.0)
    assert [device.label for device in cluster.poll().joined] == ["three/cuda:0"]
    cluster.close()


def test_what_one_place_lacks_is_missing(two, join):
    two.differ = {"two": {"languages": {"python": None, "cuda": "no nvcc"}}}
    cluster = join()
    two.actors[1].actor.why_not_built = lambda solutions: ["it needs cutlass" for _ in solutions]
    assert cluster.machine.languages["cuda"].startswith(("one: ", "two: "))
    assert cluster.machine.why_not_buildable(make_solution()) == "two: it needs cutlass"
    two.actors[1].actor.why_not_built = None  # asked once
    assert cluster.machine.why_not_buildable(make_solution()) == "two: it needs cutlass"
    cluster.close()


def test_a_late_node_that_cannot_build_a_solution_leaves_it_to_others(ray, run):
    ray.add_node("one", GPU=1.0)

    def note(event, verdicts):
        if verdicts == 1 and len(ray.table) == 1:
            ray.add_node("two", GPU=1.0)
        if len(ray.actors) == 2:
            ray.actors[1].actor.why_not_built = lambda solutions: ["no g++" for _ in solutions]

    done = run(note)
    assert (done.judged, done.used, done.faults) == (EACH, {"one/cuda:0"}, [])
    assert any("it cannot build s" in line and "no g++" in line for line in done.notices)


def test_without_a_place_the_reason_is_an_error(ray, join):
    with pytest.raises(ConfigError, match="no slot for a cuda session: its actors do not start"):
        join(kind="cuda")
    ray.add_node("one", GPU=1.0)
    ray.find_device = lambda handle: 1 / 0
    with pytest.raises(ConfigError, match="no slot for a cuda session: node one is not used: division by zero"):
        join()
    assert not ray.is_joined


def test_an_actor_is_of_this_version_and_sees_its_own_gpu_alone(ray, monkeypatch):
    module = importlib.import_module(WITH_RAY[0])
    actor = module.SlotActor("one", "cuda", "0.0.1", ClusterSettings())
    with pytest.raises(ConfigError, match=r"it has flashinfer_bench .*, and this run is of 0\.0\.1"):
        actor.describe()
    seen = [Device("cuda", 0, "NVIDIA H100", "GPU-5")]
    monkeypatch.setattr(module, "discover_devices", lambda requested: tuple(seen))
    assert actor._find_device().label == "one/cuda:5"
    seen.append(Device("cuda", 1, "NVIDIA H100", "GPU-6"))
    with pytest.raises(DeviceFault, match="must see one GPU, and sees 2"):
        actor._find_device()
    actor.close()


STORED = {"x": {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "x"}}


@pytest.mark.parametrize("is_shared", [False, True])
def test_stored_inputs_lie_on_each_node_as_they_are_and_a_missing_one_is_the_fault_of_its_job(
    ray, run, tmp_path, is_shared
):
    ray.add_node("one", GPU=1.0)
    root, seen, blob = tmp_path / "set", [], tmp_path / "set" / "blob" / "x.safetensors"
    write_set(root, SOURCES)
    lines = [make_trace(workload=make_workload(f"b{at}", inputs=STORED), solution=None) for at in range(2)]
    write_trace_set(root, workloads=lines)
    blob.parent.mkdir()
    blob.write_text("0")

    def evaluate(job, name):
        if job.workload["uuid"] != "w0":
            seen.append((Path(job.blob_root), (Path(job.blob_root) / "blob" / "x.safetensors").read_text()))
            blob.write_text("1")  # a file that was replaced comes anew with the next batch
        return by_level(job, name)

    PlayedSession.evaluate = staticmethod(evaluate)
    assert len(run(trace_set=TraceSet.from_path(root), shared_blobs=is_shared).finished) == 12
    assert {text for _, text in seen} == {"0", "1"}
    assert ({folder for folder, _ in seen} == {root}) is is_shared
    if not is_shared:
        done = run(lambda event, verdicts: blob.unlink(missing_ok=True), trace_set=TraceSet.from_path(root))
        assert (len(done.finished) + len(done.faults), "x.safetensors" in done.faults[-1]) == (12, True)


def test_a_solution_that_hangs_is_left_out_and_tried_again_when_it_comes_again(ray, tmp_path):
    ray.add_node("one", GPU=1.0)
    PlayedSession.evaluate = staticmethod(lambda job, name: {"status": "TIMEOUT", "ran_out": "call"})
    config = BenchmarkConfig.default(**{**QUICKLY, "devices": None, "cluster": "ray"})
    with Engine(write_set(tmp_path / "set", SOURCES, sizes=MANY), config, cache=tmp_path / "cache") as engine:
        for tried in (1, 2):
            for workload in ("w0", "w1"):
                task = engine.submit("s0", [workload], save_results=False)
                assert [trace.evaluation.status.value for trace in task.result(timeout_s=20)] == ["TIMEOUT"]
            assert len(PlayedSession.judged) == 2 * tried


@pytest.mark.gpu
def test_the_session_of_a_machine_judges_on_a_gpu_in_a_place(ray, run, monkeypatch):
    monkeypatch.setattr(client, "SessionClient", SESSION)
    ray.add_node("one", GPU=1.0)
    ray.find_device = lambda _: replace(discover_devices(None)[0], node="one")
    done = run(sizes=(8,))
    assert [one.trace.evaluation.status.value for one in done.finished] == ["PASSED"] * 4


def test_winners_are_confirmed_on_the_nodes_that_they_won_on(two, run):
    find = two.find_device
    two.find_device = lambda handle: replace(find(handle), name=f"a GPU of {handle.node}")
    done = run(confirm=True)
    best = {}
    for event in done.finished:
        if event.job.assurance is None:
            winner = event.job.workload.uuid, event.device.name
            best[winner] = min(best.get(winner, "z"), event.job.solution.name)
    confirmed = {
        (one.job.workload.uuid, one.device.name): one.job.solution.name for one in done.finished if one.job.assurance
    }
    assert confirmed == best
