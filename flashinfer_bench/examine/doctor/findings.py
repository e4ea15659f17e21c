"""Findings of what was read and measured: what works, what to know, what is broken and what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from flashinfer_bench.bench.runner.sandbox import Level, Sandbox
from flashinfer_bench.examine.compare.result import Comparison
from flashinfer_bench.examine.doctor.machine import MachineState
from flashinfer_bench.examine.doctor.readings import CacheCheck, Rates, Readings
from flashinfer_bench.report.timing import METHODS
from flashinfer_bench.roofline.peaks import find_peak
from flashinfer_bench.timing.measurement import reason_of_fallback

State = Literal["ok", "note", "broken"]

COLD_OVER_WARM: Final = 0.9
COLD_OVER_MEMORY: Final = 1.1
"""The flush works if a read after it is at most these shares of the rate of a warm read and of the memory's rate."""
LOW_RATE: Final = 0.6
"""A rate below this share of the vendor's figure is told as low."""
LOW_CLOCK: Final = 0.6
"""An SM clock below this share of its maximum, under load, is told as low."""
TWINS_AGREE: Final = 0.015
"""Twins whose latencies differ by at most this share agree."""
TWINS_DIFFER: Final = 0.04
"""If twins on a GPU differ by a larger share than this, its times cannot be compared."""
TO_GET_CUPTI: Final = {
    "subscriber": "run this without a profiler around it",
    "PRIVILEGES": "let every user profile (the NVIDIA driver's module option NVreg_RestrictProfilingToAdminUsers=0)",
    "library cannot be loaded": "install CUDA 13's libcupti (pip install nvidia-cuda-cupti) where the loader finds it",
    "cupti-python": "install cupti-python 13 or later, which needs CUDA 13: times then lose that constant",
}
"""Words in the reason of a fall-back, and what helps there. The first words that fit count."""
CUPTI_FAILS: Final = "run this again; if it says the same, look up what CUPTI reports, and the driver's version"
HEAT: Final = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})
"""Reasons of a slow-down that are no usual power cap; see `timing.nvml.SLOWED_BY`."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    state: State
    text: str
    advice: str = ""
    """What to do; empty where nothing needs to be done."""


def find_gpu(machine: MachineState, asked_for: str | None) -> Iterator[Finding]:
    """Say why no GPU is looked at, where none is.

    Args:
        machine: the machine.
        asked_for: the device as the user named it; None where the user named none.
    """
    if machine.device.kind == "cuda" or asked_for == "cpu":
        return
    if machine.gpus and not machine.torch_has_cuda:
        advice = "install a CUDA build of torch (https://pytorch.org), or look at the CPU alone with --device cpu"
        yield Finding("GPU", "broken", f"the driver knows {machine.gpus}, but torch is a CPU build", advice)
    elif machine.gpus:
        advice = "unset CUDA_VISIBLE_DEVICES, or name GPUs in it that there are"
        yield Finding("GPU", "note", f"the driver knows {machine.gpus}, but CUDA_VISIBLE_DEVICES hides them", advice)
    else:
        yield Finding("GPU", "note", "the driver knows none: kernels are judged, and timed on the CPU")


def find_languages(machine: MachineState) -> Iterator[Finding]:
    """Say which solutions can be built."""
    works = [name for name, reason in machine.languages.items() if reason is None]
    yield Finding("languages", "ok" if works else "broken", f"{', '.join(works) or 'none'} can be built")
    for name, reason in machine.languages.items():
        if reason is not None:
            what, _, advice = reason.partition(";")
            yield Finding(name, "note", f"cannot be built: {what}", advice.strip())


def find_programs(tried: Mapping[str, str | None]) -> Iterator[Finding]:
    """Say in which ways solutions can be compiled, loaded and called.

    Args:
        tried: what was tried → why it does not work; None where it works.
    """
    works = [what for what, reason in tried.items() if reason is None]
    if works:
        yield Finding("programs", "ok", f"{', '.join(works)}: a program of ours was built, loaded and called")
    for reason in dict.fromkeys(reason for reason in tried.values() if reason is not None):
        text, _, advice = reason.rpartition("; ")
        yield Finding("programs", "broken", text or reason, advice if text else "see what it says")


def find_confinement(sandbox: Sandbox, asked_for: Level) -> Iterator[Finding]:
    """Say how far solutions are confined.

    Args:
        sandbox: what this machine gives.
        asked_for: the level that runs will ask for.
    """
    if asked_for == "off":
        yield Finding(
            "sandbox", "note", "off: a solution reads and writes what its user may", "leave --sandbox at auto"
        )
    elif sandbox.missing:
        text = "; ".join(f"{part}: {why}" for part, why in sandbox.missing.items())
        advice = "run strangers' code in a container of its own, or on a machine with Linux 6.2 or later"
        yield Finding("sandbox", "broken" if asked_for == "strict" else "note", text, advice)
    elif sandbox.level != "off":
        text = f"strict can be had: files, connections, rights; the user of a worker is {sandbox.user}"
        yield Finding("sandbox", "note" if sandbox.notes else "ok", text, "; ".join(sandbox.notes))


def find_neighbours(machine: MachineState, readings: Readings | None) -> Iterator[Finding]:
    """Say who else uses the GPU, and whether it is slowed down while nothing of ours runs.

    Only while a process of ours is on the GPU can we tell whether processes can be seen there at all.
    """
    gpu = machine.gpu
    if gpu is None:
        return
    if gpu.processes:
        listed = ", ".join(map(str, gpu.processes[:5])) + (", …" if len(gpu.processes) > 5 else "")
        advice = "end them, or measure when they are done: what is timed beside them is flagged"
        yield Finding("other processes", "note", f"{len(gpu.processes)} on the GPU ({listed})", advice)
    else:
        measured = readings.under_load if readings is not None else None
        text = "none on the GPU" if measured is not None else "none was seen on the GPU"
        if gpu.processes is None:
            text = "not known: the driver does not tell"
        elif measured is not None and measured.other_processes is None:
            text = "not known: in a container with process ids of its own others cannot be told from ours"
        yield Finding("other processes", "ok", text)
    if gpu.state is not None and gpu.state.slowed_by:
        yield _hot(gpu.state.slowed_by, "at rest")


def find_clock(readings: Readings) -> Iterator[Finding]:
    """Say which clock calls are timed by."""
    if readings.method == "wall":
        yield Finding("clock", "ok", f"the wall clock, which reads {readings.empty_call_ns} ns of a call of nothing")
        return
    pair = f"a pair of CUDA events round nothing reads {readings.empty_pair_ns / 1e3:.1f} us"
    if readings.method == "cupti":
        gap = f"one more launch in a full queue costs {readings.launch_gap_ns / 1e3:.2f} us"
        yield Finding("clock", "ok", f"CUPTI, which records every operation; {gap}; {pair}")
        return
    reason = reason_of_fallback(readings.fallback)
    advice = next((what for words, what in TO_GET_CUPTI.items() if words in reason), CUPTI_FAILS)
    yield Finding("clock", "note", f"CUDA events ({reason}); {pair}, which every time holds", advice)


def find_cold(cache: CacheCheck | None) -> Iterator[Finding]:
    """Say whether a flush leaves nothing in the L2."""
    if cache is None:
        return
    text = (
        f"reading {cache.data_bytes / 1e6:.0f} MB: {cache.cold_tb_per_sec:.2f} TB/s after a flush, "
        f"{cache.warm_tb_per_sec:.2f} TB/s warm; memory gives {cache.memory_tb_per_sec:.2f} TB/s"
    )
    works = (
        cache.cold_tb_per_sec <= COLD_OVER_WARM * cache.warm_tb_per_sec
        and cache.cold_tb_per_sec <= COLD_OVER_MEMORY * cache.memory_tb_per_sec
    )
    if works:
        yield Finding("cold L2", "ok", text)
        return
    advice = "do not compare cold times of this machine; look for other processes and for MIG, then run this again"
    yield Finding("cold L2", "broken", f"the flush leaves data in the L2. {text}", advice)


def find_rates(rates: Rates | None, device_name: str) -> Iterator[Finding]:
    """Compare the rates that were reached with the vendor's figures."""
    if rates is None:
        return
    peak = find_peak(device_name)
    figures = (
        ("memory bandwidth", rates.copy_tb_per_sec, "TB/s by a copy", peak.tb_per_sec if peak else None),
        ("bf16 matmul", rates.matmul_tflops, "TFLOP/s", peak.operations("fp16") if peak else None),
    )
    for topic, value, unit, limit in figures:
        text = f"{value:.4g} {unit}" + (f", {value / limit:.0%} of the vendor's {limit:g}" if limit else "")
        if limit and value < LOW_RATE * limit:
            advice = "look for other processes, locked or throttled clocks, and a MIG slice"
            yield Finding(topic, "note", f"{text}, which is low", advice)
        else:
            yield Finding(topic, "ok", text)


def find_load(machine: MachineState, readings: Readings) -> Iterator[Finding]:
    """Say what the clocks did under load."""
    state = readings.under_load
    gpu = machine.gpu
    if state is None or state.sm_mhz is None or gpu is None:
        return
    if HEAT & set(state.slowed_by):
        yield _hot(state.slowed_by, "under load")
        return
    of_most = f" of {gpu.sm_max_mhz}" if gpu.sm_max_mhz else ""
    text = f"the SM clock is at {state.sm_mhz}{of_most} MHz amid a burst of matmuls"
    if "power_cap" in state.slowed_by:
        text += ", held by the power cap, as is usual there"
    if gpu.sm_max_mhz and state.sm_mhz < LOW_CLOCK * gpu.sm_max_mhz:
        yield Finding(
            "load", "note", text, "see whether clocks are locked (nvidia-smi -q -d CLOCK), or power is capped"
        )
    else:
        yield Finding("load", "ok", text)


def find_agreement(twins: Comparison, *, on_gpu: bool) -> Iterator[Finding]:
    """Say whether the same kernel gets the same time twice."""
    again = "run it again on a quiet machine"
    ratios = [row.ratio.ratio for row in twins.rows if row.ratio is not None]
    if twins.is_failed or not ratios:
        text = "; ".join(dict.fromkeys(row.problem for row in twins.problems)) or "nothing was timed"
        yield Finding("A/A", "broken", f"a kernel that is right did not pass: {text}", "see what the message names")
        return
    worst = max(max(ratio, 1 / ratio) - 1 for ratio in ratios)
    text = f"the same kernel as two solutions, {len(ratios)} times: they differ by {worst:.1%} at the most"
    if worst <= TWINS_AGREE:
        yield Finding("A/A", "ok", text)
    elif worst <= TWINS_DIFFER or not on_gpu:
        why = "smaller differences between solutions mean nothing here" if on_gpu else "a CPU's times are rough"
        yield Finding("A/A", "note", f"{text}; {why}", again)
    else:
        yield Finding("A/A", "broken", f"{text}: times of this machine cannot be compared", again)


def summarise_findings(findings: list[Finding], readings: Readings | None) -> str:
    """Say in a line whether this machine can measure."""
    broken = [finding.topic for finding in findings if finding.state == "broken"]
    if broken:
        return f"This machine cannot measure as it should: see {', '.join(broken)}."
    if readings is None or readings.method == "wall":
        return "This machine can judge kernels, and time them on its CPU."
    return f"This machine can measure, by {METHODS[readings.method]} with a cold or a warm L2."


def _hot(reasons: tuple[str, ...], when: str) -> Finding:
    text = f"the GPU is slowed down {when}: {', '.join(reasons)}"
    return Finding("throttling", "note", text, "see to its cooling and power; what is timed meanwhile is flagged")
