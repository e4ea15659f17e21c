"""No value that the documents allow ends a command in a traceback: every setting at its edges, through the commands."""

import json
import re
from pathlib import Path

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.cli.main import cli
from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(300)]

GUIDE = Path(__file__).parents[2] / "docs" / "configuration.md"
SWITCH = ["true", "false"]
EVAL_EDGES = {
    "warmup_runs": ["0", "10000000"],
    "iterations": ["1", "10000000"],
    "num_trials": ["1", "10000000"],
    "precision": ["1e-300", "0.5"],
    "rtol": ["1e-300", "1000000"],
    "atol": ["1e-300", "1000000"],
    "required_matched_ratio": ["1e-300", "1", "null"],
    "norm_rule": SWITCH,
    "lost_rows_rule": SWITCH,
    "regimes_rule": SWITCH,
    "power_rule": SWITCH,
    "extra": ["", "{}", "{mine: null}", "{mine: [1, {a: b}]}"],
}
RUN_EDGES = {
    "definitions": ["[double]", "null"],
    "op_types": ["[test]", "null"],
    "solutions": ["null"],
    "authors": ["null"],
    "workloads": ["[w0]", "null"],
    "devices": ["[cpu]", "null"],
    "timeout_seconds": ["1e-300", "1000000"],
    "time_budget_s": ["1e-300", "1000000"],
    "baseline_budget_s": ["1e-300", "1000000"],
    "profile_baseline": SWITCH,
    "fresh_baselines": SWITCH,
    "interpret": SWITCH,
    "use_isolated_runner": SWITCH,
    "seed": ["0", str(2**63 - 1), "null"],
    "worker_memory_gb": ["0.25", "1000000", "null"],
    "build_jobs": ["1", "10000000", "null"],
    "quick": SWITCH,
    "l2_cache": ["cold", "warm"],
    "clock": ["auto", "cuda_events"],
    "cuda_graphs": SWITCH,
    "assurance": ["standard", "full"],
    "confirm": SWITCH,
    "keep_samples": SWITCH,
    "sandbox": ["auto", "off"],
    "cluster": ["null"],
    "cluster_address": ["null", "10.0.0.1:6379"],
    "shared_blobs": SWITCH,
    "trust_definitions": SWITCH,
    "evaluator_modules": ["[]"],
    "op_type_config": ["", "{}", "{test: }", "{test: {}}"],
    "definition_config": ["", "{}", "{double: }", "{double: {}}"],
}
SETTINGS = [
    (key, value, place) for key, values in EVAL_EDGES.items() for value in values for place in ("", "op", "def")
]
SETTINGS += [(key, value, "") for key, values in RUN_EDGES.items() for value in values]
PLACES = {"": "{}", "op": "op_type_config: {{test: {{{}}}}}", "def": "definition_config: {{double: {{{}}}}}"}
FILED = [
    *(f"{key}: {value}" for key in ("rtol", "atol") for value in ("0", "1e308", "null")),
    "{atol: 0, rtol: 0.0, required_matched_ratio: 1}",
    "required_matched_ratio: null",
    "extra:",
    "{}",
]
TOLERANCES = [{"max_atol": 0}, {"max_rtol": 0}, {"max_atol": 0, "max_rtol": 0, "max_error_cap": 1e-300}, {}, None]
FLAGS = [
    ("--warmup-runs", "0"),
    ("--iterations", "1"),
    ("--num-trials", "1"),
    ("--precision", "0.5"),
    ("--rtol", "1e308"),
    ("--atol", "1e-300"),
    ("--required-matched-ratio", "1"),
    ("--timeout", "1000000"),
    ("--seed", "0"),
    ("--worker-memory-gb", "1"),
    ("--build-jobs", "1"),
    ("--sandbox", "off"),
    ("--quick",),
    ("--no-norm-rule",),
    ("--no-profile-baseline",),
]
FAST = ("--devices", "cpu", "--iterations", "2", "--warmup-runs", "0", "--num-trials", "1")


@pytest.fixture(scope="module")
def make_set(tmp_path_factory):
    """Write a set of one job, with what it says of tolerances; returns its root, which has a file to edit."""

    def make(filed="atol: 0", tolerance=None):
        workload = make_workload("w0", **({} if tolerance is None else {"tolerance": tolerance}))
        root = write_trace_set(
            tmp_path_factory.mktemp("set"),
            definitions=[make_definition()],
            solutions=[make_solution()],
            workloads=[make_trace(solution=None, workload=workload)],
        )
        (root / "tolerances.yaml").write_text(f"double:\n  {filed}\n")
        (root / "mine.py").write_text("def run(x):\n    return x * 2\n")
        return root

    return make


@pytest.fixture(scope="module")
def a_set(make_set):
    return make_set()


def check(*words):
    assert cli([str(word) for word in words]) == 0, words


def check_plans(root, *flags):
    check("run", "--local", root, "--dry-run", "--resume", "--definitions", "double", *flags)
    check("run", "--local", root, "--dry-run", "--quick", "--solution", root / "mine.py", *flags)
    check("config", "show", "--local", root, "--definition", "double", *flags)


def test_every_documented_key_is_here():
    keys = [
        key for line in re.findall(r"^\| (`.*?) \|", GUIDE.read_text(), re.M) for key in re.findall(r"`(\w+)`", line)
    ]
    assert set(keys) == {*EVAL_EDGES, *RUN_EDGES}


@pytest.mark.parametrize(("key", "value", "place"), SETTINGS)
def test_a_setting_at_its_edges_is_planned_and_shown(a_set, tmp_path, key, value, place):
    file = tmp_path / "settings.yaml"
    file.write_text(PLACES[place].format(f"{key}: {value}"))
    check_plans(a_set, "--config", file)


@pytest.mark.parametrize("flag", FLAGS, ids=" ".join)
def test_a_flag_at_its_edges_is_planned_and_shown(a_set, flag):
    check_plans(a_set, *flag)


@pytest.mark.parametrize("filed", FILED)
def test_what_a_set_says_is_planned_and_shown(make_set, filed):
    root = make_set(filed)
    check("validate", "--local", root)
    check_plans(root)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_a_tolerance_of_a_workload_is_planned_and_shown(make_set, tolerance):
    root = make_set(tolerance=tolerance)
    check("validate", "--local", root)
    check_plans(root)


def test_a_zero_of_a_set_lasts_through_all_that_python_does_with_a_configuration(a_set):
    trace_set = TraceSet.from_path(a_set)
    config = BenchmarkConfig.default().for_set(trace_set)
    config.iterations = 20
    config = config.with_overrides(rtol=0.5).model_copy(update={"num_trials": 1}).for_set(trace_set)
    resolved = config.resolve_eval_config(trace_set.definitions["double"])
    assert (resolved.atol, resolved.rtol, resolved.iterations, resolved.num_trials) == (0.0, 0.5, 20, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout_seconds": 1e6, "worker_memory_gb": 1e6, "rtol": 1e308, "atol": 1e308, "build_jobs": 10**7},
        {"time_budget_s": 1e-300, "baseline_budget_s": 1e-300, "precision": 1e-300, "rtol": 1e-300, "seed": 2**63 - 1},
    ],
    ids=["most", "least"],
)
def test_a_whole_run_at_the_edges_gives_a_verdict(make_set, tmp_path, capsys, settings):
    root, file = make_set(), tmp_path / "settings.json"
    file.write_text(json.dumps(settings))
    check("run", "--local", root, "--config", file, *FAST, "--require-passed")
    assert "1 PASSED" in capsys.readouterr().out


def test_a_set_with_a_zero_is_judged_by_every_command(make_set, tmp_path):
    root = make_set("{atol: 0, rtol: 0}")
    check("run", "--local", root, *FAST, "--require-passed")
    check("run", "--local", root, "--solution", root / "mine.py", *FAST, "--quick", "--require-passed")
    check("repro", root / "mine.py", "w0", "--local", root, "--dump", tmp_path / "why")
    compare = ["compare", "double_python", str(root / "mine.py"), "--local", str(root), "--devices", "cpu"]
    assert cli([*compare, "--budget", "0.1"]) in (0, 1)  # 1: such a budget decides nothing
    for report in ("summary", "best", "visualize"):
        check("report", report, "--local", root)


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "a", "b", "--budget", "nan"),
        ("compare", "a", "b", "--budget", "inf"),
        ("cache", "clear", "--keep-gb", "inf"),
        ("run", "--timeout", "inf"),
        ("serve", "--drain", "nan"),
        ("serve", "--drain", "-1"),
        ("serve", "--port", "65536"),
        ("serve", "--port", "-1"),
        ("serve", "--port", "9" * 30),
    ],
    ids=" ".join,
)
def test_a_number_that_is_none_is_refused(a_set, capsys, words):
    assert cli([*words, "--local", str(a_set)][: None if words[0] != "cache" else -2]) == 2
    assert words[-2] in capsys.readouterr().err
