"""A solution that does not end costs its limit once: its other jobs are left out, and a resumed run judges them."""

from types import SimpleNamespace

import pytest

from flashinfer_bench import Benchmark, BenchmarkConfig, Engine, TraceSet
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.task import Task
from flashinfer_bench.errors import TaskFailed
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

WORKLOADS = ("w0", "w1", "w2", "w3")
ENDLESS = "def run(x):\n    while True: pass\n"
SOURCES = {
    "right": "def run(x):\n    return x * 2\n",
    "endless": ENDLESS,
    "later": "calls = []\ndef run(x):\n    calls.append(x)\n    while len(calls) > 3: pass\n    return x * 2\n",
    "may_compile": f"import triton\n{ENDLESS}",
    "imports": "while True: pass\ndef run(x): ...\n",
}
JUDGED = {"right": 4, "endless": 1, "later": 1, "may_compile": 2, "imports": 4}
QUICKLY = {"devices": ["cpu"], "warmup_runs": 1, "iterations": 2, "num_trials": 1, "timeout_seconds": 3.0}


def write_set(root, *names):
    solutions = [make_solution(name, source=SOURCES[name]) for name in names]
    workloads = [make_trace(solution=None, workload=make_workload(uuid)) for uuid in WORKLOADS]
    return write_trace_set(root, definitions=[make_definition()], solutions=solutions, workloads=workloads)


def names_of(jobs):
    return [(job.solution.name, job.workload.uuid) for job in jobs]


@pytest.mark.parametrize("is_isolated", [False, True], ids=["persistent", "isolated"])
def test_the_other_jobs_of_a_solution_that_does_not_end_are_left_out(tmp_path, is_isolated):
    names = ("right", "endless", "later", "may_compile") if is_isolated else tuple(SOURCES)
    root = write_set(tmp_path, *names)
    config = BenchmarkConfig.default(use_isolated_runner=is_isolated, **QUICKLY)
    with Benchmark(TraceSet.from_path(root), config) as benchmark:
        result = benchmark.run_all()
    found = {name: [one for one in result.traces["double"] if one.solution == name] for name in names}
    assert {name: len(traces) for name, traces in found.items()} == {name: JUDGED[name] for name in names}
    assert {one.evaluation.status.value for name in found for one in found[name] if name != "right"} == {"TIMEOUT"}
    assert all(fault.is_left_out for fault in benchmark.faults)
    told = {fault.job.solution.name: fault.message for fault in benchmark.faults}
    assert told["later"] == "left out: a call of later ran out of time on workload w0"
    assert told["may_compile"] == "left out: first calls of may_compile ran out of time on workloads w0 and w1"
    again = Benchmark(TraceSet.from_path(root), config).plan(resume=True)
    assert sorted(names_of(again.jobs)) == sorted(names_of(fault.job for fault in benchmark.faults))


def test_what_other_devices_have_not_begun_is_left_out_too(tmp_path):
    trace_set = TraceSet.from_path(write_set(tmp_path, "endless"))
    with Benchmark(trace_set, BenchmarkConfig.default(**QUICKLY)) as benchmark:
        devices = tuple(Device("cpu", index, f"CPU {index}", "cpu") for index in range(2))
        benchmark.context.machine = Machine(devices, benchmark.machine.languages)
        events = list(benchmark.run(benchmark.plan(), save_results=False))
    judged = [event for event in events if isinstance(event, JobFinished)]
    assert 1 <= len(judged) <= len(devices)
    left_out = [event.job for event in events if isinstance(event, JobFaulted) and event.is_left_out]
    assert len(judged) + len(left_out) == len(WORKLOADS)


def test_a_task_of_an_engine_is_completed_without_them_and_judged_anew_when_submitted_again(tmp_path):
    trace_set = TraceSet.from_path(write_set(tmp_path, "right"))
    slow = make_solution("slow", source=ENDLESS)
    with Engine(trace_set, BenchmarkConfig.default(**QUICKLY), cache=tmp_path / "cache") as engine:
        for _ in range(2):
            task = engine.submit(slow, WORKLOADS[:3], save_results=False)
            assert [trace.evaluation.status.value for trace in task.result(60)] == ["TIMEOUT"]
            assert task.state == "completed"
            assert [fault.is_left_out for fault in task.faults] == [True, True]


def test_a_task_without_the_timeout_does_not_look_completed(tmp_path):
    job = SimpleNamespace(solution=make_solution(), workload=make_workload("w1"))
    task = Task(make_solution(), ("w0", "w1"), cancel=lambda _: None)
    task.note(job, make_trace())
    task.note(job, JobFaulted(job, "left out: another task's call ran out of time", is_left_out=True))
    with pytest.raises(TaskFailed, match="left out"):
        task.result(0)
