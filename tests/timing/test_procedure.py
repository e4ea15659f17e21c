"""The procedure of a trial on a fake GPU: what is found of a call, how it is timed, how many samples it gets."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.timing.clocks import CaptureRefused, WallClock
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.procedure import Procedure, rest_ns, take_trial
from flashinfer_bench.timing.summary import summarise
from tests.kit.fake_gpu import LAUNCH_NS, FakeGpu, fake_cupti_clock, fake_event_clock

pytestmark = pytest.mark.cpu
USUAL = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)
REFERENCE = replace(USUAL, was_called=True, stops_early=True)
SECOND, MS = 10**9, 10**6
CHECKS, LOOK = 3, 10
"""Calls of the check, and of the first look for persisting lines, which warm up."""
FIRST = CHECKS + LOOK
"""Number of the first call that is timed."""


def take(gpu, call=None, procedure=USUAL, *, source=None, clock=None, **faults):
    """Take a trial of a call, or of the calls that a source gives."""
    clock = clock or fake_cupti_clock(gpu, **faults)[0]
    return take_trial(source or (lambda _index: call), clock, procedure, now=gpu.seconds)


def flags_of(trial):
    return summarise([trial]).record.get("flags", [])


@dataclass
class Row:
    """A call, given a GPU; or a source of calls, given a GPU and a number. Facts that are missing are None."""

    call: Callable | None = None
    source: Callable | None = None
    found: dict | None = None
    flags: list | None = None
    procedure: Procedure = USUAL
    clock: Callable = lambda gpu: fake_cupti_clock(gpu)[0]
    samples: int | None = 50

    def take(self, gpu):
        source = None if self.source is None else partial(self.source, gpu)
        return take(gpu, self.call and self.call(gpu), self.procedure, source=source, clock=self.clock(gpu))


def held_up(*numbers, host_ns=5 * MS, usual_ns=0):
    """Return a source whose calls of these numbers are slow on the host."""
    return lambda gpu, at: gpu.call(operations=3, host_ns=host_ns if at in numbers else usual_ns)


def leaves_lines(gpu, length_ns, with_lines_ns, *, slow_checks=False):
    """Return a call that is quicker while persisting lines are left of the call before."""

    def launch():
        gpu.log.append("call")
        gpu.now_ns += 10 * MS if slow_checks and gpu.log.count("call") <= CHECKS else 0
        gpu.kernel("kernel", with_lines_ns if gpu.persisting else length_ns)
        gpu.persisting = True

    return launch


IS_GRAPH, ONE, WAITS = {"launch": "graph"}, "a single operation needs no graph", "the call waits for the GPU inside"
ASIDE = "the call uses a stream that does not wait for the current one"
NOT_WAITING, WAITING = {"waits_inside": None}, {"waits_inside": True, "spin_ns": 0, "retaken": None}
FOUND = {
    "one kernel": Row(
        lambda gpu: gpu.call(),
        found={
            "method": "cupti",
            "cache_state": "cold",
            "calls": FIRST + 50,
            "launch": "stream",
            "launch_reason": ONE,
            "spin_ns": 100_000,
            "enqueue_ns": LAUNCH_NS,
            "lead_ns": 1_000,
            "waits_inside": None,
            "streams": None,
        },
        flags=[],
    ),
    "waits": Row(
        lambda gpu: gpu.call(operations=3, waits=True),
        found={**WAITING, "launch_reason": WAITS},
        flags=["host_bound", "waits_inside"],
    ),
    "waits for first memory": Row(source=lambda gpu, at: gpu.call(waits=at < 4), found=NOT_WAITING),
    "long": Row(lambda gpu: gpu.call(length_ns=5 * MS), found=NOT_WAITING),
    "held up once": Row(source=held_up(2), found=NOT_WAITING | IS_GRAPH),
    "quick reference held up": Row(
        source=held_up(1), found={"spin_ns": 100_000}, procedure=replace(REFERENCE, budget_s=0.67)
    ),
    "side stream": Row(
        lambda gpu: gpu.call(operations=2, side=True),
        found={"side_stream": True, "spin_ns": 0, "launch_reason": ASIDE},
        flags=["side_stream"],
    ),
    "side stream by events": Row(
        lambda gpu: gpu.call(length_ns=5 * MS, side=True),
        found={"side_stream": True, "spin_ns": 0},
        flags=["side_stream"],
        clock=fake_event_clock,
    ),
    "no work": Row(lambda gpu: gpu.call(operations=0, host_ns=7_000), flags=["no_gpu_work"]),
    "longer than the host needs": Row(lambda gpu: gpu.call(host_ns=50_000, length_ns=100_000), flags=[]),
    "other names": Row(
        source=lambda gpu, at: lambda: gpu.kernel(f"kernel_{at % 2}"),
        found={"operations_vary": True},
        flags=["operations_vary"],
    ),
    "persisting lines": Row(
        lambda gpu: leaves_lines(gpu, 10_000, 4_000),
        found={"lines_reset": True, "calls": CHECKS + 4 * LOOK + 50},
        flags=["persisting_l2"],
    ),
    "lines that do not matter": Row(lambda gpu: leaves_lines(gpu, 10_000, 9_800), found={"lines_reset": None}),
    "late": Row(
        source=lambda gpu, at: gpu.call(host_ns=700_000 if at >= FIRST else 0),
        found={"retaken": 150, "spin_ns": 800_000},
        flags=[],
    ),
    "slower in the warm-up": Row(
        source=lambda gpu, at: gpu.call(host_ns=300_000 if at >= 3 else 0),
        found={"spin_ns": 302_000 * 3 // 2 + 6_000, "retaken": None},
    ),
}


@pytest.mark.parametrize("row", FOUND.values(), ids=FOUND)
def test_what_is_found_of_a_call(gpu, row):
    trial = row.take(gpu)
    assert {name: trial.facts.get(name) for name in row.found or ()} == (row.found or {})
    assert row.flags is None or flags_of(trial) == row.flags
    assert row.samples is None or len(trial.samples) == row.samples


@pytest.mark.parametrize(
    ("span_ns", "busy_ns", "wanted_ns"),
    [
        (5 * MS, MS, 1_100_000),
        (5 * MS, None, 7_500_000),
        (1, 20 * MS, 40 * MS),
        (1, 100 * MS, 50 * MS),
    ],
)
def test_the_gpu_rests_as_long_as_a_call_keeps_it_busy_and_longer_before_long_ones(span_ns, busy_ns, wanted_ns):
    assert rest_ns(Sample(span_ns=span_ns, enqueue_ns=1, busy_ns=busy_ns)) == wanted_ns


def test_checks_count_as_warm_up_and_each_call_is_supplied_once_in_order(gpu):
    gpu.l2_cache, asked, called = "warm", [], []  # no look for persisting lines

    def source(index):
        asked.append(index)
        return lambda: (called.append(index), gpu.kernel())

    take(gpu, procedure=Procedure(33, 5, 10.0), source=source)
    assert asked == called == [*range(38)]


def test_a_look_aside_that_was_held_up_is_repeated(gpu):
    clock, waits = fake_event_clock(gpu), iter([0] * 10 + [0, 80_000])  # empty pairs, the first call, the look aside

    def synchronize(wait=gpu.synchronize):
        gpu.now_ns += next(waits, 0)
        wait()

    gpu.synchronize = synchronize
    assert "side_stream" not in take(gpu, gpu.call(), clock=clock).facts


# Lost records


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"lost_at": 4}, "CUPTI lost records: 3 dropped"),
        ({"refusal": "another subscriber of CUPTI"}, "another subscriber of CUPTI"),
    ],
    ids=["dropped", "refused"],
)
def test_lost_records_fall_back_to_events_and_the_next_trial_tries_again(gpu, fault, reason):
    clock, recorder = fake_cupti_clock(gpu, **fault)
    trial = take(gpu, gpu.call(), clock=clock)
    assert (trial.facts["method"], len(trial.samples), trial.stop) == ("cuda_events", 50, "count")
    assert (trial.facts["fallback"].startswith(reason), trial.facts["empty_pair_ns"]) == (True, 1_500)
    assert not recorder.is_on
    assert take(gpu, gpu.call(), clock=clock).facts["method"] == ("cuda_events" if "refusal" in fault else "cupti")


# How many samples


def scattered(gpu, index, lengths=(1_120, 1_312), **traits):
    """Return a call that is one of two lengths, as one that misses the caches is."""
    return gpu.call(length_ns=random.Random(index).choice(lengths), **traits)


COUNTS = {
    "scattered": (scattered, Procedure(10, 10, 10.0), lambda count: count == 110),
    "exact": (scattered, replace(USUAL, fewest=50), lambda count: count == 50),
    "waits": (partial(scattered, waits=True), USUAL, lambda count: count == 50),
    "auto": (lambda gpu, _: gpu.call(), replace(USUAL, fewest=20), lambda count: count == 20),
}


@pytest.mark.parametrize(("call", "procedure", "holds"), COUNTS.values(), ids=COUNTS)
def test_how_many_samples_a_quick_call_gets(gpu, call, procedure, holds):
    trial = take(gpu, procedure=procedure, source=partial(call, gpu))
    assert holds(len(trial.samples))
    assert trial.facts.get("extra_samples", 0) == max(0, len(trial.samples) - procedure.iterations)


def test_the_wall_clock_warms_up_and_reads_without_a_delay():
    calls = []
    trial = take_trial(lambda index: lambda: calls.append(index), WallClock(), USUAL)
    assert calls == list(range(60))
    assert (trial.facts, len(trial.samples)) == ({"method": "wall", "cache_state": "warm", "calls": 60}, 50)


# The budget


@pytest.mark.parametrize(
    ("traits", "procedure", "stop", "samples"),
    [
        ({"length_ns": 30 * SECOND}, USUAL, "budget", (1, 1)),
        ({"length_ns": SECOND // 4}, USUAL, "precision", (9, 9)),
        ({"length_ns": SECOND // 100, "operations": 2}, REFERENCE, "precision", (3, 3)),
        ({"length_ns": SECOND // 250, "operations": 2}, REFERENCE, "precision", (9, 9)),
    ],
    ids=[
        "30 s",
        "0.25 s",
        "10 ms",
        "4 ms",
    ],
)
def test_slow_calls_stop_at_their_precision_or_budget(gpu, traits, procedure, stop, samples):
    start = gpu.seconds()
    trial = take(gpu, gpu.call(**traits), procedure)
    least, most = samples
    assert (trial.stop, least <= len(trial.samples) <= most) == (stop, True)
    longest_s = max(traits.get("length_ns", 0), traits.get("host_ns", 0)) / SECOND
    assert gpu.seconds() - start < 10.6 + 2 * longest_s


def test_slow_calls_that_scatter_keep_to_the_budget(gpu):
    trial = take(gpu, source=lambda at: gpu.call(length_ns=SECOND // (8 if at % 2 else 4)))
    assert (trial.stop, len(trial.samples) > 20, gpu.seconds() < 10.3) == ("budget", True, True)


@pytest.mark.parametrize("lost_at", [None, 4])
def test_the_budget_does_not_pay_for_a_first_call_that_compiles(gpu, lost_at):
    trial = take(gpu, source=lambda at: gpu.call(host_ns=700 * SECOND * (at == 0)), lost_at=lost_at)
    assert (trial.stop, len(trial.samples), max(trial.spans_ns) < 20_000) == ("count", 50, True)


def test_a_first_call_that_compiles_on_a_cpu_does_not_become_the_measurement(gpu):
    source = lambda at: gpu.call(operations=0, host_ns=3 * SECOND // 2 if at == 0 else MS)  # noqa: E731
    trial = take(gpu, procedure=replace(USUAL, budget_s=2.0), source=source, clock=WallClock())
    assert (trial.stop, set(trial.spans_ns), len(trial.samples)) == ("count", {MS}, 50)


@given(st.integers(0, 12), st.integers(1, 20), st.floats(0.001, 5), st.integers(1, 10**9), st.integers(0, 10**9))
def test_any_trial_ends_with_a_sample_and_at_most_two_calls_past_its_budget(warmup, wanted, budget_s, gpu_ns, host_ns):
    gpu = FakeGpu()
    trial = take(gpu, gpu.call(length_ns=gpu_ns, host_ns=host_ns), Procedure(warmup, wanted, budget_s))
    assert 1 <= len(trial.samples) <= wanted
    assert gpu.seconds() <= budget_s + 2 * (gpu_ns + host_ns + 53 * MS) / 1e9 + 0.01


def costly(gpu, call_ms, graphs):
    """Return a clock whose samples take time beside the calls."""
    clock = fake_cupti_clock(gpu)[0]
    sample, clock.fresh_graphs = clock.sample, graphs or None

    def ask(launches, preambles):
        gpu.now_ns += call_ms * len(launches) * MS
        return sample(launches, preambles)

    clock.sample = ask
    return clock


@pytest.mark.parametrize(
    ("call_ms", "graphs", "operations"),
    [
        (100, 0, 1),
        (3, 4, 3),
    ],
)
def test_the_cost_of_a_sample_beside_its_call_counts_as_its_time(gpu, call_ms, graphs, operations):
    """A slow `setup`, or inputs that are made anew for each call."""
    calls, start = [gpu.call(operations=operations) for _ in range(4)], gpu.seconds()
    procedure = Procedure(10, 1000, 0.67, was_called=True, stops_early=operations == 1)
    trial = take(gpu, procedure=procedure, source=lambda at: calls[at % 4], clock=costly(gpu, call_ms, graphs))
    assert gpu.seconds() - start < 0.8
    assert (trial.facts["launch"] == "graph") == (operations == 3)


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
    assert (trial.facts["launch"], "launch_reason" in trial.facts) == ("graph", False)
    assert {(one.operations, one.busy_ns, one.span_ns, one.late) for one in trial.samples} == {
        (3, 30_000, 31_000, False)
    }
    assert gpu.log.count("replay") == 2 + 50  # those that are looked at, then the samples
    assert len(released) == 1


def slow_at_first(gpu):
    """Return a way to capture calls, whose graphs take 2 us longer when they are replayed for the first time."""

    def capture(launch):
        gpu.now_ns += 3 * MS
        first = [2_000]

        def change(at, name, length_ns):
            return name, length_ns + (first.pop() if at == 0 and first else 0)

        return replay_of(gpu, launch, change)

    return capture


@pytest.mark.parametrize(
    ("procedure", "is_first"),
    [(replace(USUAL, was_called=True), False), (Procedure(0, 50, 0.04), True)],
    ids=["solution", "no time"],
)
def test_no_sample_is_the_first_replay_of_a_graph_if_there_is_time(gpu, procedure, is_first):
    calls = [gpu.call(operations=3) for _ in range(4)]
    clock = fake_cupti_clock(gpu, capture=slow_at_first(gpu))[0]
    clock.fresh_graphs = 4
    trial = take(gpu, procedure=procedure, source=lambda at: calls[at % 4], clock=clock)
    assert (trial.facts["launch"], 33_000 in trial.spans_ns) == ("graph", is_first)


LESS, OTHER = "does less than half of the work", "launches something else than the call does"


@pytest.mark.parametrize(
    ("honest", "change", "reason"),
    [
        (0, renames, OTHER),
        (0, shrinks(0.49), LESS),
        (0, shrinks(0.51), None),
        (1, renames, OTHER),
        (1, shrinks(0.3), LESS),
        (3, shrinks(0.3), None),
    ],
    ids=["names", "less", "half", "later names", "later less", "one of four less: its content"],
)
def test_replays_are_trusted_if_they_launch_what_the_call_does(gpu, honest, change, reason):
    calls, made = [gpu.call(operations=3, length_ns=50_000) for _ in range(4)], []

    def capture(launch):
        made.append(launch)
        return gpu.capture(launch) if len(made) <= honest else replay_of(gpu, launch, change)

    clock = fake_cupti_clock(gpu, capture=capture)[0]
    clock.fresh_graphs = 4
    trial = take(gpu, source=lambda at: calls[at % 4], clock=clock)
    assert trial.facts["launch"] == ("stream" if reason else "graph")
    assert (reason or "") in trial.facts.get("launch_reason", "")


def test_a_gpu_that_was_slow_at_first_is_no_reason_against_a_graph(gpu):
    slow, quick = gpu.call(operations=3, length_ns=50_000), gpu.call(operations=3)
    trial = take(gpu, lambda: (slow if gpu.log.count("call") < 2 else quick)())
    assert (trial.facts["launch"], set(trial.spans_ns)) == ("graph", {31_000})


@pytest.mark.parametrize(
    ("call", "changes", "options", "reason"),
    [
        ({"operations": 3}, {"cuda_graphs": False}, {}, "graphs are off"),
        ({"operations": 3}, {}, {"capture": refuse}, "the call cannot be captured: it reads a result back"),
        ({"operations": 3, "length_ns": SECOND}, {}, {}, "a call as slow as this gains nothing by a graph"),
        ({"operations": 3}, {}, {"lost_at": 1}, "only CUPTI can tell whether a replay launches what the call does"),
        ({"length_ns": 30 * SECOND, "operations": 2}, {}, {}, "the budget holds no more calls"),
    ],
    ids=["off", "refused", "slow", "events", "no budget"],
)
def test_a_graph_that_is_not_used_is_not_used_for_a_reason(gpu, call, changes, options, reason):
    trial = take(gpu, gpu.call(**call), replace(USUAL, **changes), **options)
    assert trial.facts["launch"] == "stream"
    assert trial.facts["launch_reason"].startswith(reason)
    assert "replay" not in gpu.log


def test_a_later_call_that_cannot_be_captured_has_all_of_them_launched_within_the_budget(gpu):
    start, made = gpu.seconds(), []

    def capture(launch):
        made.append(launch)
        gpu.now_ns += 100 * MS
        return refuse(launch) if len(made) == 8 else gpu.capture(launch)

    procedure = replace(USUAL, warmup_runs=5, budget_s=1.5)
    trial = take(gpu, procedure=procedure, source=lambda _: gpu.call(operations=2, host_ns=200_000), capture=capture)
    assert (trial.facts["launch"], "reads a result back" in trial.facts["launch_reason"]) == ("stream", True)
    assert (trial.facts["spin_ns"] >= 1.5 * trial.facts["enqueue_ns"], len(made)) == (True, 8)
    assert gpu.seconds() - start < 1.6


# What goes wrong


def test_whatever_raises_comes_through_and_none_of_its_trial_reaches_the_next_one(gpu):
    clock, recorder = fake_cupti_clock(gpu)
    with pytest.raises(IndexError):
        take(gpu, source=lambda at: [].pop if at == FIRST + 17 else gpu.call(operations=4), clock=clock)
    assert not recorder.is_on
    assert {sample.operations for sample in take(gpu, gpu.call(), clock=clock).samples} == {1}
