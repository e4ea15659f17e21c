"""Scripts that compare authors over a whole set: the summary, rankings, and the score of one author or solution."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data import SpeedupMetrics, TraceSet, TraceSetSummary
from tests.kit import make_definition, make_solution, make_trace, make_workload


def traced(solution, latencies, definition="gemm"):
    """Make a trace of each latency (uuid → ms; None: it failed)."""
    return [
        make_trace(
            definition=definition,
            workload=make_workload(uuid),
            solution=solution,
            **({"status": "RUNTIME_ERROR"} if latency is None else {"latency_ms": latency}),
        )
        for uuid, latency in latencies
    ]


def set_of(solutions, *traces, definitions=("gemm", "norm")):
    """Make a set of solutions (definition → name → author) and traces."""
    trace_set = TraceSet(
        definitions={name: make_definition(name, op_type=f"{name}_type") for name in definitions},
        solutions={
            name: [make_solution(one, definition=name, author=author) for one, author in group.items()]
            for name, group in solutions.items()
        },
    )
    trace_set.add_traces([trace for group in traces for trace in group])
    return trace_set


@pytest.fixture
def trace_set():
    return set_of(
        {
            "gemm": {"base": "baseline", "fast": "ann", "slow": "ann", "broken": "bob"},
            "norm": {"base_norm": "baseline", "ann_norm": "ann"},
        },
        traced("base", [("a", 8.0), ("a", 4.0), ("b", 4.0), ("c", None)]),
        traced("fast", [("a", 4.0), ("a", 1.0), ("b", 2.0), ("c", 1.0)]),
        traced("slow", [("a", 8.0), ("b", 8.0)]),
        traced("broken", [("a", 1.0), ("b", None)]),
        traced("base_norm", [("d", 3.0)], "norm"),
        traced("ann_norm", [("d", 1.5)], "norm"),
    )


def test_a_solution_is_scored_on_what_the_baseline_passed_by_lowest_latencies(trace_set):
    assert trace_set.get_solution_score("fast", "baseline") == SpeedupMetrics(
        avg_speedup=3.0, definitions=1, workloads=2, success_rate=1.0, win_rate=1.0
    )
    assert trace_set.get_solution_score("slow", baseline_author="baseline").avg_speedup == 0.5


def test_a_solution_with_a_failed_trace_scores_nothing_and_says_why(trace_set):
    score = trace_set.get_solution_score("broken", "baseline")
    assert (score.avg_speedup, score.success_rate, score.win_rate) == (0.0, 0.5, 1.0)


def test_an_author_is_scored_by_the_best_solution_of_each_definition(trace_set):
    assert trace_set.get_author_score("ann") == SpeedupMetrics(
        avg_speedup=2.5, definitions=2, workloads=3, success_rate=1.0, win_rate=1.0
    )
    assert trace_set.get_author_score("ann", definition_name="norm").avg_speedup == 2.0
    assert trace_set.get_author_score("ann", op_type="gemm_type").avg_speedup == 3.0


def test_authors_are_ranked_without_the_baseline(trace_set):
    ranking = trace_set.rank_authors("baseline")
    assert [(author, score.avg_speedup) for author, score in ranking] == [("ann", 2.5), ("bob", 0.0)]
    assert [author for author, _ in trace_set.rank_authors(op_type="norm_type")] == ["ann"]


def test_the_summary_has_its_numbers_as_attributes_and_by_key(trace_set):
    summary = trace_set.summary(baseline_author="baseline")
    assert isinstance(summary, TraceSetSummary)
    assert (summary.total, summary.passed, summary.failed) == (summary["total"], summary["passed"], summary["failed"])
    assert summary.total == summary.passed + summary.failed == 12
    assert summary.rankings == summary["rankings"] == trace_set.rank_authors()
    assert json.loads(json.dumps(summary))["by_author"] == {"ann": 6, "baseline": 4, "bob": 2}


@pytest.mark.parametrize("authors", [{}, {"base": "baseline", "base2": "baseline"}], ids=["none", "several"])
def test_a_definition_without_exactly_one_baseline_is_a_value_error(authors):
    trace_set = set_of({"gemm": {"fast": "ann", **authors}}, traced("fast", [("a", 1.0)]))
    for ask in (
        trace_set.rank_authors,
        lambda: trace_set.get_author_score("ann"),
        lambda: trace_set.get_solution_score("fast"),
        lambda: trace_set.summary().rankings,
        lambda: trace_set.summary(definition_name="gemm"),
    ):
        with pytest.raises(ValueError, match="exactly one solution of gemm"):
            ask()
    assert trace_set.summary().passed == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda found: found.get_author_score("anne"),
        lambda found: found.get_solution_score("fats"),
        lambda found: found.rank_authors(definition_name="gem"),
    ],
)
def test_unknown_names_are_a_value_error_with_the_nearest_one(trace_set, ask):
    with pytest.raises(ValueError, match=r"did you mean '(ann|fast|gemm)'"):
        ask(trace_set)


def test_who_was_not_run_has_no_score():
    trace_set = set_of({"gemm": {"base": "baseline", "new": "cy"}}, traced("base", [("a", 1.0)]))
    assert trace_set.get_solution_score("new") == trace_set.get_author_score("cy") == SpeedupMetrics()
