"""What goes wrong on our side has no verdict, is told, and leaves the other jobs alone."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.runner import client as session_client
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import marked

pytestmark = [pytest.mark.cpu, pytest.mark.slow]


def write_set(root, *, references, workloads=2, solutions=("double_python",)):
    """Write a set with one definition for each reference (name → source)."""
    write_trace_set(
        root,
        definitions=[make_definition(name, reference=source) for name, source in references.items()],
        solutions=[make_solution(f"{one}_{name}", definition=name) for name in references for one in solutions],
        workloads=[
            make_trace(definition=name, workload=make_workload(f"w{index}", axes={"n": 8 + index}), solution=None)
            for name in references
            for index in range(workloads)
        ],
    )
    return TraceSet.from_path(root)


def run(trace_set, *, devices=None, lost_blobs=(), **overrides):
    """Run a set on the CPU; return its events by type. Some blobs are lost after the plan is made."""
    config = BenchmarkConfig.default(devices=["cpu"], warmup_runs=1, iterations=2, num_trials=1, **overrides)
    benchmark = Benchmark(trace_set, config)
    if devices:
        benchmark.context.machine = Machine(devices, benchmark.machine.languages)
    plan = benchmark.plan()
    for lost in lost_blobs:
        (trace_set.root / lost).unlink()
    with marked() as alive:
        events = list(benchmark.run(plan, save_results=False))
        assert not alive()
    return {kind: [event for event in events if isinstance(event, kind)] for kind in (JobFinished, JobFaulted, Notice)}


HONEST = "def run(x):\n    return x * 2\n"
ODD = """
import torch
class Odd(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        raise RuntimeError("an error that nobody knows")
def run(x):
    y = x * 2
    return y.as_subclass(Odd) if len(x) == 8 else y
"""
"""Of the first workload it returns what raises when the session looks at it."""
MEETS_ANOTHER = """
import os, time
from pathlib import Path
met = Path({folder!r})
def run(x):
    (met / str(os.getpid())).touch()
    deadline = time.monotonic() + 50
    while len(list(met.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    return x * 2
"""
"""Its calls wait until two processes have called it, so that the first session leaves jobs for the second."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Return the events of a run over two bad references, an honest one, and a workload whose blob goes missing."""
    references = {
        "bad": "def run(x):\n    raise ValueError('no such axis')\n",
        "random": "import torch\ndef run(x):\n    return torch.rand_like(x)\n",
        "good": HONEST,
    }
    trace_set = write_set(tmp_path_factory.mktemp("set"), references=references, solutions=("a", "b"))
    blob = {"type": "safetensors", "path": "none.safetensors", "tensor_key": "x"}
    (trace_set.root / "none.safetensors").touch()
    trace_set.workloads["good"].append(
        make_trace(definition="good", workload=make_workload("lost", inputs={"x": blob}), solution=None)
    )
    return run(trace_set, lost_blobs=["none.safetensors"])


def faults_of(events, name):
    return [event for event in events[JobFaulted] if event.job.definition.name == name]


def test_a_reference_that_raises_faults_its_jobs_and_no_other(mixed):
    assert [event.job.definition.name for event in mixed[JobFinished]] == ["good"] * 4
    assert len(faults_of(mixed, "bad")) == 4
    (message,) = {event.message for event in faults_of(mixed, "bad")}
    assert message.startswith("reference of bad: ValueError: no such axis")


def test_a_reference_that_disagrees_with_itself_is_reported_once_and_the_rest_goes_on(mixed):
    assert [event.job.definition.name for event in mixed[JobFinished]] == ["good"] * 4
    assert len(faults_of(mixed, "random")) == 4
    (message,) = {event.message for event in faults_of(mixed, "random")}
    assert "reference of random: a second call with equal inputs gives something else" in message


def test_a_missing_blob_is_a_fault_of_its_workload(mixed):
    assert sorted(event.job.workload.uuid for event in mixed[JobFinished]) == ["w0", "w0", "w1", "w1"]
    faults = faults_of(mixed, "good")
    assert [event.job.workload.uuid for event in faults] == ["lost", "lost"]
    assert all("none.safetensors" in event.message for event in faults)


def test_a_reference_that_ends_the_session_is_tried_twice_and_then_given_up(tmp_path):
    references = {"deadly": "import os\ndef run(x):\n    os._exit(3)\n", "good": HONEST}
    events = run(write_set(tmp_path, references=references, workloads=1, solutions=("a", "b", "c")))
    assert len(events[JobFinished]) == 3
    assert len(events[JobFaulted]) == 3
    assert "exit code 3" in events[JobFaulted][0].message
    assert len(events[Notice]) <= 4  # the second job of the workload is not tried again


def test_an_error_that_the_session_does_not_know_is_held_against_the_job_that_raised_it(tmp_path):
    references = {"odd": ODD}
    events = run(write_set(tmp_path, references=references, workloads=3, solutions=("a", "b")))
    assert sorted(event.job.workload.uuid for event in events[JobFinished]) == ["w1", "w1", "w2", "w2"]
    assert {event.job.workload.uuid for event in events[JobFaulted]} == {"w0"}
    assert "an error that nobody knows" in events[JobFaulted][0].message
    assert len(events[Notice]) == 2  # the second job of the workload is not tried


def test_a_reference_that_hangs_is_ended_by_the_host(tmp_path, monkeypatch):
    monkeypatch.setattr(session_client, "PHASE_GRACE_S", 2.0)
    references = {"endless": "def run(x):\n    while True: pass\n", "good": HONEST}
    events = run(write_set(tmp_path, references=references, workloads=4, solutions=("a", "b")), timeout_seconds=1.0)
    assert len(events[Notice]) == 2  # two workloads are tried, once each, and then no other
    messages = [event.message for event in events[JobFaulted]]
    assert "stopped answering in phase 'reference', which may take 3 s" in messages[0]
    assert messages[-1] == "reference of endless: it ran out of time on workloads w0, w1"
    assert len(messages) == len(events[JobFinished]) == 8


def test_one_solution_on_two_devices_uses_both(tmp_path):
    devices = tuple(Device("cpu", index, f"CPU {index}", "cpu") for index in range(2))
    trace_set = write_set(tmp_path, references={"good": HONEST}, workloads=12)
    met = tmp_path / "met"
    met.mkdir()
    source = MEETS_ANOTHER.format(folder=str(met))
    trace_set.solutions["good"] = [make_solution("meets", definition="good", source=source)]
    events = run(trace_set, devices=devices)
    assert len(events[JobFinished]) == 12
    assert {event.device.index for event in events[JobFinished]} == {0, 1}


@pytest.fixture(scope="module")
def seeded(tmp_path_factory):
    """Return the evaluations, by definition, of three runs without a baseline: two of one seed, and one of another."""
    references = {"good": HONEST, "one_more": "def run(x):\n    return x * 2 + 1\n"}
    trace_set = write_set(tmp_path_factory.mktemp("set"), references=references, workloads=1)
    runs = [run(trace_set, profile_baseline=False, seed=seed) for seed in (1, 1, 2)]
    return [{event.job.definition.name: event.trace.evaluation for event in events[JobFinished]} for events in runs]


def test_a_solution_without_baseline_has_a_latency_and_no_speed_up(seeded):
    performance = seeded[0]["good"].performance
    assert performance.latency_ms > 0
    assert (performance.reference_latency_ms, performance.speedup_factor) == (0.0, 0.0)


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others(seeded):
    worst = [evaluations["one_more"].correctness.extra["outputs"]["y"]["worst"] for evaluations in seeded]
    assert worst[0] == worst[1] != worst[2]
