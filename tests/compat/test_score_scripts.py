"""Scripts that compare authors over a whole set: the summary, rankings, and the score of one author or solution."""

from __future__ import annotations

import json

import pytest

from flashinfer_bench.data import SpeedupMetrics, TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload

SOLUTIONS = {
    "gemm": {"base": "baseline", "fast": "ann", "slow": "ann", "broken": "bob", "new": "cy"},
    "norm": {"base_norm": "baseline", "ann_norm": "ann"},
}
LATENCIES = {
    "base": [("a", 4.0), ("a", 8.0), ("b", 4.0), ("c", None)],
    "fast": [("a", 1.0), ("a", 4.0), ("b", 2.0), ("c", 1.0)],
    "slow": [("a", 8.0), ("b", 8.0)],
    "broken": [("a", 1.0), ("b", None)],
    "base_norm": [("d", 3.0)],
    "ann_norm": [("d", 1.5)],
}
"""Solution → workload and latency in ms of each trace; None: it failed."""


def make_set(solutions):
    """Make a set of solutions (definition → name → author) with their traces."""
    trace_set = TraceSet(
        definitions={name: make_definition(name, op_type=f"{name}_type") for name in solutions},
        solutions={
            name: [make_solution(one, definition=name, author=author) for one, author in group.items()]
            for name, group in solutions.items()
        },
    )
    for name, group in solutions.items():
        for one in group:
            for uuid, latency in LATENCIES.get(one, ()):
                said = {"status": "RUNTIME_ERROR"} if latency is None else {"latency_ms": latency}
                trace_set.add_traces([make_trace(definition=name, workload=make_workload(uuid), solution=one, **said)])
    return trace_set


@pytest.fixture(scope="module")
def trace_set():
    return make_set(SOLUTIONS)


def test_scores_use_the_lowest_latencies_on_workloads_that_the_baseline_passed(trace_set):
    whole = {"success_rate": 1.0, "win_rate": 1.0}
    of_solution, of_author = trace_set.get_solution_score, trace_set.get_author_score
    assert of_solution("fast", "baseline") == SpeedupMetrics(avg_speedup=3.0, definitions=1, workloads=2, **whole)
    assert of_author("ann") == SpeedupMetrics(avg_speedup=2.5, definitions=2, workloads=3, **whole)
    assert of_solution("slow", baseline_author="baseline").avg_speedup == 0.5
    failed = of_solution("broken", "baseline")
    assert (failed.avg_speedup, failed.success_rate, failed.win_rate) == (0.0, 0.5, 1.0)
    assert of_author("ann", definition_name="norm").avg_speedup == 2.0
    assert of_author("ann", op_type="gemm_type").avg_speedup == 3.0
    assert of_solution("new") == of_author("cy") == SpeedupMetrics()  # it was not run


def test_authors_are_ranked_without_the_baseline(trace_set):
    ranking = trace_set.rank_authors("baseline")
    assert [(author, score.avg_speedup) for author, score in ranking][:2] == [("ann", 2.5), ("bob", 0.0)]
    assert [author for author, _ in trace_set.rank_authors(op_type="norm_type")] == ["ann"]
    summary = trace_set.summary(baseline_author="baseline")
    assert summary.rankings == summary["rankings"] == trace_set.rank_authors()
    assert summary.total == summary.passed + summary.failed == 12
    assert json.loads(json.dumps(summary))["total"] == 12


@pytest.mark.parametrize("authors", [{}, {"base": "baseline", "base2": "baseline"}], ids=["none", "several"])
def test_a_definition_without_exactly_one_baseline_is_a_value_error(authors):
    trace_set = make_set({"gemm": {"fast": "ann", **authors}})
    for ask in (
        trace_set.rank_authors,
        lambda: trace_set.get_author_score("ann"),
        lambda: trace_set.get_solution_score("fast"),
        lambda: trace_set.summary().rankings,
        lambda: trace_set.summary(definition_name="gemm"),
    ):
        with pytest.raises(ValueError, match="exactly one solution of gemm"):
            ask()
    assert trace_set.summary().total == len(LATENCIES["fast"]) - 1 + 3 * bool(authors)


@pytest.mark.parametrize(
    ("ask", "near"),
    [
        (lambda found: found.get_author_score("anne"), "ann"),
        (lambda found: found.get_solution_score("fats"), "fast"),
        (lambda found: found.rank_authors(definition_name="gem"), "gemm"),
    ],
)
def test_unknown_names_are_a_value_error_with_the_nearest_one(trace_set, ask, near):
    with pytest.raises(ValueError, match=f"did you mean '{near}'"):
        ask(trace_set)
