"""The changes of times from one save to the next in `run --watch`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from flashinfer_bench.data import Trace
from flashinfer_bench.data.measurement import INDICATIVE, join_standings
from flashinfer_bench.data.sets.results import Result, list_results
from flashinfer_bench.report.changes import compare_saves
from flashinfer_bench.report.intervals import MeanRatio

UNCHANGED: Final = "unchanged sources"


class SaveChange(NamedTuple):
    """The times of a save, compared with the times of an earlier save."""

    since: str
    """Time of the earlier save: 14:02:11."""
    ratio: MeanRatio
    """Geometric mean over workloads of new time divided by old time."""
    decision: str
    """"faster", "slower", "same", "cannot tell yet", or `UNCHANGED` if the sources are equal."""
    standing: str
    """The standing of the new times."""

    def __str__(self) -> str:
        """Describe the change: "0.71x the time of 14:02:11 (0.66 to 0.77): faster"."""
        head = f"{INDICATIVE}: " if self.standing == INDICATIVE else ""
        value, low, high = self.ratio.value, self.ratio.low, self.ratio.high
        interval = f" ({low:.2f} to {high:.2f})" if low is not None and high is not None else ""
        return f"{head}{value:.2f}x the time of {self.since}{interval}: {self.decision}"

    def document(self) -> dict[str, Any]:
        """Return the change as JSON-able values."""
        interval = [self.ratio.low, self.ratio.high]
        words = {"decision": self.decision, "standing": self.standing}
        return {"since": self.since, "ratio": self.ratio.value, "interval95": interval, **words}


class SaveHistory:
    """The latest save whose jobs all passed."""

    def __init__(self) -> None:
        self._moment = ""
        self._results: list[Result] = []

    def add(self, traces: Sequence[Trace], seconds: float) -> SaveChange | None:
        """Store a save. Return the change since the previous save that passed; None if no time can be compared.

        Args:
            traces: a passed trace for each job of the save.
            seconds: time since the save.
        """
        before, since = self._results, self._moment
        self._results = list_results(None, traces)
        self._moment = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        ratio, decision = compare_saves(before, self._results)
        then, now = ({one.reported.run.fingerprint.solution for one in part} for part in (before, self._results))
        decision = UNCHANGED if then == now else decision
        standing = join_standings(one.measurement.standing for one in self._results)
        return SaveChange(since, ratio, decision, standing) if ratio is not None else None
