"""Which calls of a trial are compared: some at random, the one on the base, and a few that look odd."""

import random
from collections import Counter

import pytest
import torch

from flashinfer_bench.bench.runner.workers.timed import timed_calls as reader_module
from flashinfer_bench.errors import SolutionFailure
from tests.kit.operations import counting_operations
from tests.kit.trials import make_trial, run_calls

pytestmark = pytest.mark.cpu
zeros = torch.zeros_like


def right(x):
    return x * 2


def unwritten(x):
    return None


def changes(x):
    return x.add_(1)


def run_each(trial, functions, together=8):
    """Make a call of each function, in groups of this size."""
    for at in range(0, len(functions), together):
        own = functions[at : at + together]
        calls = iter(own)
        run_calls(trial, range(len(own)), lambda x, calls=calls: next(calls)(x))


def kinds_of(reads):
    return Counter(
        ("base " * one.is_base) + ("right" if torch.equal(one.outputs[0], one.inputs[0] * 2) else "wrong")
        for one in reads
    )


@pytest.mark.parametrize(
    ("traits", "calls", "kinds"),
    [
        ({"wanted": 3}, [right] * 50, {"right": 3}),
        ({"wanted": 0}, [zeros] * 12, {"wrong": 4}),
        ({"wanted": 0}, [*[right] * 17, unwritten, *[right] * 12], {"wrong": 1}),
        ({"wanted": 0, "mode": "fixed"}, [right] * 5, {}),  # outputs repeat where inputs do
        ({"wanted": 2}, [unwritten] * 2, {"wrong": 2}),  # each of them once
    ],
)
@pytest.mark.parametrize("together", [1, 4])
def test_some_calls_are_read_by_chance_and_those_on_the_base_or_that_look_odd(arena, traits, calls, kinds, together):
    trial = make_trial(arena, **traits)
    run_each(trial, calls, together)
    assert kinds_of(trial.reads()) == kinds


def test_every_call_is_kept_as_often_as_any_other(arena):
    trial, kept, chance = make_trial(arena), Counter(), random.Random(3)
    numbers = run_calls(trial, range(8))
    for _ in range(400):
        reader = trial.moved_to(trial.buffers, 2)
        reader.chance = chance
        reader.check_calls(range(8), numbers)
        kept.update(read.inputs[0].sum().item() for read in reader.reads())
    assert len(kept) == 8
    assert 60 < min(kept.values()) <= max(kept.values()) < 140  # 100 each


@pytest.mark.parametrize("is_last", [True, False])
def test_an_output_that_is_written_after_its_call_is_refused(arena, is_last):
    trial = make_trial(arena, wanted=0)
    run_each(trial, [right] * 2)
    trial.buffers.outputs(1)[0].fill_(3.0)
    with pytest.raises(SolutionFailure, match="RUNTIME_ERROR: an output was written after its call had ended"):
        trial.reads() if is_last else run_each(trial, [right])


@pytest.mark.parametrize("is_idle", [False, True])
def test_outputs_are_copied_before_the_check_and_idle_calls_are_not_copied(arena, is_idle):
    """A thread of the solution may still be at work."""
    trial = make_trial(arena, wanted=3)
    read_spots, trial.is_idle = trial.buffers.read_spots, is_idle

    def late(*given):
        for index in range(8):
            trial.buffers.outputs(index)[0].fill_(float(index))
        return read_spots(*given)

    trial.buffers.read_spots = late
    with counting_operations() as counted:
        run_calls(trial, range(8))
    trial.buffers.read_spots = read_spots
    assert counted.waits() == (not is_idle)
    assert kinds_of(trial.reads())["right"] == 3 * (not is_idle)


@pytest.mark.parametrize("together", [1 << 22, 0])
@pytest.mark.parametrize("at", [[], [2, 5]], ids=str)
def test_calls_that_have_changed_their_inputs_are_found_when_they_are_read(arena, monkeypatch, at, together):
    monkeypatch.setattr(reader_module, "TOGETHER_BYTES", together)
    changed = []

    def check(inputs, now):
        changed.append(not torch.equal(inputs[0], now[0]))

    trial = make_trial(arena, wanted=8, check_inputs=check)
    run_each(trial, [changes if index in at else right for index in range(8)])
    assert changed == []
    assert kinds_of(trial.reads())["wrong"] == sum(changed) == len(at)
    assert len(changed) == 8
