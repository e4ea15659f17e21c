"""The whole visit on a real GPU."""

import pytest

from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.examine.doctor.examination import examine

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_gpu_can_be_measured_on():
    report = examine(discover_devices(None)[0])
    assert report.exit_code == 0, report.findings
    readings, agreement = report.readings, report.agreement
    assert readings.method == "cupti", readings.fallback
    assert 300 < readings.launch_gap_ns < 5000
    assert 500 < readings.empty_pair_ns < 10_000
    assert readings.cache.cold_tb_per_sec < readings.cache.memory_tb_per_sec < readings.cache.warm_tb_per_sec * 1.1
    assert readings.rates.matmul_tflops > 1
    assert (len(agreement.twins), agreement.worst < 0.04) == (4, True)
