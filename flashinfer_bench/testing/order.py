"""One timing as it was asked for, and how it is carried out: by rotation where that makes calls cold, else by flushing.

Where calls run, and by which clock, is the site's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from flashinfer_bench.testing.arguments import find_tensors
from flashinfer_bench.testing.counts import WantedCount
from flashinfer_bench.testing.rotation import Rotation, RotationRefused, count_sets, why_not_cold
from flashinfer_bench.testing.site import Site
from flashinfer_bench.testing.timed import GpuTime
from flashinfer_bench.timing.measurement import Trial, latency_ns
from flashinfer_bench.timing.progress import CHECKS, Recipe, Supplier
from flashinfer_bench.timing.recipe import RETAKES, take_trial
from flashinfer_bench.timing.settings import L2Cache
from flashinfer_bench.timing.summary import summarise

Now = Callable[[], float]

FEW, MANY = 3, 43
"""Readings of the shorter and the longer trial from which the time of a call is estimated."""
ESTIMATE_BUDGET_S: Final = 1.0
"""Budget of each trial of the estimate."""
COMPARISON: Final = Recipe(warmup_runs=CHECKS, iterations=9, budget_s=1.0, exact=True)
"""The trials that tell whether rotated calls were cold."""
SLOW_NS: Final = 2_000_000
"""A rotated call that takes at least this long is not checked for being cold: what an L2 can hold makes no difference
to it."""


@dataclass(frozen=True)
class Order:
    """What is to be timed, and how."""

    function: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dry_runs: WantedCount
    iterations: WantedCount
    time_budget_s: float
    use_cuda_graph: bool = False
    l2_cache: L2Cache = "cold"
    rotate: bool = False

    def call(self) -> object:
        """Call it on the arguments that were given."""
        return self.function(*self.args, **self.kwargs)

    def supply(self, _index: int) -> Callable[[], object]:
        """Return the same launch for every call."""
        return self.call

    def tensors(self, device_type: str) -> list[torch.Tensor]:
        """Return the tensors among the arguments that lie on a kind of device."""
        found = find_tensors((self.args, self.kwargs))
        return [tensor for tensor in found if tensor.device.type == device_type]


def carry_out(order: Order, site: Site, *, now: Now = perf_counter) -> GpuTime:
    """Time an order at a site. The measurement says what was done otherwise than the order asks for."""
    recipe = _make_recipe(order, site, now)
    if not order.rotate or not site.l2_bytes:
        return _time(site, recipe, order.supply, l2_cache=order.l2_cache, now=now)[0]
    try:
        return _time_rotated(order, site, recipe, now)
    except RotationRefused as refused:
        timed, _ = _time(site, recipe, order.supply, l2_cache="cold", now=now)
        return replace(timed, measurement={**timed.measurement, "rotation_refused": str(refused)})


def _make_recipe(order: Order, site: Site, now: Now) -> Recipe:
    """Return the recipe. Where its counts depend on the time of a call, that time is measured first."""
    known: list[float] = []

    def per_call_ms() -> float:
        if not known:
            known.append(_estimate_call_ms(order, site, now))
        return known[0]

    return Recipe(
        warmup_runs=order.dry_runs.resolve(per_call_ms),
        iterations=order.iterations.resolve(per_call_ms),
        budget_s=order.time_budget_s,
        cuda_graphs=order.use_cuda_graph,
        exact=True,
    )


def _estimate_call_ms(order: Order, site: Site, now: Now) -> float:
    """Return the wall time that one more reading takes: what a longer trial takes beyond a shorter one.

    The first of the three trials does not count, since it may compile kernels. The cost of a trial itself scatters, so
    the difference may come out too small. So the result is never less than half the longer trial's time over its calls.
    """
    taken: list[tuple[float, int]] = []
    for iterations in (FEW, FEW, MANY):
        recipe = Recipe(
            warmup_runs=CHECKS, iterations=iterations, budget_s=ESTIMATE_BUDGET_S, cuda_graphs=False, exact=True
        )
        begin = now()
        trial = take_trial(order.supply, site.clock(order.l2_cache), recipe, now=now)
        taken.append(((now() - begin) * 1e3, int(trial.facts["calls"])))
    (_, _), (short_ms, few), (long_ms, many) = taken
    at_least_ms = long_ms / many / 2
    return max((long_ms - short_ms) / (many - few), at_least_ms) if many > few else long_ms / many


def _time(site: Site, recipe: Recipe, supply: Supplier, *, l2_cache: L2Cache, now: Now) -> tuple[GpuTime, Trial]:
    """Take one trial; return its time and the trial."""
    clock = site.clock(l2_cache)
    gap_ns = site.launch_gap_ns(clock)
    before = site.look()
    trial = take_trial(supply, clock, recipe, now=now)
    measured = summarise([trial], launch_gap_ns=gap_ns, before=before, after=site.look())
    times_ms = tuple(latency_ns(sample, gap_ns) / 1e6 for sample in trial.samples)
    return GpuTime(measured.latency_ms, measured.record["std_ms"], times_ms, measured.record), trial


def _time_rotated(order: Order, site: Site, recipe: Recipe, now: Now) -> GpuTime:
    """Time an order over rotated arguments.

    Raises:
        RotationRefused: they cannot be rotated, or the calls turned out to be warm.
    """
    tensors = order.tensors(site.device_type)
    sets = count_sets(
        order.function,
        tensors,
        l2_bytes=site.l2_bytes,
        free_bytes=site.free_bytes(),
        calls=max(recipe.warmup_runs, CHECKS) + 1 + recipe.iterations * (1 + RETAKES),
    )
    call = partial(order.function, *order.args, **order.kwargs)
    rotation = Rotation(call, tensors, sets=sets, evict=site.evict)
    timed, trial = _time(site, recipe, rotation.supply, l2_cache="warm", now=now)
    rotated_ns = median(trial.spans_ns)
    if rotated_ns < SLOW_NS:
        reason = why_not_cold(
            rotated_ns=rotated_ns,
            warm_ns=_usual_span_ns(order, site, recipe, l2_cache="warm", now=now),
            flushed_ns=_usual_span_ns(order, site, recipe, l2_cache="cold", now=now),
        )
        if reason is not None:
            raise RotationRefused(reason)
    facts = {"cache_state": "cold", "rotated_sets": rotation.used}
    return replace(timed, measurement={**timed.measurement, **facts})


def _usual_span_ns(order: Order, site: Site, recipe: Recipe, *, l2_cache: L2Cache, now: Now) -> float:
    """Return the median span of calls on the same arguments each time, launched as the rotated calls were."""
    comparison = replace(COMPARISON, cuda_graphs=recipe.cuda_graphs)
    return median(take_trial(order.supply, site.clock(l2_cache), comparison, now=now).spans_ns)
