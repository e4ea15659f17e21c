"""What changed between two sets, and from run to run."""

import json

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.examine.compare.recorded import compare_recorded
from flashinfer_bench.examine.compare.sides import Contender
from flashinfer_bench.report.changes import find_changes, find_epochs
from flashinfer_bench.report.results import list_results
from tests.cli.fake_engine import write_small_set
from tests.kit import make_evaluation, make_trace, make_workload


def timed(latency, uuid="w0", *, spread=0.002, digest="a", day=1, libs=None, **record):
    measurement = {"method": "cupti", "interval95_ms": [latency * (1 - spread), latency * (1 + spread)], **record}
    return make_trace(
        workload=make_workload(uuid),
        evaluation=make_evaluation(
            latency_ms=latency,
            timestamp=f"2026-01-{day:02}T00:00:00Z",
            environment={"hardware": "test device", "libs": libs or {"driver": "1"}},
            extra={"measurement": measurement, "run": {"fingerprint": {"solution": digest}}},
        ),
    )


def results(*traces, latest_only=True):
    return list_results(TraceSet(), traces, latest_only=latest_only)


def change(old, new):
    (found,) = find_changes(results(*old), results(*new))
    return found


def test_times_that_changed_have_a_decision():
    assert change([timed(1.0)], [timed(1.0)]).decision == "same"
    assert change([timed(1.0)], [timed(1.1)]).decision == "slower"
    assert change([timed(1.0)], [timed(0.5)]).decision == "faster"
    wide = change([timed(1.0)], [timed(1.1, spread=0.5)])
    assert (wide.decision, wide.reason) == ("cannot tell yet", "the interval is too wide")


def test_times_that_came_about_otherwise_are_not_compared():
    found = change([timed(1.0, cache_state="cold")], [timed(9.0, cache_state="warm")])
    assert (found.decision, found.reason) == ("cannot tell yet", "another state of the caches: cold then, warm now")
    assert found.ratio is None


def test_other_walls_or_another_protocol_are_no_change_of_a_time():
    old = timed(1.0)
    old.evaluation.extra["run"]["fingerprint"]["sandbox"] = "walls"
    new = timed(2.0)
    new.evaluation.extra["run"]["fingerprint"]["sandbox"] = "none"
    found = change([old], [new])
    assert (found.decision, found.reason) == ("cannot tell yet", "other walls: walls then, none now")
    _, second = find_epochs(results(old, new, latest_only=False))
    assert (second.decision, second.ratio) == ("cannot tell yet", None)


@pytest.mark.parametrize("latency", [1.0, 1.015, 1.03, 0.9])
def test_a_change_is_decided_as_the_comparison_of_recorded_traces_is(latency):
    sides = [Contender("x", "run", (), (timed(ms),)) for ms in (1.0, latency)]
    compared = compare_recorded(*sides, 0.02)
    found = change([timed(1.0)], [timed(latency)])
    assert found.decision == compared.rows[0].ratio.decide(compared.threshold)
    assert (found.ratio.low, found.ratio.high) == pytest.approx(compared.rows[0].ratio.interval)


def test_verdicts_that_changed_come_and_go():
    failed = make_trace(status="TIMEOUT", log="late")
    assert change([timed(1.0)], [failed]).decision == "verdict"
    assert change([failed], [failed]).decision == "same"
    assert change([], [failed]).decision == "new"
    assert change([timed(1.0)], []).decision == "gone"


def test_a_new_driver_begins_an_epoch_and_its_effect_is_decided():
    runs = [timed(ms, uuid) for uuid, ms in (("w0", 1.0), ("w1", 2.0))]
    runs += [timed(ms, uuid, day=2, libs={"driver": "2"}) for uuid, ms in (("w0", 0.8), ("w1", 1.6))]
    first, second = find_epochs(results(*runs, latest_only=False))
    assert (first.verdicts, first.decision, first.changed) == (2, "", ())
    assert (second.decision, second.changed) == ("faster", ("driver 1 -> 2",))
    assert second.ratio.value == pytest.approx(0.8)


def test_other_sources_and_a_second_run_begin_epochs():
    runs = [timed(1.0), timed(1.0, day=2, digest="b"), timed(1.2, day=3, digest="b")]
    epochs = find_epochs(results(*runs, latest_only=False))
    assert [(epoch.changed, epoch.decision) for epoch in epochs] == [((), ""), (("sources",), "same"), ((), "slower")]


def test_the_commands_tell_changes(tmp_path, capsys, monkeypatch):
    old = write_small_set(tmp_path / "old", traces=[timed(1.0)])
    new = write_small_set(tmp_path / "new", traces=[timed(1.0), timed(2.0, day=2)])
    assert main(["report", "diff", str(old), str(new)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("1 job: 1 slower")
    assert main(["report", "diff", str(old), str(old), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"same": 1}
    history = ["report", "history", "--definition", "double", "--local", str(new)]
    assert main(history) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "double_python"
    assert [line.split()[0] for line in lines[3:5]] == ["2026-01-01", ">"]
    monkeypatch.setenv("COLUMNS", "80")
    assert main(history) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert main([*history, "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    assert main([*history, "--threshold", "3"]) == 2  # 3 %, or 300 %
    assert main([*history, "--threshold", "3%"]) == 0
