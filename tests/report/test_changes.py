"""Changes between two sets, and from run to run."""

import pytest

from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.report.changes import find_changes, find_epochs
from tests.report.made import on


def timed(latency, uuid="w0", *, half=0.002, digest="a", day=1, driver="1", sandbox="", quick=False, **record):
    return on(
        uuid,
        "double_python",
        latency,
        half=half,
        record={"method": "cupti", **record},
        timestamp=f"2026-01-{day:02}T00:00:00Z",
        environment={"hardware": "GPU", "libs": {"driver": driver}},
        run={"fingerprint": {"solution": digest, "sandbox": sandbox}, "quick": quick},
    )


FAILED = on("w0", "double_python", status="TIMEOUT", log="late")
CHANGES = {
    "within the threshold": (timed(1.0), timed(1.015), "same", ""),
    "above it": (timed(1.0), timed(1.03), "slower", ""),
    "faster": (timed(1.0), timed(0.5), "faster", ""),
    "wide": (timed(1.0), timed(1.1, half=0.5), "cannot tell yet", "the interval is too wide"),
    "reaches to 0": (timed(1.0), timed(1.1, half=1.0), "cannot tell yet", "an interval reaches to 0"),
    "other caches": (
        timed(1.0, cache_state="cold"),
        timed(9.0, cache_state="warm"),
        "cannot tell yet",
        "another state of the caches: cold then, warm now",
    ),
    "quick": (
        timed(1.0, quick=True),
        timed(2.0),
        "cannot tell yet",
        "the old time is of a quick look, or means nothing",
    ),
    "verdict": (timed(1.0), FAILED, "verdict", "PASSED then, TIMEOUT now"),
    "both failed": (FAILED, FAILED, "same", ""),
    "new": (None, FAILED, "new", ""),
    "gone": (timed(1.0), None, "gone", ""),
}


@pytest.mark.parametrize(("old", "new", "decision", "reason"), CHANGES.values(), ids=CHANGES)
def test_a_job_of_two_sets_has_a_decision(old, new, decision, reason):
    sides = ([] if side is None else list_results(None, [side]) for side in (old, new))
    (found,) = find_changes(*sides)
    assert (found.decision, found.reason) == (decision, reason)


def test_a_new_driver_other_sources_and_a_second_run_begin_epochs():
    def epochs(*traces):
        return find_epochs(list_results(None, traces, latest_only=False))

    runs = [timed(ms, uuid) for uuid, ms in (("w0", 1.0), ("w1", 2.0))]
    runs += [timed(ms, uuid, day=2, driver="2") for uuid, ms in (("w0", 0.8), ("w1", 1.6))]
    first, second = epochs(*runs)
    assert (first.verdicts, first.decision, first.changed) == (2, "", ())
    assert (second.decision, second.changed, second.ratio.value) == ("faster", ("driver 1 -> 2",), pytest.approx(0.8))
    found = epochs(timed(1.0), timed(1.0, day=2, digest="b"), timed(1.2, day=3, digest="b"))
    assert [(epoch.changed, epoch.decision) for epoch in found] == [((), ""), (("sources",), "same"), ((), "slower")]
    _, second = epochs(timed(1.0, sandbox="walls"), timed(2.0, day=2, sandbox="none"))
    assert (second.decision, second.ratio) == ("cannot tell yet", None)
