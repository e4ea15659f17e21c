"""What changed between two sets, and from run to run."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data.sets.results import list_results
from flashinfer_bench.examine.compare.recorded import compare_recorded
from flashinfer_bench.examine.compare.sides import Contender
from flashinfer_bench.report.changes import find_changes, find_epochs
from tests.cli.fake_engine import write_small_set
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


def changes(old, new):
    return find_changes(list_results(None, old), list_results(None, new))


def epochs(*traces):
    return find_epochs(list_results(None, traces, latest_only=False))


FAILED = on("w0", "double_python", status="TIMEOUT", log="late")
CHANGES = {
    "same": (timed(1.0), timed(1.0), "same", ""),
    "slower": (timed(1.0), timed(1.1), "slower", ""),
    "faster": (timed(1.0), timed(0.5), "faster", ""),
    "wide": (timed(1.0), timed(1.1, half=0.5), "cannot tell yet", "the interval is too wide"),
    "reaches to 0": (timed(1.0), timed(1.1, half=1.0), "cannot tell yet", "an interval reaches to 0"),
    "other caches": (
        timed(1.0, cache_state="cold"),
        timed(9.0, cache_state="warm"),
        "cannot tell yet",
        "another state of the caches: cold then, warm now",
    ),
    "other walls": (
        timed(1.0, sandbox="walls"),
        timed(2.0, sandbox="none"),
        "cannot tell yet",
        "other walls: walls then, none now",
    ),
    "quick": (
        timed(1.0, quick=True),
        timed(2.0),
        "cannot tell yet",
        "the old time is of a quick look, or means nothing",
    ),
    "verdict": (timed(1.0), FAILED, "verdict", ""),
    "both failed": (FAILED, FAILED, "same", ""),
    "new": (None, FAILED, "new", ""),
    "gone": (timed(1.0), None, "gone", ""),
}


@pytest.mark.parametrize(("old", "new", "decision", "reason"), CHANGES.values(), ids=CHANGES)
def test_a_job_of_two_sets_has_a_decision(old, new, decision, reason):
    (found,) = changes(*([side] if side is not None else [] for side in (old, new)))
    assert (found.decision, found.reason) == (decision, reason)
    assert (found.ratio is None) == (
        decision not in ("same", "faster", "slower") or old is FAILED
    ) or "interval" in reason


@pytest.mark.parametrize("latency", [1.0, 1.015, 1.03, 0.9])
def test_a_change_is_decided_as_the_comparison_of_recorded_traces_is(latency):
    sides = [Contender("x", "run", (), tuple(list_results(None, [timed(ms)]))) for ms in (1.0, latency)]
    compared = compare_recorded(*sides, 0.02)
    (found,) = changes([timed(1.0)], [timed(latency)])
    assert found.decision == compared.rows[0].ratio.decide(compared.threshold)
    assert (found.ratio.low, found.ratio.high) == pytest.approx(compared.rows[0].ratio.interval)


def test_a_new_driver_other_sources_and_a_second_run_begin_epochs():
    runs = [timed(ms, uuid) for uuid, ms in (("w0", 1.0), ("w1", 2.0))]
    runs += [timed(ms, uuid, day=2, driver="2") for uuid, ms in (("w0", 0.8), ("w1", 1.6))]
    first, second = epochs(*runs)
    assert (first.verdicts, first.decision, first.changed) == (2, "", ())
    assert (second.decision, second.changed, second.ratio.value) == ("faster", ("driver 1 -> 2",), pytest.approx(0.8))
    found = epochs(timed(1.0), timed(1.0, day=2, digest="b"), timed(1.2, day=3, digest="b"))
    assert [(epoch.changed, epoch.decision) for epoch in found] == [((), ""), (("sources",), "same"), ((), "slower")]
    _, second = epochs(timed(1.0, sandbox="walls"), timed(2.0, day=2, sandbox="none"))
    assert (second.decision, second.ratio) == ("cannot tell yet", None)


def test_the_commands_tell_changes(tmp_path, capsys, monkeypatch):
    old = write_small_set(tmp_path / "old", traces=[timed(1.0)])
    new = write_small_set(tmp_path / "new", traces=[timed(1.0), timed(2.0, day=2)])

    def told(*words, code=0):
        assert main(["report", *map(str, words)]) == code
        return capsys.readouterr().out

    history = ["history", "--definition", "double", "--local", new]
    assert told("diff", old, new).startswith("1 job: 1 slower")
    assert json.loads(told("diff", old, old, "--format", "json"))["counts"] == {"same": 1}
    lines = told(*history).splitlines()
    assert [lines[2], *(line.split()[0] for line in lines[3:5])] == ["double_python", "2026-01-01", ">"]
    assert len(json.loads(told(*history, "--format", "json"))["rows"]) == 2
    told(*history, "--threshold", "3", code=2)  # 3 %, or 300 %
    told(*history, "--threshold", "3%")
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, told(*history).splitlines())) <= 80
