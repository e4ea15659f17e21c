"""Calls on inputs of stress cases: hidden among the timed ones, dropped from the readings, kept for the judge."""

import random

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.stress.plan import StressPlan
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.bench.runner.workers.timed.remote_clock import RemoteClock
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressSchedule
from flashinfer_bench.timing.clocks import Lead
from tests.kit.make import make_definition, make_workload
from tests.kit.operations import counting_operations
from tests.kit.trials import WALL, ScriptedWorker, make_trial

pytestmark = pytest.mark.cpu


class Marking:
    """Cases that write a number that no usual input has."""

    free = (True,)

    def change(self, name, number, values):
        values[0].fill_(1e6)


class Numbering(Marking):
    """Cases that number their calls."""

    calls = 0

    def change(self, name, number, values):
        values[0].fill_(1e6 + self.calls)
        self.calls += 1


def make_schedule(*names, calls=20, plan=None, seed=0):
    return StressSchedule(plan or Marking(), names, calls, chance=random.Random(seed))


@pytest.fixture
def sampled(arena):
    """Return a trial after 20 calls, with the readings and the worker."""

    def run(schedule, **options):
        trial = make_trial(arena, base_number=5, **options)
        trial.schedule = schedule
        worker = ScriptedWorker(trial, clock=WALL, call_ns=1)
        with RemoteClock(worker, WALL, trial) as clock:
            samples = clock.sample([trial.supply(index) for index in range(20)], Lead())
        return trial, samples, worker

    return run


def test_a_hidden_call_has_no_reading_and_is_kept_with_its_inputs(sampled):
    trial, samples, worker = sampled(make_schedule("few_large", "larger"))
    assert len(samples) == 20
    assert [call.case for call in trial.schedule.made] == ["few_large", "larger"]
    assert all((call.inputs[0] == 1e6).all() for call in trial.schedule.made)
    assert trial.schedule.left == []
    assert sum(len(fields["indices"]) for fields in worker.fields_of("calls")) == 22


def test_a_hidden_call_comes_beside_the_usual_ones_of_its_request_where_there_is_a_place(arena):
    trial = make_trial(arena, base_number=5)
    places = len(trial.places)
    trial.schedule = make_schedule("few_large", "larger", calls=places - 2)
    worker = ScriptedWorker(trial, clock=WALL, call_ns=1)
    with RemoteClock(worker, WALL, trial) as clock:
        assert len(clock.sample([trial.supply(index) for index in range(places - 2)], Lead())) == places - 2
    assert [sorted(fields["indices"]) for fields in worker.fields_of("calls")] == [list(range(places))]
    assert trial.schedule.left == []


def test_usual_calls_are_looked_at_and_the_base_keeps_its_inputs(sampled):
    for seed in range(5):
        trial, _, _ = sampled(make_schedule("few_large", "larger", calls=8, seed=seed), wanted=99)
        reads = trial.reader.reads()
        assert len(reads) == 20
        assert [read.is_base for read in reads].count(True) == 1
        assert not any((read.inputs[0] == 1e6).any() for read in reads)


@pytest.mark.parametrize("size", [3, 16])
def test_hidden_calls_that_change_their_inputs_are_found_and_others_are_kept(arena, size):
    checked = []
    trial = make_trial(
        arena, size=size, check_inputs=lambda inputs, now: checked.append(torch.equal(inputs[0], now[0]))
    )
    trial.schedule = make_schedule("few_large", "larger", calls=0, plan=Numbering())
    request = trial.prepare([trial.supply(index) for index in range(2)])
    for index in request.indices:
        trial.places.outputs(index)[0].copy_(trial.places.inputs(index)[0] * 2)
    trial.places.inputs(request.indices[request.hidden[1]])[0][-1].add_(1)
    with counting_operations() as counted:
        trial.finish(request, [], 0.0)
    assert checked == [True, False]
    assert counted.waits() == 3  # the look's, and those of `check_inputs` here
    assert [call.case for call in trial.schedule.made] == ["few_large", "larger"]
    for at, call in enumerate(trial.schedule.made):
        assert call.inputs[0].tolist() == [1e6 + at] * size
        assert call.outputs[0].tolist() == [2e6 + 2 * at] * size


def come(schedule, requests, most=8):
    """Return for each request of so many usual calls which cases come in it, and how many calls it has."""
    found = []
    for calls in requests:
        names = schedule.due(calls, most)
        total = min(calls + len(names), most)
        schedule.pass_by(total, len(names))
        found.append((names, total))
    return found


@pytest.mark.parametrize("calls", [2, 3, 4, 50])
def test_the_first_calls_keep_their_inputs_where_there_are_others(calls):
    for seed in range(20):
        schedule = make_schedule("few_large", "larger", calls=calls, seed=seed)
        found = come(schedule, [1] * calls)
        assert [names for names, _ in found[: min(2, calls - 2)]] == [[]] * min(2, calls - 2)
        assert [name for names, _ in found for name in names] == ["few_large", "larger"]


def test_a_request_has_no_more_calls_than_places_and_all_that_is_due_comes():
    schedule = make_schedule(*"abcdefghij", calls=0)
    assert come(schedule, [1, 8, 8]) == [(list("abcdefgh"), 8), (["i", "j"], 8), ([], 8)]


def test_calls_that_are_left_come_among_those_that_follow():
    schedule = make_schedule("few_large", "larger", calls=50)
    come(schedule, [1, 1])
    left = schedule.left
    schedule.spread(left, 6)
    found = come(schedule, [1, 1, 4])
    assert [names for names, _ in found] == [[], [], left]


def test_a_worker_makes_the_hidden_calls_like_others(open_kernel):
    definition = make_definition()
    stress = StressPlan(definition, make_workload(), seed=3)
    plan = MeasurePlan(2, 20, 1.0, reads=3)
    with open_kernel("def run(x):\n    return x * 2", plan=plan, stress=stress) as kernel:
        measured = kernel.measure([[torch.arange(1.0, 5.0)]])
    assert measured.record["samples"] == 20
    assert sorted(call.case for call in kernel.stress_calls) == sorted(stress.calls)
    assert all(torch.equal(call.outputs[0], call.inputs[0] * 2) for call in kernel.stress_calls)


def test_a_job_of_slow_calls_has_one_call_of_a_case(open_kernel):
    stress = StressPlan(make_definition(), make_workload(), seed=3)
    plan = MeasurePlan(0, 50, 0.0, reads=1)
    source = "import time\ndef run(x):\n    time.sleep(0.006)\n    return x * 2"
    with open_kernel(source, plan=plan, stress=stress) as kernel:
        kernel.measure([[torch.arange(1.0, 5.0)], [torch.arange(2.0, 6.0)]])
    (call,) = kernel.stress_calls
    assert torch.equal(call.outputs[0], call.inputs[0] * 2)


def test_a_short_trial_of_quick_calls_is_made_up_for_by_calls_that_look_timed(open_kernel):
    stress = StressPlan(make_definition(), make_workload(), seed=3)
    plan = MeasurePlan(0, 50, 0.0, reads=1)
    with open_kernel("def run(x):\n    return x * 2", plan=plan, stress=stress) as kernel:
        kernel.measure([[torch.arange(1.0, 5.0)], [torch.arange(2.0, 6.0)]])
    assert sorted(call.case for call in kernel.stress_calls) == sorted(stress.calls)
    assert all(torch.equal(call.outputs[0], call.inputs[0] * 2) for call in kernel.stress_calls)


def test_a_kernel_that_is_interpreted_has_none(open_kernel):
    stress = StressPlan(make_definition(), make_workload(), seed=3)
    plan = MeasurePlan(2, 20, 1.0, facts={"meaningful": False})
    with open_kernel("def run(x):\n    return x * 2", plan=plan, stress=stress) as kernel:
        kernel.measure([[torch.arange(1.0, 5.0)]])
    assert kernel.stress_calls == []
