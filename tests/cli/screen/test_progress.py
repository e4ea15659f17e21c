"""What is shown while a run goes on."""

import io
import threading

import pytest
from flashinfer_bench.cli.screen.progress import (
    LiveProgress,
    PlainProgress,
    QuietProgress,
    choose_progress,
    describe_devices,
    render_progress,
)
from flashinfer_bench.cli.screen.tally import Tally
from rich.console import Console

from flashinfer_bench.bench.events import JobFaulted, JobStarted, Notice, RunStarted
from tests.cli.fake_engine import CPU, finished, make_jobs


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def jobs(tmp_path):
    return make_jobs(tmp_path)


def observe(events, step=1.0):
    tally = Tally()
    for index, event in enumerate(events):
        tally.observe(event, index * step)
    return tally


def test_rate_and_time_left_count_from_the_first_job(jobs):
    tally = observe([RunStarted((CPU,), 4), JobStarted(jobs[0], CPU), finished(jobs[0])], step=10.0)
    assert tally.jobs_per_second(now=20.0) == pytest.approx(0.1)
    assert tally.seconds_left(now=20.0) == pytest.approx(30.0)


def test_before_the_first_verdict_there_is_no_rate(jobs):
    tally = observe([RunStarted((CPU,), 4), JobStarted(jobs[0], CPU)])
    assert tally.seconds_left(now=100.0) is None


def test_faults_count_as_done_and_not_as_passed(jobs):
    tally = observe([RunStarted((CPU,), 2), finished(jobs[0]), JobFaulted(jobs[1], "lost")])
    assert (tally.done, tally.not_passed, tally.faulted) == (2, 1, 1)


def test_a_device_runs_one_job_until_it_is_over(jobs):
    tally = observe([JobStarted(jobs[0], CPU)])
    assert tally.running["cpu"] == (jobs[0], 0.0)
    tally.observe(JobFaulted(jobs[0], "lost"), 1.0)
    assert tally.running == {}


def test_without_a_terminal_there_is_one_line_a_finished_job(jobs):
    lines = []
    events = [
        *(RunStarted((CPU,), 4), JobStarted(jobs[0], CPU), finished(jobs[0], latency_ms=0.5, speedup=2.0)),
        *(JobStarted(jobs[1], CPU), finished(jobs[1], status="TIMEOUT", log="still running\nafter 3 s")),
        *(Notice("waiting for a lock"), JobFaulted(jobs[2], "the blob is missing\nfetch it")),
    ]
    with PlainProgress(lines.append) as progress:
        for event in events:
            progress.show(event)
    assert lines == [
        "[1/4] double / double_python / w0 on cpu: PASSED 0.500 ms, 2.00x",
        "[2/4, 1 not passed] double / double_python / w1 on cpu: TIMEOUT: still running",
        "note: waiting for a lock",
        "[3/4, 2 not passed] double / other / w0: NO VERDICT: the blob is missing",
    ]


class Hours:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_silent_run_says_now_and_then_what_it_is_at(jobs):
    lines, clock = [], Hours()
    heartbeat = Heartbeat(describe_devices, lines.append, clock, silence_s=60.0)
    heartbeat.observe(RunStarted((CPU,), 4))
    clock.now = 200.0
    heartbeat.beat()
    assert lines.pop().startswith("still at work: no job runs")
    heartbeat.observe(finished(jobs[1]))
    heartbeat.observe(JobStarted(jobs[0], CPU))
    for clock.now in (259.0, 260.0, 300.0, 320.0):
        heartbeat.beat()
    assert lines == [
        "still at work: cpu  1:00  double / double_python / w0",
        "still at work: cpu  2:00  double / double_python / w0",
    ]
    clock.now = 370.0
    heartbeat.observe(finished(jobs[0]))
    heartbeat.observe(JobStarted(jobs[1], CPU))
    clock.now = 429.0
    heartbeat.beat()
    assert len(lines) == 2


def test_a_silent_run_names_the_flag_of_the_limit(jobs):
    lines, clock = [], Hours()
    progress = PlainProgress(lines.append, clock, limit_s=300)
    progress.show(JobStarted(jobs[0], CPU))
    clock.now = 60.0
    progress._heartbeat.beat()
    assert lines[-1].startswith("still at work: cpu  1:00  double / double_python / w0 (")
    assert "300 s" in lines[-1]
    assert "--timeout" in lines[-1]


def test_a_watched_run_is_told_of_by_itself_and_no_more_once_it_is_over(jobs):
    told = threading.Event()
    with Heartbeat(describe_devices, lambda _line: told.set(), silence_s=0.05) as heartbeat:
        heartbeat.observe(JobStarted(jobs[0], CPU))
        assert told.wait(30)
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_the_display_shows_counts_rate_and_what_each_device_does(jobs):
    events = [RunStarted((CPU,), 4), JobStarted(jobs[0], CPU), finished(jobs[0]), JobStarted(jobs[1], CPU)]
    console = Console(file=io.StringIO(), width=80)
    console.print(render_progress(observe(events, step=2.0), now=10.0))
    first, second, third = console.file.getvalue().splitlines()
    assert first.startswith("1/4 jobs  0.125 jobs/s  0:24 left")
    assert second == "PASSED 1"
    assert third == "cpu  0:04  double / double_python / w1"


def test_the_display_never_wraps(jobs):
    console = Console(file=io.StringIO(), width=30)
    console.print(render_progress(observe([RunStarted((CPU,), 4), JobStarted(jobs[0], CPU)]), now=1.0))
    assert len(console.file.getvalue().splitlines()) == 3


def test_the_live_display_tells_equal_faults_once_and_clears_itself(jobs):
    terminal = Terminal()
    with LiveProgress(terminal, clock=lambda: 0.0) as progress:
        for event in [RunStarted((CPU,), 4), JobFaulted(jobs[0], "lost"), JobFaulted(jobs[1], "lost")]:
            progress.show(event)
    assert terminal.getvalue().count("NO VERDICT: lost") == 1


def test_the_display_follows_where_stderr_goes():
    assert isinstance(choose_progress(Terminal(), quiet=False, environment={"TERM": "xterm"}), LiveProgress)
    assert isinstance(choose_progress(Terminal(), quiet=False, environment={"TERM": "dumb"}), PlainProgress)
    assert isinstance(choose_progress(io.StringIO(), quiet=False), PlainProgress)
    assert isinstance(choose_progress(Terminal(), quiet=True), QuietProgress)
