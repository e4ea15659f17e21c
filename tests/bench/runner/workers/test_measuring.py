"""What comes of timing a solution in a worker: of honest ones in every style, and of `setup`."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.runner.workers import kernel as kernel_module
from flashinfer_bench.bench.runner.workers.kernel import MEASUREMENTS
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.bench.runner.workers.pool import SlowContext, check_context
from flashinfer_bench.bench.runner.workers.timed.bounds import ClaimContradicted
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.procedure import most_samples
from tests.kit.trials import vary

pytestmark = pytest.mark.cpu
X = torch.arange(1.0, 5.0)
READ = MeasurePlan(2, 20, 1.0, reads=12)
WORK = """
import time
def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
"""

FORGED = """
import flashinfer_bench.worker.main as main
answer = main.answer_readings
main.answer_readings = lambda samples: {**answer(samples), "span_ns": [1_000] * len(samples)}
"""


HONEST = {
    "value": "def run(x):\n    return x * 2",
    "tuple": "def run(x):\n    return (x * 2,)",
    "dps": "def run(x, y):\n    y.copy_(x * 2)",
    "its own buffer": "import torch\nbuffer = torch.empty(4)\ndef run(x):\n    return torch.mul(x, 2, out=buffer)",
    "a buffer by address": (
        "import torch\nknown = {}\ndef run(x):\n"
        "    buffer = known.setdefault(x.data_ptr(), torch.empty(4))\n    return torch.mul(x, 2, out=buffer)"
    ),
    "a ring of buffers": (
        "import torch\nring = [torch.empty(4) for _ in range(11)]\ndef run(x):\n"
        "    ring.append(ring.pop(0))\n    return torch.mul(x, 2, out=ring[0])"
    ),
    "a slice of a workspace": (
        "import torch\nspace = torch.empty(64)\ndef run(x):\n    return torch.mul(x, 2, out=space[8:12])"
    ),
    "a view": "def run(x):\n    return (x * 2).view(2, 2).view(4)",
    "a parameter": "import torch\ndef run(x):\n    return torch.nn.Parameter(x * 2)",
    "an attribute": "def run(x):\n    y = x * 2\n    y.note = 'mine'\n    return y",
    "setup": "def setup(x):\n    return {'factor': 2}\ndef run(x, *, factor):\n    return x * factor",
    "setup, dps": "def setup(x):\n    return {'w': x.clone()}\ndef run(x, y, *, w):\n    y.copy_(w + x)",
    "setup, by position": "def setup(x):\n    return {'factor': 2}\ndef run(x, factor):\n    return x * factor",
    "setup with outputs": "def setup(x, y):\n    return {'w': x.clone()}\ndef run(x, y, w):\n    y.copy_(w + x)",
    "setup that fills outputs": "def setup(x, y):\n    y.copy_(x * 2)\n    return {}\ndef run(x, y):\n    pass",
    "no use of setup": "def setup(x):\n    return {}\ndef run(x):\n    return x * 2",
    "printing": "def run(x):\n    print('called')\n    return x * 2",
}


def is_right(read):
    return torch.equal(read.outputs[0], read.inputs[0] * 2)


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_every_call_that_is_read_of_an_honest_solution_is_right(open_kernel, source):
    with open_kernel(source, plan=READ) as kernel:
        assert torch.equal(kernel(X)[0], X * 2)
        measured = kernel.measure([[X], [X + 1]])
    assert measured.latency_ms > 0
    assert sum(map(len, kernel.reads)) == 2 * (READ.reads + 1)  # those on the evaluator's own inputs beside the chosen
    assert [sum(read.is_base for read in reads) for reads in kernel.reads] == [1, 1]
    assert all(is_right(read) for reads in kernel.reads for read in reads)
    assert len({read.inputs[0].numpy().tobytes() for reads in kernel.reads for read in reads}) == 26


def test_a_solution_that_is_called_by_keyword_may_write_to_its_inputs(open_kernel):
    source = "def run(unused=None, x=None):\n    return x.mul_(2)"
    with open_kernel(source, by_keyword=True, may_write_inputs=True, plan=READ, declared=False) as kernel:
        kernel.measure([[X]])
    assert all(is_right(read) for read in kernel.reads[0])


def test_a_measurement_has_a_reading_per_iteration(open_kernel):
    with open_kernel("def run(x, y):\n    y.copy_(x)") as kernel:
        measured = kernel.measure([[X], [X]])
    assert measured.record["method"] == "wall"
    assert (measured.record["samples"], len(measured.trials)) == (10, 2)
    assert [[read.is_base for read in reads] for reads in kernel.reads] == [[True], [True]]


def test_a_latency_on_a_cpu_is_what_the_worker_says_beside_what_its_requests_took(open_kernel):
    source = f"{WORK}\ndef run(x):\n    work(0.002)\n    return x * 2"
    with open_kernel(source, plan=READ) as kernel:
        measured = kernel.measure([[X]])
    record = measured.record
    assert record["bound"] == "none"
    assert 2.0 <= measured.latency_ms <= 1.5 * record["outside_ms"]
    assert not {"relay_ms", "burst_ms", "claimed_ms"} & record.keys()
    assert all(is_right(read) for read in kernel.reads[0])


def test_a_latency_far_below_what_its_requests_took_is_flagged_and_nothing_else(open_kernel, monkeypatch):
    source = f"{WORK}{FORGED}\ndef run(x):\n    work(0.002)\n    return x * 2"
    with open_kernel(source, plan=READ) as kernel:
        measured = kernel.measure([[X]])
    assert measured.latency_ms == 0.001
    assert measured.record["flags"].count("unconfirmed") == 1
    assert measured.record["outside_ms"] >= 2.0


@pytest.mark.parametrize("contradicted", [1, MEASUREMENTS - 1, MEASUREMENTS])
def test_a_contradicted_measurement_is_made_again_and_the_last_one_counts(open_kernel, monkeypatch, contradicted):
    with open_kernel("def run(x):\n    return x * 2", plan=READ) as kernel:
        firsts, take = [], kernel._measure

        def contradict(chosen, first):
            firsts.append(first)
            if len(firsts) <= contradicted:
                raise ClaimContradicted("RUNTIME_ERROR", "too good")
            return take(chosen, first)

        monkeypatch.setattr(kernel, "_measure", contradict)
        with pytest.raises(ClaimContradicted) if contradicted == MEASUREMENTS else nullcontext():
            kernel.measure([[X], [X + 1]])
    assert firsts == [2 * at for at in range(min(contradicted + 1, MEASUREMENTS))]


@pytest.mark.parametrize("makes_up", [True, False])
def test_timed_calls_are_made_up_for_where_more_are_wanted_than_there_were(open_kernel, makes_up):
    plan = replace(READ, reads=40, makes_up=makes_up)
    with open_kernel("def run(x):\n    return x * 2", plan=plan) as kernel:
        record = kernel.measure([[X]]).record
    ways = Counter(read.way for read in kernel.reads[0])
    assert (ways["reading"] == 40) is makes_up
    assert record["samples"] == READ.iterations
    assert all(is_right(read) for read in kernel.reads[0])


def test_each_trial_has_as_many_readings_and_compared_calls_of_its_own_inputs(open_kernel):
    sets = [[X * 10.0**at] for at in range(3)]
    with open_kernel("def run(x):\n    return x * 2", plan=replace(READ, reads=30), vary=vary(way="rolled")) as kernel:
        kernel._tools.readout._keep_samples = True
        measured = kernel.measure(sets)
    assert [len(spans) for spans in measured.record["samples_ns"]["span"]] == [20, 20, 20]
    assert len(measured.trials) == 3
    for reads, (base,) in zip(kernel.reads, sets, strict=True):
        assert len(reads) >= 20
        assert all(read.inputs[0].sort().values.equal(base) for read in reads)


def test_a_slow_call_that_is_known_is_timed_no_more_where_it_may_stop_early(open_kernel):
    source = f"{WORK}\ndef run(x):\n    work(0.004)\n    return x * 2"
    with open_kernel(source, plan=MeasurePlan(2, 200, 9.0, precision=0.5, stops_early=True)) as kernel:
        measured = kernel.measure([[X], [X + 1], [X + 2]])
    assert measured.record["stop"] == "precision"
    assert 9 <= measured.record["samples"] < 100
    assert len(measured.trials) == 3


def test_trials_end_where_a_single_value_is_another(open_kernel):
    with open_kernel("def run(x):\n    return x * 2") as kernel:
        assert len(kernel.measure([[X], [X + 1], [torch.arange(8.0)]]).trials) == 2


@pytest.mark.parametrize(("way", "flagged"), [("fixed", True), ("scaled", False)])
def test_inputs_that_cannot_be_varied_are_flagged(open_kernel, way, flagged):
    with open_kernel("def run(x):\n    return x * 2", vary=vary(way=way)) as kernel:
        assert ("same_inputs" in kernel.measure([[X]]).record.get("flags", [])) is flagged


def test_nothing_stands_beside_a_time_that_means_nothing(open_kernel):
    plan = MeasurePlan(0, 1, 1.0, trials=1, facts={"meaningful": False})
    with open_kernel("def run(x):\n    return x * 2", plan=plan) as kernel:
        record = kernel.measure([[X], [X]]).record
    assert record["meaningful"] is False
    assert not {"bound", "outside_ms"} & record.keys()
    assert not kernel.is_meaningful


def test_a_trial_may_take_all_its_extra_readings():
    assert most_samples(50) == 50 + 10 * 50


def test_a_measurement_plans_with_what_is_left_of_the_solutions_time(open_kernel):
    """0.1 s a call: a hundred calls would take longer than the four seconds that it may take."""
    source = "import time\ndef run(x):\n    time.sleep(0.1)\n    return x * 2"
    with open_kernel(source, timeout_seconds=4.0, plan=MeasurePlan(10, 90, 10.0)) as kernel:
        kernel(X)
        measured = kernel.measure([[X], [X]])
    assert measured.record["stop"] in ("budget", "precision")
    assert measured.latency_ms >= 100


def test_a_solution_that_was_checked_and_takes_longer_than_the_budget_is_made_once_a_trial(open_kernel):
    source = "import time\ndef run(x):\n    time.sleep(0.3)\n    return x * 2"
    with open_kernel(source, plan=MeasurePlan(10, 90, 0.1)) as kernel:
        kernel(X)
        measured = kernel.measure([[X]])
    assert (measured.record["calls"], measured.record["samples"]) == (1, 1)


def test_setup_and_run_are_timed_apart_and_count_together(open_kernel):
    source = (
        "import time\ndef setup(x):\n    time.sleep(0.001)\n    return {'f': 2}\ndef run(x, *, f):\n    return x * f"
    )
    with open_kernel(source, plan=MeasurePlan(5, 50, 1.0)) as kernel:
        measured = kernel.measure([[X]])
    assert measured.record["setup_ms"] >= 1.0
    assert measured.record["kernel_ms"] < 1.0
    assert measured.latency_ms == measured.record["setup_ms"] + measured.record["kernel_ms"]
    assert measured.trials == [measured.latency_ms]


def test_work_that_is_done_in_setup_gains_nothing(open_kernel):
    source = f"{WORK}\ndef setup(x):\n    work(0.002)\n    return {{'y': x * 2}}\ndef run(x, *, y):\n    return y"
    with open_kernel(source, plan=READ) as kernel:
        measured = kernel.measure([[X]])
    assert measured.latency_ms >= 2.0
    assert all(is_right(read) for read in kernel.reads[0])  # setup sees the inputs of the call that it prepares


def test_setup_is_called_anew_for_every_call_on_the_inputs_of_that_call(open_kernel):
    source = "def setup(x):\n    return {'seen': x + 0}\ndef run(x, *, seen):\n    return x * 2 * (x == seen)"
    with open_kernel(source, plan=READ) as kernel:
        kernel.measure([[X]])
    assert all(is_right(read) for read in kernel.reads[0])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def setup(x):\n    return 1\ndef run(x):\n    return x", "setup must return a dict"),
        ("def setup(x):\n    return {1: 2}\ndef run(x):\n    return x", "setup must return a dict"),
        ("def setup(x):\n    raise ValueError('boom')\ndef run(x):\n    return x", "ValueError in setup: boom"),
        ("def setup(x):\n    return {'z': 1}\ndef run(x):\n    return x", "unexpected keyword argument 'z'"),
    ],
    ids=["a number", "odd names", "raises", "not taken"],
)
def test_what_is_wrong_with_setup_is_told(open_kernel, source, said):
    with open_kernel(source) as kernel:
        with pytest.raises(SolutionFailure, match=said) as failure:
            kernel(X)
    assert failure.value.status == "RUNTIME_ERROR"


@pytest.mark.parametrize(
    ("operations", "span_ns", "excess_ns", "matters"),
    [
        (8, 40_000, 150, True),
        (1, 3_000, 150, False),
        (None, 3_000, 150, False),
        (8, 900_000, 150, False),
        (8, 40, 0, False),
    ],
    ids=["short operations", "one operation", "not seen", "long operations", "a fast context"],
)
def test_a_slow_context_matters_where_gaps_are_a_share_of_the_time(operations, span_ns, excess_ns, matters):
    trial = Trial((Sample(span_ns, 1000, span_ns, operations),) * 5, "count", {})
    with pytest.raises(SlowContext) if matters else nullcontext():
        check_context(trial, excess_ns)


def test_a_measurement_ends_where_its_context_matters(open_kernel, monkeypatch):
    trial = Trial((Sample(40_000, 1000, 40_000, 8),) * 5, "count", {})
    with open_kernel(HONEST["value"]) as kernel:
        monkeypatch.setattr(kernel, "_take_readings", lambda remote: trial)
        kernel._tools = replace(kernel._tools, excess_of=lambda worker: 150 if worker is kernel.worker else 0)
        with pytest.raises(SlowContext):
            kernel.measure([[X]])


@pytest.mark.parametrize(
    ("waits_inside", "slice_ns", "before", "after", "taken", "asked"),
    [
        (True, 1e12, False, True, 2, 1),
        (True, 1e12, True, False, 2, 1),
        (True, 1e12, False, False, 1, 1),
        (False, 0, True, False, 2, 1),
        (False, 0, False, True, 2, 1),
        (False, 1e12, True, True, 1, 0),
        (False, None, True, True, 1, 0),
    ],
    ids=[
        "it waits, beside a context",
        "it waits, beside one that was done",
        "it waits, alone",
        "it is long, beside a context that was done",
        "it is long, beside a context",
        "it neither waits nor is long",
        "it is so long that a context moves it little",
    ],
)
def test_a_call_that_waits_or_is_long_is_timed_while_no_context_is_made(
    open_kernel, monkeypatch, waits_inside, slice_ns, before, after, taken, asked
):
    questions, trials = [], []
    monkeypatch.setattr(kernel_module, "SLICE_NS", slice_ns or 0)
    if slice_ns is None:
        monkeypatch.setattr(kernel_module, "LONG_NS", 0)
    with open_kernel(HONEST["value"], plan=READ) as kernel:
        settle, unused = (lambda: questions.append(True) or after), (lambda: pytest.fail("the other one is asked"))
        kernel._tools = replace(
            kernel._tools,
            settle=settle if waits_inside else unused,
            settle_contexts=unused if waits_inside else settle,
            is_starting=lambda: before,
        )
        take = kernel._take_readings

        def take_one(remote):
            trials.append(take(remote))
            assert len(remote.costs_ns) <= trials[-1].facts["calls"]  # none of a take that was dropped
            return replace(trials[-1], facts={**trials[-1].facts, "waits_inside": waits_inside})

        monkeypatch.setattr(kernel, "_take_readings", take_one)
        measured = kernel.measure([[X], [X + 1]])
    assert (len(trials), len(questions), len(measured.trials)) == (taken, asked, 2)
    assert all(is_right(read) for reads in kernel.reads for read in reads)
