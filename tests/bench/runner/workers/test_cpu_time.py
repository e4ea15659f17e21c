import os
import sys
import time

import pytest

from flashinfer_bench.bench.runner.workers.cpu_time import cpu_time_ns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the clock of another process")


def test_computing_counts():
    before, end = cpu_time_ns(os.getpid()), time.process_time() + 0.02
    while time.process_time() < end:
        pass
    assert cpu_time_ns(os.getpid()) - before >= 19_000_000


def test_of_a_process_that_is_not_there_nothing_is_known():
    assert cpu_time_ns(2**22 + 1) is None
    assert cpu_time_ns(None) is None
