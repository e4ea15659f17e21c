"""What NVML says of a GPU, with an NVML of our own."""

from types import SimpleNamespace

import pynvml
import pytest

from flashinfer_bench.timing import gpu_state
from flashinfer_bench.timing.gpu_state import GpuSettings, GpuState, read_gpu_settings, read_gpu_state

UUID = "GPU-1"
CLOCKS = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}


@pytest.fixture
def nvml(monkeypatch):
    """Answers of one GPU; a test changes them, an error is raised."""
    answers = {"CurrentClocksEventReasons": 0, "PowerUsage": 512_345, "Temperature": 41, "Processes": [7]}

    def answer(name):
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    def find(uuid):
        if uuid != UUID:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "handle"

    answers |= {"PowerLimit": 700_000, "ApplicationsClock": 1980}
    replaced = {
        "nvmlDeviceGetEnforcedPowerLimit": lambda _gpu: answer("PowerLimit"),
        "nvmlDeviceGetApplicationsClock": lambda _gpu, _kind: answer("ApplicationsClock"),
        "nvmlDeviceGetMaxClockInfo": lambda _gpu, kind: CLOCKS[kind],
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": find,
        "nvmlDeviceGetClockInfo": lambda _gpu, kind: CLOCKS[kind],
        "nvmlDeviceGetTemperature": lambda _gpu, _sensor: answer("Temperature"),
        "nvmlDeviceGetPowerUsage": lambda _gpu: answer("PowerUsage"),
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _gpu: answer("CurrentClocksEventReasons"),
        "nvmlDeviceGetComputeRunningProcesses": lambda _gpu: [SimpleNamespace(pid=p) for p in answer("Processes")],
    }
    for name, function in replaced.items():
        monkeypatch.setattr(pynvml, name, function)
    gpu_state.handle.cache_clear()
    yield answers
    gpu_state.handle.cache_clear()


def test_a_look_holds_clocks_power_and_temperature(nvml):
    assert read_gpu_state(UUID, ours={7}) == GpuState(1980, 3201, 512.3, 41, (), 0)


@pytest.mark.parametrize(
    ("reasons", "slowed_by"),
    [
        (0, ()),
        (pynvml.nvmlClocksEventReasonGpuIdle, ()),
        (pynvml.nvmlClocksEventReasonSwPowerCap, ("power_cap",)),
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, ("sw_thermal",)),
        (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, ("hw_thermal",)),
        (
            pynvml.nvmlClocksThrottleReasonHwSlowdown | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
            ("hw_slowdown", "hw_power_brake"),
        ),
    ],
    ids=["nothing", "idle", "power cap", "software heat", "heat", "power brake"],
)
def test_what_slows_a_gpu_has_a_name_and_idling_is_not_it(nvml, reasons, slowed_by):
    nvml["CurrentClocksEventReasons"] = reasons
    assert read_gpu_state(UUID).slowed_by == slowed_by


@pytest.mark.parametrize(
    ("seen", "ours", "others"),
    [
        ([7], {7, 8}, 0),
        ([7, 8], {7, 8}, 0),
        ([7, 99], {7, 8}, 1),
        ([99], (), 1),
        ([], (), 0),
        ([41_234, 41_235], {7, 8}, None),
        ([], {7, 8}, None),
    ],
    ids=["ours", "ours two", "another", "no claim", "nobody", "ids of another namespace", "not even ours is seen"],
)
def test_other_processes_are_those_that_are_not_ours_where_ours_are_seen(nvml, seen, ours, others):
    nvml["Processes"] = seen
    assert read_gpu_state(UUID, ours=ours).other_processes == others


def test_what_the_driver_does_not_tell_is_none(nvml):
    unsupported = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml.update(dict.fromkeys(nvml, unsupported))
    assert read_gpu_state(UUID, ours={7}) == GpuState(1980, 3201, None, None, (), None)


def test_a_gpu_tells_what_it_is_set_to(nvml):
    assert read_gpu_settings(UUID) == GpuSettings(700.0, 1980, 1980, 1980, 3201)
    nvml["ApplicationsClock"] = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert read_gpu_settings(UUID) == GpuSettings(700.0, None, None, 1980, 3201)


def test_a_gpu_that_nvml_does_not_know_has_no_state_and_no_settings(nvml):
    assert read_gpu_state("GPU-2") is None
    assert read_gpu_settings("GPU-2") is None


def test_a_machine_without_nvml_has_no_state(nvml, monkeypatch):
    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert read_gpu_state(UUID) is None
