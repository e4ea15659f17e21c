"""What is shown: tables, numbers, the progress of a run; and no text of strangers steers a terminal."""

import io
import re
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench.events import JobFaulted, JobsAdded, JobStarted, Notice, RunStarted
from flashinfer_bench.cli.output import write_err, write_out, write_problems
from flashinfer_bench.cli.run_jobs import RunProgress
from flashinfer_bench.cli.tables import (
    format_duration,
    format_latency,
    format_speedup,
    lay_out,
    render_table,
    shorten_uuid,
)
from flashinfer_bench.cli.verdicts import describe_verdict, name_jobs, render_best, render_summary
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.sets.results import list_results
from tests.cli.fake_engine import CPU, finished, make_jobs, play_run, write_small_set
from tests.kit import make_trace, make_workload
from tests.report import made
from tests.report.made import best_by_workload, summarise

UNREAL = {"measurement": {"meaningful": False, "reason": "an interpreter ran it"}}
HOSTILE = "f\x1b]0;title\x07\x1b[2J\u202e\r"
LONG_NAME = "963f2f97-0f2e-4f16-8859-5246c239372e"
REASON = "another subscriber of CUPTI is attached"


def on(uuid, solution="fast", **parts):
    parts.setdefault("extra", {"measurement": {"assurance": "full"}})
    return make_trace(workload=make_workload(uuid), solution=solution, **parts)


def timed(uuid, solution, *flags, method="cupti", **more):
    record = {"method": method, "cache_state": "cold", "launch": "stream", "flags": list(flags), "assurance": "full"}
    return on(uuid, solution, extra={"measurement": {**record, **more}})


TRACES = [
    on("w0", latency_ms=0.01234, speedup=1.5),
    on("w1", latency_ms=0.01234, speedup=1.5),
    on("w0", "wrong", status="INCORRECT_NUMERICAL", log="y[3] is 2.0, expected 1.0"),
    on("w1", "wrong", status="INCORRECT_NUMERICAL", log="y[7] is 9.0, expected 4.0"),
    on("w0", "interpreted", latency_ms=12.0, speedup=0.5, extra=UNREAL),
    on("w1", "interpreted", status="TIMEOUT", log="still running after 300 s"),
]
SUMMARY = """\
Definition  Solution     Passed    Latency  Speed-up
────────────────────────────────────────────────────
double      fast            2/2  0.0123 ms     1.50x
double      interpreted     1/2   12.0 ms*    0.50x*
double      wrong           0/2          \N{EN DASH}         \N{EN DASH}

Failures
  double / interpreted
    TIMEOUT on 1 of 2 workloads (w1): still running after 300 s
  double / wrong
    INCORRECT_NUMERICAL on all 2 workloads: for example, y[3] is 2.0, expected 1.0

latency: median over the passed workloads; speed-up over the reference: geometric mean
* an interpreter ran it
"""
BEST = """\
Definition  Workload  Axes  Solution    Latency  Speed-up
─────────────────────────────────────────────────────────
double      w0        n=8   fast      0.0123 ms     1.50x
double      w1        n=8   fast      0.0123 ms     1.50x
"""
TIMED = [
    timed("w0", "double_python", "noisy", "host_bound"),
    timed("w1", "double_python", method="cuda_events", fallback=REASON),
    timed("w0", "other"),
]
TIMED_SUMMARY = f"""\
Definition  Solution       Passed  Latency  Speed-up  Flags
───────────────────────────────────────────────────────────
double      double_python     2/2  1.00 ms     2.00x  a b
double      other             1/1  1.00 ms     2.00x

latency: median over the passed workloads; speed-up over the reference: geometric mean
timed 2 of 3 by CUPTI, cold L2; 1 of 3 by CUDA events, cold L2 ({REASON})
a host_bound, 1 of 3 measurements: the host takes longer to launch the call than the GPU to run it
b noisy, 1 of 3 measurements: the samples scatter widely, so a re-run may differ by more than usual
"""


def shown(traces):
    return render_summary(summarise(traces), name_jobs(traces))


def test_the_summary_and_the_best_read_like_this():
    assert shown(TRACES) == SUMMARY
    assert render_best(best_by_workload(TRACES), name_jobs(TRACES)) == BEST


def test_tables_say_how_times_came_about_and_what_is_flagged():
    assert shown(TIMED) == TIMED_SUMMARY
    best = render_best(best_by_workload(TIMED), name_jobs(TIMED))
    assert "timed 2 of 3 by CUPTI" in best  # the tie on w0 counts
    everywhere = [timed("w0", name, "noisy", *more) for name, more in (("x", ["throttled"]), ("y", []))]
    everywhere.append(on("w0", "interpreted", extra=UNREAL))
    head, _, table = shown(everywhere).partition("\n\n")
    scatter = "noisy, 2 of 3 measurements: the samples scatter widely, so a re-run may differ by more than usual"
    assert head == f"all rows with a meaningful time: {scatter}"
    flags = [line.split()[-1] for line in table.splitlines()[2:5]]
    assert flags == ["a", "2.00x*", "2.00x"]
    many = timed("w0", "double_python", *(f"flag_{number}" for number in range(40)))
    assert "z flag_" in shown([many])


def test_a_table_of_a_terminal_has_the_intervals_of_speedups(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    wide = {"half": 0.4, "baseline": {"interval95_ms": [4.0, 12.0], "interval": "workers"}}
    traces = [made.on("w0", name, time, **wide) for name, time in (("s" * 40, 1.0), ("tied", 1.1))]
    table = render_best(best_by_workload(traces), name_jobs(traces))
    lines = table.splitlines()
    ends = [line.split("  ")[-1] for line in lines if " ms" in line]
    assert (max(map(len, lines)) <= 100, ends) == (True, ["8.00x ±70%", "7.27x ±70%"])
    traces[1] = made.on("w0", "tied", 1.1, **wide, record=made.FULL | {"flags": ["noisy"]})
    table = render_best(best_by_workload(traces), name_jobs(traces))
    assert [line[-1] for line in table.splitlines() if " ms" in line] == ["%", "a"]  # the tie's own flag
    assert "a noisy, 1 of 2 measurements: " in table
    assert describe_verdict(list_results(None, traces)[0]) == "PASSED 1.00 ms ±40%, 8.00x ±70%"


def test_names_fold_to_the_width_and_numbers_do_not_and_columns_may_be_spared(monkeypatch):
    cells = {"Name": "{name}", "#Share": "{share:%}", "#Time": "{time:ms}", "None": "{nothing}"}
    row = {"name": "n" * 30, "share": 0.5, "time": 1.0, "nothing": None}
    monkeypatch.setenv("COLUMNS", "40")
    head, _, *lines = lay_out(cells, [row]).splitlines()
    assert (len(lines), head.split()) == (2, ["Name", "Share", "Time", "None"])
    assert ("50.0%  1.00 ms" in lines[0], max(map(len, lines)) <= 40) == (True, True)
    assert lay_out(cells, [row], spared=["#Time", "#Share"]).split("\n")[0].split() == ["Name", "Share"]
    assert lay_out(cells, []) == ""


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (format_latency(None), "\N{EN DASH}"),
        (format_latency(0.0012345), "0.00123 ms"),
        (format_latency(1234.5, 0.004), "1234 ms ±0.4%"),
        (format_latency(1.0, 0.996), "1.00 ms ±100% or more"),
        (format_speedup(0.0123), "0.012x"),
        (format_speedup(123.4, (90.0, 110.0)), "123x ±10%"),
        (format_duration(59.7), "1:00"),
        (format_duration(3661), "1:01:01"),
        (shorten_uuid("01289041-aaaa-bbbb-cccc-000000000000"), "01289041"),
        (shorten_uuid("963f2f970f2e4f1688595246c239372e"), "963f2f97"),
        (shorten_uuid("decode_batch_64"), "decode_batch_64"),
    ],
)
def test_numbers_and_uuids_read_like_this(shown, text):
    assert shown == text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_small_run_of_one_definition_ends_with_its_times_by_workload_on_a_terminal(tmp_path, monkeypatch, capsys):
    words = [str(write_small_set(tmp_path, workloads=3)), "--no-save-results", "--allow-broken"]
    assert "w0" not in (play_run(words), capsys.readouterr().out)[1]
    monkeypatch.setattr("sys.stdout", Terminal())
    play_run(words)
    assert re.search(r"\nWorkload +double_python +other\n", sys.stdout.getvalue())


def test_what_is_written_to_a_terminal_has_lines_and_no_other_control_characters(monkeypatch):
    streams = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", streams[0])
    monkeypatch.setattr("sys.stderr", streams[1])
    write_out(f"one {HOSTILE}\ntwo\n")
    write_err(f"{HOSTILE}\n  more")
    write_problems(f"it is {HOSTILE}0 errors\n  at {HOSTILE}")
    out, err = (stream.getvalue() for stream in streams)
    assert all(line.isprintable() for text in (out, err) for line in text.split("\n"))
    assert (out.count("\n"), err.count("\n")) == (2, 4)
    assert "error: it is f\\x1b]0;title" in err


def test_a_result_that_goes_to_a_file_stays_as_it_is(monkeypatch):
    monkeypatch.setattr("sys.stdout", stream := io.StringIO())
    write_out(f"{HOSTILE}\n")
    assert stream.getvalue() == f"{HOSTILE}\n"


def test_names_of_files_are_one_line_and_steer_no_terminal():
    issue = LoadIssue("warning", Path(f"set/{HOSTILE}\nerror: all is well.json"), None, None, "it is no JSON")
    assert str(issue).isprintable()
    text = render_table(["Name"], [["[red]x[/red]\x1b[2J\n"]])
    assert text.splitlines()[2] == "[red]x[/red]\\x1b[2J\\n"


@pytest.fixture
def play(capsys):
    """Show events; returns what was written."""

    def start(events, **settings):
        capsys.readouterr()
        with RunProgress(**settings) as progress:
            for event in events:
                progress.show(event)
        return capsys.readouterr().err.splitlines()

    return start


def test_without_a_terminal_there_is_one_line_a_finished_job(play, tmp_path):
    jobs = make_jobs(tmp_path)
    events = [
        *(RunStarted((CPU,), 3), JobStarted(jobs[0], CPU), finished(jobs[0], latency_ms=0.5, speedup=2.0)),
        *(JobsAdded(1), JobStarted(jobs[1], CPU), finished(jobs[1], status="TIMEOUT", log="still running\nafter 3 s")),
        *(Notice("waiting for a lock"), JobFaulted(jobs[2], f"the blob of {LONG_NAME} is missing\nfetch it")),
    ]
    assert play(events, names={("double", LONG_NAME): "n=7"}) == [
        "[1/3] double / double_python / w0 on cpu: PASSED 0.500 ms, 2.00x",
        "[2/4, 1 not passed] double / double_python / w1 on cpu: TIMEOUT: still running",
        "note: waiting for a lock",
        "[3/4, 1 not passed, 1 without a verdict] double / other / w0: without a verdict: the blob of n=7 is missing",
    ]
    assert play(events, quiet=True) == []


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_shows_counts_and_devices_and_failures_and_a_dumb_one_lines(play, tmp_path, monkeypatch, term):
    jobs = make_jobs(tmp_path)
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "120")
    play([RunStarted((CPU,), 4), *(JobFaulted(job, "lost") for job in jobs[:2]), JobStarted(jobs[2], CPU)])
    shown = terminal.getvalue()
    if term == "dumb":
        assert len(shown.splitlines()) == 2
    else:
        assert shown.count("without a verdict: lost") == 2
        assert "2/4 jobs  2 without a verdict" in shown
        assert "cpu  double / other / w0" in shown
