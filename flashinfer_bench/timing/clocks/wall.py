"""The wall clock, for a CPU: the time from the call to its return, caches as the calls before left them."""

from __future__ import annotations

from time import perf_counter_ns
from types import TracebackType

from flashinfer_bench.timing.clocks.clock import Launch, WholeCallClock, put_away, puts_away
from flashinfer_bench.timing.lane import Leads
from flashinfer_bench.timing.measurement import Facts, Sample
from flashinfer_bench.timing.statistics import WALL


class WallClock(WholeCallClock):
    """Reads the monotonic clock before and after each call.

    A result that lies otherwise in memory than its output, such as a transposed view, is read after its copy.
    """

    method = WALL
    cache_state = "warm"
    fills_queue = False

    def __enter__(self) -> WallClock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to switch off."""

    def sample(self, launches: list[Launch], lead: Leads) -> list[Sample]:
        """Time each call. The lead has no effect: there is no queue to fill."""
        del lead
        samples = []
        for launch in launches:
            start = perf_counter_ns()
            launch()
            taken = perf_counter_ns() - start
            if puts_away(launch) and put_away(launch):
                taken = perf_counter_ns() - start
            samples.append(Sample(span_ns=taken, enqueue_ns=taken))
        return samples

    def facts(self) -> Facts:
        """Return no facts: the wall clock has no constants."""
        return {}
