"""The procedure of a trial on a fake GPU: the detected properties of a call, its timing, and its number of samples."""

from dataclasses import replace
from functools import partial
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.clocks import CaptureRefused, WallClock
from flashinfer_bench.timing.procedure import Procedure, take_trial
from flashinfer_bench.timing.summary import summarise
from tests.kit.fake_gpu import LAUNCH_NS, FakeGpu, fake_cupti_clock

pytestmark = pytest.mark.cpu
USUAL = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)
REFERENCE = replace(USUAL, stops_early=True)
SECOND, MS = 10**9, 10**6
FIRST = 12
"""Calls of the check, and of the first test for persisting lines, which warm up."""


def take(gpu, call=None, procedure=USUAL, *, source=None, clock=None, **faults):
    """Take a trial of a call, or of the calls of a source."""
    clock = clock or fake_cupti_clock(gpu, **faults)[0]
    return take_trial(source or (lambda _index: call), clock, procedure, now=gpu.seconds)


def leaves_lines(gpu, length_ns, with_lines_ns):
    """Return a call that is quicker while persisting lines are left of the call before."""

    def launch():
        gpu.kernel("kernel", with_lines_ns if gpu.persisting else length_ns)
        gpu.persisting = True

    return launch


def held_up(gpu, at, number, host_ns=5 * MS):
    """Return the call of a number, with one call that is slow on the host."""
    return gpu.call(operations=3, host_ns=host_ns if at == number else 0)


ONE = {"calls": FIRST + 50, "launch": "stream", "launch_reason": "a single operation needs no graph"}
ONE |= {"method": "cupti", "cache_state": "cold", "spin_ns": 100_000, "enqueue_ns": LAUNCH_NS}
WAITS = {"waits_inside": True, "spin_ns": 0, "launch_reason": "the call waits for the GPU inside", "retaken": None}
ASIDE = {"side_stream": True, "spin_ns": 0}
NO_WAIT, LINES = {"waits_inside": None}, {"lines_reset": True, "calls": 42 + 50}
FOUND = {
    "one kernel": (lambda gpu, _: gpu.call(), ONE | NO_WAIT, []),
    "waits": (lambda gpu, _: gpu.call(operations=3, waits=True), WAITS, ["host_bound", "waits_inside"]),
    "long": (lambda gpu, _: gpu.call(length_ns=5 * MS), NO_WAIT, []),
    "held up once": (partial(held_up, number=2), NO_WAIT | {"launch": "graph"}, None),
    "side stream": (lambda gpu, _: gpu.call(operations=2, side=True), ASIDE, ["side_stream"]),
    "no work": (lambda gpu, _: gpu.call(operations=0, host_ns=7_000), {}, ["no_gpu_work"]),
    "other names": (lambda gpu, at: lambda: gpu.kernel(f"k{at % 2}"), {"operations_vary": True}, ["operations_vary"]),
    "persisting lines": (lambda gpu, _: leaves_lines(gpu, 10_000, 4_000), LINES, ["persisting_l2"]),
    "lines that do not matter": (lambda gpu, _: leaves_lines(gpu, 10_000, 9_800), {"lines_reset": None}, []),
    "late": (
        lambda gpu, at: gpu.call(host_ns=700_000 if at >= FIRST else 0),
        {"retaken": 150, "spin_ns": 800_000},
        [],
    ),
}


@pytest.mark.parametrize(("call", "found", "flags"), FOUND.values(), ids=FOUND)
def test_the_detected_properties_of_a_call(gpu, call, found, flags):
    trial = take(gpu, source=partial(call, gpu))
    assert ({name: trial.metadata.get(name) for name in found}, len(trial.samples)) == (found, 50)
    assert flags is None or summarise([trial]).record.get("flags", []) == flags


@pytest.mark.parametrize(
    ("fault", "reason", "next_method"),
    [
        ({"lost_at": 4}, "CUPTI lost records: 3 dropped", "cupti"),
        ({"refusal": "another subscriber of CUPTI"}, "another subscriber of CUPTI", "cuda_events"),
    ],
)
def test_lost_records_fall_back_to_events_and_the_next_trial_tries_again(gpu, fault, reason, next_method):
    clock, recorder = fake_cupti_clock(gpu, **fault)
    trial = take(gpu, gpu.call(), clock=clock)
    assert (trial.metadata["method"], len(trial.samples), trial.stop) == ("cuda_events", 50, "count")
    assert (trial.metadata["fallback"].startswith(reason), trial.metadata["empty_pair_ns"]) == (True, 1_500)
    assert (recorder.is_on, take(gpu, gpu.call(), clock=clock).metadata["method"]) == (False, next_method)


@pytest.mark.parametrize(
    ("length_s", "procedure", "stop", "samples"),
    [(30, USUAL, "budget", 1), (0.25, USUAL, "precision", 9), (0.01, REFERENCE, "precision", 3)],
)
def test_slow_calls_stop_at_their_precision_or_budget(gpu, length_s, procedure, stop, samples):
    start = gpu.seconds()
    trial = take(gpu, gpu.call(length_ns=int(length_s * SECOND), operations=1), procedure)
    assert (trial.stop, len(trial.samples)) == (stop, samples)
    assert gpu.seconds() - start < 10.6 + 2 * length_s


@given(st.integers(0, 12), st.integers(1, 20), st.floats(0.001, 5), st.integers(1, 10**9), st.integers(0, 10**9))
def test_any_trial_ends_with_a_sample_and_at_most_two_calls_past_its_budget(warmup, wanted, budget_s, gpu_ns, host_ns):
    gpu = FakeGpu()
    trial = take(gpu, gpu.call(length_ns=gpu_ns, host_ns=host_ns), Procedure(warmup, wanted, budget_s))
    assert 1 <= len(trial.samples) <= wanted
    assert gpu.seconds() <= budget_s + 2 * (gpu_ns + host_ns + 53 * MS) / 1e9 + 0.01


# Replays of graphs


def replay_of(gpu, launch, change):
    """Return a replay of a call's operations, each changed: a name and a length."""
    gpu.captured = []
    launch()
    nodes, gpu.captured = gpu.captured, None
    return lambda: gpu.replay([change(at, *node) for at, node in enumerate(nodes)])


def shrinks(share):
    return lambda _at, name, length_ns: (name, int(length_ns * share))


def renames(at, name, length_ns):
    return ("another" if at else name, length_ns)


def refuse(_launch):
    raise CaptureRefused("the call cannot be captured: it reads a result back")


def test_several_operations_are_timed_as_replays_of_a_graph(gpu):
    released = []
    trial = take(gpu, gpu.call(operations=3, host_ns=400_000), release=lambda: released.append(len(gpu.log)))
    assert (trial.metadata["launch"], "launch_reason" in trial.metadata, len(released)) == ("graph", False, 1)
    assert {(one.operations, one.span_ns, one.late) for one in trial.samples} == {(3, 31_000, False)}
    assert gpu.log.count("replay") == 2 + 50  # those that are checked, then the samples


LESS, OTHER = "does less than half of the work", "launches something else than the call does"


@pytest.mark.parametrize(
    ("honest", "change", "reason"),
    [
        (0, renames, OTHER),
        (0, shrinks(0.49), LESS),
        (0, shrinks(0.51), None),
        (1, shrinks(0.3), LESS),
        (3, shrinks(0.3), None),  # one of four: its content
    ],
)
def test_replays_are_trusted_if_they_have_the_launches_of_the_call(gpu, honest, change, reason):
    calls, made = [gpu.call(operations=3, length_ns=50_000) for _ in range(4)], []

    def capture(launch):
        made.append(launch)
        return gpu.capture(launch) if len(made) <= honest else replay_of(gpu, launch, change)

    clock = fake_cupti_clock(gpu, capture=capture)[0]
    clock.fresh_graphs = 4
    trial = take(gpu, source=lambda at: calls[at % 4], clock=clock)
    assert trial.metadata["launch"] == ("stream" if reason else "graph")
    assert (reason or "") in trial.metadata.get("launch_reason", "")


@pytest.mark.parametrize(
    ("call", "changes", "options", "reason"),
    [
        ({}, {"cuda_graphs": False}, {}, "graphs are off"),
        ({}, {}, {"capture": refuse}, "the call cannot be captured: it reads a result back"),
        ({"length_ns": SECOND}, {}, {}, "a call as slow as this gains nothing by a graph"),
        ({}, {}, {"lost_at": 1}, "only CUPTI can tell whether a replay launches what the call does"),
        ({"length_ns": 30 * SECOND}, {}, {}, "the budget holds no more calls"),
    ],
)
def test_a_graph_that_is_not_used_is_not_used_for_a_reason(gpu, call, changes, options, reason):
    trial = take(gpu, gpu.call(operations=3, **call), replace(USUAL, **changes), **options)
    assert (trial.metadata["launch"], "replay" in gpu.log) == ("stream", False)
    assert trial.metadata["launch_reason"].startswith(reason)


def test_any_error_is_raised_and_no_state_of_its_trial_reaches_the_next_trial(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    with pytest.raises(IndexError):
        take(gpu, source=lambda at: [].pop if at == FIRST + 17 else gpu.call(operations=4), clock=clock)
    assert not recorder.is_on
    assert {sample.operations for sample in take(gpu, gpu.call(), clock=clock).samples} == {1}


def test_a_later_call_that_cannot_be_captured_has_all_of_them_launched_within_the_budget(gpu):
    start, made = gpu.seconds(), []

    def capture(launch):
        made.append(launch)
        gpu.now_ns += 100 * MS
        return refuse(launch) if len(made) == 8 else gpu.capture(launch)

    procedure = replace(USUAL, warmup_runs=5, budget_s=1.5)
    trial = take(gpu, procedure=procedure, source=lambda _: gpu.call(operations=2, host_ns=200_000), capture=capture)
    assert (trial.metadata["launch"], "reads a result back" in trial.metadata["launch_reason"]) == ("stream", True)
    assert (len(made), gpu.seconds() - start < 1.6) == (8, True)


@pytest.mark.parametrize(("call_ms", "stop", "samples"), [(0, "count", 50), (20, "precision", 9)])
def test_a_reference_of_which_the_first_requests_were_slow_is_timed_as_a_quick_one(gpu, call_ms, stop, samples):
    """Contexts that are made at the same time hold up some requests; large inputs hold up all calls."""
    clock, request_ms = fake_cupti_clock(gpu)[0], chain([20, 20], repeat(7))

    def prepare(_at):
        gpu.now_ns += call_ms * MS
        return gpu.call()

    def ask(*given, sample=clock.sample):
        gpu.now_ns += next(request_ms) * MS
        return sample(*given)

    clock.sample = ask
    trial = take(gpu, procedure=REFERENCE, source=prepare, clock=clock)
    assert (trial.stop, len(trial.samples)) == (stop, samples)


def test_the_wall_clock_warms_up_and_reads_without_a_delay():
    calls = []
    trial = take_trial(lambda index: lambda: calls.append(index), WallClock(), USUAL)
    assert calls == list(range(60))
    assert (trial.metadata, len(trial.samples)) == ({"method": "wall", "cache_state": "warm", "calls": 60}, 50)
