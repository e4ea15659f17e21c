"""A server's application without a socket: requests are made in the test's own event loop.

Its engine has no processes: it says PASSED, as fast and as often as a test wants.
"""

import asyncio
import inspect
import json
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.engine_state import DeviceState, EngineState
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import QueueFull
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

CPU = Device("cpu", 0, "test device", "cpu")
TOKEN = "a-token-that-nobody-guesses"


def write_set(root):
    """Write `double` with two workloads."""
    lines = [make_trace(solution=None, workload=make_workload(uuid)) for uuid in ("w0", "w1")]
    return write_trace_set(root, definitions=[make_definition()], workloads=lines)


class SmallTask:
    """A task: its verdicts come when the engine's gate is open."""

    def __init__(self, engine, solution, workloads):
        self.engine, self.solution, self.workloads = engine, solution, workloads
        self.state, self.faults = "pending", []

    def cancel(self):
        if self.state in ("pending", "running"):
            self.state = "cancelled"
        self.engine.stir()

    async def __aiter__(self):
        while not self.engine.is_open and self.state != "cancelled":
            await self.engine.changed.wait()
        for uuid in self.workloads:
            if self.state == "cancelled":
                return
            self.state = "running"
            if fault := self.engine.fault:
                self.faults.append(SimpleNamespace(message=fault))
                continue
            yield self.engine.judge(self.solution, uuid)
            while self.engine.stops_after_one and self.state != "cancelled":
                await self.engine.changed.wait()
        self.state = "failed" if self.faults else "completed"


class SmallEngine:
    """Judges at once while it is open."""

    def __init__(self, *, is_open=True, room=1000):
        self.is_open, self.room, self.fault = is_open, room, None
        self.stops_after_one, self.judged = False, 0
        self.submitted, self.callbacks = [], []
        self.changed = asyncio.Event()
        self.lock = threading.Lock()

    def submit(self, solution, workloads, *, save_results, **asked):
        assert not save_results
        if len(self.submitted) >= self.room:
            raise QueueFull("the queue is full")
        task = SmallTask(self, solution, list(workloads))
        self.submitted.append(SimpleNamespace(task=task, **asked))
        return task

    def judge(self, solution, uuid):
        trace = make_trace(solution=solution.name, workload=make_workload(uuid))
        self.judged += 1
        for callback in self.callbacks:
            callback(JobFinished(SimpleNamespace(), trace, CPU, 0.2))
        return trace

    def open(self):
        self.is_open = True
        self.stir()

    def stir(self):
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()

    def state(self):
        waiting = sum(item.task.state == "pending" for item in self.submitted)
        device = DeviceState(label="cpu", hardware="test device", healthy=True, condition="ready", since="", job=None)
        counts = {"jobs": {"PASSED": self.judged}, "open_tasks": {}}
        return EngineState(devices=(device,), queue_size=waiting, rate_per_s=2.5, uptime_s=9, **counts)

    def subscribe(self, callback):
        self.callbacks.append(callback)

    def close(self):
        pass


class Site:
    """A set on disk, and servers of it, one after the other."""

    def __init__(self, root):
        self.root = write_set(root)
        self.stopped = 0

    @asynccontextmanager
    async def serve(self, *, limits=None, token=None, drains=True, engine=None, **engine_parts):
        """Start a server, of a small engine unless one is given; without `drains` it ends as if it was killed."""
        import httpx

        from flashinfer_bench.serve.app import make_app
        from flashinfer_bench.serve.limits import ServeLimits
        from flashinfer_bench.serve.metrics import Metrics
        from flashinfer_bench.serve.requests import Site as Served
        from flashinfer_bench.serve.store import TaskStore
        from flashinfer_bench.serve.tasks import TaskService

        before = asyncio.all_tasks()
        engine, trace_set = engine or SmallEngine(**engine_parts), TraceSet.from_path(self.root)
        store = TaskStore(self.root / ".serve", trace_set, self.root)
        service = TaskService(engine, store, limits or ServeLimits())
        served = Served(trace_set, service, Metrics(engine), token)
        await service.start()

        def stop():
            self.stopped += 1

        transport = httpx.ASGITransport(make_app(served, stop), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.engine, client.service, client.store, client.served = engine, service, store, served
            try:
                yield client
            finally:
                if drains:
                    await service.drain(0.05)
                else:
                    for task in asyncio.all_tasks() - before:
                        task.cancel()
                service.close()

    def lines(self):
        """Return all recorded traces."""
        files = sorted((self.root / "traces").rglob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.fixture
def site(tmp_path):
    for extra in ("httpx", "fastapi", "uvicorn"):
        pytest.importorskip(extra)
    return Site(tmp_path / "set")


def submission(name="kernel", **others):
    """Return the body of a submission."""
    return {"solution": make_solution(name).to_dict(), **others}


async def submit(client, name="kernel", *, headers=None, **others):
    """Submit a solution; return the answer."""
    answer = await client.post("/evaluate", json=submission(name, **others), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def wait_for(client, task, timeout=10):
    """Return a task when it is over, or its time."""
    return (await client.get(f"/tasks/{task}?timeout={timeout}")).json()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), 20))
        return True
    return None
