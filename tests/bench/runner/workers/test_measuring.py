"""Timing a solution in a worker: honest solutions in every style, cheats, `setup`, and the record."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.bench.runner.workers import measuring as measuring_module
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.bench.runner.workers.measuring import Measuring
from flashinfer_bench.bench.runner.workers.timed.call_buffers import HUGE_SHARE, VAST_SHARE
from flashinfer_bench.bench.runner.workers.timed.reported_time import ClaimContradicted
from flashinfer_bench.errors import SolutionFailure
from tests.kit.make import make_definition, make_workload
from tests.kit.trials import vary

pytestmark = pytest.mark.cpu
X = torch.arange(1.0, 5.0)
READ = MeasurePlan(2, 20, 30.0, reads=12)
DOUBLE = "def run(x):\n    return x * 2"
FORGER = """
import flashinfer_bench.worker.main as main
answer = main.answer_readings
def forge(samples):
    told = {{name: values * {1} for name, values in answer(samples).items()}}
    return told | {{name: [value] * len(told["late"]) for name, value in {0}.items()}}
main.answer_readings = forge
"""
SLEEP = "import time\ndef run(x):\n    time.sleep({})\n    return x * 2"
HONEST = {
    "value": DOUBLE,
    "dps": "def run(x, y):\n    y.copy_(x * 2)",
    "a buffer by address": (
        "import torch\nknown = {}\ndef run(x):\n"
        "    buffer = known.setdefault(x.data_ptr(), torch.empty(4))\n    return torch.mul(x, 2, out=buffer)"
    ),
    "a ring of buffers": (
        "import torch\nring = [torch.empty(4) for _ in range(11)]\ndef run(x):\n"
        "    ring.append(ring.pop(0))\n    return torch.mul(x, 2, out=ring[0])"
    ),
    "a parameter": "import torch\ndef run(x):\n    return torch.nn.Parameter(x * 2)",
    "setup": "def setup(x):\n    return {'seen': x + 0}\ndef run(x, *, seen):\n    return x * 2 * (x == seen)",
    "setup, by position": "def setup(x):\n    return {'factor': 2}\ndef run(x, factor):\n    return x * factor",
    "setup with outputs": "def setup(x, y):\n    y.copy_(x * 2)\n    return {}\ndef run(x, y):\n    pass",
}


def is_right(read):
    return torch.equal(read.outputs[0], read.inputs[0] * 2)


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_every_call_that_is_compared_of_an_honest_solution_is_right(open_kernel, source):
    with open_kernel(source, plan=READ) as kernel:
        assert torch.equal(kernel(X)[0], X * 2)
        assert kernel.measure([[X], [X + 1]]).latency_ms > 0
    assert [sum(read.is_base for read in reads) for reads in kernel.reads] == [1, 1]
    found = [read for reads in kernel.reads for read in reads]
    assert len(found) == 2 * (READ.reads + 1)
    assert all(map(is_right, found))
    assert len({read.inputs[0].numpy().tobytes() for read in found}) == len(found)


@pytest.mark.parametrize(("share", "stress"), [(HUGE_SHARE, 1), (VAST_SHARE, 0)])
def test_few_of_the_huge_calls_are_kept(open_kernel, monkeypatch, share, stress):
    x = torch.arange(600_000, dtype=torch.float32)
    bytes_of_call, sets = 2 * x.nbytes, ([x], [x + 1])
    monkeypatch.setattr(measuring_module, "total_bytes", lambda device: share * (bytes_of_call - 1))
    plan = StressPlan(make_definition(), make_workload(axes={"n": len(x)}, inputs={}), 1)
    outputs = [OutputSpec("y", (len(x),), torch.float32)]
    with open_kernel(DOUBLE, plan=replace(READ, iterations=4), stress=plan, outputs=outputs) as kernel:
        assert len(kernel.measure([*sets, sets[0]]).trials) == 3
        assert sum(map(len, kernel.reads)) == 2
        assert all(is_right(read) for reads in kernel.reads for read in reads)
        assert len(kernel.stress_calls) == stress


def test_huge_inputs_that_a_call_changes_are_found(open_kernel, monkeypatch):
    monkeypatch.setattr(measuring_module, "total_bytes", lambda device: 0)
    with open_kernel("def run(x):\n    return x.mul_(2).clone()", plan=READ) as kernel:
        with pytest.raises(SolutionFailure, match="input 'x' was changed"):
            kernel.measure([[X]])


CHEATS = {
    "by address": (
        "known = {}\ndef run(x):\n    if x.data_ptr() not in known:\n        known[x.data_ptr()] = x * 2\n"
        "    return known[x.data_ptr()]",
        3,
    ),
    "every second left out": (
        "calls = []\ndef run(x, y):\n    calls.append(1)\n    if len(calls) % 2:\n        y.copy_(x * 2)",
        1,
    ),
    "by the stack": (
        "import sys\ndef run(x):\n    frame, names = sys._getframe(), set()\n    while frame:\n"
        "        names.add(frame.f_code.co_name)\n        frame = frame.f_back\n"
        "    return x.clone() if 'sample' in names else x * 2",
        13,
    ),
    "by attribute": (
        "import torch\nclass Calls:\n    def __call__(self, x):\n        y = torch.empty(4)\n"
        "        y.detach = lambda: x * 2\n        return y.fill_(7)\nrun = Calls()",
        13,
    ),
}


@pytest.mark.parametrize(("source", "least"), CHEATS.values(), ids=CHEATS)
def test_compared_calls_show_skipped_work(open_kernel, source, least):
    with open_kernel(source, plan=replace(READ, iterations=200)) as kernel:
        kernel.measure([[X]])
    assert sum(not is_right(read) for read in kernel.reads[0]) >= least


@pytest.mark.parametrize(
    ("changes", "times", "said"),
    [
        ("{'span_ns': 10**12}", 1, "readings add up to more than the time that passed"),
        ("{'span_ns': float('nan')}", 1, "out of protocol"),
    ],
)
def test_impossible_samples_are_refused(open_kernel, changes, times, said):
    with open_kernel(FORGER.format(changes, times) + DOUBLE) as kernel:
        kernel(X)
        with pytest.raises(SolutionFailure, match=said) as failure:
            kernel.measure([[X]])
    assert failure.value.status == "RUNTIME_ERROR"


@pytest.mark.parametrize("forges", [False, True])
def test_a_latency_on_a_cpu_is_the_workers_and_flagged_if_it_is_far_below_what_requests_took(open_kernel, forges):
    forger = FORGER.format("{'span_ns': 1_000}", 1) if forges else ""
    with open_kernel(forger + SLEEP.format(0.01), plan=READ) as kernel:  # work would share its core with others
        measured = kernel.measure([[X]])
    record = measured.record
    assert (record["bound"], record["method"]) == ("none", "wall")
    assert record["outside_ms"] >= 10
    assert measured.latency_ms == 0.001 if forges else 10 <= measured.latency_ms <= 1.5 * record["outside_ms"]
    assert record.get("flags", []).count("unconfirmed") == forges
    assert not {"relay_ms", "burst_ms", "claimed_ms"} & record.keys()
    assert all(map(is_right, kernel.reads[0]))


@pytest.mark.parametrize(("contradicted", "is_settled"), [(1, True), (99, False)])
def test_a_contradicted_measurement_is_made_again_a_few_times_on_other_contents(
    open_kernel, monkeypatch, contradicted, is_settled
):
    contents, take = [], Measuring._take_samples

    def contradict(job, remote):
        contents.append(tuple(remote.contents.make(4)[0].tolist()))
        if len(contents) <= contradicted:
            raise ClaimContradicted("RUNTIME_ERROR", "too good")
        return take(job, remote)

    monkeypatch.setattr(Measuring, "_take_samples", contradict)
    with open_kernel(DOUBLE, plan=READ) as kernel:
        with nullcontext() if is_settled else pytest.raises(ClaimContradicted):
            kernel.measure([[X], [X + 1]])
    assert 1 < len({*contents}) == len(contents) < 9


@pytest.mark.parametrize("makes_up", [True, False])
def test_timed_calls_are_made_up_for_if_more_are_wanted_than_there_were(open_kernel, monkeypatch, makes_up):
    monkeypatch.setattr(measuring_module, "MAKING_UP_S", 60.0)
    with open_kernel(DOUBLE, plan=replace(READ, reads=40, makes_up=makes_up)) as kernel:
        assert kernel.measure([[X]]).record["samples"] == READ.iterations
    assert (sum(read.mode == "reading" for read in kernel.reads[0]) == 40) is makes_up
    assert all(map(is_right, kernel.reads[0]))


def test_each_trial_has_as_many_samples_and_compared_calls_of_its_own_inputs(open_kernel):
    sets = [[X * 10.0**at] for at in range(3)]
    with open_kernel(DOUBLE, plan=replace(READ, reads=30), vary=vary(mode="rolled")) as kernel:
        kernel.tools.run_metadata._keep_samples = True
        measured = kernel.measure(sets)
        assert len(kernel.measure([[X], [X + 1], [torch.arange(8.0)]]).trials) == 2  # the third has another shape
        assert len(kernel.reads) == 2
        kernel.measure(sets)
    assert [len(spans) for spans in measured.record["samples_ns"]["span"]] == [20, 20, 20]
    assert len(measured.trials) == 3
    for reads, (base,) in zip(kernel.reads, sets, strict=True):
        assert len(reads) >= 20
        assert all(read.inputs[0].sort().values.equal(base) for read in reads)


def test_a_measurement_plans_with_the_remaining_time_of_the_solution(open_kernel):
    """0.1 s a call: a hundred calls would take longer than the four seconds that it may take."""
    with open_kernel(SLEEP.format(0.1), timeout_seconds=4.0, plan=MeasurePlan(10, 90, 10.0)) as kernel:
        kernel(X)
        measured = kernel.measure([[X], [X]])
    assert measured.record["stop"] in ("budget", "precision")
    assert measured.latency_ms >= 100


def test_setup_and_run_are_timed_apart_and_count_together(open_kernel):
    setup = "import time\ndef setup(x):\n    time.sleep(0.01)\n    return {'y': x * 2}\n"
    source = f"{setup}def run(x, *, y):\n    return y"
    with open_kernel(source, plan=READ) as kernel:
        measured = kernel.measure([[X]])
    setup_ms, kernel_ms = (measured.record[name] for name in ("setup_ms", "kernel_ms"))
    assert (setup_ms >= 10, kernel_ms < 5) == (True, True)
    assert measured.trials == [measured.latency_ms] == [setup_ms + kernel_ms]
    assert all(map(is_right, kernel.reads[0]))  # setup sees the inputs of the call that it prepares
