"""Quick looks (`--quick`): what they take, how they are marked, and that nothing ranks them or resumes from them."""

from types import SimpleNamespace

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.planning.resume import fingerprint
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import find_latest
from flashinfer_bench.report.summary import best_by_definition, best_by_workload, summarise
from flashinfer_bench.timing.settings import PRECISION
from tests.kit import make_definition, make_solution, make_trace, write_trace_set

GEMM = SimpleNamespace(name="gemm_n4096", op_type="gemm")
MARKS = {"definition": "d", "solution": "s", "workload": "w", "evaluator": "e", "hardware": "test device"}
WHOLE, QUICK = fingerprint(**MARKS), fingerprint(**MARKS, timing="quick")


def look(marks=QUICK, **parts):
    """Return the trace of a quick look; those of other hours come later in the day."""
    return make_trace(
        extra={"run": {"fingerprint": marks, "quick": True}}, timestamp=_at(parts.pop("hour", 3)), **parts
    )


def whole(marks=WHOLE, **parts):
    return make_trace(extra={"run": {"fingerprint": marks}}, timestamp=_at(parts.pop("hour", 1)), **parts)


def _at(hour):
    return f"2025-01-02T{hour:02d}:00:00Z"


@pytest.mark.parametrize(
    ("file", "given", "expected"),
    [
        ("quick: true", {}, (3, 10, 1, 0.05)),
        ("{iterations: 200, definition_config: {gemm_n4096: {num_trials: 7}}}", {"quick": True}, (3, 10, 1, 0.05)),
        ("iterations: 200", {"quick": True, "iterations": 30}, (3, 30, 1, 0.05)),
        ("{quick: true, iterations: 30}", {"num_trials": 2}, (3, 30, 2, 0.05)),
        ("{quick: true, iterations: 30}", {"quick": False}, (10, 30, 3, PRECISION)),
        ("{quick: true, op_type_config: {gemm: {precision: 0.2}}}", {}, (3, 10, 1, 0.2)),
    ],
)
def test_a_quick_look_beats_what_lies_below_it_and_what_is_said_beside_it_beats_the_look(
    tmp_path, file, given, expected
):
    (tmp_path / "my.yaml").write_text(file)
    config = BenchmarkConfig.from_yaml(tmp_path / "my.yaml", **given).resolve_eval_config(GEMM)
    assert (config.warmup_runs, config.iterations, config.num_trials, config.precision) == expected
    assert (config.origins["warmup_runs"] == "quick") is (expected[0] == 3)


OTHER, OTHER_QUICK = {**WHOLE, "solution": "x"}, {**QUICK, "solution": "x"}


@pytest.mark.parametrize(
    ("traces", "shown"),
    [
        ([look()], 0),
        ([whole(), look()], 0),
        ([whole(status="TIMEOUT"), look()], 0),
        ([whole(), look(status="TIMEOUT")], 1),
        ([whole(), look(status="TIMEOUT"), look(hour=4)], 0),
        ([whole(), look(OTHER_QUICK)], 1),
        ([make_trace(timestamp=_at(1)), look()], 0),
        ([look(hour=0), whole()], 1),
        ([whole(), look(), whole(hour=5)], 2),
    ],
)
def test_a_quick_look_that_passed_displaces_no_whole_verdict_on_the_same(traces, shown):
    assert find_latest(traces) == [traces[shown]]


def test_no_choice_falls_on_a_quick_look():
    fast = look(solution="fast", speedup=99.0, latency_ms=0.01)
    slow = whole(solution="slow", speedup=2.0)
    trace_set = TraceSet(traces={"double": [slow, fast]})
    assert trace_set.get_best_trace("double") == slow
    assert trace_set.filter_traces("double") == [slow]
    assert trace_set.summary()["min_latency_ms"] == 1.0
    assert [(row.solution, row.contenders) for row in best_by_workload([slow, fast])] == [("slow", 1)]
    assert [row.solution for row in best_by_definition([slow, fast])] == ["slow"]
    for traces in ([fast], [whole(OTHER, speedup=5.0), look()]):  # nor on what was changed since its whole verdict
        assert best_by_workload(traces) == best_by_definition(traces) == []


def test_quick_looks_are_flagged_and_come_last_in_a_summary():
    rows = summarise([look(solution="fast", speedup=99.0), whole(solution="slow")])
    assert [(row.solution, dict(row.timing.flags).get("quick")) for row in rows] == [("slow", None), ("fast", 1)]


def test_report_best_says_so_where_there_are_quick_looks_only(tmp_path, capsys):
    root = write_trace_set(tmp_path, definitions=[make_definition()], solutions=[make_solution()], traces=[look()])
    assert main(["report", "best", "--local", str(root)]) == 0
    assert "quick looks do not count" in capsys.readouterr().err
    assert main(["report", "summary", "--local", str(root)]) == 0
    assert "a quick look, with few readings" in capsys.readouterr().out
