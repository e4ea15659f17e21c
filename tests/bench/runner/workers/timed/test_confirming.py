"""What bounds a claim on a GPU: a chain, batches where a chain leaves something open or has no room, or the floor."""

from unittest.mock import Mock

import pytest

from flashinfer_bench.bench.runner.workers import measuring
from flashinfer_bench.bench.runner.workers.timed.reported_time import Confirmation
from flashinfer_bench.timing.settings import TimingSettings
from tests.kit.trials import make_trial

pytestmark = pytest.mark.cpu
IN_DOUBT = "a call in a chain takes 2 ms"


@pytest.fixture
def bound(arena, monkeypatch):
    """Return what bounds a claim: its latency in ms, its record, what was asked of timers, and whether room was."""

    def bounded(claimed_ms=0.002, *, assurance="full", has_tools=True, is_open=True, room=99, **how):
        asked, record, check_room = [], {}, Mock()

        def open_timer(kind, least_ns, trial, chain=None):
            def confirm(_claimed_ns):
                asked.append((kind, chain, trial.write([0])))
                return Confirmation(kind, least_ns, how.get("doubt"), most_ns=7_000.0 if is_open else 0.0)

            return Mock(confirm=confirm)

        played = {
            "open_chain_tools": lambda _: has_tools or None,
            "check_room": check_room,
            "ChainTimer": lambda _, trial, *__, **___: open_timer("chain", 3_000.0, trial),
            "BatchTimer": lambda _, trial, __, ___, chain, **____: open_timer("batch", 1_200.0, trial, chain),
        }
        for name, value in played.items():
            monkeypatch.setattr(measuring, name, value)
        job, has_setup = object.__new__(measuring.Measuring), how.get("has_setup", False)
        job.kernel, job.plan, job.device = Mock(reads=[[]]), Mock(timing=TimingSettings(assurance=assurance)), Mock()
        job.kernel.task.floor_ms.return_value = how.get("floor_ms", 0.0)
        job.kernel.lay_out = lambda inputs, most: make_trial(arena, most=min(most, room)).buffers
        job.tools = Mock(run_metadata=Mock(launch_gap_ns=1_100, least_call_ns=0))
        remote = make_trial(arena, device_type="cuda", most=how.get("most", 1), has_setup=has_setup)
        reported_ms = job._bound(remote, how.get("costs_ns", []), claimed_ms, record)
        assert record["assurance"] == assurance
        return reported_ms, record, asked, check_room.called

    return bounded


@pytest.mark.parametrize(
    ("claimed_ms", "how", "kinds", "why_not"),
    [
        (0.002, {}, ["chain", "batch"], None),
        (0.002, {"is_open": False}, ["chain"], None),
        (0.002, {"assurance": "standard", "doubt": IN_DOUBT}, ["chain"], IN_DOUBT),
        (1e3 + 1e-6, {}, ["batch"], None),  # so long that there is no chain
        (0.005, {"room": 1}, ["batch"], None),
        (2.0, {"has_tools": False, "costs_ns": [2e6] * 9}, [], None),
    ],
)
def test_batches_are_in_the_place_of_a_chain_or_follow_at_full_assurance_if_it_leaves_something_open(
    bound, claimed_ms, how, kinds, why_not
):
    """Slow calls need neither. If memory is missing, its holder is found."""
    reported_ms, record, asked, is_room_checked = bound(claimed_ms, **how)
    assert ([kind for kind, *_ in asked], record["bound"]) == (kinds, [*kinds, "samples"][len(kinds) - 1])
    assert (reported_ms, record.get("why_unconfirmed")) == (max(claimed_ms, 0.003 * ("chain" in kinds)), why_not)
    assert [number for *_, (number,) in asked] == [*range(len(asked))]  # no content comes again
    assert [chain and chain.bound for _, chain, _ in asked[1:]] == ["chain"] * (len(kinds) - 1)
    assert is_room_checked is (how.get("room") == 1)
