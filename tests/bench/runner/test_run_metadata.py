"""A session's metadata of samples: the launch gap, fixed at its first use, and samples on request."""

import pytest

from flashinfer_bench.bench.runner.run_metadata import RunMetadata
from flashinfer_bench.timing.measurement import Sample, Trial

ON_GPU = Trial((Sample(10_000, 2_000, 10_000, 1),) * 20, "count", {"method": "cupti"})
ON_CPU = Trial((Sample(10_000, 10_000),) * 20, "count", {"method": "wall"})


@pytest.mark.parametrize(
    ("gaps_ns", "trial", "reported_ns"),
    [
        ((1_100, 1_000, 1_300), ON_GPU, 1_100),
        ((5_000, 1_050), ON_GPU, 1_050),
        ((1_000,), ON_CPU, 0),  # its samples hold the gap already
    ],
)
def test_the_launch_gap_is_the_usual_one_of_the_contexts_before_the_first_measurement(gaps_ns, trial, reported_ns):
    run_metadata = RunMetadata(None)
    for gap_ns in gaps_ns:
        run_metadata.add_launch_gap(gap_ns)
    first = run_metadata.measured([trial], None, 0.01)
    assert first.latency_ms == pytest.approx(0.010 + reported_ns / 1e6)
    run_metadata.add_launch_gap(9_000)
    assert run_metadata.measured([trial], None, 0.01) == first


def test_a_record_has_every_sample_on_request_only_and_nothing_of_a_gpu_on_a_cpu():
    record = RunMetadata(None, keep_samples=True).measured([ON_CPU] * 2, None, 0.02).record
    assert record["samples_ns"]["span"] == [[10_000] * 20] * 2
    assert not {"gpu", "flags"} & record.keys()
    assert (record["precision"], record["precision_reached"]) == (0.02, 0.0)
    apart = Trial((Sample(10_100, 10_100),) * 20, "count", {"method": "wall"})
    record = RunMetadata(None).measured([ON_CPU, apart], None, 0.02).record
    assert record["precision_reached"] == pytest.approx(12.706 * 0.5 / 100.5, rel=1e-3)
    few = Trial(ON_CPU.samples[:3], "budget", {"method": "wall"})
    record = RunMetadata(None).measured([few], None, 0.02).record
    assert (record["precision_reached"], "samples_ns" in record) == (None, False)
