"""The resources of a run: the devices of this machine and, for each language, whether its solutions can run here.

Devices are found through NVML, without a CUDA context and without importing torch. Without a usable GPU the CPU is the
device. The caller, who knows the builders, passes the languages that can be built.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from flashinfer_bench.errors import ConfigError

if TYPE_CHECKING:  # the command line asks for `guess_kind` before it imports models
    from flashinfer_bench.data.solution import Solution

CPU_INFO: Final = Path("/proc/cpuinfo")
DEVICES: Final = Path("/dev")


@dataclass(frozen=True)
class Device:
    """One GPU, or the CPU."""

    kind: Literal["cpu", "cuda"]
    index: int
    """Position among the visible devices, as CUDA counts them in this environment."""
    name: str
    """The maker's name, for example "NVIDIA H200"."""
    uuid: str
    """Its name for pinning and locking: NVML's uuid ("GPU-…", "MIG-…"), or "cpu"."""
    capability: tuple[int, int] | None = field(default=None, compare=False)
    """Compute capability, (9, 0) for Hopper; None for a CPU, or if NVML does not report it."""
    pci_rank: int | None = field(default=None, compare=False)
    """Position among all GPUs by PCI address. None for a CPU, for a MIG slice, and if NVML does not report it. Also
    None if MIG divides a GPU of this machine, since CUDA counts differently then."""
    node: str | None = None
    """The node of a cluster that has it; None for this machine."""

    @property
    def label(self) -> str:
        """Return the short name: "cuda:0" or "cpu"; on a node "node-7/cuda:0"."""
        own = "cpu" if self.kind == "cpu" else f"cuda:{self.index}"
        return own if self.node is None else f"{self.node}/{own}"


@dataclass(frozen=True)
class Machine:
    """The devices of a run, and the languages that can run on them."""

    devices: tuple[Device, ...]
    languages: Mapping[str, str | None]
    """Language → None if its solutions can be built and run here, else the reason."""
    why_not_buildable: Callable[[Solution], str | None] = field(default=lambda _solution: None, compare=False)
    """Returns the missing requirement of one solution (a package, a binding); None if nothing is missing."""
    sandbox: str | None = None
    """The sandbox of workers here, for a job's fingerprint; None if it was not checked."""

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """Return the kind of its devices; a run does not mix them."""
        return self.devices[0].kind

    @property
    def hardware(self) -> str:
        """Return the names of its devices, each once: a verdict's timing depends on them."""
        return " + ".join(sorted({device.name for device in self.devices}))

    @property
    def capabilities(self) -> list[tuple[int, int]]:
        """Return the compute capabilities of its devices, each once, the lowest first."""
        return sorted({device.capability for device in self.devices if device.capability is not None})


def discover_devices(requested: Sequence[str] | None) -> tuple[Device, ...]:
    """Return the devices to use: the requested devices in the requested order, else all visible GPUs, else the CPU.

    Device numbers have the meaning that CUDA gives them under CUDA_VISIBLE_DEVICES. A CPU build of torch cannot use the
    GPUs of a machine.

    Args:
        requested: "0", "cuda:1", a GPU's uuid or the start of one, or "cpu"; None for all.

    Raises:
        ConfigError: requested devices are missing; the message lists the available devices.
    """
    cpu = Device("cpu", 0, read_cpu_name(), "cpu")
    if requested is not None and set(requested) == {"cpu"}:
        return (cpu,)
    usable = is_torch_cuda_build()
    gpus = _list_visible_gpus() if usable else ()
    if requested is None:
        return gpus or (cpu,)
    result = {entry: _find(entry.strip(), gpus) for entry in requested if entry != "cpu"}
    if unknown := [entry for entry, gpu in result.items() if gpu is None]:
        why_none = "" if usable else " (the installed torch is a CPU build: GPUs cannot be used)"
        there = ", ".join(f"{device.label} {device.name} ({device.uuid})" for device in (*gpus, cpu))
        raise ConfigError(f"devices: there is no {', '.join(unknown)}{why_none}; this machine has: {there}")
    if "cpu" in requested:
        raise ConfigError("devices: cpu and GPUs cannot be used in one run; name one kind")
    return tuple({gpu.uuid: gpu for gpu in result.values() if gpu is not None}.values())


def read_cpu_name() -> str:
    """Return the processor's name."""
    try:
        text = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    result = re.search(r"^model name\s*:\s*(\S.*)$", text, re.MULTILINE)
    return result.group(1).strip() if result else platform.processor() or platform.machine() or "CPU"


def is_torch_cuda_build() -> bool:
    """Return whether the installed torch was built for CUDA. This reads its files, because importing torch takes a
    second."""
    spec = importlib.util.find_spec("torch")
    folders = list(spec.submodule_search_locations or []) if spec else []
    try:
        text = (Path(folders[0]) / "version.py").read_text(encoding="utf-8") if folders else ""
    except OSError:
        return True
    return re.search(r"^cuda\b[^=]*=\s*None\b", text, re.MULTILINE) is None


def guess_kind() -> Literal["cpu", "cuda"]:
    """Guess the kind of device of a run that requests no device, without asking the driver."""
    has_gpu = any(DEVICES.glob("nvidia[0-9]*")) or (DEVICES / "dxg").exists()
    return "cuda" if has_gpu and is_torch_cuda_build() else "cpu"


def _list_visible_gpus() -> tuple[Device, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES selects, in its order; like CUDA, stop at the first invalid entry."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    entries = [] if visible is None else [entry.strip() for entry in visible.split(",")]
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        addresses = [_read_address(nvml, handle) for handle in handles]
        gpus = [_read_gpu(nvml, handle, nvml.nvmlDeviceGetUUID(handle), index) for index, handle in enumerate(handles)]
        slices = [_read_slice(nvml, entry) for entry in entries if entry.startswith("MIG-")]
    except nvml.NVMLError:
        return ()
    finally:
        with contextlib.suppress(nvml.NVMLError):  # the result is valid whether or not NVML closes
            nvml.nvmlShutdown()
    known = sorted(address for address in addresses if address is not None)
    if len(set(known)) == len(gpus):
        gpus = [replace(gpu, pci_rank=known.index(address)) for gpu, address in zip(gpus, addresses, strict=True)]
    chosen: dict[str, Device] = {}
    for gpu in gpus if visible is None else (_find(entry, [*gpus, *slices]) for entry in entries):
        if gpu is None or gpu.uuid in chosen:
            break
        chosen[gpu.uuid] = replace(gpu, index=len(chosen))
    return tuple(chosen.values())


def _read_address(nvml: Any, handle: Any) -> Any:
    """Return a GPU's PCI address; None if NVML reports no address, or MIG divides the GPU."""
    with contextlib.suppress(nvml.NVMLError):  # a GPU without MIG
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            return None
    with contextlib.suppress(nvml.NVMLError):
        result = nvml.nvmlDeviceGetPciInfo(handle)
        return int(result.domain), int(result.bus), int(result.device)
    return None


def _read_gpu(nvml: Any, handle: Any, uuid: str, index: int) -> Device:
    capability = None
    with contextlib.suppress(nvml.NVMLError):
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = int(major), int(minor)
    return Device("cuda", index, nvml.nvmlDeviceGetName(handle), uuid, capability)


def _read_slice(nvml: Any, uuid: str) -> Device:
    """Read a MIG slice, which only CUDA_VISIBLE_DEVICES can name. The driver need not report the slice's name."""
    try:
        return _read_gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid), uuid, -1)
    except nvml.NVMLError:
        return Device("cuda", -1, "MIG device", uuid)


def _find(entry: str, gpus: Sequence[Device]) -> Device | None:
    digits = entry.removeprefix("cuda:")
    if digits.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(digits)), None)
    matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)] if entry.startswith(("GPU-", "MIG-")) else []
    return matches[0] if len(matches) == 1 else None
