"""What `perf --save_trace_set` keeps: cases that `run` judges alike, and variants; and what --resume finds of it."""

import json
import shlex

import pytest
import yaml

from flashinfer_bench.bench.tolerances import TOLERANCES_FILE
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf.cases import read_requests
from flashinfer_bench.data import TraceSet
from flashinfer_bench.routines.case.materials import write_material
from flashinfer_bench.routines.case.support import Platform
from tests.routines.tables import read_rows

pytestmark = pytest.mark.cpu
H200 = Platform("NVIDIA H200", "9.0", {}, frozenset({"flashinfer", "cudnn"}))
BMM = "--routine bmm_fp8 --batch_size 2 --m 8 --n 16 --k 64"
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
QUICK = ["--num_iters", "2", "--dry_run_iters", "1", "--devices", "cpu"]


def perf(*words):
    return main(["perf", *map(str, words), *QUICK])


def recorded(folder):
    return [trace for traces in TraceSet.from_path(folder).traces.values() for trace in traces]


def test_a_case_keeps_its_tolerances_and_run_judges_by_them(tmp_path, capsys):
    folder = tmp_path / "set"
    assert perf(*shlex.split(BMM), "--backends", "torch", "--save_trace_set", folder) == 0
    (kept,) = recorded(folder)
    settings = kept.evaluation.extra["run"]["config"]
    assert settings["atol"] > 0.01  # what the bundled settings say
    capsys.readouterr()
    assert main(["run", "--local", str(folder), "--iterations", "2", "--warmup-runs", "1", "--require-passed"]) == 0
    assert f"note: {folder / TOLERANCES_FILE} says how 1 definition is judged" in capsys.readouterr().err
    again = recorded(folder)[-1].evaluation.extra["run"]["config"]
    names = ("rtol", "atol", "required_matched_ratio")
    assert [again[name] for name in names] == [settings[name] for name in names]


def test_the_settings_of_other_definitions_stay(tmp_path):
    (tmp_path / TOLERANCES_FILE).write_text("mine:\n  rtol: 0.5\n")
    assert perf(*shlex.split(RMSNORM), "--save_trace_set", tmp_path) == 0
    sections = yaml.safe_load((tmp_path / TOLERANCES_FILE).read_text())
    assert sections.pop("mine") == {"rtol": 0.5}
    assert [name.split("_")[0] for name in sections] == ["rmsnorm"]


def test_the_workloads_of_others_stay(tmp_path):
    (asked,) = read_requests(shlex.split(RMSNORM), None, H200)
    write_material(tmp_path, asked.material)
    (path,) = tmp_path.glob("workloads/**/*.jsonl")
    own = path.read_text()
    mine = own.replace(asked.material.workload.uuid, "6b0b6f1e-0000-4000-8000-000000000000")
    for before in (mine + own, own + mine, own + "not json\n" + mine, own.rstrip()):
        path.write_text(before)
        write_material(tmp_path, asked.material)
        assert path.read_text() == before
    path.write_text(mine + own.replace("random", "zeros") + "not json\n" + own)
    write_material(tmp_path, asked.material)
    assert path.read_text() == mine + own + "not json\n"
    path.write_text(mine)
    write_material(tmp_path, asked.material)
    assert path.read_text() == mine + own
    assert not [*tmp_path.rglob(".*")]


def test_variants_of_a_backend_lie_side_by_side(tmp_path):
    for flags in ("", "--autotune"):
        (request,) = read_requests([*shlex.split(BMM), "--backends", "cublas", *flags.split()], None, H200)
        write_material(tmp_path, request.material)
    found = TraceSet.from_path(tmp_path)
    assert len(found.definitions) == 1
    (solutions,) = found.solutions.values()
    assert sorted("AUTOTUNE = True" in item.sources[0].content for item in solutions) == [False, True]


def test_resume_tells_of_each_line_what_was_recorded_for_its_settings(tmp_path):
    testlist, folder, table = tmp_path / "list.txt", tmp_path / "set", tmp_path / "out.csv"
    testlist.write_text(
        "\n".join(f"{RMSNORM} {flags}" for flags in ("--num_iters 3", "--num_iters 4", "--random_seed 7"))
    )
    command = ["--testlist", testlist, "--save_trace_set", folder, "--output_path", table]
    assert perf(*command) == 0
    before = [item["samples"] for item in read_rows(table)]
    assert main(["run", "--local", str(folder), "--quiet", "--iterations", "9"]) == 0
    count = len(recorded(folder))
    assert perf(*command, "--resume") == 0
    assert [item["samples"] for item in read_rows(table)] == before == ["3", "4", "2"]
    assert len(recorded(folder)) == count


def test_another_seed_is_not_recorded(tmp_path):
    command = [*shlex.split(RMSNORM), "--save_trace_set", tmp_path, "--resume"]
    for seed in (1, 2, 1):
        assert perf(*command, "--random_seed", seed) == 0
    assert [trace.evaluation.extra["run"]["seed"] for trace in recorded(tmp_path)] == [1, 2]


def test_a_verdict_without_samples_is_no_record_where_samples_are_wanted(tmp_path):
    lines = tmp_path / "out.jsonl"
    command = [*shlex.split(RMSNORM), "--save_trace_set", tmp_path / "set"]
    assert perf(*command) == 0
    for _ in range(2):
        assert perf(*command, "--resume", "--json_path", lines) == 0
        assert "samples_ns" in json.loads(lines.read_text())["measurement"]
    assert len(recorded(tmp_path / "set")) == 2


def test_a_timeout_is_run_again_when_asked_or_under_a_longer_limit(tmp_path, capsys):
    command = [*shlex.split(RMSNORM), "--save_trace_set", tmp_path]
    assert perf(*command, "--timeout", "0.0005") == 1
    assert perf(*command, "--timeout", "0.0005", "--resume") == 1
    assert "TIMEOUT" in capsys.readouterr().out
    assert len(recorded(tmp_path)) == 1
    assert perf(*command, "--timeout", "0.0005", "--resume", "--retry_timeouts") == 1
    assert len(recorded(tmp_path)) == 2
    assert perf(*command, "--timeout", "100", "--resume") == 0
    assert perf(*command, "--retry_timeouts") == 2
