"""What bounds a claim on a GPU: a chain, batches where a chain leaves something open or has no room, or the floor."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from flashinfer_bench.bench.runner.workers import measuring
from flashinfer_bench.bench.runner.workers.timed.bounds import Confirmation
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
USUAL = {"assurance": "full", "desk": "a desk", "is_open": True, "room": 99, "most": 1, "has_setup": False}
USUAL |= {"doubt": None, "floor_ms": 0.0, "costs_ns": []}
IN_DOUBT = "a call in a chain takes 2 ms"


@pytest.fixture
def bound(arena, monkeypatch):
    """Return what bounds a claim: what it is told as in ms, its record, and the timers that were asked."""

    def bounded(claimed_ms=0.002, **changes):
        how = SimpleNamespace(**{**USUAL, **changes}, asked=[], record={}, check_room=Mock())
        by_chain, by_batch = Confirmation("chain", 3_000.0, how.doubt), Confirmation("batch", 1_200.0, how.doubt)

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
            "BatchTimer": lambda _, trial, *__, **given: open_timer(by_batch, trial, given),
        }
        for name, value in played.items():
            monkeypatch.setattr(measuring, name, value)
        plan = Mock(timing=TimingSettings(assurance=how.assurance))
        kernel = Mock(reads=[[]])
        kernel.task.floor_ms.return_value = how.floor_ms
        kernel.lay_out = lambda inputs, most: make_trial(arena, most=min(most, how.room)).places
        how.remote = make_trial(arena, device_type="cuda", most=how.most, has_setup=how.has_setup)
        job = object.__new__(measuring.Measuring)
        job.kernel, job.plan, job.device = kernel, plan, torch.device("cuda")
        job.tools = Mock(readout=Mock(launch_gap_ns=1_100, least_call_ns=0))
        how.told_ms = job._bound(how.remote, claimed_ms, how.record, how.costs_ns)
        assert how.record["assurance"] == how.assurance
        return how

    return bounded


@pytest.mark.parametrize(
    ("claimed_ms", "how", "asked", "why_not"),
    [
        (0.002, {}, [17, None], None),
        (0.002, {"is_open": False}, [17], None),
        (0.002, {"assurance": "standard", "doubt": IN_DOUBT}, [17], IN_DOUBT),
        (0.002, {"doubt": IN_DOUBT}, [17, None], IN_DOUBT),
        (0.005, {"most": 64, "is_open": False}, [17], None),
        (1e3 + 1e-6, {}, [None], None),  # so long that there is no chain
        (0.005, {"room": 1}, [None], None),
        (0.005, {"desk": None}, [None], None),
        (2.0, {"desk": None, "costs_ns": [2e6] * 9}, [], None),
    ],
)
def test_batches_are_in_the_place_of_a_chain_or_follow_at_full_assurance_if_it_leaves_something_open(
    bound, claimed_ms, how, asked, why_not
):
    """Slow calls need neither. Where there is no room, it is found out who holds it."""
    found = bound(claimed_ms, **how)
    assert found.record["bound"] == ({17: "chain", None: "batch"}[asked[-1]] if asked else "samples")
    assert (found.told_ms, found.record.get("why_unconfirmed")) == (max(claimed_ms, 0.003 * (17 in asked)), why_not)
    assert [one.given.get("calls") for one in found.asked] == asked
    numbers = [number for one in found.asked for number in one.given["numbers"]]
    assert numbers == [*range(len(numbers))]  # no content comes again
    assert all(one.given["is_believed"] == ("doubt" not in how) for one in found.asked[1:])
    assert found.check_room.called is (found.room == 1)


@pytest.mark.parametrize("has_setup", [False, True])
def test_a_claim_is_told_as_no_less_than_its_inputs_take_to_be_read(bound, has_setup):
    found = bound(is_open=False, floor_ms=0.009, has_setup=has_setup)
    told = (0.003, "chain") if has_setup else (0.009, "floor")
    assert (found.told_ms, found.record["bound"], found.record["claimed_ms"]) == (*told, 0.002)
