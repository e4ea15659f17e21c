import multiprocessing

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner import device_lock
from flashinfer_bench.bench.runner.device_lock import hold_device
from flashinfer_bench.errors import DeviceFault

GPU = Device("cuda", 0, "a GPU", "GPU-1234")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path))


def test_a_second_run_waits_until_its_limit_and_is_told_who_holds_the_device():
    told = []
    ticks = iter(range(100))
    with hold_device(GPU, notify=told.append), pytest.raises(DeviceFault, match="cuda:0 was not free within 3 s"):
        with hold_device(GPU, notify=told.append, limit_s=3, now=lambda: next(ticks), sleep=lambda _s: None):
            pass
    assert len(told) == 1
    assert f"process {multiprocessing.current_process().pid}" in told[0]


def test_a_device_is_free_again_after_its_run():
    for _ in range(2):
        with hold_device(GPU, notify=pytest.fail):
            pass


def test_two_devices_do_not_wait_for_each_other():
    other = Device("cuda", 1, "a GPU", "GPU-5678")
    with hold_device(GPU, notify=pytest.fail), hold_device(other, notify=pytest.fail):
        pass


def test_a_cpu_has_no_lock():
    cpu = Device("cpu", 0, "a CPU", "cpu")
    with hold_device(cpu, notify=pytest.fail), hold_device(cpu, notify=pytest.fail):
        pass
