"""Calls on inputs of other regimes: hidden among the timed ones, dropped from the readings, kept for the judge."""

import random
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.regimes.choose import FOR_FLOATS, MORE_CALLS, PART_CALLS, Regimes
from flashinfer_bench.bench.runner.workers.kernel_task import MeasurePlan
from flashinfer_bench.bench.runner.workers.timed import trial as trial_module
from flashinfer_bench.bench.runner.workers.timed.reader import TOGETHER_BYTES
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeSchedule
from flashinfer_bench.bench.runner.workers.timed.remote_clock import RemoteClock
from flashinfer_bench.timing.clocks import Lead
from tests.kit.make import make_definition, make_workload
from tests.kit.operations import counting_operations
from tests.kit.trials import WALL, ScriptedWorker, make_trial

pytestmark = pytest.mark.cpu
PARTS = len(FOR_FLOATS) + PART_CALLS
"""Calls of each trial in which a part of an input differs."""


class Marking:
    """Regimes that write a number that no usual input has."""

    free = (True,)

    def change(self, name, number, values):
        values[0].fill_(1e6)


class Numbering(Marking):
    """Regimes that number their calls."""

    calls = 0

    def change(self, name, number, values):
        values[0].fill_(1e6 + self.calls)
        self.calls += 1


def make_schedule(*names, calls=20, regimes=None, seed=0):
    return RegimeSchedule(regimes or Marking(), names, calls, chance=random.Random(seed))


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
    assert trial.number == 22
    assert [call.regime for call in trial.schedule.made] == ["few_large", "larger"]
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


@pytest.mark.parametrize("together", [0, TOGETHER_BYTES])
@pytest.mark.parametrize("size", [3, 16])
def test_hidden_calls_that_change_their_inputs_are_found_and_others_are_kept(arena, monkeypatch, together, size):
    monkeypatch.setattr(trial_module, "TOGETHER_BYTES", together)
    checked = []
    trial = make_trial(
        arena, size=size, check_inputs=lambda inputs, now: checked.append(torch.equal(inputs[0], now[0]))
    )
    trial.schedule = make_schedule("few_large", "larger", calls=4, regimes=Numbering())
    numbers = trial.write(range(4))
    hidden = trial.hide(range(4), numbers)
    for index in range(4):
        trial.places.outputs(index)[0].copy_(trial.places.inputs(index)[0] * 2)
    trial.places.inputs(hidden.places[1])[0][-1].add_(1)
    with counting_operations() as counted:
        trial.take_hidden(hidden)
    assert checked == [False] if together else [True, False]
    assert counted.waits() == 2  # one or both are those of `check_inputs` here
    assert [call.regime for call in trial.schedule.made] == ["few_large", "larger"]
    for at, call in enumerate(trial.schedule.made):
        assert call.inputs[0].tolist() == [1e6 + at] * size
        assert call.outputs[0].tolist() == [2e6 + 2 * at] * size


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 50])
def test_the_first_calls_keep_their_inputs_where_there_are_others(calls):
    for seed in range(20):
        schedule = make_schedule("few_large", "larger", calls=calls, seed=seed)
        numbers = [number for number, _ in schedule._due]
        assert numbers == sorted(set(numbers))
        assert numbers[0] >= min(2, max(calls - 2, 0))
        assert numbers[-1] < max(calls, 2)


def test_nothing_is_hidden_before_it_is_due():
    schedule = make_schedule("larger", calls=20)
    due = schedule._due[0][0]
    places = SimpleNamespace(inputs=lambda index: [torch.zeros(4)], synchronize=lambda: None)
    assert schedule.hide(places, [0, 1], [due - 2, due - 1], kept=99) == {}
    assert schedule.hide(places, [0], [due], kept=due) == {}
    assert schedule.hide(places, [0, 1], [due, due + 1], kept=due) == {1: "larger"}
    assert schedule.left == []


def test_one_request_may_hide_several_calls():
    schedule = make_schedule("larger", "few_large", calls=20)
    places = SimpleNamespace(inputs=lambda index: [torch.zeros(4)], synchronize=lambda: None)
    hidden = schedule.hide(places, list(range(20)), list(range(20)), kept=7)
    assert len(hidden) == 2
    assert 7 not in hidden
    assert sorted(hidden.values()) == ["few_large", "larger"]


def test_a_worker_makes_the_hidden_calls_like_others(open_kernel):
    definition = make_definition()
    regimes = Regimes(definition, make_workload(), seed=3)
    plan = MeasurePlan(2, 20, 1.0, reads=3)
    with open_kernel("def run(x):\n    return x * 2", plan=plan, regimes=regimes) as kernel:
        measured = kernel.measure([[torch.arange(1.0, 5.0)]])
    assert measured.record["samples"] == 20
    assert {"few_large", "offset"} <= {call.regime for call in kernel.regime_calls}
    assert len(kernel.regime_calls) == 3 + 2 * MORE_CALLS + PARTS  # the output has four numbers
    assert all(torch.equal(call.outputs[0], call.inputs[0] * 2) for call in kernel.regime_calls)


def test_a_job_of_slow_calls_has_one_call_in_a_regime_after_its_first_trial(open_kernel):
    regimes = Regimes(make_definition(), make_workload(), seed=3)
    plan = MeasurePlan(0, 50, 0.0, reads=1)
    source = "import time\ndef run(x):\n    time.sleep(0.006)\n    return x * 2"
    with open_kernel(source, plan=plan, regimes=regimes) as kernel:
        kernel.measure([[torch.arange(1.0, 5.0)], [torch.arange(2.0, 6.0)]])
    (call,) = kernel.regime_calls
    assert torch.equal(call.outputs[0], call.inputs[0] * 2)


def test_a_short_trial_of_quick_calls_is_made_up_for_by_calls_that_look_timed(open_kernel):
    regimes = Regimes(make_definition(), make_workload(), seed=3)
    plan = MeasurePlan(0, 50, 0.0, reads=1)
    with open_kernel("def run(x):\n    return x * 2", plan=plan, regimes=regimes) as kernel:
        kernel.measure([[torch.arange(1.0, 5.0)], [torch.arange(2.0, 6.0)]])
    assert len({call.regime for call in kernel.regime_calls} - {"one_row", "part_of_columns", *FOR_FLOATS}) == 4
    assert len(kernel.regime_calls) == 4 + 2 * (2 * MORE_CALLS + PARTS)
    assert all(torch.equal(call.outputs[0], call.inputs[0] * 2) for call in kernel.regime_calls)


def test_a_kernel_that_is_interpreted_has_none(open_kernel):
    regimes = Regimes(make_definition(), make_workload(), seed=3)
    plan = MeasurePlan(2, 20, 1.0, facts={"meaningful": False})
    with open_kernel("def run(x):\n    return x * 2", plan=plan, regimes=regimes) as kernel:
        kernel.measure([[torch.arange(1.0, 5.0)]])
    assert kernel.regime_calls == []
