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
OF_A_DEFINITION = """\
warmup_runs: 0
warmup_runs: 10000000
iterations: 1
iterations: 10000000
num_trials: 1
num_trials: 10000000
precision: 1e-300
precision: 0.5
rtol: 1e-300
rtol: 1000000
atol: 1e-300
atol: 1000000
required_matched_ratio: 1e-300
required_matched_ratio: 1
required_matched_ratio: null
extra:
extra: {mine: null}
extra: {mine: [1, {a: b}]}
""".splitlines()
"""Settings at their edges, which a section for a definition may have, too."""
OF_A_RUN = """\
definitions: [double]
definitions: null
op_types: null
solutions: null
authors: null
workloads: [w0]
workloads: null
devices: null
timeout_seconds: 1e-300
timeout_seconds: 1000000
call_timeout_seconds: 1000000
call_timeout_seconds: null
time_budget_s: 1e-300
time_budget_s: 1000000
baseline_budget_s: 1e-300
baseline_budget_s: 1000000
seed: 0
seed: 9223372036854775807
seed: null
worker_memory_gb: 0.25
worker_memory_gb: 1000000
worker_memory_gb: null
build_jobs: 10000000
build_jobs: null
l2_cache: warm
clock: cuda_events
assurance: full
sandbox: off
cluster: null
cluster_address: null
cluster_address: 10.0.0.1:6379
evaluator_modules: []
op_type_config:
op_type_config: {test: }
definition_config:
definition_config: {double: }
""".splitlines()
SWITCHES = [name for name, field in BenchmarkConfig.model_fields.items() if field.annotation is bool]
SETTINGS = [
    *OF_A_DEFINITION,
    *(f"definition_config: {{double: {{{setting}}}}}" for setting in OF_A_DEFINITION),
    *OF_A_RUN,
    *(f"{name}: {value}" for name in SWITCHES for value in ("true", "false")),
]
FILED = [
    *(f"{key}: {value}" for key in ("rtol", "atol") for value in ("0", "1e308", "null")),
    "{atol: 0, rtol: 0.0, required_matched_ratio: 1}",
    "required_matched_ratio: null",
    "extra:",
    "{}",
]
TOLERANCES = [{"max_atol": 0, "max_rtol": 0, "max_error_cap": 1e-300}, {"max_atol": 0}, {}]
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
    assert set(keys) == {setting.partition(":")[0] for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_at_its_edges_is_planned_and_shown(a_set, tmp_path, setting):
    file = tmp_path / "settings.yaml"
    file.write_text(setting)
    check_plans(a_set, "--config", file)


@pytest.mark.parametrize(
    ("filed", "tolerance"), [*((filed, None) for filed in FILED), *(("atol: 0", tolerance) for tolerance in TOLERANCES)]
)
def test_what_a_set_and_a_workload_say_is_planned_and_shown(make_set, filed, tolerance):
    root = make_set(filed, tolerance)
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
    "line",
    [
        "compare a b --local SET --budget nan",
        "compare a b --local SET --budget inf",
        "cache clear --keep-gb inf",
        "run SET --timeout inf",
        "serve SET --drain nan",
        "serve SET --drain -1",
        "serve SET --port 65536",
        "serve SET --port -1",
    ],
)
def test_a_number_that_is_none_is_refused(a_set, capsys, line):
    *words, flag, value = line.replace("SET", str(a_set)).split()
    assert cli([*words, flag, value]) == 2
    assert flag in capsys.readouterr().err
