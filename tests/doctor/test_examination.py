"""The whole visit, with what is read and measured given; and what a machine tells of itself."""

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner.device_lock import lock_device
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.examine.doctor.examination import NOTHING_ASKED, Asked, Instruments, examine
from flashinfer_bench.examine.doctor.machine import read_machine
from flashinfer_bench.examine.doctor.probe_process import ProbeFailed
from tests.doctor.visits import CPU, GPU, agreement, machine, readings


@pytest.fixture(autouse=True)
def _own_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


INSTRUMENTS = Instruments(machine, lambda _: readings(), lambda _: agreement(1.0), lambda _: {"Triton": None})


def visit(device=GPU, *, asked=NOTHING_ASKED, tell=lambda _: None, **parts):
    return examine(device, asked=asked, tell=tell, instruments=replace(INSTRUMENTS, **parts))


def broken(report):
    return [finding.topic for finding in report.findings if finding.state == "broken"]


def test_a_visit_measures_and_has_the_engine_check_itself():
    told = []
    report = visit(tell=told.append)
    assert (report.exit_code, broken(report)) == (0, [])
    assert told == [
        "looking at the machine",
        "measuring cuda:0",
        "timing the same kernels as two solutions each",
        "building, loading and calling programs of ours",
    ]
    document = json.loads(json.dumps(report.document()))
    assert (document["exit_code"], document["agreement"]["worst"]) == (0, 0.0)
    assert document["findings"][0] == {"topic": "languages", "state": "ok", "text": "python can be built", "advice": ""}


def test_a_quick_visit_leaves_the_engine_out():
    def never(_device):
        raise AssertionError

    report = visit(asked=Asked(quick=True), check=never)
    assert (report.agreement, report.exit_code) == (None, 0)


def test_a_gpu_that_another_run_holds_is_not_measured():
    def never(_device):
        raise AssertionError

    with ExitStack() as held:
        list(lock_device(GPU, held))
        report = visit(measure=never)
    assert (report.exit_code, broken(report), report.readings) == (1, ["lock"], None)
    assert f"cuda:0 is in use by another run (process {os.getpid()})" in [item.text for item in report.findings]


def test_a_visit_gives_the_lock_back_before_the_engine_takes_it():
    def check(_device):
        with ExitStack() as held:
            list(lock_device(GPU, held, limit_s=0))
        return agreement(1.0)

    assert broken(visit(check=check)) == []


@pytest.mark.parametrize(
    ("parts", "topic"),
    [
        ({"measure": ProbeFailed("no CUDA")}, "measuring"),
        ({"check": DeviceFault("lost")}, "A/A"),
        ({"build": DeviceFault("lost")}, "programs"),
    ],
    ids=["probe", "engine", "programs"],
)
def test_what_fails_is_a_finding_with_its_words(parts, topic):
    ((name, error),) = parts.items()

    def fail(_device):
        raise error

    report = visit(CPU, look=lambda device: machine(device, gpus=0), **{name: fail})
    assert (report.exit_code, broken(report)) == (1, [topic])
    assert str(error) in next(finding.text for finding in report.findings if finding.topic == topic)


def test_a_program_of_ours_that_fails_is_broken_with_cause_and_cure():
    report = visit(build=lambda _: {"Triton": None, "torch.compile": "it does not work: no compiler; install g++"})
    assert broken(report) == ["programs"]
    found = {finding.text: finding.advice for finding in report.findings if finding.topic == "programs"}
    assert found["it does not work: no compiler"] == "install g++"


def refuse(*_arguments):
    raise RuntimeError("no driver")


def test_a_machine_without_a_driver_is_looked_at_all_the_same():
    nvml = SimpleNamespace(NVMLError=RuntimeError, nvmlInit=refuse, nvmlDeviceGetHandleByUUID=refuse)
    found = read_machine(CPU, nvml=nvml, environment={"PATH": ""})
    assert (found.gpus, found.gpu, found.versions["driver"]) == (0, None, None)
    assert found.versions["torch"]
    assert found.languages["python"] is None
    assert found.compilers["C++"] is None
    assert read_machine(GPU, nvml=nvml).gpu is None


def test_what_a_driver_does_not_tell_is_not_known():
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlSystemGetCudaDriverVersion=lambda: 13000,
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetCount=lambda: 8,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=100, used=7),
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetPowerManagementLimit=refuse,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=5)],
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
    )
    found = read_machine(GPU, nvml=nvml)
    assert (found.gpus, found.versions["driver"], found.versions["CUDA of the driver"]) == (8, "580.1", "13.0")
    assert (found.gpu.memory_used_bytes, found.gpu.sm_max_mhz, found.gpu.power_limit_w) == (7, 1980, None)
    assert found.gpu.processes == (5,)
