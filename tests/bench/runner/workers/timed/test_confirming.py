"""What bounds a claim on a GPU: a chain, batches where a chain leaves something open or has no room, or the floor."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from flashinfer_bench.bench.runner.workers import kernel as kernel_module
from flashinfer_bench.bench.runner.workers.timed.bounds import Confirmation
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
USUAL = {"assurance": "full", "desk": "a desk", "is_open": True, "room": 99, "most": 1, "has_setup": False}
USUAL |= {"doubt": None, "batch_doubt": None, "floor_ms": 0.0, "costs_ns": [], "replayed": ()}
IN_DOUBT = "a call in a chain takes 2 ms"


@pytest.fixture
def bound(arena, monkeypatch):
    """Return what bounds a claim: what it is told as in ms, its record, and the timers that were asked."""

    def bounded(claimed_ms=0.002, **changes):
        how = SimpleNamespace(**{**USUAL, **changes}, asked=[], record={}, check_room=Mock())
        by_chain = Confirmation(None, None, how.doubt, chain_ns=4_000.0, chain_calls=10, chain_share=0.75)
        by_batch = Confirmation(1_500.0, 20.0, how.batch_doubt, calls=6)

        def open_timer(found, trial, given):
            def confirm(claimed_ns, *_, **more):
                given.update(more, wanted=trial.reader.wanted, numbers=trial.write([0]))
                return found

            how.asked.append(Mock(most_ns=7_000.0, trial=trial, given=given, confirm=confirm))
            how.asked[-1].leaves_open.return_value = how.is_open
            return how.asked[-1]

        played = {
            "open_chain_tools": lambda device: how.desk,
            "check_room": how.check_room,
            "ChainTimer": lambda _, trial, *__, **given: open_timer(by_chain, trial, given),
            "BatchTimer": lambda _, trial, **given: open_timer(by_batch, trial, given),
        }
        for name, value in played.items():
            monkeypatch.setattr(kernel_module, name, value)
        task = Mock(timeout_seconds=1.0, is_ours=False, work_ahead=None)
        task.plan.timing, task.floor_ms.return_value = TimingSettings(assurance=how.assurance), how.floor_ms
        tools = Mock(readout=Mock(launch_gap_ns=1_100, least_call_ns=0))
        tools.arena.device = torch.device("cuda")
        kernel = kernel_module.RemoteKernel(Mock(), tools, task, Mock())
        kernel.reads = [[]]
        kernel._lay_out = lambda inputs, most: make_trial(arena, most=min(most, how.room)).places
        how.remote = make_trial(arena, device_type="cuda", most=how.most, has_setup=how.has_setup)
        how.remote.places.replayed.update(how.replayed)
        how.told_ms = kernel._bound(how.remote, claimed_ms, how.record, how.costs_ns)
        assert how.record["assurance"] == how.assurance
        return how

    return bounded


@pytest.mark.parametrize(
    ("how", "follows", "why_not"),
    [
        ({}, True, None),
        ({"is_open": False}, False, None),
        ({"assurance": "standard", "doubt": IN_DOUBT}, False, IN_DOUBT),
        ({"doubt": IN_DOUBT}, True, IN_DOUBT),
    ],
)
def test_at_full_assurance_batches_follow_a_chain_that_leaves_something_open(bound, how, follows, why_not):
    found = bound(**how)
    assert (found.told_ms, found.record.get("why_unconfirmed")) == (0.003, why_not)
    assert found.record["bound"] == ("batch" if follows else "chain")
    assert (found.record["relay_calls"], found.record.get("burst_calls")) == (10, 6 if follows else None)
    by_chain = {"calls": 17, "gap_ns": 1_100, "wanted": 6, "numbers": [0]}
    by_batch = {"operations": 1, "most_ns": 7_000.0, "is_believed": "doubt" not in how, "wanted": 16, "numbers": [1]}
    assert [one.given for one in found.asked] == [by_chain, by_batch][: 1 + follows]  # no content comes again
    if "assurance" not in how:
        found.asked[0].leaves_open.assert_called_with(1e6 * found.told_ms)


@pytest.mark.parametrize(
    ("claimed_ms", "how", "calls", "is_anew"),
    [
        (0.005, {}, 17, True),
        (0.005, {"most": 64}, 17, False),
        (0.005, {"most": 64, "replayed": {0}}, 17, True),  # graphs of the readings hold memory
        (1e3 + 1e-6, {}, None, True),
        (0.005, {"room": 1}, None, True),
        (0.005, {"desk": None}, None, True),
        (2.0, {"desk": None, "costs_ns": [2e6] * 9}, 0, True),
    ],
)
def test_a_chain_needs_a_desk_and_room_for_two_calls(bound, claimed_ms, how, calls, is_anew):
    """Batches are in its place, or what requests took. Where there is no room, it is found out who holds it."""
    found = bound(claimed_ms, is_open=False, **how)
    assert found.record["bound"] == ("chain" if calls else "batch" if calls is None else "samples")
    for timer in found.asked:
        assert timer.given.get("calls") == calls
        assert (timer.trial.places is not found.remote.places) is is_anew
    assert found.check_room.called is (found.room == 1)


@pytest.mark.parametrize("has_setup", [False, True])
def test_a_claim_is_told_as_no_less_than_its_inputs_take_to_be_read(bound, has_setup):
    found = bound(is_open=False, floor_ms=0.009, has_setup=has_setup)
    told = (0.003, "chain") if has_setup else (0.009, "floor")
    assert (found.told_ms, found.record["bound"], found.record["claimed_ms"]) == (*told, 0.002)
