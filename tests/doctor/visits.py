"""A machine with a GPU, and what would be measured on it, with every part replaceable."""

from dataclasses import replace

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.examine.doctor.machine import GpuAtRest, MachineState
from flashinfer_bench.examine.doctor.readings import CacheCheck, Rates, Readings
from flashinfer_bench.examine.doctor.self_check import Agreement, TwinTimes
from flashinfer_bench.timing.nvml import GpuState

GPU = Device("cuda", 0, "NVIDIA H200", "GPU-test-of-the-doctor", (9, 0))
CPU = Device("cpu", 0, "test device", "cpu")
AT_REST = GpuState(345, 3201, 76.0, 31, (), 0)
UNDER_LOAD = GpuState(1700, 3201, 690.0, 52, ("power_cap",), 0)


def machine(device=GPU, *, processes=(), state=AT_REST, **parts):
    gpu = GpuAtRest(150 << 30, 1 << 30, 1980, 3201, 700.0, processes, state)
    fields = {
        "device": device,
        "gpus": 1,
        "torch_has_cuda": True,
        "versions": {"torch": "2.11.0+cu130", "cupti-python": "13.0.1", "triton": None},
        "compilers": {"nvcc": "/usr/local/cuda/bin/nvcc (13.0)", "C++": None},
        "languages": {"python": None, "cuda": "there is no C++ compiler; install g++"},
        "gpu": gpu if device.kind == "cuda" else None,
    }
    return MachineState(**{**fields, **parts})


def readings(**parts):
    found = Readings(
        method="cupti",
        cuda="13.0",
        l2_bytes=60 << 20,
        processors=132,
        launch_gap_ns=1100,
        empty_pair_ns=2000,
        cache=CacheCheck(20_000_000, 4.4, 3.0, 4.3),
        rates=Rates(4.1, 720.0),
        under_load=UNDER_LOAD,
    )
    return replace(found, **parts)


def agreement(*ratios, spread=0.01, problems=()):
    twins = [TwinTimes("add_one", 64, 0.003, ratio, spread) for ratio in ratios]
    return Agreement(tuple(twins), tuple(problems))
