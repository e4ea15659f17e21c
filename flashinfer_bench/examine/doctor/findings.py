"""Turns the results of an examination into findings: what works, what is broken, and advice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from flashinfer_bench.bench.runner.sandbox import Level, Sandbox
from flashinfer_bench.examine.compare.result import Comparison
from flashinfer_bench.examine.doctor.machine import MachineState, Readings
from flashinfer_bench.report.timing import METHODS
from flashinfer_bench.roofline.measured import MeasuredPeaks
from flashinfer_bench.roofline.peaks import find_peak
from flashinfer_bench.timing.nvml import GpuState

State = Literal["ok", "note", "broken"]

SAME_SHARE: Final = 0.015
"""Identical solutions agree if their latencies differ by at most this share."""
OTHER_SHARE: Final = 0.04
"""If identical solutions on a GPU differ by a larger share than this, the times of that GPU cannot be compared."""
TO_GET_CUPTI: Final = {
    "subscriber": "run this without a profiler around it",
    "PRIVILEGES": "let every user profile (the NVIDIA driver's module option NVreg_RestrictProfilingToAdminUsers=0)",
    "library cannot be loaded": "install CUDA 13's libcupti (pip install nvidia-cuda-cupti) where the loader finds it",
    "cupti-python": "install cupti-python 13 or later, which needs CUDA 13: times then lose that constant",
    "": "run this again; if it says the same, look up what CUPTI reports, and the driver's version",
}
"""Text in the reason of a fall-back → advice. The first match counts."""
FLUSH_SHARE: Final = 0.05
"""The flush of the L2 works if a cold call takes longer than a warm call by at least this share."""
AGAIN: Final = "run it again on a quiet machine"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    topic: str
    state: State
    text: str
    advice: str = ""
    """What to do; empty if nothing needs to be done."""


def find_gpu(machine: MachineState, asked_for: str | None) -> Iterator[Finding]:
    """Say why no GPU is examined.

    Args:
        machine: the machine.
        asked_for: the user's name of the device; None if the user named none.
    """
    if machine.device.kind == "cuda" or asked_for == "cpu":
        return
    known = f"the driver knows {machine.gpus}"
    if not machine.gpus:
        yield Finding("GPU", "note", "the driver knows none: kernels are judged, and timed on the CPU")
    elif machine.torch_has_cuda:
        yield Finding("GPU", "note", f"{known}, but CUDA_VISIBLE_DEVICES hides them", "unset CUDA_VISIBLE_DEVICES")
    else:
        advice = "install a CUDA build of torch (https://pytorch.org), or examine the CPU alone with --device cpu"
        yield Finding("GPU", "broken", f"{known}, but torch is a CPU build", advice)


def find_languages(languages: Mapping[str, str | None]) -> Iterator[Finding]:
    """Say which solutions can be built."""
    works = [name for name, reason in languages.items() if reason is None]
    yield Finding("languages", "ok" if works else "broken", f"{', '.join(works) or 'none'} can be built")
    for name, reason in languages.items():
        what, _, advice = (reason or "").partition(";")
        if what:
            yield Finding(name, "note", f"cannot be built: {what}", advice.strip())


def find_programs(tried: Mapping[str, tuple[State, str]]) -> Iterator[Finding]:
    """Say in which ways solutions can be compiled, loaded and called.

    Args:
        tried: way of compiling or calling → its state, with the reason if it does not work.
    """
    works = [what for what, (state, _) in tried.items() if state == "ok"]
    if works:
        yield Finding("programs", "ok", f"{', '.join(works)}: a program of ours was built, loaded and called")
    for reason in dict.fromkeys(reason for state, reason in tried.values() if state == "broken"):
        yield Finding("programs", "broken", reason, "see what it says")
    for what, (state, reason) in tried.items():
        if state == "note":
            lacks, _, advice = reason.partition(";")
            yield Finding("programs", "note", f"{what}: {lacks}", advice.strip())


def find_confinement(sandbox: Sandbox, asked_for: Level) -> Iterator[Finding]:
    """Say how solutions are confined.

    Args:
        sandbox: the sandbox that this machine provides.
        asked_for: the level that runs will request.
    """
    if asked_for == "off":
        text = "off: a solution reads and writes what its user may"
        yield Finding("sandbox", "note", text, "leave --sandbox at auto")
    elif sandbox.missing:
        text = "; ".join(f"{part}: {why}" for part, why in sandbox.missing.items())
        advice = (
            "use Linux 6.2 or later, and in a container a seccomp profile that allows landlock_* and seccomp; else run "
            "untrusted code on a machine of its own"
        )
        yield Finding("sandbox", "broken" if asked_for == "strict" else "note", text, advice)
    elif sandbox.level != "off":
        text = f"strict can be had: files, connections, rights; the user of a worker is {sandbox.user}"
        yield Finding("sandbox", "note" if sandbox.notes else "ok", text, "; ".join(sandbox.notes))


def find_network(*, has_own_network: bool) -> Iterator[Finding]:
    """Say what is lost if no process can have a private network."""
    if not has_own_network:
        text = "no process can have a private one: compilers keep this machine's, and inspect needs --sandbox off"
        advice = "allow user namespaces, or give root CAP_SYS_ADMIN; in a container --network none guards compilers"
        yield Finding("network", "note", text, advice)


def find_neighbours(state: GpuState | None) -> Iterator[Finding]:
    """Say which other processes use the GPU, and why the GPU is throttled. A GPU at its power cap is not reported as
    throttled."""
    if state is None:
        return
    if state.other_processes:
        advice = "end them, or measure when they are done: what is timed beside them is flagged"
        yield Finding("other processes", "note", f"{state.other_processes} on the GPU", advice)
    else:
        known = "none was seen on the GPU" if state.other_processes == 0 else "not known: the driver does not tell"
        yield Finding("other processes", "ok", known)
    reasons = [reason for reason in state.slowed_by if reason != "power_cap"]
    if reasons:
        text = f"the GPU is slowed down: {', '.join(reasons)}"
        yield Finding("throttling", "note", text, "see to its cooling and power; what is timed meanwhile is flagged")


def find_clock(readings: Readings) -> Finding:
    """Say which clock times the calls."""
    if readings.method == "wall":
        return Finding("clock", "ok", f"the wall clock, which reads {readings.empty_ns} ns of a call of nothing")
    if readings.method == "cupti":
        gap = f"one more launch in a full queue costs {readings.launch_gap_ns / 1e3:.2f} us"
        return Finding("clock", "ok", f"CUPTI, which records every operation; {gap}")
    advice = next(what for words, what in TO_GET_CUPTI.items() if words in readings.fallback)
    pair = f"a pair of them round nothing reads {readings.empty_ns / 1e3:.1f} us, which every time holds"
    return Finding("clock", "note", f"CUDA events ({readings.fallback}); {pair}", advice)


def find_flush(readings: Readings) -> Iterator[Finding]:
    """Say whether the flush of the L2 makes a call slower. There is no finding for a CPU."""
    if readings.cold_ns:
        works = readings.cold_ns >= (1 + FLUSH_SHARE) * readings.warm_ns
        text = f"cold {readings.cold_ns / 1e3:.2f} us, warm {readings.warm_ns / 1e3:.2f} us"
        advice = "" if works else "report this: the L2 is not flushed, so times are of a warm cache"
        yield Finding("cache flush", "ok" if works else "broken", text, advice)


def find_peaks(peaks: MeasuredPeaks) -> Iterator[Finding]:
    """Report each measured peak, with the vendor's figure if there is one."""
    vendor, source = find_peak(peaks.device), peaks.peak.source
    limits = {**dict.fromkeys(peaks.tb_per_sec, vendor.tb_per_sec), **vendor.tflops} if vendor else {}
    for unit, rates in (("TB/s", peaks.tb_per_sec), ("TFLOP/s", peaks.tflops)):
        for name, rate in rates.items():
            share = f", {rate / limits[name]:.1%} of the vendor's {limits[name]:g}" if name in limits else ""
            yield Finding(f"peak {name}", "ok", f"{rate:.4g} {unit}{share} ({source})")


def find_agreement(identical: Comparison, *, on_gpu: bool) -> Finding:
    """Say whether the same kernel gets the same time twice."""
    ratios = [row.ratio.ratio for row in identical.rows if row.ratio is not None]
    if identical.is_failed or not ratios:
        text = "; ".join(dict.fromkeys(row.problem for row in identical.rows if row.problem)) or "nothing was timed"
        return Finding("A/A", "broken", f"a kernel that is right did not pass: {text}", "see what the message names")
    worst = max(max(ratio, 1 / ratio) - 1 for ratio in ratios)
    text = f"the same kernel as two solutions, {len(ratios)} times: they differ by {worst:.1%} at the most"
    if worst <= SAME_SHARE:
        return Finding("A/A", "ok", text)
    if worst > OTHER_SHARE and on_gpu:
        return Finding("A/A", "broken", f"{text}: times of this machine cannot be compared", AGAIN)
    return Finding("A/A", "note", f"{text}; smaller differences between solutions mean nothing here", AGAIN)


def summarise_findings(findings: list[Finding], readings: Readings | None) -> str:
    """Say in one line whether this machine can measure."""
    broken = [finding.topic for finding in findings if finding.state == "broken"]
    if broken:
        return f"This machine cannot measure as it should: see {', '.join(broken)}."
    if readings is None or readings.method == "wall":
        return "This machine can judge kernels, and time them on its CPU."
    return f"This machine can measure, by {METHODS[readings.method]} with a cold or a warm L2."
