"""What a worker takes of itself in bursts and relays that compute nothing, before a solution is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.runner.workers.cpu_time import tree_cpu_time_ns
from flashinfer_bench.bench.runner.workers.timed.empty_bursts import BurstOverhead, take_overhead
from flashinfer_bench.bench.runner.workers.timed.handover import (
    Along,
    CallSpan,
    Handover,
    can_relay,
    open_board,
    take_empty_relay,
)
from flashinfer_bench.worker.protocol import BurstDone, Collected, Relayed

if TYPE_CHECKING:
    from flashinfer_bench.bench.runner.workers.process import WorkerProcess


def take_overheads(worker: WorkerProcess, touch_device: Callable[[], object], limit_s: float) -> BurstOverhead:
    """Return what bursts and, on a CPU, relays take of themselves.

    Args:
        worker: one that has loaded nothing, and rests.
        touch_device: uses the device in this process, as writing the inputs of a burst does.
        limit_s: seconds that each answer may take.
    """
    kind = "cuda" if worker.clock.fills_queue else "cpu"
    overhead = take_overhead(lambda calls: _time_burst(worker, calls, limit_s), kind, touch_device)
    if kind == "cuda" or not can_relay():
        return overhead
    return replace(overhead, relay=take_empty_relay(lambda moves, calls: _relay(worker, moves, calls, limit_s)))


def _time_burst(worker: WorkerProcess, calls: int, limit_s: float) -> tuple[float, float | None]:
    """Return the time of the wall and, on a CPU, of processors that a burst takes."""
    fields: dict[str, Any] = {"indices": list(range(calls)), "part": "nothing"}
    on_gpu = worker.clock.fills_queue
    cpu_before, start = None if on_gpu else tree_cpu_time_ns(worker.guard_pid), time.perf_counter_ns()
    done = worker.ask("burst", BurstDone, limit_s, **fields, together=on_gpu, operations=0)
    if not (isinstance(done, BurstDone) and done.copied):
        worker.ask("collect", Collected, limit_s, **fields, together=on_gpu)
    wall_ns = float(time.perf_counter_ns() - start)
    cpu_after = tree_cpu_time_ns(worker.guard_pid) if cpu_before is not None else None
    return wall_ns, None if cpu_before is None or cpu_after is None else float(cpu_after - cpu_before)


def _relay(worker: WorkerProcess, moves: Handover, calls: int, limit_s: float) -> list[CallSpan]:
    """Return what each call of a relay took."""
    spans: list[CallSpan] = []
    with open_board() as (board, fds):
        along = Along(fds, lambda is_over: spans.extend(moves.run(board, worker.pid, is_over)))
        worker.ask("relay", Relayed, limit_s, along=along, indices=list(range(calls)), part="nothing")
    return spans
