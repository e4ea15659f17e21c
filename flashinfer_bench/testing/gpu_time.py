"""`bench_gpu_time`: the time of one call on a GPU, by the same recipe and clocks as the engine's.

Where something is done otherwise than it was asked for, a warning says so, and so does the measurement.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from flashinfer_bench.testing.arguments import find_tensors
from flashinfer_bench.testing.counts import DRY_RUNS, ITERATIONS, check_budget, choose
from flashinfer_bench.testing.order import Order, carry_out
from flashinfer_bench.testing.site import find_site
from flashinfer_bench.testing.timed import GpuTime
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, FALLING_BACK, reason_of_fallback
from flashinfer_bench.timing.settings import ClockChoice

TIME_BUDGET_S: Final = 10.0
ON_A_CPU: Final = (
    "There is no GPU: timed by the wall clock on the CPU, with its caches as they are and without CUDA graphs."
)
NO_GPU_WORK: Final = "fn launched nothing on the GPU: what is told is the time that it took on the host."
ONE_CALL: Final = "num_iters_within_graph has no effect: each reading is one call, which the clock can resolve."
WITHOUT_EFFECT: Final = (
    "{} has no effect: the whole L2 is flushed on the call's GPU, and each process tells its own times."
)


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
    """Time `fn(*args, **kwargs)` on the GPU that its tensors lie on, else on the current one.

    The result unpacks to `(median_ms, std_ms)`; it holds every reading and the measurement's record, too.

    Args:
        fn: what is called. It launches on the current stream, or on streams that wait for it.
        args: its positional arguments.
        kwargs: its keyword arguments.
        enable_cupti: read the times that the GPU records, where CUPTI works; else CUDA events, after a warning.
        use_cuda_graph: time a call of several operations as the replay of a CUDA graph, if the replay launches what the
            call does; where it cannot be, a warning says why, and the call is launched on the stream. A single
            operation takes the same time either way, and is launched on the stream.
        num_iters: calls that are timed; 30 where neither it nor `repeat_time_ms` is given.
        dry_run_iters: calls before them; 5 where neither it nor `dry_run_time_ms` is given, and never fewer than 3.
        cold_l2_cache: empty the L2 before each timed call.
        rotate_buffers: make calls cold by giving them copies of the tensors among their arguments in turn, and flush
            nothing. Where that would not make them cold, a warning says why, and the L2 is flushed.
        time_budget_s: seconds for the whole measurement, without what the first call compiles. A call that is too slow
            for all its readings gets fewer, with a warning; the measurement's `stop` says why.
        repeat_iters: the same as `num_iters`.
        repeat_time_ms: instead of a count, about how long to go on, in milliseconds.
        dry_run_time_ms: instead of a count, about how long to make untimed calls, in milliseconds.
        input_args: the same as `args`.
        input_kwargs: the same as `kwargs`.
        l2_flush: the same as `cold_l2_cache`; it counts where it is given.
        num_iters_within_graph, l2_flush_size_mb, l2_flush_device, sleep_after_run, aggregate_op: have no effect, and a
            warning says so; taken for the sake of scripts that give them.

    Raises:
        ValueError: a count or time is out of range, or two names of one parameter are given and differ.
        TypeError: `args` is no list or tuple, or `kwargs` no mapping.
    """
    order = Order(
        function=fn,
        args=_choose_args(args, input_args),
        kwargs=_choose_kwargs(kwargs, input_kwargs),
        dry_runs=DRY_RUNS.want(dry_run_iters, dry_run_time_ms),
        iterations=ITERATIONS.want(choose("num_iters", num_iters, "repeat_iters", repeat_iters), repeat_time_ms),
        time_budget_s=check_budget(time_budget_s),
        use_cuda_graph=use_cuda_graph,
        l2_cache="cold" if (cold_l2_cache if l2_flush is None else l2_flush) else "warm",
        rotate=rotate_buffers,
    )
    ignored = [] if num_iters_within_graph in (None, 1) else [ONE_CALL]
    idle = {"l2_flush_size_mb": l2_flush_size_mb, "l2_flush_device": l2_flush_device, "aggregate_op": aggregate_op}
    given = [name for name, value in idle.items() if value is not None] + ["sleep_after_run"] * sleep_after_run
    ignored += [WITHOUT_EFFECT.format(", ".join(given))] if given else []
    return _time_and_warn(order, "auto" if enable_cupti else "cuda_events", ignored)


def _time_and_warn(order: Order, clock: ClockChoice, notes: Sequence[str]) -> GpuTime:
    """Time an order where its tensors lie; warn of these notes, and of what was done otherwise than it asks for."""
    site = find_site(find_tensors((order.args, order.kwargs)), clock=clock)
    with site.active():
        timed = carry_out(order, site)
    for note in (*describe_departures(order, timed.measurement), *notes):
        warnings.warn(note, stacklevel=3)  # at the call of bench_gpu_time
    return timed


def describe_departures(order: Order, record: Mapping[str, Any]) -> list[str]:
    """Say what was done otherwise than the order asks for. The record of its measurement tells."""
    notes = []
    if record.get("stop", "count") != "count":
        notes.append(f"time_budget_s: the call is too slow for all its readings; {record['samples']} were taken.")
    if record["method"] == "wall":
        return [ON_A_CPU, *notes]
    fallback = str(record.get("fallback", EVENTS_ASKED_FOR))
    if fallback != EVENTS_ASKED_FOR:
        notes.append(f"{reason_of_fallback(fallback)}. {FALLING_BACK}")
    idle = record.get("operations") == 0
    if idle:
        notes.append(NO_GPU_WORK)
    is_single = record.get("operations") == 1
    if order.use_cuda_graph and record.get("launch") != "graph" and not is_single and not idle:
        notes.append(f"use_cuda_graph: the call was launched on the stream: {record.get('launch_reason')}.")
    if "rotation_refused" in record:
        notes.append(f"rotate_buffers: {record['rotation_refused']}. The L2 is flushed before each call instead.")
    elif order.rotate and "rotated_sets" not in record:
        notes.append("rotate_buffers: this GPU does not tell the size of its L2, so nothing was rotated.")
    if order.rotate and order.l2_cache == "warm":
        notes.append("rotate_buffers makes calls cold, which cold_l2_cache=False does not ask for.")
    return notes


def _choose_args(args: Sequence[Any], input_args: Sequence[Any]) -> tuple[Any, ...]:
    for name, given in (("args", args), ("input_args", input_args)):
        if not isinstance(given, (list, tuple)):
            raise TypeError(f"{name} must be a tuple of positional arguments, not {type(given).__name__}")
    if args and input_args:
        raise ValueError("args and input_args mean the same: give one of them")
    return tuple(args or input_args)


def _choose_kwargs(kwargs: Mapping[str, Any] | None, input_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    for name, given in (("kwargs", kwargs), ("input_kwargs", input_kwargs)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"{name} must be a dict of keyword arguments, not {type(given).__name__}")
    if kwargs and input_kwargs:
        raise ValueError("kwargs and input_kwargs mean the same: give one of them")
    return dict(kwargs or input_kwargs or {})
