"""Whether a call is timed as it is launched, or as the replay of a CUDA graph, and of how many of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.timing.clocks import CaptureRefused, Clock, Launch
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.progress import CHECKS, SLOW_SHARE, Recipe, Supplier, TrialProgress

PLACED_GRAPHS: Final = 8
"""A graph holds memory of its own, and where that lies changes what its operations take (on an H200: up to 5 % between
graphs of one call), so the replays of so many are timed in turn."""
BRANCHED_GRAPHS: Final = 16
"""So many where operations run side by side: a graph's branches, too, meet each other as they happened to be placed
when it was made (6 %)."""
PLACED_NS: Final = 300_000
"""Up to this span: in a longer call placement is a small share, and the graphs' memory a large one."""
OTHER: Final = "a replay launches something else than the call does"
LESS: Final = "a replay does less than half of the work that the call does"
WORK_SHARE: Final = 0.5
"""Operations of one name may do anything; their times, added up, tell of a replay that does less of it."""


@dataclass(frozen=True)
class Calls:
    """The calls that are timed."""

    supply: Supplier
    mode: str
    """"graph" or "stream"."""
    reason: str = ""
    """Why not "graph"."""
    graphs: int = 1
    """How many graphs of one call are replayed in turn."""


def choose_calls(
    supply: Supplier, clock: Clock, recipe: Recipe, progress: TrialProgress, now: Callable[[], float]
) -> Calls:
    """Return the calls to be timed: replays where that is wanted and can be trusted, the calls themselves otherwise."""
    refusal = _no_graph(clock, recipe, progress)
    if refusal is not None:
        return Calls(supply, "stream", refusal)
    assert progress.looked_at is not None
    eager = progress.looked_at
    replays, start = clock.captured(supply), now()
    try:
        (replayed,) = _replay(replays, clock, progress, 1)
    except CaptureRefused as refused:
        return Calls(supply, "stream", str(refused))
    if replayed.launched == eager.launched and _does_less(replayed, eager):  # or the GPU was slow then: again
        (eager,) = _replay(supply, clock, progress, 1)
    difference = _difference(replayed, eager)
    if difference is not None:
        return Calls(supply, "stream", difference)
    if supply(progress.calls) != supply(progress.calls + 1):
        progress.per_call_s = max(progress.per_call_s, now() - start)  # each is captured before it is timed
    one = Calls(replays, "graph")
    graphs = _count_graphs(replayed, supply, recipe, progress, each_s=now() - start)
    return _choose_many(supply, clock, progress, one=one, first=replayed, graphs=graphs) if graphs > 1 else one


def _count_graphs(replayed: Sample, supply: Supplier, recipe: Recipe, progress: TrialProgress, *, each_s: float) -> int:
    """Return of how many graphs a call is timed: of one where it is long, or the budget does not hold more.

    Calls with arguments of their own have a graph each already. A capture and its replay take `each_s`.
    """
    graphs = min(BRANCHED_GRAPHS if replayed.overlaps else PLACED_GRAPHS, recipe.iterations)
    has_time = max(progress.per_call_s, each_s) * graphs * SLOW_SHARE <= recipe.budget_s
    if graphs < 2 or not has_time or replayed.span_ns > PLACED_NS:
        return 1
    return graphs if supply(progress.calls) == supply(progress.calls + 1) else 1


def _choose_many(
    supply: Supplier, clock: Clock, progress: TrialProgress, *, one: Calls, first: Sample, graphs: int
) -> Calls:
    """Return the replays of so many graphs, or those of one where there is no room for more of them."""
    suppliers = [one.supply, *(clock.captured(supply) for _ in range(graphs - 1))]

    def replays(index: int) -> Launch:
        return suppliers[index % graphs](index)

    try:
        replayed = _replay(replays, clock, progress, graphs)
    except CaptureRefused:
        return one
    for sample in replayed:
        difference = _difference(sample, first)
        if difference is not None:
            return Calls(supply, "stream", difference)
    return Calls(replays, "graph", graphs=graphs)


def _difference(replayed: Sample, call: Sample) -> str | None:
    """Say why a replay cannot stand for a call; None where it can."""
    if replayed.launched != call.launched:
        return OTHER
    return LESS if _does_less(replayed, call) else None


def _does_less(replayed: Sample, call: Sample) -> bool:
    return replayed.work_ns < WORK_SHARE * call.work_ns


def _replay(replays: Supplier, clock: Clock, progress: TrialProgress, count: int) -> list[Sample]:
    """Make so many calls, each by another graph, to see what they launch; none of this is a reading."""
    samples = clock.sample([replays(progress.calls + index) for index in range(count)], progress.lead)
    progress.calls += count
    return samples


def _no_graph(clock: Clock, recipe: Recipe, progress: TrialProgress) -> str | None:
    looked_at = progress.looked_at
    if not recipe.cuda_graphs:
        return "graphs are off"
    if progress.per_call_s * CHECKS * SLOW_SHARE > recipe.budget_s:
        return "a call as slow as this gains nothing by a graph"
    if not clock.sees_operations:
        return "only CUPTI can tell whether a replay launches what the call does"
    if looked_at is None or (looked_at.operations or 0) < 2:
        return "a single operation needs no graph"
    if progress.waits_inside:
        return "the call waits for the GPU inside"
    if looked_at.escaped:
        return "the call uses a stream that does not wait for the current one"
    return None
