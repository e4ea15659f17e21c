"""The doctor: findings as a table, the whole examination with parts replaced, and what the command shows."""

import json
import os
from contextlib import ExitStack
from dataclasses import replace
from math import log
from unittest.mock import Mock

import pytest

from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.sandbox import Sandbox
from flashinfer_bench.cli.doctor import render_report
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.examine.compare.result import Comparison, Ratio, Row
from flashinfer_bench.examine.doctor import examination
from flashinfer_bench.examine.doctor import findings as of
from flashinfer_bench.examine.doctor.machine import MachineState, Readings, read_machine
from flashinfer_bench.timing.nvml import GpuState

GPU = Device("cuda", 0, "NVIDIA H200", "GPU-test-of-the-doctor", (9, 0))
CPU = Device("cpu", 0, "test device", "cpu")
AT_REST = GpuState(345, 3201, 76.0, 31, (), 0)


def machine(device=GPU, *, gpus=1, torch_has_cuda=True):
    languages = {"python": None, "cuda": "there is no C++ compiler; install g++"}
    compilers = {"nvcc": "/usr/local/cuda/bin/nvcc (13.0)", "C++": None}
    return MachineState(
        device, gpus, torch_has_cuda, {"torch": "2.11"}, compilers, languages, AT_REST if device is GPU else None
    )


def readings(**parts):
    return replace(Readings(method="cupti", cuda="13.0", launch_gap_ns=1100), **parts)


def agreement(*ratios, problem=""):
    """Identical solutions with these ratios, or a row that has none."""
    rows = [Row("known_good", "size_1", ratio=Ratio(log(ratio), 0.001, 0.0005, 3, 4)) for ratio in ratios]
    rows += [Row("known_good", "size_1", problem=problem)] if problem else []
    return Comparison(rows, 0.02, "measured", "test device")


GAP = {"files": "this kernel's Landlock is of version 0"}
NOT_INSTALLED = "CUPTI is not installed. Try 'pip install -U cupti-python'"
FORBIDDEN = "CUPTI does not record: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"


def neighbours(**parts):
    return of.find_neighbours(replace(AT_REST, **parts))


def clock(fallback):
    return [of.find_clock(readings(method="cuda_events", fallback=fallback, empty_ns=2000))]


def identical(*ratios, on_gpu=True, problem=""):
    return [of.find_agreement(agreement(*ratios, problem=problem), on_gpu=on_gpu)]


TRIED = {"one": ("ok", ""), "other": ("broken", "no compiler"), "third": ("note", "it needs ninja; try: pip")}
FINDINGS = {
    "a cpu build": (of.find_gpu(machine(CPU, torch_has_cuda=False), None), "broken", "is a CPU build", "CUDA"),
    "hidden": (of.find_gpu(machine(CPU), None), "note", "CUDA_VISIBLE_DEVICES hides them", "unset"),
    "a cpu by choice": (of.find_gpu(machine(CPU), "cpu"), "", "", ""),
    "languages": (of.find_languages(machine().languages), "ok note", "python can be built", "install g++"),
    "programs": (of.find_programs(TRIED), "ok broken note", "no compiler\nthird: it needs ninja", "try: pip"),
    "others": (neighbours(other_processes=1), "note", "1 on the GPU", "end them"),
    "nobody": (neighbours(slowed_by=("power_cap",)), "ok", "none was seen on the GPU", ""),
    "no word": (neighbours(other_processes=None), "ok", "not known", ""),
    "heat": (neighbours(slowed_by=("hw_thermal",)), "ok note", "slowed down: hw_thermal", "cooling"),
    "flush": (of.find_flush(readings(cold_ns=6000, warm_ns=4000)), "ok", "cold 6.00 us, warm 4.00 us", ""),
    "no flush": (of.find_flush(readings(cold_ns=4000, warm_ns=4000)), "broken", "cold 4.00 us", "not flushed"),
    "no l2": (of.find_flush(readings()), "", "", ""),
    "no cupti": (clock(NOT_INSTALLED), "note", "a pair of them round nothing reads 2.0 us", "install cupti"),
    "forbidden": (clock(FORBIDDEN), "note", FORBIDDEN, "NVreg_RestrictProfilingToAdminUsers=0"),
    "cupti fails": (clock("CUPTI takes no buffers (error 1)"), "note", "(error 1)", "run this again"),
    "nearly": (identical(1.03, 1.0), "note", "smaller differences", "quiet"),
    "differ": (identical(1.0, 0.95), "broken", "cannot be compared", "quiet"),
    "rough": (identical(1.0, 0.5, on_gpu=False), "note", "smaller differences", "quiet"),
    "wrong": (identical(problem="RUNTIME_ERROR: boom"), "broken", "boom", "see"),
    "a gap": (of.find_confinement(Sandbox("auto", GAP), "auto"), "note", "files: this kernel", "seccomp"),
    "a forbidden gap": (of.find_confinement(Sandbox("auto", GAP), "strict"), "broken", "files: this", "seccomp"),
    "no network": (of.find_network(has_own_network=False), "note", "compilers keep this", "--network none"),
    "no walls": (of.find_confinement(Sandbox("auto", GAP), "off"), "note", "off: ", "auto"),
}  # fmt: skip


@pytest.mark.parametrize(("found", "states", "words", "advice"), FINDINGS.values(), ids=FINDINGS)
def test_each_finding_has_its_state_its_words_and_what_to_do(found, states, words, advice):
    found = list(found)
    assert " ".join(finding.state for finding in found) == states
    assert words in "\n".join(finding.text for finding in found)
    assert any(advice in finding.advice for finding in found) if advice else not any(one.advice for one in found[:1])


@pytest.fixture
def examined(monkeypatch, tmp_path):
    """Examine a device with parts replaced: what they return, or errors that they raise."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))

    def examine(device=GPU, peaks=False, **parts):
        usual = {
            "run_isolated": vars(readings()),
            "time_identical": agreement(1.0),
            "try_programs": {"Triton": ("ok", "")},
        }
        for name, value in {**usual, "read_machine": machine(device), **parts}.items():
            effect = value if callable(value) or isinstance(value, Exception) else None
            monkeypatch.setattr(examination, name, Mock(side_effect=effect, return_value=value))
        return examination.examine(device, peaks=peaks, progress=reported.append)

    reported = examine.reported = []
    return examine


def broken(report):
    return [finding.topic for finding in report.findings if finding.state == "broken"]


def test_a_visit_of_a_healthy_machine_reads_like_this(examined):
    report = examined()
    assert (report.exit_code, broken(report)) == (0, [])
    assert examined.reported[:2] == ["looking at the machine", "measuring cuda:0"]
    document = json.loads(json.dumps(report.document()))
    assert (document["exit_code"], document["identical"]["overall"]["ratio"]) == (0, 1.0)
    assert document["findings"][0].keys() == {"topic", "state", "text", "advice"}
    text = render_report(report)
    for line in ("at rest 345 MHz, 3201 MHz of its memory, 76.0 W, 31 °C", "launch in a full queue costs 1.10 us"):
        assert line in " ".join(text.split())
    assert text.endswith("\nThis machine can measure, by CUPTI with a cold or a warm L2.\n")


def test_measured_peaks_are_kept_and_reported_with_their_date(examined, tmp_path):
    def answer(module, _kind, **_):
        rates = {"tb_per_sec": {"copy": 4.08, "triad": 4.2}, "tflops": {"fp16": 700.0, "fp1": 1.0}, "gpu": {}}
        return rates if module == examination.PEAKS_PROBE else vars(readings())

    assert examined(run_isolated=answer).peaks is None
    report = examined(run_isolated=answer, peaks=True)
    found = {finding.topic: finding.text for finding in report.findings if finding.topic.startswith("peak ")}
    source = f"(measured {report.peaks.date[:10]})"
    assert found["peak copy"] == f"4.08 TB/s, 85.0% of the vendor's 4.8 {source}"
    assert (found["peak fp1"], "70.8% of the vendor's 989" in found["peak fp16"]) == (f"1 TFLOP/s {source}", True)
    assert json.loads(json.dumps(report.document()))["peaks"]["versions"] == {"torch": "2.11"}
    assert examined(run_isolated=answer).peaks == report.peaks
    (file,) = (tmp_path / "cache" / "peaks").iterdir()
    file.unlink()
    file.parent.rmdir()
    file.parent.touch()
    report = examined(run_isolated=answer, peaks=True)
    assert (broken(report), report.readings is not None) == (["measuring"], True)


@pytest.mark.cpu
def test_every_peak_is_of_a_call_with_counted_work(monkeypatch):
    torch = pytest.importorskip("torch")
    from flashinfer_bench.examine.doctor import peaks  # it imports torch

    monkeypatch.setattr(peaks, "SIZES", (16,))
    works = list(peaks.list_calls(torch.device("cpu"), 64))
    counts = {"copy": 512, "triad": 768, **dict.fromkeys(peaks.PRODUCTS, 8192)}
    assert {name: amount for name, amount, _ in works} == counts
    assert [tuple(call().shape) for *_, call in works] == [(64,)] * 2 + [(16, 16)] * 4


def test_a_cpu_has_no_peaks(capsys):
    assert main(["doctor", "--peaks", "--device", "cpu"]) == 2
    assert "--peaks needs a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "topic"), [("run_isolated", "measuring"), ("time_identical", "A/A"), ("try_programs", "programs")]
)
def test_what_fails_is_a_finding_with_its_words(examined, part, topic):
    report = examined(CPU, **{part: DeviceFault("lost")})
    assert (report.exit_code, broken(report)) == (1, [topic])
    assert "lost" in [finding.text for finding in report.findings if finding.topic == topic]


def test_a_gpu_that_another_run_holds_is_not_measured_and_is_free_for_the_engine(examined):
    with ExitStack() as held:
        list(ask_for_device(GPU, held))
        report = examined(run_isolated=AssertionError())
    assert (report.exit_code, broken(report), report.readings) == (1, ["measuring"], None)
    assert f"cuda:0 is in use by another run (process {os.getpid()})" in [item.text for item in report.findings]

    def check(_device):
        with ExitStack() as held:
            list(ask_for_device(GPU, held, limit_s=0))
        return agreement(1.0)

    assert broken(examined(time_identical=check)) == []


def test_what_a_driver_does_not_tell_is_not_known():
    nvml = Mock(NVMLError=RuntimeError, nvmlInit=Mock(side_effect=RuntimeError("no driver")))
    found = read_machine(GPU, nvml=nvml, environment={"PATH": ""})
    assert (found.gpus, found.at_rest, found.versions["driver"], found.compilers["C++"]) == (0, None, None, None)
    assert (bool(found.versions["torch"]), found.languages["python"]) == (True, None)
    reported = {"CudaDriverVersion": 13000, "DriverVersion": "580.1"}
    answers = {f"nvmlSystemGet{name}.return_value": value for name, value in reported.items()}
    found = read_machine(GPU, nvml=Mock(NVMLError=RuntimeError, **answers, **{"nvmlDeviceGetCount.return_value": 8}))
    assert (found.gpus, found.versions["driver"]) == (8, "580.1 (CUDA 13.0)")


@pytest.mark.timeout(180)
def test_a_cpu_is_probed_in_a_process_of_its_own(monkeypatch):
    found = examination.run_probe(CPU, limit_s=150)
    assert (found.method, 0 < found.empty_ns < 10**7) == ("wall", True)
    with pytest.raises(DeviceFault, match=r"more than 0\.01 s"):
        examination.run_probe(CPU, limit_s=0.01)
    monkeypatch.setattr(examination, "PROBE", "tests.nowhere")
    with pytest.raises(DeviceFault, match=r"exit code 1: .*No module named 'tests.nowhere'"):
        examination.run_probe(GPU)


@pytest.mark.cpu
@pytest.mark.timeout(180)
def test_the_engine_passes_both_copies_and_learns_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(examination, "IDENTICAL_S", 6.0)
    found = examination.time_identical(discover_devices(["cpu"])[0])
    labels = {row.solutions for row in found.rows}
    assert (found.is_failed, len(found.rows), labels) == (False, 4, {"one_kernel", "several_kernels"})
    assert list((tmp_path / "cache" / "spread").iterdir())


def test_what_is_broken_stands_out_and_comes_with_advice(examined, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    examined(CPU, time_identical=agreement(1.0, problem="boom"))
    assert main(["doctor", "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert ("BROKEN" in out, "  A/A: see what the message names" in out, "measuring cpu …" in err) == (True,) * 3
    assert out.splitlines()[-1] == "This machine cannot measure as it should: see A/A."
    assert max(map(len, out.splitlines())) <= 100
    assert main(["doctor", "--device", "99"]) == 2
    assert "there is no 99" in capsys.readouterr().err


@pytest.mark.cpu
@pytest.mark.timeout(180)
def test_on_a_cpu_it_says_what_works_and_succeeds(capsys):
    assert main(["doctor", "--quick", "--device", "cpu"]) == 0
    assert "This machine can judge kernels, and time them on its CPU." in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_gpu_can_be_measured_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    report = examination.examine(discover_devices(None)[0], peaks=True)
    assert report.exit_code == 0, report.findings
    assert (report.readings.method, 300 < report.readings.launch_gap_ns < 5000) == ("cupti", True)
    assert [abs(row.ratio.log_mean) < 0.04 for row in report.identical.rows] == [True] * 4
    assert report.readings.cold_ns > report.readings.warm_ns
    rates = report.peaks.tflops
    assert {"fp32", "fp16"} <= set(rates)
    assert rates["fp16"] > rates["fp32"] > 1
