"""Calls on inputs of stress cases: hidden among timed calls, dropped from the samples, kept for the judge."""

import random
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed.sampling import RemoteClock
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressSchedule
from flashinfer_bench.timing.clocks import Preamble
from tests.kit.trials import WALL, ScriptedWorker, make_trial

pytestmark = pytest.mark.cpu
CASES = ["few_large", "larger"]
MARK = 1e6
"""What cases write: a number that no usual input has."""


def make_schedule(contents=None, names=CASES, calls=20, seed=0):
    """Return a schedule whose cases number their calls."""
    marks = iter(range(99))
    change = lambda name, number, values: values[0].fill_(MARK + next(marks))  # noqa: E731
    plan = SimpleNamespace(free=(True,), calls=names, change=change)
    schedule = StressSchedule(plan, contents, chance=random.Random(seed))
    schedule.spread(names, calls)
    return schedule


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("usual", "expected", "size"), [(20, 20, 16), (20, 8, 3), (6, 6, 16), (2, 0, 3)])
def test_a_hidden_call_has_no_reading_and_is_kept_with_its_inputs(arena, seed, usual, expected, size):
    """It is added to the usual calls of its request if a buffer is free. A change of its inputs is found."""
    checked = []
    check = lambda inputs, now: checked.append(torch.equal(inputs[0], now[0]))  # noqa: E731
    trial = make_trial(arena, size=size, check_inputs=check, base_number=1, wanted=99)
    trial.schedule = make_schedule(trial.contents, calls=expected, seed=seed)
    worker = ScriptedWorker(trial, clock=WALL, call_ns=1)
    compute = worker._compute

    def change(fields):
        compute(fields)
        for (x,) in map(trial.buffers.inputs, fields["indices"]):
            x[-1].add_(x[0] == MARK + 1)

    worker._compute = change
    with RemoteClock(worker, WALL, trial) as clock:
        samples = clock.sample([trial.supply(index) for index in range(usual)], [Preamble()] * usual)
    calls = [fields["indices"] for fields in worker.fields_of("calls")]
    assert (len(samples), sum(map(len, calls)), max(map(len, calls))) == (usual, usual + 2, min(8, usual + 2))
    assert all(len(set(indices)) == len(indices) for indices in calls)
    assert (checked, trial.schedule.left) == ([True, False], [])
    made = [(call.case, call.inputs[0].tolist(), call.outputs[0].tolist()) for call in trial.schedule.made]
    assert made == [(case, [MARK + at] * size, [2 * (MARK + at)] * size) for at, case in enumerate(CASES)]
    reads = trial.reads()
    assert (len(reads), [read.is_base for read in reads].count(True)) == (usual, 1)
    assert not any((read.inputs[0] >= MARK).any() for read in reads)


def test_inputs_that_were_made_ahead_come_first(arena):
    schedule, polls = make_schedule(make_trial(arena).contents), iter([False, True])
    schedule.make_ahead(lambda: next(polls))
    made = [*schedule.make(CASES[:1]), *schedule.make([*CASES[1:], "more"])]
    assert [float(first[0]) for _, (first,) in made] == [MARK, MARK + 1, MARK + 2]
    assert len({number for number, _ in made}) == 3
