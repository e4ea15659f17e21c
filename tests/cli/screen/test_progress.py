"""What is shown while a run goes on."""

import io
import threading

import pytest

from flashinfer_bench.bench.events import JobFaulted, JobsAdded, JobStarted, Notice, RunStarted
from flashinfer_bench.cli.progress import RunProgress
from tests.cli.fake_engine import CPU, finished, make_jobs


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(tmp_path)


def play(events, **settings):
    """Return the progress of a run, and the lines that it has written."""
    lines = []
    with RunProgress(write=lines.append, **settings) as progress:
        for event in events:
            progress.show(event)
    return progress, lines


def test_without_a_terminal_there_is_one_line_a_finished_job(jobs):
    events = [
        *(RunStarted((CPU,), 3), JobStarted(jobs[0], CPU), finished(jobs[0], latency_ms=0.5, speedup=2.0)),
        *(JobsAdded(1), JobStarted(jobs[1], CPU), finished(jobs[1], status="TIMEOUT", log="still running\nafter 3 s")),
        *(Notice("waiting for a lock"), JobFaulted(jobs[2], "the blob is missing\nfetch it")),
    ]
    progress, lines = play(events)
    assert lines == [
        "[1/3] double / double_python / w0 on cpu: PASSED 0.500 ms, 2.00x",
        "[2/4, 1 not passed] double / double_python / w1 on cpu: TIMEOUT: still running",
        "note: waiting for a lock",
        "[3/4, 2 not passed] double / other / w0: NO VERDICT: the blob is missing",
    ]
    assert progress.running == {}
    assert play(events, quiet=True)[1] == play(events, beats_only=True)[1] == []


@pytest.mark.parametrize("started", [True, False])
def test_a_silent_run_says_now_and_then_what_it_is_at_and_what_the_limit_is(jobs, started):
    told, lines = threading.Event(), []
    progress = RunProgress(write=lambda line: (lines.append(line), told.set()), silence_s=0.1, limit_s=300)
    with progress:
        if started:
            progress.show(JobStarted(jobs[0], CPU))
        assert told.wait(30)
    at = "cpu  0:00  double / double_python / w0 (a solution may take 300 s on a workload: --timeout)"
    assert lines[0] == f"still at work: {at}" if started else lines[0].startswith("still at work: no job runs")


def test_a_terminal_shows_counts_and_devices_and_tells_equal_failures_once(jobs, monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    play([RunStarted((CPU,), 4), JobFaulted(jobs[0], "lost"), JobFaulted(jobs[1], "lost"), JobStarted(jobs[2], CPU)])
    shown = terminal.getvalue()
    assert shown.count("NO VERDICT: lost") == 1
    assert "2/4 jobs  2 no verdict" in shown
    assert "cpu  double / other / w0" in shown


def test_a_dumb_terminal_gets_lines(jobs, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert len(play([RunStarted((CPU,), 4), JobFaulted(jobs[0], "lost")])[1]) == 1
