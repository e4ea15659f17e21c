"""The pure parts of benchmarks/bench_engine.py: the rows, the goals, what the events of a run come to, the sets."""

from __future__ import annotations

import ast
import json
from types import SimpleNamespace

import pytest

from benchmarks.bench_engine import render_check, share_of_limit
from benchmarks.engine import drive, sets
from benchmarks.engine.goals import hold_idle, hold_isolated, hold_scaling, hold_verdicts, within
from benchmarks.engine.rows import ROWS, choose_rows, why_skipped
from benchmarks.engine.timeline import Happened, Timeline, covered_s, read_events
from flashinfer_bench.bench.runner.client import SessionClient
from flashinfer_bench.bench.runner.protocol import REFERENCE_PHASE
from flashinfer_bench.data import TraceSet

JOBS = [("d", "s", f"w{number}") for number in range(4)]


def started(at_s, job, device="cuda:0"):
    return Happened(at_s, "started", JOBS[job], device)


def finished(at_s, job, device="cuda:0", status="PASSED"):
    return Happened(at_s, "finished", JOBS[job], device, status)


def test_rows_have_names_of_their_own_and_are_chosen_by_them():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert choose_rows(None) == ROWS
    assert [row.name for row in choose_rows(["gemm", "verdicts"])] == ["verdicts", "gemm"]
    with pytest.raises(ValueError, match="no such row: gem; known: verdicts, "):
        choose_rows(["gem"])


@pytest.mark.parametrize(
    ("gpus", "taken"),
    [
        (0, {"runners-on-cpu"}),
        (1, {row.name for row in ROWS} - {"many-on-all", "scaling", "runners-on-cpu"}),
        (4, {row.name for row in ROWS} - {"runners-on-cpu"}),
    ],
    ids=["cpu", "one", "four"],
)
def test_what_a_machine_cannot_take_is_skipped_with_a_reason(gpus, taken):
    assert {row.name for row in ROWS if not why_skipped(row, gpus, is_named=False)} == taken
    (cpu_row,) = choose_rows(["runners-on-cpu"])
    assert not why_skipped(cpu_row, gpus, is_named=True)


def test_seconds_are_held_against_the_import_and_so_many_more():
    assert within("end", 7.0, 4.0, 3).is_held
    assert not within("end", 7.1, 4.0, 3).is_held
    assert not within("first verdict", None, 4.0, 3).is_held
    line = render_check(within("end", 7.1, 4.0, 3))
    assert " ".join(line.split()) == "end 7.10 s MISSED: at most 7.00 s (I + 3 s)"


def test_isolated_may_take_one_and_a_half_times_as_long_or_what_its_contexts_take():
    assert hold_isolated(15.0, 10.0, 12.0).is_held
    assert not hold_isolated(15.1, 10.0, 12.0).is_held
    assert hold_isolated(18.0, 10.0, 18.0).rule == "I + its contexts"
    assert hold_isolated(18.0, 10.0, 18.0).is_held
    assert not hold_isolated(18.0, 10.0, None).is_held
    assert share_of_limit(hold_isolated(18.0, 10.0, None)) == pytest.approx(1.2)


def test_scaling_idle_and_odd_verdicts():
    assert hold_scaling(36.0, 10.0, 4).is_held
    assert not hold_scaling(35.9, 10.0, 4).is_held
    assert not hold_scaling(0.0, 0.0, 4).is_held
    assert hold_idle({"cuda:0": 0.05, "cuda:1": 0.01}).is_held
    assert not hold_idle({"cuda:0": 0.01, "cuda:1": 0.06}).is_held
    assert not hold_idle({}).is_held
    assert not hold_verdicts(1).is_held


def test_lines_of_events_become_times_from_the_start():
    lines = [
        {"at": 11.0, "kind": "run", "jobs": 1, "devices": ["cpu"]},
        {"at": 12.0, "kind": "finished", "job": JOBS[0], "device": "cpu", "status": "PASSED", "reference_ms": 3.0},
    ]
    timeline = Timeline(read_events("\n".join(map(json.dumps, lines)), 10.0))
    assert timeline.first_verdict_s == 2.0
    assert timeline.reference_ms == 3.0
    assert timeline.statuses() == {"PASSED": 1}
    assert timeline.find_odd({JOBS[0]: "PASSED"}) == []


def test_idle_is_the_time_without_a_job_between_the_first_verdict_and_the_last():
    timeline = Timeline(
        [
            Happened(0.0, "run", jobs=4, devices=("cuda:0", "cuda:1", "cuda:2")),
            started(1.0, 0),
            started(1.0, 1, "cuda:1"),
            finished(2.0, 0),
            started(3.0, 2),
            finished(4.0, 1, "cuda:1"),
            finished(12.0, 2),
        ]
    )
    assert timeline.idle_shares() == pytest.approx({"cuda:0": 0.1, "cuda:1": 0.8, "cuda:2": 1.0})
    assert timeline.busy_s == 11.0
    assert Timeline(timeline.events[:4]).idle_shares() == {}


def test_a_device_that_times_references_is_not_idle():
    timeline = Timeline(
        [
            Happened(0.0, "run", jobs=3, devices=("cuda:0", "cuda:1")),
            started(1.0, 0),
            finished(2.0, 0),
            Happened(2.0, "reference", device="cuda:0"),
            Happened(4.0, "reference", device="cuda:0"),
            Happened(5.0, "next", device="cuda:1"),
            Happened(6.0, "next", device="cuda:0"),
            started(7.0, 2),
            finished(12.0, 2),
        ]
    )
    assert timeline.idle_shares() == pytest.approx({"cuda:0": 0.1, "cuda:1": 1.0})


def test_a_device_is_told_to_time_references_until_it_does_something_else(monkeypatch, tmp_path):
    phases = ["load", REFERENCE_PHASE, REFERENCE_PHASE, "load", "solution"]
    come = [{"ready": {}}, *({"phase": {"name": name}} for name in phases)]
    monkeypatch.setattr(SessionClient, "messages", lambda _session: iter(come))
    with drive.EventLines(tmp_path / "events") as lines:
        drive.note_references(lines)
        assert list(SessionClient.messages(SimpleNamespace(device=SimpleNamespace(label="cuda:1")))) == come
    told = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [(line["kind"], line["device"]) for line in told] == [
        ("reference", "cuda:1"),
        ("reference", "cuda:1"),
        ("next", "cuda:1"),
    ]


def test_overlapping_spans_count_once():
    assert covered_s([(5, 9), (0, 3), (2, 4), (8, 20)], 1, 10) == 3 + 5


def test_odd_verdicts_are_told():
    events = [finished(1, 0), finished(2, 0), finished(3, 1, status="TIMEOUT"), Happened(4, "faulted", JOBS[2])]
    odd = Timeline(events).find_odd(dict.fromkeys(JOBS, "PASSED"))
    assert [line.split(": ", 1) for line in odd] == [
        ["d / s / w0", "2 verdicts"],
        ["d / s / w2", "no verdict: "],
        ["d / s / w1", "TIMEOUT, expected: PASSED."],
        ["d / s / w2", "no verdict"],
        ["d / s / w3", "no verdict"],
    ]
    assert Timeline([Happened(0, "run", jobs=2), finished(1, 0)]).find_odd(None) == ["1 of 2 jobs have no verdict"]
    assert Timeline([]).find_odd(None) == ["0 of 0 jobs have no verdict"]


def test_sets_are_valid_and_each_solution_has_a_kernel_of_its_own(tmp_path):
    made = [
        sets.verdicts(tmp_path / "verdicts", [1, 2]),
        sets.gemm(tmp_path / "gemm", [1]),
        sets.sampler(tmp_path / "sampler"),
        sets.triton(tmp_path / "triton", 3, [16]),
        sets.slow_reference(tmp_path / "slow", steps=3, width=64, rows=[8]),
        sets.python(tmp_path / "python", 2, [1, 2]),
    ]
    for one in made:
        read = TraceSet.from_path(one.root)
        assert not read.issues
        jobs = {
            (definition, solution.name, trace.workload.uuid)
            for definition, solutions in read.solutions.items()
            for solution in solutions
            for trace in read.workloads[definition]
        }
        assert jobs == set(one.expected)
        for solution in (solution for found in read.solutions.values() for solution in found):
            ast.parse(solution.sources[0].content)
            marks = solution.sources[0].content.count(f"# {solution.name}, {sets.MARK}\n")
            assert marks == (2 if solution.spec.language.value == "triton" else 1)
