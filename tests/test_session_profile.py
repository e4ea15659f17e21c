"""What is told of the steps of a session."""

import pytest

from benchmarks.session_profile import Log, read_notes, render, sum_up

pytestmark = pytest.mark.cpu
NOTES = [
    ("run_job", 0, 0.0, 5.0),
    ("load", 1, 1.0, 2.0),
    ("run_job", 0, 10.0, 12.0),
    ("load", 1, 10.5, 11.0),
    ("ask calls", 2, 10.6, 10.7),
    ("ask calls", 2, 10.8, 10.9),
    ("expect", 0, 12.0, 12.1),
    ("run_job", 0, 13.0, 14.0),
]


def test_steps_are_told_for_one_job_in_the_mean_without_those_at_the_start():
    sums, jobs, seconds = sum_up(NOTES, skip=1)
    assert (jobs, seconds) == (2, 4.0)
    lines = [" ".join(line.split()) for line in render(sums, jobs, least_ms=0)]
    assert lines == [
        "run_job 1.0 times 1500.00 ms, own 1250.00 ms",
        "load 0.5 times 250.00 ms, own 150.00 ms",
        "ask calls 1.0 times 100.00 ms, own 100.00 ms",
        "expect 0.5 times 50.00 ms, own 50.00 ms",
    ]
    assert sum_up(NOTES[:2], skip=1)[1] == 0


def test_notes_come_back_from_the_file_with_the_outer_step_first(tmp_path):
    log = Log(tmp_path / "steps")
    inner = log.wrap(lambda: None, "load")
    log.wrap(lambda: inner(), "run_job")()
    ask = log.wrap(lambda worker, verb: verb, "ask")
    assert ask(None, "calls") == "calls"
    (notes,) = read_notes([tmp_path / "steps"])
    assert [(name, depth) for name, depth, _, _ in notes] == [("run_job", 0), ("load", 1), ("ask calls", 0)]
