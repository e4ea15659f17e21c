"""What a session adds to readings: the launch gap, held from its first use, and two looks at the GPU."""

import os

import pytest

from flashinfer_bench.bench.runner import readout as module
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.timing.gpu_state import GpuState
from flashinfer_bench.timing.measurement import Sample, Trial

IDLE = GpuState(1980, 3201, 100.0, 40, (), 0)
CALM = GpuState(1980, 3201, 400.0, 55, (), 0)
BUSY = GpuState(1755, 3201, 690.0, 71, ("power_cap",), 1)


def cupti_trial(span_ns=10_000):
    sample = Sample(span_ns=span_ns, enqueue_ns=2_000, busy_ns=span_ns, operations=1)
    return Trial((sample,) * 20, "count", {"method": "cupti"})


def wall_trial():
    return Trial((Sample(span_ns=10_000, enqueue_ns=10_000),) * 20, "count", {"method": "wall"})


@pytest.mark.parametrize(
    ("gaps_ns", "told_ns"), [((1_000, 0, 1_300), 1_000), ((1_100, 1_000, 1_300), 1_100), ((5_000, 1_050), 1_050)]
)
def test_the_launch_gap_is_the_usual_one_of_the_contexts_that_tell(gaps_ns, told_ns):
    readout = Readout(None)
    for gap_ns in gaps_ns:
        readout.add_launch_gap(gap_ns)
    assert readout.launch_gap_ns == told_ns
    assert readout.measured([cupti_trial()], None, 0.01).latency_ms == pytest.approx(0.010 + told_ns / 1e6)


def test_the_launch_gap_is_held_from_the_first_measurement_on():
    readout = Readout(None)
    readout.add_launch_gap(1_000)
    first = readout.measured([cupti_trial()], None, 0.01)
    readout.add_launch_gap(5_000)
    assert readout.measured([cupti_trial()], None, 0.01) == first
    assert first.record["launch_gap_ns"] == 1_000


def test_contexts_that_do_not_tell_leave_no_gap():
    readout = Readout(None)
    readout.add_launch_gap(0)
    assert readout.measured([cupti_trial()], None, 0.01).latency_ms == 0.010


@pytest.mark.parametrize(("span_ns", "told_ns"), [(1_200, 2_200), (0, 0)])
def test_the_least_call_takes_a_launch_gap_and_its_span_where_that_is_known(span_ns, told_ns):
    readout = Readout(None)
    readout.add_launch_gap(1_000)
    readout.least_span_ns = span_ns
    assert readout.least_call_ns == told_ns


def test_readings_that_hold_the_gap_already_get_none():
    readout = Readout(None)
    readout.add_launch_gap(1_000)
    assert readout.measured([wall_trial()], None, 0.01).latency_ms == 0.010


def test_a_cpu_has_no_state():
    readout = Readout(None)
    before = readout.look()
    assert before is None
    assert not {"gpu", "flags"} & readout.measured([wall_trial()], before, 0.01).record.keys()


def test_a_measurement_looks_at_the_gpu_after_the_last_trial(monkeypatch):
    looks = []

    def look(uuid, *, ours):
        looks.append((uuid, ours))
        return BUSY

    monkeypatch.setattr(module, "read_gpu_state", look)
    readout = Readout("GPU-1", our_processes=lambda: [7, 8])
    record = readout.measured([cupti_trial()], IDLE, 0.01).record
    assert looks == [("GPU-1", {os.getpid(), 7, 8})]
    assert record["gpu"]["sm_mhz"] == [1980, 1755]
    assert record["flags"] == ["throttled", "other_processes"]


def test_the_look_after_a_measurement_stands_for_the_one_before_the_next_while_it_is_recent(monkeypatch):
    looks, at = iter([IDLE, CALM, BUSY, IDLE]), [10.0]
    monkeypatch.setattr(module, "read_gpu_state", lambda uuid, *, ours: next(looks))
    monkeypatch.setattr(module.time, "monotonic", lambda: at[0])
    readout = Readout("GPU-1")
    assert readout.look_before() is IDLE
    readout.measured([cupti_trial()], IDLE, 0.01)
    at[0] += module.RECENT_S / 2
    assert readout.look_before() is CALM
    at[0] += module.RECENT_S
    assert readout.look_before() is BUSY, "it is not recent any more"
    assert readout.look_before() is IDLE, "what slowed the GPU may be gone"
    assert Readout(None).look_before() is None


def test_every_reading_is_kept_on_request_only():
    assert "samples_ns" not in Readout(None).measured([cupti_trial()], None, 0.01).record
    kept = Readout(None, keep_samples=True).measured([cupti_trial(), cupti_trial(7)], None, 0.01).record["samples_ns"]
    assert kept["span"] == [[10_000] * 20, [7] * 20]
    assert kept["enqueue"] == [[2_000] * 20] * 2


def test_a_record_says_which_precision_was_asked_for_and_which_was_reached():
    few = Trial((Sample(10_000, 2_000),) * 3, "budget", {"method": "wall"})
    for trials, reached in (([cupti_trial(), wall_trial()], 0.0), ([few], None)):
        record = Readout(None).measured(trials, None, 0.02).record
        assert (record["precision"], record["precision_reached"]) == (0.02, reached)
