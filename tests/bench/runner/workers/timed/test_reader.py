"""Which calls of a trial are compared: some at random, the one on the base, and a few that look odd."""

import gc
import random
import weakref
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.runner.workers.timed import reader as reader_module
from flashinfer_bench.bench.runner.workers.timed.reader import MOST_ODD
from flashinfer_bench.errors import SolutionFailure
from tests.kit.operations import counting_operations
from tests.kit.trials import make_trial, run_calls

pytestmark = pytest.mark.cpu


def is_right(call):
    return torch.equal(call.outputs[0], call.inputs[0] * 2)


@pytest.mark.parametrize("calls", [1, 2, 50])
def test_as_many_calls_are_kept_as_are_wanted_and_there_are(arena, calls):
    trial = make_trial(arena, wanted=3)
    for _ in range(calls):
        run_calls(trial, [0])
    reads = trial.reader.reads()
    assert len(reads) == min(calls, 3)
    assert all(is_right(call) and not call.is_base for call in reads)


def test_every_call_is_kept_as_often_as_any_other(arena):
    trial, kept, chance = make_trial(arena, way="fixed"), Counter(), random.Random(3)
    for index in range(8):
        trial.places.outputs(index)[0].fill_(1.0)
    for _ in range(400):
        reader = replace(trial.reader, chance=chance, _kept={})
        reader.look(range(8), range(8))
        kept.update(reader._kept.keys())
    assert sorted(kept) == list(range(8))
    assert 60 < min(kept.values()) <= max(kept.values()) < 140  # 100 each


def test_the_call_on_the_base_is_always_read(arena):
    trial = make_trial(arena, base_number=5, wanted=0)
    for _ in range(20):
        run_calls(trial, [0])
    (read,) = trial.reader.reads()
    assert read.is_base
    assert torch.equal(read.inputs[0], trial.contents.base[0])
    assert is_right(read)


def test_what_was_kept_is_not_overwritten_by_later_calls(arena):
    trial = make_trial(arena, wanted=1)
    run_calls(trial, [0])
    (before,) = trial.reader.reads()
    trial.reader.wanted = 0
    run_calls(trial, [0])
    assert is_right(before)


@pytest.mark.parametrize("function", [lambda x: None, torch.zeros_like], ids=["unwritten", "repeated"])
def test_odd_calls_are_read_and_no_more_than_a_few(arena, function):
    trial = make_trial(arena, wanted=0)
    for _ in range(12):
        run_calls(trial, [0], function)
    reads = trial.reader.reads()
    assert len(reads) == MOST_ODD
    assert not any(is_right(call) for call in reads)


def test_a_single_odd_call_among_many_is_read(arena):
    trial = make_trial(arena, wanted=0)
    for number in range(30):
        run_calls(trial, [0], lambda x, odd=number == 17: None if odd else x * 2)
    (read,) = trial.reader.reads()
    assert read.outputs[0].isnan().all()


def test_outputs_repeat_without_suspicion_where_inputs_do(arena):
    trial = make_trial(arena, way="fixed", wanted=0)
    for _ in range(5):
        run_calls(trial, [0])
    assert trial.reader.reads() == []


def test_whether_inputs_differ_is_found_out_only_where_outputs_repeat(arena, monkeypatch):
    """It takes up to a second of large inputs, and may fall within a reading's request."""
    asked = []
    monkeypatch.setattr(DealtContents, "differs", property(lambda contents: asked.append(contents) or True))
    trial = make_trial(arena)
    run_calls(trial, range(4))
    assert not asked
    run_calls(trial, range(2), torch.zeros_like)
    assert asked == [trial.contents]


def test_what_a_call_gave_are_all_of_its_outputs(arena):
    """One that repeats, as a mask does, makes no call odd."""
    trial = make_trial(arena, wanted=0)
    masks, others = np.ones((4, 8), np.uint8), np.arange(32, dtype=np.uint8).reshape(4, 8)
    for seen, odd in (([masks, others], []), ([others + 32, masks], []), ([masks, others], [8, 9, 10, 11])):
        trial.places.read_spots = lambda indices, secret, seen=seen: seen
        trial.reader.look(range(4), trial.write(range(4)))
        trial.reader._latest = None
        assert list(trial.reader._odd) == odd


def test_a_call_that_gives_what_the_base_gave_is_odd(arena):
    trial = make_trial(arena, wanted=0, base_number=0)
    run_calls(trial, [0, 1], torch.zeros_like)
    assert list(trial.reader._odd) == [1]


def test_an_odd_call_that_was_kept_is_read_once(arena):
    trial = make_trial(arena, wanted=2)
    for _ in range(2):
        run_calls(trial, [0], lambda x: None)
    assert len(trial.reader.reads()) == 2


def test_what_chance_chose_is_told_from_the_base_and_from_what_looks_odd(arena):
    trial = make_trial(arena, base_number=0, wanted=2)
    run_calls(trial, [0])
    for _ in range(3):
        run_calls(trial, [0], torch.zeros_like)
    trial.reader.begin()
    for _ in range(4):
        run_calls(trial, [0])
    ways = Counter((read.way, read.is_base, is_right(read)) for read in trial.reader.reads("chain"))
    assert ways == {("chain", False, True): 2, (None, True, True): 1, (None, False, False): 2}


def test_inputs_that_a_call_changed_are_found_where_it_is_read(arena):
    def refuse(inputs, now):
        if not torch.equal(inputs[0], now[0]):
            raise SolutionFailure("INCORRECT_NUMERICAL", "it was changed")

    trial = make_trial(arena, check_inputs=refuse)
    run_calls(trial, [0])
    run_calls(trial, [0], lambda x: x.add_(1))
    with pytest.raises(SolutionFailure, match="it was changed"):
        trial.reader.reads()


def test_inputs_of_large_calls_are_checked_at_once_and_not_copied(arena, monkeypatch):
    def refuse(inputs, now):
        if not torch.equal(inputs[0], now[0]):
            raise SolutionFailure("INCORRECT_NUMERICAL", "it was changed")

    monkeypatch.setattr(reader_module, "LARGE_BYTES", 0)
    trial = make_trial(arena, check_inputs=refuse, wanted=3)
    run_calls(trial, [0])
    assert [call.inputs for call in trial.reader._kept.values()] == [None]
    (read,) = trial.reader.reads()
    assert is_right(read)
    with pytest.raises(SolutionFailure, match="it was changed"):
        run_calls(trial, [0], lambda x: x.add_(1))


def test_calls_whose_outputs_are_not_read_are_never_odd(arena):
    trial = make_trial(arena, wanted=0)
    trial.places.read_spots = lambda indices, secret: []
    trial.reader.look([0, 0], [0, 1])
    assert trial.reader.reads() == []


def test_no_two_calls_of_a_trial_have_the_same_inputs(arena):
    trial = make_trial(arena, base_number=2)
    seen = set()
    for _ in range(10):
        numbers = trial.write([0, 1, 2])
        seen |= {trial.places.inputs(index)[0].numpy().tobytes() for index in range(3)}
    assert (numbers, len(seen)) == ([27, 28, 29], 30)


def test_an_output_that_is_written_after_its_call_is_refused(arena):
    trial = make_trial(arena, wanted=0)
    run_calls(trial, [0, 1])
    trial.places.outputs(1)[0].fill_(3.0)
    with pytest.raises(SolutionFailure, match="written after its call had ended"):
        run_calls(trial, [0, 1])


def test_an_output_that_is_written_after_the_last_call_is_refused(arena):
    trial = make_trial(arena)
    run_calls(trial, [0])
    trial.places.outputs(0)[0].fill_(3.0)
    with pytest.raises(SolutionFailure, match="written after its call had ended"):
        trial.reader.reads()


def test_what_is_compared_is_taken_before_anything_else_is_looked_at(arena):
    trial = make_trial(arena, wanted=1)
    make = trial.contents.make

    def late(number):
        trial.places.outputs(0)[0].fill_(3.0)
        return make(number)

    trial.contents.make = late
    run_calls(trial, [0])
    trial.reader._latest = None
    (read,) = trial.reader.reads()
    assert is_right(read)


def test_what_is_kept_is_copied_by_one_operation_and_before_anything_is_looked_at(arena):
    trial = make_trial(arena, wanted=6)
    numbers = trial.write(range(8))
    read_spots, seen_at = trial.places.read_spots, []
    with counting_operations() as counted:
        trial.places.read_spots = lambda *given: seen_at.append(counted.launches()) or read_spots(*given)
        trial.reader.look(range(8), numbers)
    assert seen_at == [1]


@pytest.mark.parametrize("wanted", [0, 3, 8])
def test_a_look_waits_once_however_many_calls_it_has_and_keeps(arena, wanted):
    trial = make_trial(arena, wanted=wanted)
    run_calls(trial, range(8))
    trial.reader.begin()
    numbers = trial.write(range(8))
    for index in range(8):
        trial.places.outputs(index)[0].fill_(float(index))
    with counting_operations() as counted:
        trial.reader.look(range(8), numbers)
    assert counted.waits() == 1
    assert counted.launches() <= 2
    with counting_operations() as counted:
        trial.reader.check_unchanged()
    assert (counted.waits(), counted.launches()) == (1, 1)


def test_calls_that_nobody_compares_are_not_looked_at_where_they_lie_now_or_later(arena):
    trial = make_trial(arena, wanted=3)
    trial.reader.is_idle = True
    moved = trial.moved_to(trial.places, 5)
    for idle in (trial, moved):
        numbers = idle.write(range(8))
        with counting_operations() as counted:
            idle.reader.look(range(8), numbers)
            idle.reader.check_unchanged()
        assert (counted.waits(), counted.launches()) == (0, 0)
        assert idle.reader.reads() == []


def test_all_calls_that_are_kept_are_checked_with_one_wait(arena):
    checked = []
    trial = make_trial(arena, wanted=8, check_inputs=lambda inputs, now: checked.append(inputs))
    run_calls(trial, range(8))
    with counting_operations() as counted:
        reads = trial.reader.reads()
    assert (len(reads), checked) == (8, [])
    assert counted.waits() == 2  # the other one is for outputs that have changed
    assert all(map(is_right, reads))


def test_only_a_call_that_has_changed_its_inputs_is_looked_into(arena):
    checked = []
    trial = make_trial(arena, wanted=8, check_inputs=lambda inputs, now: checked.append((inputs[0], now[0])))
    calls = iter(range(8))
    run_calls(trial, range(8), lambda x: x.add_(1) if next(calls) == 5 else x * 2)
    trial.reader.reads()
    ((given, now),) = checked
    assert torch.equal(now, given + 1)


def test_calls_that_are_kept_are_compared_in_portions(arena, monkeypatch):
    monkeypatch.setattr(reader_module, "TOGETHER_BYTES", 0)
    checked = []
    trial = make_trial(arena, wanted=8, check_inputs=lambda inputs, now: checked.append(now[0]))
    calls = iter(range(8))
    run_calls(trial, range(8), lambda x: x.add_(1) if next(calls) in (2, 5) else x * 2)
    reads = trial.reader.reads()
    assert (len(reads), len(checked)) == (8, 2)
    assert sum(map(is_right, reads)) == 6


def test_calls_whose_inputs_were_spoiled_are_not_checked_and_others_beside_them_are(arena):
    checked = []
    trial = make_trial(arena, wanted=8, check_inputs=lambda inputs, now: checked.append(now[0]))
    numbers = trial.write(range(4))
    for index in range(4):
        torch.mul(trial.places.inputs(index)[0], 2, out=trial.places.outputs(index)[0])
    trial.places.spoil_inputs(4)
    trial.reader.look(range(4), numbers, has_inputs=False)
    calls = iter(range(4))
    run_calls(trial, range(4), lambda x: x.add_(1) if next(calls) == 3 else x * 2)
    reads = trial.reader.reads()
    assert (len(reads), len(checked)) == (8, 1)
    assert sum(map(is_right, reads)) == 7


def test_bytes_between_the_inputs_of_a_call_are_nobodys(arena):
    checked = []
    trial = make_trial(arena, size=3, check_inputs=lambda inputs, now: checked.append(now[0]))
    numbers = trial.write([0])
    trial.places.input_bytes(1)[0, 12:].fill_(9)
    trial.reader.look([0], numbers)
    assert len(trial.reader.reads()) == 1
    assert checked == []


def test_outputs_that_were_copied_already_are_what_is_compared(arena):
    trial = make_trial(arena, wanted=2)
    numbers = trial.write([0, 1])
    trial.reader.look([0, 1], numbers, outputs=lambda index: [torch.full((16,), float(index))])
    assert sorted(read.outputs[0][0].item() for read in trial.reader.reads()) == [0.0, 1.0]


@pytest.mark.parametrize("is_read", [True, False])
def test_what_calls_left_is_freed_at_once_when_nobody_compares_it_any_more(arena, is_read):
    """The collector rests in a session, and a call's copies may be gigabytes on a GPU."""
    gc.disable()
    try:
        trial = make_trial(arena, wanted=3)
        run_calls(trial, list(range(8)))
        kept = [weakref.ref(left.outputs.args[1]) for left in trial.reader._kept.values() if left is not None]
        reads = trial.reader.reads() if is_read else []
        assert len(kept) == 3
        del reads
        if not is_read:
            del trial
        assert all(row() is None for row in kept)
    finally:
        gc.enable()
