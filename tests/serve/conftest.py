"""A server's application without a socket: requests are made in the test's own event loop."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.serve.ledger import Ledger
from flashinfer_bench.serve.limits import ServeLimits
from flashinfer_bench.serve.metrics import Metrics
from flashinfer_bench.serve.records import TaskRecords
from flashinfer_bench.serve.service import TaskService
from tests.kit import make_solution
from tests.serve.small_engine import SmallEngine, write_set


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
        from flashinfer_bench.serve.gate import Admission

        before = asyncio.all_tasks()
        engine = engine or SmallEngine(self.root, **engine_parts)
        trace_set = TraceSet.from_path(self.root)
        records = TaskRecords(Ledger(self.root / ".serve"), trace_set, self.root)
        service = TaskService(engine, trace_set, records, limits or ServeLimits())
        metrics = Metrics(engine)
        await service.start()

        def stop():
            self.stopped += 1

        app = make_app(service, metrics, Admission(token), stop)
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.engine, client.service, client.app, client.records = engine, service, app, records
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
