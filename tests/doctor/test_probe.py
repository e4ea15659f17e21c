"""The process that measures, and what comes back of it."""

import sys

import pytest

from flashinfer_bench.examine.doctor.probe_process import ProbeFailed, run_probe
from flashinfer_bench.examine.doctor.readings import Readings, readings_from_json
from tests.doctor.visits import CPU, GPU, readings


@pytest.mark.parametrize("found", [readings(), Readings(method="wall", empty_call_ns=200)], ids=["gpu", "cpu"])
def test_readings_cross_as_json(found):
    assert readings_from_json(found.to_json()) == found


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"method": "wall"}', "warning: x"])
def test_what_is_no_readings_is_refused(text):
    with pytest.raises((ValueError, KeyError, TypeError)):
        readings_from_json(text)


@pytest.mark.timeout(180)
def test_a_cpu_is_probed_in_a_process_of_its_own():
    found = run_probe(CPU, limit_s=150)
    assert found.method == "wall"
    assert 0 < found.empty_call_ns < 10**7


def test_a_probe_sees_the_device_and_no_other():
    script = "import os, sys; sys.exit(os.environ['CUDA_VISIBLE_DEVICES'] + sys.argv[1])"
    with pytest.raises(ProbeFailed, match=r"exit code 1: GPU-test-of-the-doctorcuda \(command: .* cuda\)"):
        run_probe(GPU, command=[sys.executable, "-c", script])


def test_a_probe_that_hangs_is_ended():
    with pytest.raises(ProbeFailed, match=r"more than 0\.5 s"):
        run_probe(CPU, limit_s=0.5, command=[sys.executable, "-c", "import time; time.sleep(60)"])
