"""Whether a call is timed as it is launched, or as the replay of CUDA graphs, and of how many graphs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from flashinfer_bench.timing.clocks import CaptureRefused, Launch
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.progress import CHECKS, SLOW_SHARE, Supplier, TrialUnderWay

PLACED_GRAPHS: Final = 8
"""Number of graphs of one call that are replayed in turn. Each graph has memory of its own, and where that memory lies
changes the time of its operations (by up to 5 % between graphs on an H200). The readings hold all of these places."""
BRANCHED_GRAPHS: Final = 16
"""Number of graphs to replay when operations overlap: how branches meet depends on placement, too (6 % on an H200)."""
PLACED_NS: Final = 300_000
"""A call with a longer span gets one graph: placement changes it little, and its graphs would hold much memory."""
GAPS_SHARE: Final = 0.001
"""If no more than this share of a call's span lies between its operations, a graph could shorten it by no more."""
OTHER: Final = "a replay launches something else than the call does"
LESS: Final = "a replay does less than half of the work that the call does"
WORK_SHARE: Final = 0.5
"""A replay whose operations take less than this share of the call's time is refused. Names alone are no proof: two
operations of one name may do different work."""


@dataclass(frozen=True)
class Calls:
    """The calls that are timed."""

    supply: Supplier
    mode: Literal["stream", "graph"]
    reason: str = ""
    """Why the mode is not "graph"."""
    graphs: int = 1
    """Number of graphs of one call that are replayed in turn."""
    enqueue_ns: int | None = None
    """What the host needs to launch a replay; None where no graph is replayed."""


def choose_calls(trial: TrialUnderWay) -> Calls:
    """Return the calls to be timed: replays where they are wanted and can be trusted, else the calls themselves."""
    refusal = _no_graph(trial)
    if refusal is not None:
        return Calls(trial.supply, "stream", refusal)
    assert trial.looked_at is not None
    eager = trial.looked_at
    replays, start = trial.clock.captured(trial.supply), trial.now()
    try:
        (replayed,) = trial.make_calls(1, supply=replays)
    except CaptureRefused as refused:
        return Calls(trial.supply, "stream", str(refused))
    if replayed.launched == eager.launched and _does_less(replayed, eager):  # or the GPU was slow then: look again
        (eager,) = trial.make_calls(1)
    difference = _difference(replayed, eager)
    if difference is not None:
        return Calls(trial.supply, "stream", difference)
    each_s = trial.now() - start
    one = Calls(replays, "graph", enqueue_ns=replayed.enqueue_ns)
    if trial.supply(trial.calls) != trial.supply(trial.calls + 1):
        return _replay_each(trial, one, replayed, each_s=each_s)
    graphs = _count_graphs(trial, replayed, each_s=each_s)
    return _add_graphs(trial, one, replayed, graphs) if graphs > 1 else one


def _replay_each(trial: TrialUnderWay, one: Calls, first: Sample, *, each_s: float) -> Calls:
    """Return the replays of distinct calls, each of whose graphs was replayed once, where there is time for that.

    The first replay of a graph is slower than later ones: by 2 % for a call of 60 operations and 0.12 ms (H100). A
    reference that had nine readings, all of them first replays, made each solution seem so much faster.

    Args:
        trial: the trial.
        one: the replays.
        first: the reading of the first.
        each_s: seconds that a capture and its replay take.
    """
    graphs = trial.clock.fresh_graphs
    if graphs == 0:  # by an earlier trial
        return one
    if graphs is None or each_s * graphs * SLOW_SHARE > trial.recipe.budget_s:
        trial.per_call_s = max(trial.per_call_s, each_s)  # each call is captured before it is timed
        return one
    try:
        replayed = trial.make_calls(graphs, supply=one.supply)
    except CaptureRefused as refused:
        return Calls(trial.supply, "stream", str(refused))
    if any(sample.launched != first.launched for sample in replayed):
        return Calls(trial.supply, "stream", OTHER)
    usual_ns = median(sample.work_ns for sample in replayed)  # what one call has to do may depend on its content
    return Calls(trial.supply, "stream", LESS) if usual_ns < WORK_SHARE * first.work_ns else one


def _count_graphs(trial: TrialUnderWay, replayed: Sample, *, each_s: float) -> int:
    """Return the number of graphs of one call: one where the call is long, or the budget does not hold more.

    Args:
        trial: the trial, whose calls all share their arguments.
        replayed: the reading of a replay.
        each_s: seconds that a capture and its replay take.
    """
    graphs = min(BRANCHED_GRAPHS if replayed.overlaps else PLACED_GRAPHS, trial.recipe.iterations)
    has_time = max(trial.per_call_s, each_s) * graphs * SLOW_SHARE <= trial.recipe.budget_s
    return graphs if has_time and replayed.span_ns <= PLACED_NS else 1


def _add_graphs(trial: TrialUnderWay, one: Calls, first: Sample, graphs: int) -> Calls:
    """Return the replays of several graphs, or those of one where there is no room for more.

    Args:
        trial: the trial.
        one: the replays of one graph.
        first: the reading of one of these.
        graphs: the number of graphs wanted.
    """
    suppliers = [one.supply, *(trial.clock.captured(trial.supply) for _ in range(graphs - 1))]

    def replays(index: int) -> Launch:
        return suppliers[index % graphs](index)

    try:
        replayed = trial.make_calls(graphs, supply=replays)
    except CaptureRefused:
        return one
    difference = next((found for sample in replayed if (found := _difference(sample, first)) is not None), None)
    if difference is not None:
        return Calls(trial.supply, "stream", difference)
    return Calls(replays, "graph", graphs=graphs, enqueue_ns=one.enqueue_ns)


def _difference(replayed: Sample, call: Sample) -> str | None:
    """Say why a replay cannot stand for a call; None where it can."""
    if replayed.launched != call.launched:
        return OTHER
    return LESS if _does_less(replayed, call) else None


def _does_less(replayed: Sample, call: Sample) -> bool:
    return replayed.work_ns < WORK_SHARE * call.work_ns


def _no_graph(trial: TrialUnderWay) -> str | None:
    """Say why no graph is tried; None where one is."""
    looked_at, recipe = trial.looked_at, trial.recipe
    if not recipe.cuda_graphs:
        return "graphs are off"
    if trial.per_call_s * CHECKS * SLOW_SHARE > recipe.budget_s:
        return "a call as slow as this gains nothing by a graph"
    if not trial.clock.sees_operations:
        return "only CUPTI can tell whether a replay launches what the call does"
    if looked_at is None or (looked_at.operations or 0) < 2:
        return "a single operation needs no graph"
    if trial.waits_inside:
        return "the call waits for the GPU inside"
    gaps_ns = looked_at.span_ns - (looked_at.busy_ns or 0)
    if gaps_ns <= GAPS_SHARE * looked_at.span_ns and not looked_at.overlaps:
        return "its operations follow one another without gaps that a graph could close"
    if looked_at.escaped:
        return "the call uses a stream that does not wait for the current one"
    return None
