"""What a session adds to samples: the launch gap, held from its first use, and two looks at the GPU."""

import os

import pytest

from flashinfer_bench.bench.runner import readout as module
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.timing.measurement import Sample, Trial
from flashinfer_bench.timing.nvml import GpuState

IDLE = GpuState(1980, 3201, 100.0, 40, (), 0)
CALM = GpuState(1980, 3201, 400.0, 55, (), 0)
BUSY = GpuState(1755, 3201, 690.0, 71, ("power_cap",), 1)
ON_GPU = Trial((Sample(10_000, 2_000, 10_000, 1),) * 20, "count", {"method": "cupti"})
ON_CPU = Trial((Sample(10_000, 10_000),) * 20, "count", {"method": "wall"})


@pytest.mark.parametrize(
    ("gaps_ns", "trial", "told_ns"),
    [
        ((1_100, 1_000, 1_300), ON_GPU, 1_100),
        ((5_000, 1_050), ON_GPU, 1_050),
        ((1_000,), ON_CPU, 0),  # its samples hold the gap already
    ],
)
def test_the_launch_gap_is_the_usual_one_of_the_contexts_that_tell_before_the_first_measurement(
    gaps_ns, trial, told_ns
):
    readout = Readout(None)
    for gap_ns in gaps_ns:
        readout.add_launch_gap(gap_ns)
    first = readout.measured([trial], None, 0.01)
    assert first.latency_ms == pytest.approx(0.010 + told_ns / 1e6)
    readout.add_launch_gap(9_000)
    assert readout.measured([trial], None, 0.01) == first
    assert readout.least_call_ns == 0
    readout.least_span_ns = 1_200
    assert readout.least_call_ns == 1_200 + readout.launch_gap_ns


def test_a_measurement_looks_at_the_gpu_after_the_last_trial_and_that_stands_for_a_while(monkeypatch):
    looks, left, at = [], iter([IDLE, CALM, BUSY, IDLE, BUSY]), [10.0]
    monkeypatch.setattr(module, "read_gpu_state", lambda uuid, *, ours: looks.append((uuid, ours)) or next(left))
    monkeypatch.setattr(module.time, "monotonic", lambda: at[0])
    readout = Readout("GPU-1", our_processes=lambda: [7, 8])
    assert readout.look_before() is IDLE
    readout.measured([ON_GPU], IDLE, 0.01)
    at[0] += module.RECENT_S / 2
    assert readout.look_before() is CALM
    at[0] += module.RECENT_S
    assert readout.look_before() is BUSY, "it is not recent any more"
    assert readout.look_before() is IDLE, "what slowed the GPU may be gone"
    record = readout.measured([ON_GPU], IDLE, 0.01).record
    assert looks == [("GPU-1", {os.getpid(), 7, 8})] * 5
    assert record["gpu"]["sm_mhz"] == [1980, 1755]
    assert record["flags"] == ["throttled", "other_processes"]


def test_a_record_has_every_sample_on_request_only_and_nothing_of_a_gpu_on_a_cpu():
    readout = Readout(None, keep_samples=True)
    assert readout.look() is readout.look_before() is None
    record = readout.measured([ON_CPU] * 2, None, 0.02).record
    assert record["samples_ns"]["span"] == [[10_000] * 20] * 2
    assert not {"gpu", "flags"} & record.keys()
    assert (record["precision"], record["precision_reached"]) == (0.02, 0.0)
    few = Trial(ON_CPU.samples[:3], "budget", {"method": "wall"})
    record = Readout(None).measured([few], None, 0.02).record
    assert (record["precision_reached"], "samples_ns" in record) == (None, False)
