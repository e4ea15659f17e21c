"""Cold means cold: what a flush leaves, and what it costs the call that follows.

A kernel that only reads, on data that fits the L2, is timed after no flush, after the reading flush that the recipe
uses, after a writing one, and with its lines made persisting. Exits with 1 unless the recipe's flush makes it run at
no more than memory bandwidth.

    python benchmarks/bench_flush.py                                    (one GPU with CUPTI; some seconds)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from flashinfer_bench.examine.doctor.probe import make_reader
from flashinfer_bench.timing import driver, lane
from flashinfer_bench.timing.clocks import CuptiClock
from flashinfer_bench.timing.cupti import CuptiRecorder
from flashinfer_bench.timing.flush import GpuQueue
from flashinfer_bench.timing.procedure import Procedure, take_trial

SIZES_MIB = (8, 16, 24, 32)
READS = 30
PTX = Path(lane.__file__).with_name("gpu_kernels.ptx").read_bytes()


def make_writing_lane(device: torch.device) -> GpuQueue:
    """Return a lane whose flush writes its buffer, as flushes usually do."""
    read, write = (
        b"ld.global.cg.v4.u32 {%a, %b, %c, %d}, [%address];",
        b"st.global.v4.u32 [%address], {%c, %c, %c, %c};",
    )
    assert read in PTX
    return GpuQueue(device, image=PTX.replace(read, b"mov.u32 %a, 0; mov.u32 %b, 0; mov.u32 %c, 0; " + write))


class AccessWindow(ctypes.Structure):
    """CUaccessPolicyWindow of the driver API, padded to the size of a launch attribute's value."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("hit_ratio", ctypes.c_float),
        ("hit_property", ctypes.c_int),
        ("miss_property", ctypes.c_int),
        ("padding", ctypes.c_char * 40),
    )


def set_window(data: torch.Tensor | None) -> None:
    """Make what the current stream reads of a tensor persisting, or nothing."""
    window = AccessWindow()
    if data is not None:
        window.base, window.bytes = data.data_ptr(), data.numel() * data.element_size()
        window.hit_ratio, window.hit_property = 1.0, 2
    code = driver.driver().cuStreamSetAttribute(ctypes.c_void_p(0), 1, ctypes.byref(window))
    driver.check(code, "setting the access window")


def main() -> int:
    """Run the benchmark."""
    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)
    recorder = CuptiRecorder()

    def clock_on(gpu: GpuQueue) -> CuptiClock:
        return CuptiClock(gpu, recorder)

    clocks = {
        "warm": clock_on(GpuQueue(device, l2_cache="warm")),
        "reading flush": clock_on(GpuQueue(device)),
        "writing flush": clock_on(make_writing_lane(device)),
    }
    recipe = Procedure(warmup_runs=10, iterations=READS, budget_s=10.0)

    def time_us(call: Callable[[], object], clock: CuptiClock) -> tuple[float, dict[str, object]]:
        trial = take_trial(lambda _index: call, clock, recipe)
        return median(trial.spans_ns) / 1e3, trial.facts

    source = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_us, _ = time_us(lambda: target.copy_(source), clocks["reading flush"])
    memory_tb_s = 2 * source.numel() / copy_us / 1e6
    print(f"memory bandwidth by a copy of 1 GiB: {memory_tb_s:.2f} TB/s (read and written)")
    holds = True
    for size in SIZES_MIB:
        data = source[: size << 20].clone()
        call = make_reader(data)
        row = {name: time_us(call, clock)[0] for name, clock in clocks.items()}
        set_window(data)
        kept_us, facts = time_us(call, clocks["reading flush"])
        set_window(None)
        driver.reset_persisting_lines()
        rates = {name: data.numel() / value / 1e6 for name, value in row.items()}
        cells = ", ".join(f"{name} {value:.2f} us ({rates[name]:.2f} TB/s)" for name, value in row.items())
        print(f"read {size} MiB: {cells}, persisting {kept_us:.2f} us (reset: {facts.get('lines_reset', False)})")
        holds &= rates["reading flush"] <= memory_tb_s and row["reading flush"] > 1.2 * row["warm"]
        holds &= kept_us > 0.95 * row["reading flush"]
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
