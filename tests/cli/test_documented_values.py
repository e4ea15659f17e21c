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
library_calls: refuse
baseline: compile
baseline: compile:max-autotune-no-cudagraphs
baseline: null
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
FAST = "--devices cpu --iterations 2 --warmup-runs 0 --num-trials 1"


@pytest.fixture(scope="module")
def make_set(tmp_path_factory):
    """Write a set of one job, with what it says of tolerances; returns its root, which has a file to edit."""

    def make(filed="atol: 0", **workload):
        return write_trace_set(
            tmp_path_factory.mktemp("set"),
            {"tolerances.yaml": f"double:\n  {filed}\n", "mine.py": "def run(x):\n    return x * 2\n"},
            definitions=[make_definition()],
            solutions=[make_solution()],
            workloads=[make_trace(solution=None, workload=make_workload("w0", **workload))],
        )

    return make


@pytest.fixture(scope="module")
def a_set(make_set):
    return make_set()


def check(root, line, *flags):
    words = line.replace("SET", str(root)).split()
    assert cli([*words, *map(str, flags)]) == 0, line


def check_plans(root, *flags):
    check(root, "run --local SET --dry-run --resume --definitions double", *flags)
    check(root, "run --local SET --dry-run --quick --solution SET/mine.py --definitions double", *flags)
    check(root, "config show --local SET --definition double", *flags)


def test_every_documented_key_is_here():
    rows = re.findall(r"^\| (`.*?) \|", GUIDE.read_text(), re.M)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert keys == {setting.partition(":")[0] for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_at_its_edges_is_planned_and_shown(a_set, tmp_path, setting):
    file = tmp_path / "settings.yaml"
    file.write_text(setting)
    check_plans(a_set, "--config", file)


@pytest.mark.parametrize(
    "said", [*({"filed": filed} for filed in FILED), *({"tolerance": tolerance} for tolerance in TOLERANCES)]
)
def test_what_a_set_and_a_workload_say_is_planned_and_shown(make_set, said):
    root = make_set(**said)
    check(root, "validate --local SET")
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
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings))
    check(make_set(), f"run --local SET {FAST} --require-passed --config", file)
    assert "1 PASSED" in capsys.readouterr().out


def test_a_set_with_a_zero_is_judged_by_every_command(make_set, tmp_path):
    root = make_set("{atol: 0, rtol: 0}")
    check(root, f"run --local SET {FAST} --require-passed")
    check(root, f"repro SET/mine.py w0 --local SET --dump {tmp_path / 'why'}")
    check(root, "report visualize --local SET")
    line = f"compare double_python {root}/mine.py --local {root} --devices cpu --budget 0.1"
    assert cli(line.split()) in (0, 1)  # 1: such a budget decides nothing


@pytest.mark.parametrize(
    "line",
    [
        "compare a b --local SET --budget inf",
        "run SET --timeout inf",
        "serve SET --drain nan",
        "serve SET --drain -1",
        "serve SET --port 65536",
        "serve SET --port -1",
    ],
)
def test_a_number_that_is_none_is_refused(a_set, capsys, line):
    assert cli(line.replace("SET", str(a_set)).split()) == 2
    assert line.split()[-2] in capsys.readouterr().err
