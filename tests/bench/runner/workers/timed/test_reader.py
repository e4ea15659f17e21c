"""Which calls of a trial are compared: some at random, the one on the base, and a few that look odd."""

import gc
import random
from collections import Counter

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.runner.workers.timed import reader as reader_module
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
    """Make a call of each function, so many of them at a time."""
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
        ({"wanted": 3}, [right], {"right": 1}),
        ({"wanted": 3}, [right] * 50, {"right": 3}),
        ({"wanted": 0, "base_number": 5}, [right] * 20, {"base right": 1}),
        ({"wanted": 0}, [unwritten] * 12, {"wrong": 4}),
        ({"wanted": 0}, [zeros] * 12, {"wrong": 4}),
        ({"wanted": 0}, [*[right] * 17, unwritten, *[right] * 12], {"wrong": 1}),
        ({"wanted": 0, "way": "fixed"}, [right] * 5, {}),  # outputs repeat where inputs do
        ({"wanted": 0, "base_number": 0}, [zeros] * 2, {"base wrong": 1, "wrong": 1}),
        ({"wanted": 2}, [unwritten] * 2, {"wrong": 2}),  # each of them once
    ],
)
@pytest.mark.parametrize("together", [1, 4])
def test_some_calls_are_read_by_chance_and_those_on_the_base_or_that_look_odd(arena, traits, calls, kinds, together):
    trial = make_trial(arena, **traits)
    run_each(trial, calls, together)
    assert kinds_of(trial.reader.reads()) == kinds


def test_every_call_is_kept_as_often_as_any_other(arena):
    trial, kept = make_trial(arena), Counter()
    numbers, chance = run_calls(trial, range(8)), random.Random(3)
    sums = [trial.contents.make(number)[0].sum().item() for number in numbers]
    for _ in range(400):
        reader = trial.moved_to(trial.places, 2).reader
        reader.chance = chance
        reader.look(range(8), numbers)
        kept.update(read.inputs[0].sum().item() for read in reader.reads())
    assert sorted(kept) == sorted(sums)
    assert 60 < min(kept.values()) <= max(kept.values()) < 140  # 100 each


def test_what_chance_chose_since_it_began_anew_is_told_from_the_base_and_from_what_looks_odd(arena):
    trial = make_trial(arena, base_number=0, wanted=2)
    run_each(trial, [right, *[zeros] * 3], 1)
    trial.reader.begin()
    run_each(trial, [right] * 4, 1)
    reads = trial.reader.reads("relay")
    assert kinds_of(reads) == {"right": 2, "base right": 1, "wrong": 2}
    assert kinds_of(read for read in reads if read.way == "relay") == {"right": 2}
    assert not trial.reader.reads()


def test_a_call_that_repeats_one_of_its_outputs_as_a_mask_does_is_not_odd(arena):
    trial = make_trial(arena, wanted=0, outputs=2)
    for odd, functions in ((0, [right] * 4), (3, [zeros] * 4)):
        numbers = trial.write(range(4))
        for index, function in enumerate(functions):
            (x,), (y, mask) = trial.places.inputs(index), trial.places.outputs(index)
            y.copy_(function(x)), mask.fill_(1)
        trial.reader.look(range(4), numbers)
        assert len(trial.reader.reads()) == odd


def test_whether_inputs_differ_is_found_out_only_where_outputs_repeat(arena, monkeypatch):
    """It takes up to a second of large inputs, and may fall within a reading's request."""
    asked = []
    monkeypatch.setattr(DealtContents, "differs", property(lambda contents: asked.append(contents) or True))
    trial = make_trial(arena)
    run_each(trial, [right] * 4)
    assert not asked
    run_each(trial, [zeros] * 2)
    assert asked == [trial.contents]


def test_no_two_calls_of_a_trial_have_the_same_inputs(arena):
    trial, seen = make_trial(arena, base_number=2), set()
    for _ in range(10):
        numbers = trial.write([0, 1, 2])
        seen |= {trial.places.inputs(index)[0].numpy().tobytes() for index in range(3)}
    assert (numbers, len(seen)) == ([27, 28, 29], 30)


@pytest.mark.parametrize("is_last", [True, False])
def test_an_output_that_is_written_after_its_call_is_refused(arena, is_last):
    trial = make_trial(arena, wanted=0)
    run_each(trial, [right] * 2)
    trial.places.outputs(1)[0].fill_(3.0)
    with pytest.raises(SolutionFailure, match="RUNTIME_ERROR: an output was written after its call had ended"):
        trial.reader.reads() if is_last else run_each(trial, [right])


def test_what_is_compared_is_copied_by_one_operation_before_anything_else_is_looked_at(arena):
    trial = make_trial(arena, wanted=6)
    glance, seen_at = trial.places.glance, []

    def late(*given):
        seen_at.append(counted.launches())
        for index in range(8):
            trial.places.outputs(index)[0].fill_(3.0)
        return glance(*given)

    numbers = run_calls(trial, range(8))
    trial.reader.begin()
    trial.places.glance = late
    with counting_operations() as counted:
        trial.reader.look(range(8), numbers)
    assert seen_at == [1]
    run_calls(trial, [])
    assert kinds_of(trial.reader.reads())["right"] == 6


@pytest.mark.parametrize("wanted", [0, 3, 8])
def test_a_look_waits_once_however_many_calls_it_has_and_keeps(arena, wanted):
    trial = make_trial(arena, wanted=wanted)
    run_calls(trial, range(8))
    trial.reader.begin()
    numbers = trial.write(range(8))
    for index in range(8):
        trial.places.outputs(index)[0].fill_(float(index))
    for look, launches in ((lambda: trial.reader.look(range(8), numbers), 2), (trial.reader.check_unchanged, 1)):
        with counting_operations() as counted:
            look()
        assert counted.waits() == 1
        assert counted.launches() <= launches


def test_calls_that_nobody_compares_are_not_looked_at_where_they_lie_now_or_later(arena):
    trial = make_trial(arena, wanted=3)
    trial.reader.is_idle = True
    for idle in (trial, trial.moved_to(trial.places, 5)):
        numbers = idle.write(range(8))
        with counting_operations() as counted:
            idle.reader.look(range(8), numbers)
            idle.reader.check_unchanged()
        assert (counted.waits(), counted.launches(), idle.reader.reads()) == (0, 0, [])


@pytest.fixture
def checked():
    """The calls that were checked: whether each has added 1 to its inputs."""
    return []


@pytest.fixture
def checking(arena, checked):
    """Return a trial whose calls are checked for changes of their inputs."""
    check = lambda inputs, now: checked.append(torch.equal(inputs[0] + 1, now[0]))  # noqa: E731
    return lambda **traits: make_trial(arena, **{"wanted": 8, **traits}, check_inputs=check)


@pytest.mark.parametrize(
    ("together_bytes", "at"), [(None, []), (None, [5]), (0, [2, 5])], ids=["none", "one", "in portions"]
)
def test_only_calls_that_have_changed_their_inputs_are_looked_into(checking, checked, monkeypatch, together_bytes, at):
    if together_bytes is not None:
        monkeypatch.setattr(reader_module, "TOGETHER_BYTES", together_bytes)
    trial = checking()
    run_each(trial, [changes if index in at else right for index in range(8)])
    with counting_operations() as counted:
        reads = trial.reader.reads()
    assert kinds_of(reads) == {"right": 8 - len(at)} | ({"wrong": len(at)} if at else {})
    assert checked == [True] * len(at)
    assert at or counted.waits() == 2  # the other one is for outputs that have changed


def test_inputs_of_large_calls_are_checked_at_once_and_not_copied(checking, checked, monkeypatch):
    monkeypatch.setattr(reader_module, "LARGE_BYTES", 0)
    trial = checking()
    run_each(trial, [right, changes])
    assert checked == [False, True]
    assert kinds_of(trial.reader.reads()) == {"right": 1, "wrong": 1}
    assert len(checked) == 2


def test_calls_whose_inputs_were_spoiled_are_not_checked_and_others_beside_them_are(checking, checked):
    trial = checking()
    numbers = run_calls(trial, range(4))
    trial.reader.begin()
    trial.places.spoil_inputs(4)
    trial.reader.look(range(4), numbers, has_inputs=False)
    run_each(trial, [*[right] * 3, changes])
    assert kinds_of(trial.reader.reads()) == {"right": 7, "wrong": 1}
    assert checked == [True]


def test_bytes_between_the_inputs_of_a_call_are_nobodys(checking, checked):
    trial = checking(size=3)
    numbers = trial.write([0])
    trial.places.input_bytes(1)[0, 12:].fill_(9)
    trial.reader.look([0], numbers)
    assert (len(trial.reader.reads()), checked) == (1, [])


def test_outputs_that_were_copied_already_are_what_is_compared(arena):
    trial = make_trial(arena)
    trial.reader.look([0, 1], trial.write([0, 1]), outputs=lambda index: [torch.full((16,), float(index))])
    assert sorted(read.outputs[0][0].item() for read in trial.reader.reads()) == [0.0, 1.0]


@pytest.mark.parametrize("is_read", [True, False])
def test_what_calls_left_is_freed_at_once_when_nobody_compares_it_any_more(arena, is_read):
    """The collector rests in a session, and a call's copies may be gigabytes on a GPU."""
    gc.disable()
    try:
        trial = make_trial(arena, wanted=3)
        run_each(trial, [right] * 8)
        trial.reader.reads()
        before = count_tensors()
        run_each(trial, [right] * 8)
        assert count_tensors() >= before + 3
        if is_read:
            trial.reader.reads()
        else:
            del trial
        assert count_tensors() <= before
    finally:
        gc.enable()


def count_tensors():
    return sum(type(one) is torch.Tensor for one in gc.get_objects())
