"""How numbers and tables read."""

import io

import pytest

from flashinfer_bench.cli.render import (
    ABSENT,
    UNLIMITED,
    Column,
    available_width,
    format_duration,
    format_half,
    format_latency,
    format_speedup,
    natural_width,
    render_table,
    shorten_uuid,
)
from flashinfer_bench.cli.verdicts import describe_failure, render_best, render_summary
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.summary import FailureGroup, summarise
from tests.kit import make_trace, make_workload

LONG = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048"
UNREAL = {"measurement": {"meaningful": False, "reason": "an interpreter ran it"}}


def on(uuid, solution="fast", **parts):
    parts.setdefault("extra", {"measurement": {"assurance": "full"}})
    return make_trace(workload=make_workload(uuid), solution=solution, **parts)


TRACES = [
    on("w0", latency_ms=0.01234, speedup=1.5),
    on("w1", latency_ms=0.01234, speedup=1.5),
    on("w0", "wrong", status="INCORRECT_NUMERICAL", log="y[3] is 2.0, expected 1.0"),
    on("w1", "wrong", status="INCORRECT_NUMERICAL", log="y[7] is 9.0, expected 4.0"),
    on("w0", "interpreted", latency_ms=12.0, speedup=0.5, extra=UNREAL),
    on("w1", "interpreted", status="TIMEOUT", log="still running after 300 s"),
]

SUMMARY = f"""\
Definition  Solution     Passed    Latency  Speed-up
────────────────────────────────────────────────────
double      fast            2/2  0.0123 ms     1.50x
double      interpreted     1/2   12.0 ms*    0.50x*
double      wrong           0/2          {ABSENT}         {ABSENT}

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


def test_a_long_name_folds():
    table = render_table([Column("Evaluator"), Column("N", True)], [["StochasticRoundingEvaluator", "1"]], 27)
    assert "".join(line.split()[0] for line in table.splitlines()[2:]) == "StochasticRoundingEvaluator"


def test_the_summary_reads_like_this():
    assert render_summary(summarise(TRACES), UNLIMITED) == SUMMARY


def test_the_best_read_like_this():
    assert render_best(best_by_workload(TRACES), UNLIMITED) == BEST


def test_a_long_definition_gets_a_line_of_its_own_on_a_narrow_terminal():
    text = render_summary(summarise([on("w0", definition=LONG)]), 80)
    assert text.splitlines()[2:4] == [LONG, "  fast       1/1  1.00 ms     2.00x"]


def test_names_fold_and_numbers_do_not():
    text = render_table([Column("Name"), Column("Number", True)], [["a" * 60, "123.45"]], 40)
    assert "123.45" in text
    assert "".join(line.split()[0] for line in text.splitlines()[2:]) == "a" * 60
    assert max(map(len, text.splitlines())) <= 40


def test_a_name_folds_after_a_separator_and_is_indented():
    text = render_table([Column("Name"), Column("Number", True)], [["  a_name_of_several_words_and_more", "1"]], 32)
    first, *others = text.splitlines()[2:]
    assert first.startswith("  a_name_of_several")
    assert all(line.startswith("    ") for line in others)


def test_the_natural_width_is_enough():
    columns, rows = [Column("Name"), Column("Number", True)], [["a" * 60, "1"], ["b", "12345678"]]
    assert len(render_table(columns, rows, natural_width(columns, rows)).splitlines()) == 4


def test_names_of_files_cannot_steer_the_terminal():
    text = render_table([Column("Name")], [["[red]x[/red]\x1b[2J\n"]], 80)
    assert text.splitlines()[2] == "[red]x[/red]\\x1b[2J\\n"


def test_several_kinds_of_hardware_get_a_column():
    other = on("w0", environment={"hardware": "other device", "libs": {}})
    assert "Hardware" in render_summary(summarise([on("w0"), other]), UNLIMITED)
    assert "Hardware" not in render_summary(summarise([on("w0")]), UNLIMITED)


@pytest.mark.parametrize(
    ("group", "line"),
    [
        (FailureGroup("TIMEOUT", "", ("w0",), is_exact=True), "TIMEOUT on its workload w0: no reason recorded"),
        (FailureGroup("TIMEOUT", "slow", ("w0", "w1"), is_exact=True), "TIMEOUT on all 2 workloads: slow"),
    ],
)
def test_a_failure_says_where_and_why(group, line):
    assert describe_failure(group, len(group.workloads)) == line


@pytest.mark.parametrize(
    ("latency", "text"),
    [(None, ABSENT), (0.0012345, "0.00123 ms"), (1.0, "1.00 ms"), (99.96, "100 ms"), (1234.5, "1234 ms")],
)
def test_latencies_have_three_digits(latency, text):
    assert format_latency(latency) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.004, "±0.4%"), (0.24, "±24%"), (0.994, "±99%"), (0.996, "±100% or more"), (3.0, "±100% or more")],
)
def test_half_an_interval_stands_behind_its_time(share, text):
    assert format_half(share) == f" {text}"


@pytest.mark.parametrize(
    ("speedup", "text"), [(None, ABSENT), (0.5, "0.50x"), (0.0123, "0.012x"), (12.345, "12.35x"), (250.0, "250x")]
)
def test_speedups_are_times(speedup, text):
    assert format_speedup(speedup) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:00"), (59.7, "1:00"), (3661, "1:01:01")])
def test_durations_are_clock_times(seconds, text):
    assert format_duration(seconds) == text


def test_only_uuids_are_shortened():
    assert shorten_uuid("01289041-aaaa-bbbb-cccc-000000000000") == "01289041"
    assert shorten_uuid("963f2f970f2e4f1688595246c239372e") == "963f2f97"
    assert shorten_uuid("decode_batch_64") == "decode_batch_64"


@pytest.mark.parametrize(("columns", "width"), [("", UNLIMITED), ("nonsense", UNLIMITED), ("90", 90)])
def test_a_pipe_has_no_width_and_columns_is_respected(columns, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert available_width(io.StringIO()) == width
