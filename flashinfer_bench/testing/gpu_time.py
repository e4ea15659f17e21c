"""`bench_gpu_time`: the time of one call, by the engine's own procedure and clocks.

If a measurement deviates from the request, a warning says so, and so does the record.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from opcode import opmap
from statistics import median
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from flashinfer_bench.base.plain_values import to_number
from flashinfer_bench.testing.device import TimingDevice, find_device
from flashinfer_bench.timing.between_workers import default_spread, report_with_spread
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, FALLING_BACK, WALL, latency_ns
from flashinfer_bench.timing.procedure import CHECKS, FLUSH_NS, Procedure, take_trial
from flashinfer_bench.timing.settings import L2Cache
from flashinfer_bench.timing.summary import summarise

DRY_RUNS: Final = 5
ITERATIONS: Final = 30
TIME_BUDGET_S: Final = 10.0
LONGEST_S: Final = 1e6
"""Maximum budget in seconds: eleven days. Longer budgets are reduced to it."""
MOST: Final = 10_000
"""Maximum number of calls if a duration is requested instead of a count."""
MOST_GIVEN: Final = 10_000_000
"""Largest number of calls that can be requested. No script waits for more."""
ESTIMATE: Final = Procedure(warmup_runs=CHECKS, iterations=9, budget_s=1.0, cuda_graphs=False, fewest=9)
"""The trial that estimates the time of a call."""
ON_A_CPU: Final = (
    "There is no GPU: timed by the wall clock on the CPU, with its caches as they are and without CUDA graphs."
)
NO_GPU_WORK: Final = "fn launched nothing on the GPU: the time is the one that it took on the host."
WITHOUT_EFFECT: Final = (
    "{} has no effect: each sample is one call, the whole L2 of its GPU is flushed, and each process reports its own."
)
UNPACK: Final = opmap["UNPACK_SEQUENCE"]
UNPACK_SOME: Final = opmap["UNPACK_EX"]
"""The opcode of `first, *others = …`."""
NO_INDEXES: Final = (
    "it is unclear whether samples or (median, std) are meant: unpack the result, median_ms, std_ms = …, "
    "or take its times_ms"
)


@dataclass(frozen=True)
class GpuTime:
    """The time of one call. `median_ms, std_ms = …` unpacks it; any other use gets the samples.

    So it serves scripts that expect two numbers, and scripts that expect a list: `min`, `sorted`, `statistics.median`,
    `len` and numpy's functions use the samples.
    """

    median_ms: float
    std_ms: float
    times_ms: tuple[float, ...]
    """Every sample, in the order in which they were taken."""
    measurement: dict[str, Any]
    """Method, cache state, counts, spread, flags and more, as JSON-able values."""

    def __iter__(self) -> Iterator[float]:
        return iter((self.median_ms, self.std_ms) if _unpacks_two(sys._getframe(1)) else self.times_ms)

    def __len__(self) -> int:
        return len(self.times_ms)

    def __getitem__(self, part: slice) -> tuple[float, ...]:
        if not isinstance(part, slice):
            raise TypeError(NO_INDEXES)
        return self.times_ms[part]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        """Return the samples, so that `numpy.median(bench_gpu_time(...))` is the median that a script expects."""
        del copy  # the array is always new
        return np.array(self.times_ms, dtype=dtype)

    @property
    def method(self) -> str:
        """The clock that it was timed by: "cupti", "cuda_events" or "wall"."""
        return str(self.measurement["method"])


def _unpacks_two(frame: FrameType) -> bool:
    """Return whether code is about to unpack a value into two names. Nothing else tells the two uses of a result apart.

    Raises:
        TypeError: the code is about to unpack with a starred name, as in `first, *others = …`.
    """
    operation, count = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    if operation == UNPACK_SOME:
        raise TypeError(NO_INDEXES)
    return operation == UNPACK and count == 2


def bench_gpu_time(
    fn: Callable[..., object],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    enable_cupti: bool = True,
    use_cuda_graph: bool = False,
    num_iters: int | None = None,
    dry_run_iters: int | None = None,
    cold_l2_cache: bool = True,
    rotate_buffers: bool = False,
    time_budget_s: float = TIME_BUDGET_S,
    repeat_iters: int | None = None,
    repeat_time_ms: float | None = None,
    dry_run_time_ms: float | None = None,
    input_args: Sequence[Any] = (),
    input_kwargs: Mapping[str, Any] | None = None,
    num_iters_within_graph: int | None = None,
    l2_flush: bool | None = None,
    l2_flush_size_mb: int | None = None,
    l2_flush_device: object = None,
    sleep_after_run: bool = False,
    aggregate_op: Callable[..., object] | None = None,
) -> GpuTime:
    """Time `fn(*args, **kwargs)` on the GPU of its tensors, else on the current GPU.

    The result unpacks to `(median_ms, std_ms)`; it holds every sample and the measurement's record, too.

    Args:
        fn: the function to call. It launches on the current stream, or on streams that wait for it.
        args: its positional arguments.
        kwargs: its keyword arguments.
        enable_cupti: whether to use CUPTI, which has the GPU's own times, instead of CUDA events. If CUPTI does not
            work, CUDA events are used, after a warning.
        use_cuda_graph: time a call of several operations as the replay of a CUDA graph, if the replay launches the same
            operations. Otherwise a warning gives the reason, and the call is launched on the stream. A call of a single
            operation takes the same time without a graph, and is launched on the stream.
        num_iters: number of timed calls. Default: 30, unless `repeat_time_ms` is given.
        dry_run_iters: number of untimed calls before the timed calls, at least 3. Default: 5, unless `dry_run_time_ms`
            is given.
        cold_l2_cache: empty the L2 before each timed call.
        rotate_buffers: the same as `cold_l2_cache`; no copies are made, and a warning says so.
        time_budget_s: seconds for the whole measurement, without compilation in the first call. A call that is too slow
            for all its samples gets fewer, with a warning; the measurement's `stop` has the reason.
        repeat_iters: the same as `num_iters`.
        repeat_time_ms: approximate duration of the timed calls in milliseconds, instead of a count.
        dry_run_time_ms: approximate duration of the untimed calls in milliseconds, instead of a count.
        input_args: the same as `args`.
        input_kwargs: the same as `kwargs`.
        l2_flush: the same as `cold_l2_cache`, and overrides it if given.
        num_iters_within_graph, l2_flush_size_mb, l2_flush_device, sleep_after_run, aggregate_op: accepted for existing
            scripts; they have no effect, and a warning says so.

    Raises:
        ValueError: a count or time is out of range, or a parameter has different values under two names.
        TypeError: `args` is no list or tuple, or `kwargs` no mapping.
    """
    call = partial(
        fn,
        *_either("args", args, "input_args", input_args, (list, tuple)),
        **_either("kwargs", kwargs or {}, "input_kwargs", input_kwargs or {}, (Mapping,)),
    )
    if num_iters is not None and repeat_iters is not None and num_iters != repeat_iters:
        raise ValueError(f"num_iters={num_iters} and repeat_iters={repeat_iters} mean the same and differ: give one")
    iterations = _number("num_iters", repeat_iters if num_iters is None else num_iters, 1, MOST_GIVEN)
    dry_runs = _number("dry_run_iters", dry_run_iters, 0, MOST_GIVEN)
    fill_ms = _number("repeat_time_ms", repeat_time_ms, 0.0, inf)
    dry_fill_ms = _number("dry_run_time_ms", dry_run_time_ms, 0.0, inf)
    budget_s = _number("time_budget_s", TIME_BUDGET_S if time_budget_s is None else time_budget_s, 0.0, inf)
    is_cold = rotate_buffers or (cold_l2_cache if l2_flush is None else l2_flush)
    l2_cache: L2Cache = "cold" if is_cold else "warm"
    tensors = [leaf for leaf in tree_leaves((call.args, call.keywords)) if isinstance(leaf, torch.Tensor)]
    device = find_device(tensors, "auto" if enable_cupti else "cuda_events")
    per_call_ms = cache(partial(_estimate_call_ms, call, device, l2_cache))
    with device.active():
        call()  # compilation does not count
        count = _count(iterations, ITERATIONS, fill_ms, per_call_ms)
        procedure = Procedure(
            warmup_runs=_count(dry_runs, DRY_RUNS, dry_fill_ms, per_call_ms),
            iterations=count,
            budget_s=min(budget_s, LONGEST_S),
            cuda_graphs=use_cuda_graph,
            fewest=count,
        )
        clock, before, gap_ns = device.clock(l2_cache), device.state(), device.launch_gap_ns
        trial = take_trial(lambda _: call, clock, procedure, now=device.now)
        measured = summarise([trial], launch_gap_ns=gap_ns, before=before, after=device.state())
    times_ms = tuple(latency_ns(sample, gap_ns) / 1e6 for sample in trial.samples)
    idle = {
        "rotate_buffers": rotate_buffers or None,
        "num_iters_within_graph": None if num_iters_within_graph == 1 else num_iters_within_graph,
        "l2_flush_size_mb": l2_flush_size_mb,
        "l2_flush_device": l2_flush_device,
        "aggregate_op": aggregate_op,
        "sleep_after_run": sleep_after_run or None,
    }
    ignored = ", ".join(name for name, given in idle.items() if given is not None)
    notes = _describe_departures(measured.record, use_cuda_graph)
    for note in [*notes, WITHOUT_EFFECT.format(ignored)] if ignored else notes:
        warnings.warn(note, stacklevel=2)
    spread = default_spread("cpu" if trial.metadata["method"] == WALL else "cuda")
    record = report_with_spread(measured.record, measured.latency_ms, spread)
    return GpuTime(measured.latency_ms, record["std_ms"], times_ms, record)


def _either(name: str, value: Any, other_name: str, other: Any, kinds: tuple[type, ...]) -> Any:
    """Return the arguments that were given under one of two names."""
    for each, given in ((name, value), (other_name, other)):
        if not isinstance(given, kinds):
            wanted = " or ".join(kind.__name__.lower() for kind in reversed(kinds))
            raise TypeError(f"{each} must be a {wanted}, not {type(given).__name__}")
    if value and other:
        raise ValueError(f"{name} and {other_name} mean the same: give one of them")
    return value or other


def _number(name: str, value: Any, least: float, most: float) -> Any:
    """Convert a number of Python, numpy or torch to Python's own type; None stays None. If `least` is an integer, the
    number must be an integer, too."""
    number, kind = to_number(value), int if isinstance(least, int) else (int, float)
    if number is not None and (isinstance(number, bool) or not isinstance(number, kind) or not least <= number <= most):
        whole = "whole " if kind is int else ""
        raise ValueError(f"{name} must be a {whole}number from {least} to {most:,}, not {value!r}")
    return number


def _count(number: int | None, usual: int, time_ms: float | None, per_call_ms: Callable[[], float]) -> int:
    """Return the given number of calls, else the number that fills the given time, else the usual number."""
    if number is not None or time_ms is None:
        return usual if number is None else number
    return max(1, int(min(MOST, time_ms / per_call_ms())))


def _estimate_call_ms(call: partial[object], device: TimingDevice, l2_cache: L2Cache) -> float:
    """Return the wall time of one more sample: flush, delay kernel and call, or the host's time if that is longer."""
    trial = take_trial(lambda _: call, device.clock(l2_cache), ESTIMATE, now=device.now)
    delay_ns = int(trial.metadata.get("spin_ns", 0)) + (FLUSH_NS if trial.metadata["cache_state"] == "cold" else 0)
    return max(1, median(max(delay_ns + one.span_ns, one.enqueue_ns) for one in trial.samples)) / 1e6


def _describe_departures(record: Mapping[str, Any], use_cuda_graph: bool) -> list[str]:
    """Return a sentence for each deviation from the request, by the record of the measurement."""
    notes = []
    if record["stop"] != "count":
        notes.append(f"time_budget_s: the call is too slow for all its samples; {record['samples']} were taken.")
    if record["method"] == WALL:
        return [ON_A_CPU, *notes]
    fallback = str(record.get("fallback", EVENTS_ASKED_FOR))
    if fallback != EVENTS_ASKED_FOR:
        notes.append(f"{fallback}. {FALLING_BACK}")
    operations = record.get("operations")
    if operations == 0:
        notes.append(NO_GPU_WORK)
    if use_cuda_graph and record.get("launch") != "graph" and operations not in (0, 1):
        notes.append(f"use_cuda_graph: the call was launched on the stream: {record.get('launch_reason')}.")
    return notes
