"""Whichever door a solution comes in by, one harness has its jobs judged by the same sessions, and records them."""

import asyncio
import importlib
import sys
import threading

import pytest

from flashinfer_bench import Engine
from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.harness import Harness, TraceRecorder
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.cli.entry import run_command_line
from flashinfer_bench.data import TraceSet
from tests.bench.played import PlayedSession, play
from tests.bench.small_runs import HONEST, QUICKLY, write_set
from tests.kit.fake_ray import WITH_RAY, FakeRay
from tests.serve.conftest import Site, submit, wait_for

pytestmark = pytest.mark.cpu
PERF = "perf --routine rmsnorm --batch_size 2 --hidden_size 64 --input_dtype bfloat16 --backends torch --num_iters 2"


def by_run_all(root, _monkeypatch):
    Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(**QUICKLY)).run_all()


def by_run(root, _monkeypatch):
    assert run_command_line(["run", "--local", str(root), "--devices", "cpu"]) == 0


def by_perf(root, _monkeypatch):
    assert run_command_line([*PERF.split(), "--output_path", str(root / "out.csv")]) == 0


def by_engine(root, _monkeypatch):
    with Engine(TraceSet.from_path(root), BenchmarkConfig.default(**QUICKLY)) as engine:
        engine.submit("own").result(60)


def by_serve(root, monkeypatch):
    for extra in ("httpx", "fastapi"):
        pytest.importorskip(extra)

    async def ask():
        async with Site(root.parent / "served", monkeypatch).serve() as client:
            task = await submit(client, "own")
            assert (await wait_for(client, task))["status"] == "completed"

    asyncio.run(ask())


def by_cluster(root, _monkeypatch):
    config = BenchmarkConfig.default(**QUICKLY | {"devices": None, "cluster": "ray"})
    with Benchmark(TraceSet.from_path(root), config) as benchmark:
        benchmark.run_all()


@pytest.fixture
def ray(monkeypatch):
    """A pretended cluster of one node with a CPU."""
    pretended = FakeRay()
    for name, module in pretended.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in WITH_RAY:
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.import_module(WITH_RAY[1])
    pretended.find_device = lambda handle: Device("cpu", 0, "test device", "cpu", node=handle.actor._node)
    pretended.add_node("one", CPU=1.0)


@pytest.mark.parametrize("door", [by_run_all, by_run, by_perf, by_engine, by_serve, by_cluster])
def test_each_door_leads_to_the_harness(door, ray, monkeypatch, tmp_path):
    opened = threading.Event()
    opened.set()
    play(monkeypatch, gate=opened)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    submitted, recorded, take, save = set(), set(), Harness.submit, TraceRecorder.make_trace

    def note_submit(self, submission, jobs):
        jobs = list(jobs)
        submitted.update(job.solution.name for job in jobs)
        return take(self, submission, jobs)

    def note_trace(self, job, *rest):
        recorded.add(job.solution.name)
        return save(self, job, *rest)

    monkeypatch.setattr(Harness, "submit", note_submit)
    monkeypatch.setattr(TraceRecorder, "make_trace", note_trace)
    write_set(tmp_path / "set", {"own": HONEST})
    door(tmp_path / "set", monkeypatch)
    assert submitted
    assert submitted == recorded == {name for name, _ in PlayedSession.judged}
