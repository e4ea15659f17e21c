"""Which devices a run gets, with a fake NVML."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench import machine
from flashinfer_bench.bench.machine import (
    Device,
    Machine,
    discover_devices,
    guess_kind,
    is_torch_cuda_build,
    read_cpu_name,
)
from flashinfer_bench.errors import ConfigError


class NVMLError(Exception):
    pass


class FakeNvml:
    """As much of pynvml as machine.py uses; it counts whether what was opened is closed."""

    NVMLError = NVMLError

    def __init__(self, uuids=("GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333"), *, fails_at=None):
        self.uuids = uuids
        self.fails_at = fails_at
        self.divided = ()
        self.opened = 0

    def _step(self, name):
        if name == self.fails_at:
            raise NVMLError(name)

    def nvmlInit(self):
        self._step("init")
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1
        self._step("shutdown")

    def nvmlDeviceGetCount(self):
        self._step("count")
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.uuids[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self._step("by_uuid")
        return uuid

    def nvmlDeviceGetName(self, handle):
        self._step("name")
        return f"NVIDIA H200 {'MIG 1g' if handle.startswith('MIG-') else ''}".strip().encode()

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetPciInfo(self, handle):
        self._step("address")
        return SimpleNamespace(domain=0, bus=0xFF - self.uuids.index(handle), device=0)

    def nvmlDeviceGetMigMode(self, handle):
        self._step("mig")
        return [int(handle in self.divided)] * 2

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        self._step("capability")
        return [9, 0]


def discover(requested=None, *, nvml=None, visible=None, torch_has_cuda=True):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return discover_devices(
        requested, nvml=nvml or FakeNvml(), environment=environment, torch_has_cuda=lambda: torch_has_cuda
    )


def uuids(devices):
    return [device.uuid for device in devices]


@pytest.mark.parametrize(("step", "expected"), [(None, [(9, 0)]), ("capability", [])], ids=["told", "not told"])
def test_the_compute_capabilities_are_those_of_the_devices(step, expected):
    assert Machine(discover(nvml=FakeNvml(fails_at=step)), {}).capabilities == expected


def test_all_gpus_are_used_and_nvml_is_closed():
    nvml = FakeNvml()
    devices = discover(nvml=nvml)
    assert devices[1] == Device("cuda", 1, "NVIDIA H200", "GPU-aaaa2222")
    assert [device.label for device in devices] == ["cuda:0", "cuda:1", "cuda:2"]
    assert nvml.opened == 0


def test_gpus_are_numbered_by_their_pci_addresses_whatever_is_visible():
    assert [device.pci_rank for device in discover()] == [2, 1, 0]
    (device,) = discover(visible="GPU-aaaa2222")
    assert (device.index, device.pci_rank) == (0, 1)


@pytest.mark.parametrize(
    ("fails_at", "divided"), [("address", ()), ("mig", ("GPU-aaaa2222",)), (None, ("GPU-bbbb3333",))]
)
def test_gpus_have_no_numbers_where_cuda_may_count_otherwise(fails_at, divided):
    nvml = FakeNvml(fails_at=fails_at)
    nvml.divided = divided
    numbers = [device.pci_rank for device in discover(nvml=nvml)]
    assert numbers == ([2, 1, 0] if fails_at == "mig" else [None] * 3)  # NVML knows no MIG: nothing is divided


@pytest.mark.parametrize("step", ["init", "count", "name"])
def test_a_failing_nvml_leaves_the_cpu(step):
    nvml = FakeNvml(fails_at=step)
    (device,) = discover(nvml=nvml)
    assert (device.kind, device.label, device.uuid) == ("cpu", "cpu", "cpu")
    assert nvml.opened == 0


def test_a_shutdown_that_fails_loses_nothing():
    assert len(discover(nvml=FakeNvml(fails_at="shutdown"))) == 3


def test_without_nvml_or_gpus_the_cpu_is_the_device(monkeypatch):
    assert discover(nvml=FakeNvml(uuids=()))[0].kind == "cpu"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert discover_devices(None, environment={}, torch_has_cuda=lambda: True)[0].kind == "cpu"


def test_a_cpu_build_of_torch_leaves_the_cpu_and_says_so_when_a_gpu_is_asked_for():
    assert discover(torch_has_cuda=False)[0].kind == "cpu"
    with pytest.raises(ConfigError, match="CPU build"):
        discover(["0"], torch_has_cuda=False)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0", ["GPU-bbbb3333", "GPU-aaaa1111"]),
        ("GPU-bbbb, 1", ["GPU-bbbb3333", "GPU-aaaa2222"]),
        ("1,7,0", ["GPU-aaaa2222"]),
        ("1,1,0", ["GPU-aaaa2222"]),
        ("GPU-aaaa", ["cpu"]),
        ("", ["cpu"]),
        ("-1", ["cpu"]),
        ("NoDevFiles", ["cpu"]),
    ],
)
def test_cuda_visible_devices_is_honoured_as_cuda_reads_it(visible, expected):
    devices = discover(visible=visible)
    assert uuids(devices) == expected
    assert [device.index for device in devices] == list(range(len(expected)))


def test_devices_are_counted_among_the_visible_ones():
    assert uuids(discover(["cuda:0"], visible="2,1")) == ["GPU-bbbb3333"]


@pytest.mark.parametrize("fails_at", [None, "by_uuid"])
def test_a_mig_slice_is_listed_as_it_is(fails_at):
    (device,) = discover(visible="MIG-1234", nvml=FakeNvml(fails_at=fails_at))
    assert device.uuid == "MIG-1234"
    assert "MIG" in device.name


def test_requested_devices_come_in_their_order_and_once():
    assert uuids(discover(["2", "cuda:0", "GPU-bbbb3333"])) == ["GPU-bbbb3333", "GPU-aaaa1111"]


def test_the_cpu_can_be_asked_for_and_nvml_is_left_alone():
    assert discover(["cpu"], nvml=FakeNvml(fails_at="init"))[0].kind == "cpu"


@pytest.mark.parametrize("requested", [["3"], ["cuda:9"], ["GPU-zz"], ["GPU-aaaa"], ["tpu"], ["0", "x"]])
def test_unknown_devices_are_refused_with_a_list_of_those_that_are_there(requested):
    with pytest.raises(ConfigError, match="cuda:0 NVIDIA H200") as caught:
        discover(requested)
    assert requested[-1] in str(caught.value)


def test_cpu_and_gpu_are_not_mixed():
    with pytest.raises(ConfigError, match="one kind"):
        discover(["cpu", "0"])


def test_the_cpu_is_named_after_the_processor(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n")
    assert read_cpu_name(info) == "AMD EPYC 9654"
    assert read_cpu_name(tmp_path / "none")


@pytest.mark.parametrize(
    ("line", "expected"), [("cuda: Optional[str] = None", False), ("cuda: Optional[str] = '12.8'", True), ("", True)]
)
def test_the_build_of_torch_is_read_from_its_files(tmp_path, monkeypatch, line, expected):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '9'\n{line}\nhip: Optional[str] = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert is_torch_cuda_build() is expected


@pytest.mark.parametrize(
    ("node", "is_built", "kind"),
    [("nvidia0", True, "cuda"), ("nvidia0", False, "cpu"), ("dxg", True, "cuda"), ("null", True, "cpu")],
)
def test_the_kind_of_devices_is_guessed_from_their_nodes(tmp_path, monkeypatch, node, is_built, kind):
    monkeypatch.setattr(machine, "is_torch_cuda_build", lambda: is_built)
    (tmp_path / node).touch()
    assert guess_kind(tmp_path) == kind


def test_a_machine_names_its_hardware_once():
    gpus = [Device("cuda", index, "NVIDIA H200", f"GPU-{index}") for index in range(2)]
    assert Machine(tuple(gpus), {}).hardware == "NVIDIA H200"
    assert Machine((*gpus, Device("cuda", 2, "NVIDIA B200", "GPU-2")), {}).hardware == "NVIDIA B200 + NVIDIA H200"
    assert Machine(tuple(gpus), {}).kind == "cuda"


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
