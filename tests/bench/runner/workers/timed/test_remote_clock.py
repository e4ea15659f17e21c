"""A worker's clock from the session's side: requests, content before each, a look after each, and what goes wrong."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner.workers.timed import remote_clock
from flashinfer_bench.bench.runner.workers.timed.call_places import MOST_PLACES
from flashinfer_bench.bench.runner.workers.timed.remote_clock import RemoteClock
from flashinfer_bench.bench.runner.workers.timed.trial import PlaceLaunch
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.clocks import CaptureRefused, ClockLost, Lead
from flashinfer_bench.timing.progress import Recipe
from flashinfer_bench.timing.recipe import take_trial
from tests.kit.trials import CUPTI, EVENTS, WALL, ScriptedWorker, make_trial

pytestmark = pytest.mark.cpu
RECIPE = Recipe(warmup_runs=3, iterations=20, budget_s=10.0)
SOON = {"call_ns": 1}  # no more than really passes between a request and its answer


@pytest.fixture
def open_clock(arena):
    """Return a trial, its scripted worker, and the clock of both."""

    def opened(*, clock=WALL, worker=SOON, **trial):
        made = make_trial(arena, **trial)
        scripted = ScriptedWorker(made, clock=clock, **worker)
        return made, scripted, RemoteClock(scripted, clock, made)

    return opened


def test_a_request_holds_at_most_one_call_for_each_place(open_clock):
    trial, worker, clock = open_clock()
    with clock:
        samples = clock.sample([trial.supply(index) for index in range(20)], Lead())
    assert [fields["indices"] for fields in worker.fields_of("calls")] == [
        [*range(MOST_PLACES)],
        [*range(MOST_PLACES)],
        [0, 1, 2, 3],
    ]
    assert len(samples) == 20
    assert worker.verbs() == ["start", "calls", "calls", "calls", "stop"]


@pytest.mark.parametrize(("has_setup", "cost_ns"), [(False, 1_000), (True, 1_300)])
def test_what_calls_take_outside_is_kept_a_share_for_each_call(open_clock, monkeypatch, has_setup, cost_ns):
    trial, worker, clock = open_clock(has_setup=has_setup, worker={"call_ns": 1_000, "setup_ns": 300})
    monkeypatch.setattr(remote_clock, "time", SimpleNamespace(monotonic=lambda: worker.now / 1e9))
    worker.request_ns = 800
    with clock:
        clock.sample([trial.supply(index) for index in range(MOST_PLACES + 1)], Lead())
    requests = 800 * (1 + has_setup)
    assert trial.costs_ns == pytest.approx([cost_ns + requests / MOST_PLACES] * MOST_PLACES + [cost_ns + requests])


def test_every_call_has_content_of_its_own_and_is_looked_at(open_clock):
    trial, _, clock = open_clock(base_number=11)
    taken = take_trial(trial.supply, clock, RECIPE)
    assert taken.facts["calls"] >= 23
    assert trial.reader._seen == taken.facts["calls"] - 1  # the base apart
    assert [read.is_base for read in trial.reader.reads()].count(True) == 1


def test_outputs_are_poisoned_before_a_request(open_clock):
    trial, worker, clock = open_clock(wanted=0)
    worker._compute = lambda fields: None
    with clock:
        clock.sample([trial.supply(index) for index in range(4)], Lead())
    reads = trial.reader.reads()
    assert all(read.outputs[0].isnan().all() for read in reads)
    assert len(reads) == 4


def readings(count):
    each = ("span_ns", "enqueue_ns", "work_ns", "streams", "busy_ns", "operations", "lead_ns")
    flags = {"late": [False] * count, "escaped": [False] * count, "launched": [""] * count}
    return {"readings": {**{name: [1] * count for name in each}, **flags}}


def test_calls_of_a_graph_are_asked_for_as_replays(open_clock):
    trial, worker, clock = open_clock(clock=CUPTI, device_type="cuda")
    worker.answers["calls"] = readings(2)
    replays = clock.captured(trial.supply)
    assert replays(9) == PlaceLaunch(1, replay=True)
    with clock:
        clock.sample([replays(0), replays(1)], Lead())
    assert worker.fields_of("calls")[0]["replay"] is True


def test_graphs_are_fresh_until_each_was_replayed_also_in_an_earlier_trial(open_clock):
    trial, worker, clock = open_clock(clock=CUPTI, device_type="cuda")
    replays, places = clock.captured(trial.supply), len(trial.places)
    fresh = [clock.fresh_graphs]
    with clock:
        for launches in ([trial.supply(0)], [replays(0)], [replays(index) for index in range(1, places)]):
            worker.answers["calls"] = readings(len(launches))
            clock.sample(launches, Lead())
            fresh.append(clock.fresh_graphs)
    assert fresh == [places, places, places, 0]
    assert RemoteClock(worker, CUPTI, trial).fresh_graphs == 0


def test_a_clock_that_sees_no_operations_replays_nothing(open_clock):
    trial, _, clock = open_clock(clock=EVENTS, device_type="cuda")
    assert clock.captured(trial.supply)(0) == PlaceLaunch(0)


def test_a_lost_clock_is_replaced_by_what_the_worker_falls_back_to(open_clock):
    trial, worker, clock = open_clock(clock=CUPTI, device_type="cuda", worker={**SOON, "lost": "3 dropped"})
    taken = take_trial(trial.supply, clock, RECIPE)
    assert taken.facts["method"] == "cuda_events"
    assert [fields["fall_back"] for fields in worker.fields_of("start")] == [None, "3 dropped"]


def test_a_clock_that_is_lost_in_the_middle_is_switched_off_and_says_why(open_clock):
    trial, worker, clock = open_clock(clock=CUPTI, device_type="cuda")
    worker.answers["calls"] = {"readings": None, "lost": "3 dropped"}
    with pytest.raises(ClockLost, match="3 dropped"), clock:
        clock.sample([trial.supply(0)], Lead())
    assert worker.verbs() == ["start", "calls", "stop"]


def test_a_wall_clock_has_nothing_to_fall_back_to(open_clock):
    _, _, clock = open_clock()
    assert clock.fall_back("lost") is None


def test_a_call_that_cannot_be_captured_is_refused_and_the_clock_goes_off(open_clock):
    trial, worker, clock = open_clock(clock=CUPTI, device_type="cuda")
    worker.answers["calls"] = {"readings": None, "refused": "it waits"}
    with pytest.raises(CaptureRefused, match="it waits"), clock:
        clock.sample([trial.supply(0)], Lead())
    assert worker.verbs()[-1] == "stop"


def test_a_solution_that_failed_is_asked_nothing_more(open_clock):
    trial, worker, clock = open_clock()
    worker.answers["calls"] = {"readings": None}
    with pytest.raises(SolutionFailure, match="there are no readings"), clock:
        clock.sample([trial.supply(0)], Lead())
    assert worker.verbs() == ["start", "calls"]


def test_setup_comes_before_the_calls_and_its_readings_stand_apart(open_clock):
    trial, worker, clock = open_clock(has_setup=True, worker={"call_ns": 1, "setup_ns": 2})
    with clock:
        samples = clock.sample([trial.supply(index) for index in range(3)], Lead())
    assert [fields["part"] for fields in worker.fields_of("calls")] == ["setup", "run"]
    assert [sample.span_ns for sample in samples] == [1, 1, 1]
    assert [sample.span_ns for sample in trial.setup_samples] == [2, 2, 2]
    assert trial.setup_ns == 2


def test_beside_setup_nothing_is_captured(open_clock):
    trial, _, clock = open_clock(clock=CUPTI, has_setup=True, device_type="cuda")
    with pytest.raises(CaptureRefused, match="what setup prepares"):
        clock.captured(trial.supply)


@pytest.mark.parametrize(
    ("told", "said"),
    [(CUPTI, "the method 'cupti'"), (WALL.model_copy(update={"cache_state": "cold"}), "the cache state 'cold'")],
)
def test_a_clock_that_was_not_asked_for_is_the_solutions_doing(open_clock, told, said):
    _, worker, clock = open_clock()
    worker.answers["start"] = {"clock": told.model_dump()}
    with pytest.raises(SolutionFailure, match=said), clock:
        pass


def test_readings_that_add_up_to_more_than_the_time_outside_are_refused(open_clock):
    trial, _, clock = open_clock(worker={"call_ns": 10**9})
    with pytest.raises(SolutionFailure, match="add up to more than the time that passed"), clock:
        clock.sample([trial.supply(0)], Lead())
