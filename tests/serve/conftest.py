"""A server without a socket: the test's event loop makes the requests, and sessions are simulated."""

import asyncio
import inspect
import json
from contextlib import asynccontextmanager

import pytest

from flashinfer_bench import BenchmarkConfig, Engine, EngineLimits
from flashinfer_bench.data import TraceSet
from tests.bench.played import PlayedSession, on_gpu, play
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

TOKEN = "a-token-that-nobody-guesses"


def write_set(root):
    """Write `double` with two workloads."""
    lines = [make_trace(solution=None, workload=make_workload(uuid)) for uuid in ("w0", "w1")]
    return write_trace_set(root, definitions=[make_definition()], workloads=lines)


class Site:
    """A set on disk, and its consecutive servers."""

    def __init__(self, root, patch):
        self.root, self.patch = write_set(root), patch
        self.stopped = 0

    def make_engine(self, *, is_open=True, room=1000, gpu=False, **played):
        """Make an engine whose jobs wait until it is open; `asked` has the keywords of each submission."""
        play(self.patch, **played)
        if is_open:
            PlayedSession.gate.set()
        config, limits = BenchmarkConfig.default(devices=["cpu"]), EngineLimits(queue=room)
        engine = Engine(TraceSet.from_path(self.root), config, cache=self.root.parent / "cache", limits=limits)
        if gpu:
            on_gpu(engine.context)
        submit, engine.asked = engine.submit, []

        def note(solution, workloads, **asked):
            engine.asked.append({"workloads": list(workloads), **asked})
            return submit(solution, workloads, **asked)

        engine.submit = note
        return engine

    @asynccontextmanager
    async def serve(self, *, limits=None, token=None, drains=True, **engine):
        """Start a server. Without `drains`, it ends as if killed."""
        import httpx

        from flashinfer_bench.serve.app import make_app
        from flashinfer_bench.serve.limits import ServeLimits
        from flashinfer_bench.serve.metrics import Metrics
        from flashinfer_bench.serve.requests import Site as Served
        from flashinfer_bench.serve.store import TaskStore
        from flashinfer_bench.serve.tasks import TaskService

        before, trace_set = asyncio.all_tasks(), TraceSet.from_path(self.root)
        engine = self.make_engine(**engine)
        store = TaskStore(self.root / ".serve", trace_set, self.root)
        service = TaskService(engine, store, limits or ServeLimits())
        served = Served(trace_set, service, Metrics(engine), token)
        await service.start()

        def stop():
            self.stopped += 1

        app = make_app(served)
        app.state.stop = stop
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
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
                PlayedSession.gate.set()
                await asyncio.to_thread(engine.close)

    def lines(self):
        """Return all recorded traces. A truncated line stays in the file, but is not a trace."""
        files = sorted((self.root / "traces").rglob("*.jsonl"))
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]


@pytest.fixture
def site(tmp_path, monkeypatch):
    for extra in ("httpx", "fastapi", "uvicorn"):
        pytest.importorskip(extra)
    return Site(tmp_path / "set", monkeypatch)


def submission(name="kernel", **others):
    """Return the body of a submission."""
    return {"solution": make_solution(name, source=f"# {name}\ndef run(x):\n    return x * 2\n").to_dict(), **others}


async def submit(client, name="kernel", *, headers=None, **others):
    """Submit a solution; return its task."""
    answer = await client.post("/evaluate", json=submission(name, **others), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["task_id"]


async def wait_for(client, task, timeout=60):
    """Return a task when it is over, or after the timeout."""
    return (await client.get(f"/tasks/{task}?timeout={timeout}")).json()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine test. Its limit is for a test that hangs, not for a busy machine."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), 200))
        return True
    return None
