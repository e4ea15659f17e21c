import os
from contextlib import ExitStack

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner import device_lock
from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.errors import DeviceFault
from tests.kit.strange import STRANGE

GPU = Device("cuda", 0, "a GPU", "GPU-1234")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path))


def test_a_second_run_waits_until_its_limit_and_says_who_holds_the_device():
    ticks = iter(range(100))
    with ExitStack() as first, ExitStack() as second:
        assert list(lock_device(GPU, first)) == []
        waiting = lock_device(GPU, second, limit_s=3, now=lambda: next(ticks), sleep=lambda _s: None)
        assert f"process {os.getpid()}" in next(waiting)
        with pytest.raises(DeviceFault, match="cuda:0 was not free within 3 s"):
            list(waiting)


def test_a_waiting_run_goes_on_when_the_device_is_free():
    with ExitStack() as first, ExitStack() as second:
        list(lock_device(GPU, first))
        waiting = lock_device(GPU, second, sleep=lambda _s: first.close())
        assert len(list(waiting)) == 1


def test_a_device_is_free_again_after_its_run():
    for _ in range(2):
        with ExitStack() as held:
            assert list(lock_device(GPU, held)) == []


def test_two_devices_do_not_wait_for_each_other():
    other = Device("cuda", 1, "a GPU", "GPU-5678")
    with ExitStack() as held:
        assert list(lock_device(GPU, held)) + list(lock_device(other, held)) == []


@pytest.mark.parametrize("words", STRANGE)
def test_what_stands_in_place_of_a_lock_is_told_and_neither_waited_for_nor_emptied(tmp_path, words):
    path = device_lock.lock_path(GPU)
    path.parent.mkdir()
    STRANGE[words](path)
    if words == "has more than":
        path.unlink()
        (tmp_path / "kept").write_text("kept")
        path.symlink_to(tmp_path / "kept")
    with ExitStack() as held, pytest.raises(DeviceFault, match="cannot be locked"):
        list(lock_device(GPU, held))
    assert words != "has more than" or (tmp_path / "kept").read_text() == "kept"


def test_a_cpu_has_no_lock():
    cpu = Device("cpu", 0, "a CPU", "cpu")
    with ExitStack() as held:
        assert list(lock_device(cpu, held)) + list(lock_device(cpu, held)) == []
