"""When a call is timed as the replay of a graph, and what is said where it is not."""

import random
import weakref

import pytest

from flashinfer_bench.timing.clocks import CaptureRefused
from flashinfer_bench.timing.procedure import BRANCHED_GRAPHS, PLACED_GRAPHS, PLACED_NS, Procedure, take_trial
from flashinfer_bench.timing.timeline import Operation
from tests.kit.fake_gpu import fake_cupti_clock, fake_event_clock

pytestmark = pytest.mark.cpu
REST_NS = 100_000
RECIPE = Procedure(warmup_runs=10, iterations=50, budget_s=10.0)


def take(gpu, supply, recipe=RECIPE, **options):
    return take_trial(supply, fake_cupti_clock(gpu, **options)[0], recipe, now=gpu.seconds)


def test_several_operations_are_timed_as_the_replay_of_a_graph(gpu):
    call = gpu.call(operations=3)
    trial = take(gpu, lambda _: call)
    assert trial.facts["launch"] == "graph"
    assert "launch_reason" not in trial.facts
    assert gpu.log.count("replay") == 1 + PLACED_GRAPHS + 50  # those that are looked at, 50 readings
    assert {(s.operations, s.busy_ns, s.span_ns) for s in trial.samples} == {(3, 30_000, 31_000)}


def test_a_call_is_captured_once_however_often_it_is_supplied(gpu):
    captures = []

    def capture(launch):
        captures.append(launch)
        return gpu.capture(launch)

    first, second = gpu.call(operations=2), gpu.call(operations=2)
    take(gpu, lambda index: (first, second)[index % 2], capture=capture)
    assert sorted(map(id, captures)) == sorted(map(id, (first, second)))


def test_nothing_is_captured_between_the_ends_of_a_reading(gpu):
    def capture(launch):
        gpu.log.append("capture")
        return gpu.capture(launch)

    take(gpu, lambda _: gpu.call(operations=2), capture=capture)
    places = [place for place, step in enumerate(gpu.log) if step == "capture"]
    assert len(places) == 51
    assert all(gpu.log[:place].count("read") % 2 == 0 for place in places)


def test_a_call_that_draws_random_numbers_is_timed_as_the_replay_of_a_graph(gpu):
    """Torch tells such a graph by two fills where its draws begin, before each replay."""

    def capture(launch):
        replay = gpu.capture(launch)

        def fill_and_replay():
            for _ in range(2):
                gpu.kernel("FillFunctor<long>", 1_300)
            replay()

        return fill_and_replay

    call = gpu.call(operations=3)
    trial = take(gpu, lambda _: call, capture=capture)
    assert trial.facts["launch"] == "graph"
    assert {(s.operations, s.busy_ns, s.span_ns) for s in trial.samples} == {(3, 30_000, 31_000)}


def slow_at_first(gpu):
    """Return a way to capture calls, whose graphs take 2 us longer when they are replayed for the first time."""

    def capture(launch):
        gpu.now_ns += 3_000_000
        gpu.captured = []
        launch()
        ((name, length_ns), *others), gpu.captured = gpu.captured, None
        first = [2_000]

        def replay():
            gpu.replay([(name, length_ns + sum(first)), *others])
            first.clear()

        return replay

    return capture


@pytest.mark.parametrize("stops_early", [False, True])
def test_no_reading_is_the_first_replay_of_a_graph(gpu, stops_early):
    calls = [gpu.call(operations=3) for _ in range(4)]
    clock = fake_cupti_clock(gpu, capture=slow_at_first(gpu))[0]
    clock.fresh_graphs = len(calls)
    recipe = Procedure(10, 50, 10.0, was_called=True, stops_early=stops_early)
    trial = take_trial(lambda index: calls[index % 4], clock, recipe, now=gpu.seconds)
    assert (trial.facts["launch"], trial.stop, len(trial.samples)) == ("graph", "count", 50)
    assert set(trial.spans_ns) == {31_000}


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (lambda gpu, launch: renamed(gpu, launch, ["kernel_0", "another", "kernel_2"]), "something else"),
        (lambda gpu, launch: shrunk(gpu, launch, 0.3), "less than half"),
    ],
    ids=["something else", "less"],
)
def test_a_graph_of_another_place_is_looked_at_too(gpu, capture, reason):
    calls, made = [gpu.call(operations=3) for _ in range(4)], []

    def capture_honestly_at_first(launch):
        made.append(launch)
        return gpu.capture(launch) if len(made) == 1 else capture(gpu, launch)

    clock = fake_cupti_clock(gpu, capture=capture_honestly_at_first)[0]
    clock.fresh_graphs = len(calls)
    trial = take_trial(lambda index: calls[index % 4], clock, RECIPE, now=gpu.seconds)
    assert trial.facts["launch"] == "stream"
    assert reason in trial.facts["launch_reason"]


def test_a_graph_whose_content_makes_it_do_less_is_no_reason_against_graphs(gpu):
    calls, made = [gpu.call(operations=3) for _ in range(4)], []

    def capture(launch):
        made.append(launch)
        return shrunk(gpu, launch, 0.3 if len(made) == 3 else 1)

    clock = fake_cupti_clock(gpu, capture=capture)[0]
    clock.fresh_graphs = len(calls)
    assert take_trial(lambda index: calls[index % 4], clock, RECIPE, now=gpu.seconds).facts["launch"] == "graph"


def test_graphs_that_take_long_to_capture_are_not_all_replayed_before_the_readings(gpu):
    calls = [gpu.call(operations=3) for _ in range(4)]
    clock = fake_cupti_clock(gpu, capture=slow_at_first(gpu))[0]
    clock.fresh_graphs = len(calls)
    trial = take_trial(lambda index: calls[index % 4], clock, Procedure(0, 50, 0.04), now=gpu.seconds)
    assert trial.facts["launch"] == "graph"
    assert 33_000 in trial.spans_ns


def branched(gpu, left_ns=10_000, host_ns=0):
    """Return a call whose two operations run side by side once a graph holds them."""

    def launch():
        gpu.log.append("call")
        gpu.now_ns += host_ns
        gpu.kernel("left", left_ns)
        gpu.kernel("right", 8_000)

    def capture(call):
        gpu.captured = []
        call()
        (left, left_ns), (right, right_ns) = gpu.captured
        gpu.captured = None
        made.append(later_ns := 1_000 * len(made))  # each graph places its branches otherwise

        def replay():
            gpu.log.append("replay")
            gpu.now_ns += 2_000
            gpu.launches += 1
            start_ns = max(gpu.now_ns, gpu.free_ns) + 1_000
            gpu.done.append(Operation(left, start_ns, start_ns + left_ns, gpu.launches))
            gpu.done.append(Operation(right, start_ns + later_ns, start_ns + later_ns + right_ns, gpu.launches))
            gpu.free_ns = start_ns + max(left_ns, later_ns + right_ns)

        return replay

    made = []
    return launch, capture, made


def test_branches_that_run_side_by_side_are_timed_over_many_graphs(gpu):
    launch, capture, made = branched(gpu)
    trial = take(gpu, lambda _: launch, capture=capture)
    assert (trial.facts["launch"], trial.facts["graphs"]) == ("graph", BRANCHED_GRAPHS)
    assert len(made) == BRANCHED_GRAPHS
    spans = trial.spans_ns[:BRANCHED_GRAPHS]
    assert spans == trial.spans_ns[BRANCHED_GRAPHS : 2 * BRANCHED_GRAPHS]
    assert len(set(spans)) == BRANCHED_GRAPHS - 2  # the first three end together, with the other branch
    assert gpu.log.count("replay") == 1 + BRANCHED_GRAPHS + len(trial.samples)


def test_branched_calls_with_arguments_of_their_own_have_a_graph_each_and_no_more(gpu):
    launch, capture, made = branched(gpu)
    sets = [lambda: launch(), lambda: launch(), lambda: launch()]
    take(gpu, lambda index: sets[index % 3], capture=capture)
    assert len(made) == 3


def test_long_branches_need_one_graph(gpu):
    launch, capture, made = branched(gpu, left_ns=PLACED_NS + 1)
    trial = take(gpu, lambda _: launch, capture=capture)
    assert (trial.facts["launch"], "graphs" in trial.facts, len(made)) == ("graph", False, 1)


def test_a_call_that_the_host_is_slow_to_launch_is_captured_once(gpu):
    launch, capture, made = branched(gpu, host_ns=30_000_000)
    trial = take(gpu, lambda _: launch, Procedure(warmup_runs=3, iterations=5, budget_s=1.0), capture=capture)
    assert (trial.facts["launch"], "graphs" in trial.facts, len(made)) == ("graph", False, 1)


def test_the_spin_before_a_replay_is_for_the_replay_and_not_for_the_call(gpu):
    call = gpu.call(operations=3, host_ns=400_000)
    trial = take(gpu, lambda _: call)
    assert trial.facts["launch"] == "graph"
    assert trial.facts["enqueue_ns"] > 400_000
    assert trial.facts["spin_ns"] == REST_NS
    assert not any(sample.late for sample in trial.samples)


def test_operations_one_after_the_other_are_timed_over_several_graphs(gpu):
    call = gpu.call(operations=3)
    assert take(gpu, lambda _: call).facts["graphs"] == PLACED_GRAPHS


@pytest.mark.parametrize(("iterations", "graphs"), [(1, None), (3, 3), (PLACED_GRAPHS + 1, PLACED_GRAPHS)])
def test_there_are_no_more_graphs_than_readings(gpu, iterations, graphs):
    call = gpu.call(operations=3)
    assert take(gpu, lambda _: call, Procedure(10, iterations, 10.0)).facts.get("graphs") == graphs


def test_a_call_whose_capture_is_slow_is_captured_once(gpu):
    captures = []

    def capture(launch):
        captures.append(launch)
        gpu.now_ns += 500_000_000
        return gpu.capture(launch)

    call = gpu.call(operations=3)
    trial = take(gpu, lambda _: call, Procedure(warmup_runs=3, iterations=50, budget_s=3.0), capture=capture)
    assert (len(captures), len(trial.samples), trial.stop) == (1, 50, "count")


def test_the_memory_of_graphs_is_given_back_when_they_are_gone(gpu):
    alive, seen = [], []

    def capture(launch):
        replay = gpu.capture(launch)

        def held():
            return replay()

        alive.append(weakref.ref(held))
        return held

    def release():
        seen.append(sum(reference() is not None for reference in alive))

    call = gpu.call(operations=3)
    take(gpu, lambda _: call, capture=capture, release=release)
    assert (len(alive), seen) == (PLACED_GRAPHS, [0])
    single = gpu.call()
    take(gpu, lambda _: single, capture=capture, release=release)
    assert seen == [0]


def refuse(_launch):
    raise CaptureRefused("the call cannot be captured: it reads a result back")


@pytest.mark.parametrize(
    ("call", "recipe", "options", "reason"),
    [
        ({"operations": 1}, RECIPE, {}, "a single operation needs no graph"),
        ({"operations": 0}, RECIPE, {}, "a single operation needs no graph"),
        ({"operations": 3}, Procedure(10, 50, 10.0, cuda_graphs=False), {}, "graphs are off"),
        ({"operations": 3, "waits": True}, RECIPE, {}, "the call waits for the GPU inside"),
        ({"operations": 3, "side": True}, RECIPE, {}, "the call uses a stream that does not wait for the current one"),
        ({"operations": 3}, RECIPE, {"capture": refuse}, "the call cannot be captured: it reads a result back"),
        ({"operations": 3, "length_ns": 10**9}, RECIPE, {}, "a call as slow as this gains nothing by a graph"),
        (
            {"operations": 3, "length_ns": 10**7},
            RECIPE,
            {},
            "its operations follow one another without gaps that a graph could close",
        ),
    ],
    ids=["one", "none", "off", "waits", "side stream", "refused", "slow", "no gaps"],
)
def test_a_graph_that_is_not_used_is_not_used_for_a_reason(gpu, call, recipe, options, reason):
    trial = take(gpu, lambda _: gpu.call(**call), recipe, **options)
    assert (trial.facts["launch"], trial.facts["launch_reason"]) == ("stream", reason)
    assert "replay" not in gpu.log
    assert trial.samples[0].operations == call["operations"]


def test_events_cannot_tell_what_a_replay_launches_so_none_is_made(gpu):
    trial = take_trial(lambda _: gpu.call(operations=3), fake_event_clock(gpu), RECIPE, now=gpu.seconds)
    assert trial.facts["launch_reason"] == "only CUPTI can tell whether a replay launches what the call does"
    assert "replay" not in gpu.log


def hides(gpu):
    """Return a call with an operation that runs at its capture and never again, and whose stream is waited for."""

    def launch():
        gpu.log.append("call")
        gpu.kernel("first")
        gpu.kernel("hidden", side=gpu.captured is not None)
        gpu.kernel("last")

    return launch


def test_a_replay_that_launches_something_else_is_not_trusted(gpu):
    trial = take(gpu, lambda _: hides(gpu))
    assert trial.facts["launch_reason"] == "a replay launches something else than the call does"
    assert {sample.operations for sample in trial.samples} == {3}


def renamed(gpu, launch, names):
    """Return a replay of a call with its operations under other names."""
    gpu.captured = []
    launch()
    nodes, gpu.captured = gpu.captured, None
    assert len(nodes) == len(names)

    return lambda: gpu.replay([(name, length_ns) for name, (_, length_ns) in zip(names, nodes, strict=True)])


def test_a_replay_of_as_many_operations_by_other_names_is_not_trusted(gpu):
    call = gpu.call(operations=2)
    trial = take(gpu, lambda _: call, capture=lambda launch: renamed(gpu, launch, ["kernel_0", "another"]))
    assert trial.facts["launch_reason"] == "a replay launches something else than the call does"


def shrunk(gpu, launch, share):
    """Return a replay of a call whose operations take a share of what they took."""
    gpu.captured = []
    launch()
    nodes, gpu.captured = gpu.captured, None

    return lambda: gpu.replay([(name, int(length_ns * share)) for name, length_ns in nodes])


@pytest.mark.parametrize(("share", "launch"), [(0.02, "stream"), (0.49, "stream"), (0.51, "graph"), (2, "graph")])
def test_a_replay_that_does_less_than_half_of_the_work_is_not_trusted(gpu, share, launch):
    call = gpu.call(operations=3, length_ns=50_000)
    trial = take(gpu, lambda _: call, capture=lambda launch: shrunk(gpu, launch, share))
    assert trial.facts["launch"] == launch
    assert ("less than half of the work" in trial.facts.get("launch_reason", "")) == (launch == "stream")


def test_a_gpu_that_was_slow_when_it_was_first_looked_at_is_no_reason_against_a_graph(gpu):
    slow, quick = gpu.call(operations=3, length_ns=50_000), gpu.call(operations=3, length_ns=10_000)
    launch = lambda: (slow if gpu.log.count("call") < 2 else quick)()  # noqa: E731 - one call, as a graph needs it
    trial = take(gpu, lambda _: launch)
    assert (trial.facts["launch"], set(trial.spans_ns)) == ("graph", {31_000})


def test_one_graph_of_many_that_launches_something_else_spoils_them_all(gpu):
    made = []

    def capture(launch):
        made.append(launch)
        names = ["kernel_0", "another" if len(made) == PLACED_GRAPHS else "kernel_1"]
        return renamed(gpu, launch, names)

    call = gpu.call(operations=2)
    trial = take(gpu, lambda _: call, capture=capture)
    assert len(made) == PLACED_GRAPHS
    assert (trial.facts["launch"], "graphs" in trial.facts) == ("stream", False)


def test_a_later_call_that_cannot_be_captured_has_all_of_them_launched_on_the_stream(gpu):
    def capture(launch):
        if launch is calls[40]:
            raise CaptureRefused("the call cannot be captured: it reads a result back")
        return gpu.capture(launch)

    calls = [gpu.call(operations=2, host_ns=200_000) for _ in range(100)]
    trial = take(gpu, calls.__getitem__, capture=capture)
    assert (trial.facts["launch"], len(trial.samples)) == ("stream", 50)
    assert "reads a result back" in trial.facts["launch_reason"]
    assert trial.facts["spin_ns"] >= 1.5 * trial.facts["enqueue_ns"]
    assert {sample.span_ns for sample in trial.samples} == {21_000}


def test_captures_of_calls_with_arguments_of_their_own_keep_to_the_budget(gpu):
    def capture(launch):
        gpu.now_ns += 200_000_000
        return gpu.capture(launch)

    def supply(_index):
        return gpu.call(operations=3)

    trial = take(gpu, supply, Procedure(warmup_runs=5, iterations=50, budget_s=4.0, exact=True), capture=capture)
    assert (trial.facts["launch"], trial.stop) == ("graph", "precision")
    assert gpu.seconds() < 4.5


def test_what_was_captured_in_vain_counts_against_the_budget(gpu):
    def capture(launch):
        if launch is calls[40]:
            raise CaptureRefused("the call cannot be captured: it reads a result back")
        return gpu.capture(launch)

    chance = random.Random(3)
    calls = [gpu.call(operations=2, length_ns=chance.randrange(5_000_000, 25_000_000)) for _ in range(200)]
    trial = take(gpu, calls.__getitem__, Procedure(warmup_runs=5, iterations=50, budget_s=1.5), capture=capture)
    assert (trial.facts["launch"], trial.stop) == ("stream", "budget")
    assert gpu.seconds() < 1.6
