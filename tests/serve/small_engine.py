"""An engine without processes, for the server's tests: it says PASSED, as fast and as often as a test wants."""

import asyncio
import threading
from types import SimpleNamespace

from flashinfer_bench.bench.engine_state import DeviceState, EngineState
from flashinfer_bench.bench.events import JobFinished, JobStarted
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import QueueFull
from tests.kit import make_definition, make_trace, make_workload, write_trace_set

CPU = Device("cpu", 0, "test device", "cpu")
WORKLOADS = ("w0", "w1")


def write_set(root):
    """Write `double` with two workloads."""
    lines = [make_trace(solution=None, workload=make_workload(uuid)) for uuid in WORKLOADS]
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
            changed = self.engine.changed
            await changed.wait()
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

    def __init__(self, root, *, is_open=True, room=1000):
        self.trace_set = TraceSet.from_path(root)
        self.is_open, self.room, self.fault = is_open, room, None
        self.stops_after_one = self.is_closed = False
        self.judged, self.job = 0, None
        self.submitted, self.callbacks = [], []
        self.changed = asyncio.Event()
        self.lock = threading.Lock()

    def submit(self, solution, workloads=None, *, priority=0, submitter="", save_results=True, confirm="if_best"):
        assert not save_results
        if len(self.submitted) >= self.room:
            raise QueueFull("the queue is full")
        task = SmallTask(self, solution, list(workloads))
        self.submitted.append(SimpleNamespace(task=task, priority=priority, submitter=submitter, confirm=confirm))
        return task

    def judge(self, solution, uuid):
        lines = self.trace_set.workloads[solution.definition]
        workload = next(line.workload for line in lines if line.workload.uuid == uuid)
        extra = {"run": {"device": {"kind": "cpu", "index": 0, "uuid": "cpu"}}}
        trace = make_trace(solution=solution.name, workload=workload, extra=extra)
        self.judged += 1
        job = SimpleNamespace(solution=solution, workload=workload, index=0)
        for callback in self.callbacks:
            callback(JobStarted(job, CPU))
            callback(JobFinished(job, trace, CPU, 0.2))
        return trace

    def open(self):
        self.is_open = True
        self.stir()

    def stir(self):
        woken, self.changed = self.changed, asyncio.Event()
        woken.set()

    def state(self):
        waiting = sum(item.task.state == "pending" for item in self.submitted)
        device = DeviceState(
            label="cpu", hardware="test device", healthy=True, condition="ready", since="", job=self.job
        )
        jobs = {"PASSED": self.judged}
        return EngineState(devices=(device,), queue_size=waiting, open_tasks={}, jobs=jobs, rate_per_s=2.5, uptime_s=9)

    def subscribe(self, callback):
        self.callbacks.append(callback)

    def close(self):
        self.is_closed = True
