"""Which devices a run gets, with a fake NVML."""

import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from flashinfer_bench.bench import machine
from flashinfer_bench.bench.machine import (
    Device,
    Machine,
    discover_devices,
    guess_kind,
    read_cpu_name,
)
from flashinfer_bench.errors import ConfigError

A, B, C = "GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333"


class FakeNvml:
    """The part of pynvml that machine.py uses; it checks that each opened handle is closed."""

    NVMLError = type("NVMLError", (Exception,), {})

    def __init__(self, uuids=(A, B, C), *, fails_at=None, divided=()):
        self.opened, self.fails_at = 0, fails_at
        self.answers = {
            "Init": lambda: self.count(1),
            "Shutdown": lambda: self.count(-1),
            "DeviceGetCount": lambda: len(uuids),
            "DeviceGetHandleByIndex": uuids.__getitem__,
            "DeviceGetHandleByUUID": str,
            "DeviceGetName": lambda handle: "NVIDIA H200",
            "DeviceGetUUID": str,
            "DeviceGetPciInfo": lambda handle: SimpleNamespace(domain=0, bus=0xFF - uuids.index(handle), device=0),
            "DeviceGetMigMode": lambda handle: [int(handle in divided)] * 2,
            "DeviceGetCudaComputeCapability": lambda _handle: [9, 0],
        }

    def count(self, change):
        self.opened += change

    def __getattr__(self, name):
        def call(*given):
            if self.fails_at != step or step == "Shutdown":
                answer = self.answers[step](*given)
            if self.fails_at == step:
                raise self.NVMLError(step)
            return answer

        step = name.removeprefix("nvml")
        return call


def discover(requested=None, *, visible=None, torch_has_cuda=True, nvml=None, **faults):
    variables = {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    nvml = nvml or FakeNvml(**faults)
    with (
        patch.dict(os.environ, variables),
        patch.dict(sys.modules, pynvml=nvml),
        patch.object(machine, "is_torch_cuda_build", lambda: torch_has_cuda),
    ):
        if visible is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        found = discover_devices(requested)
    assert nvml.opened == 0
    return found


@pytest.mark.parametrize(
    ("requested", "visible", "how", "expected"),
    [
        (None, None, {}, [A, B, C]),
        (None, None, {"fails_at": "Shutdown"}, [A, B, C]),
        # Counted like the GPUs that are visible to CUDA.
        (None, "2,0", {}, [C, A]),
        (None, "GPU-bbbb, 1", {}, [C, B]),
        (None, "1,7,0", {}, [B]),
        (None, "1,1,0", {}, [B]),
        (None, "MIG-1234", {"fails_at": "DeviceGetHandleByUUID"}, ["MIG-1234"]),
        (["cuda:0"], "2,1", {}, [C]),
        (["2", "cuda:0", C], None, {}, [C, A]),
        # Without a usable GPU it is the CPU.
        *((None, text, {}, ["cpu"]) for text in ("GPU-aaaa", "", "-1")),
        *((None, None, {"fails_at": step}, ["cpu"]) for step in ("Init", "DeviceGetCount", "DeviceGetName")),
        *((None, None, how, ["cpu"]) for how in ({"uuids": ()}, {"torch_has_cuda": False})),
        (["cpu"], None, {}, ["cpu"]),
        # A missing device is refused with a list.
        *(([one], None, {}, f"(?s){one}.*cuda:0 NVIDIA H200") for one in ("3", "cuda:9", "GPU-zz", "GPU-aaaa", "tpu")),
        (["cpu", "0"], None, {}, "one kind"),
        (["0"], None, {"torch_has_cuda": False}, "CPU build"),
    ],
)
def test_which_devices_a_run_gets(requested, visible, how, expected):
    with nullcontext() if isinstance(expected, list) else pytest.raises(ConfigError, match=expected):
        devices = discover(requested, visible=visible, **how)
        assert [device.uuid for device in devices] == expected
        assert requested is not None or [device.index for device in devices] == list(range(len(expected)))


def test_a_machine_tells_names_and_capabilities():
    reported = Machine((*discover(), Device("cuda", 3, "NVIDIA B200", "GPU-2")), {})
    assert (reported.kind, reported.hardware, reported.capabilities) == ("cuda", "NVIDIA B200 + NVIDIA H200", [(9, 0)])
    assert Machine(discover(fails_at="DeviceGetCudaComputeCapability"), {}).capabilities == []


@pytest.mark.parametrize(
    ("faults", "numbers"),
    [
        ({}, [2, 1, 0]),
        ({"visible": B}, [1]),
        ({"fails_at": "DeviceGetPciInfo"}, [None] * 3),
        ({"divided": (C,)}, [None] * 3),
        ({"fails_at": "DeviceGetMigMode", "divided": (B,)}, [2, 1, 0]),  # NVML knows no MIG: no GPU is divided
    ],
)
def test_gpus_are_numbered_by_their_pci_addresses_unless_cuda_may_count_otherwise(faults, numbers):
    assert [device.pci_rank for device in discover(**faults)] == numbers


def test_without_nvml_the_cpu_is_the_device_and_has_a_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(machine, "is_torch_cuda_build", lambda: True)
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert discover_devices(None)[0].kind == "cpu"
    assert read_cpu_name() != ""
    machine.CPU_INFO.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
    assert read_cpu_name() == "AMD EPYC 9654"


@pytest.mark.parametrize(
    ("version", "node", "is_built", "kind"),
    [("None", "nvidia0", False, "cpu"), ("'12.8'", "nvidia0", True, "cuda"), ("'12.8'", "null", True, "cpu")],
)
def test_the_kind_of_devices_is_guessed_from_the_files_of_torch_and_the_nodes(
    tmp_path, monkeypatch, version, node, is_built, kind
):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"cuda: Optional[str] = {version}\nhip: Optional[str] = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (tmp_path / node).touch()
    monkeypatch.setattr(machine, "DEVICES", tmp_path)
    assert (machine.is_torch_cuda_build(), guess_kind()) == (is_built, kind)


def test_planning_imports_no_torch():
    code = (
        "import sys; import flashinfer_bench.bench.config, flashinfer_bench.bench.planning.plan, "
        "flashinfer_bench.bench.planning.resume, flashinfer_bench.bench.job_queue as s; "
        "from flashinfer_bench.bench.machine import discover_devices; "
        "from flashinfer_bench.bench.config import BenchmarkConfig; BenchmarkConfig.default(); discover_devices(None); "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'triton')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
