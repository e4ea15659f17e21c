"""Secrets of real runs: a recorded job is judged again on its inputs, and no solution reads a seed before."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.bench.runner import job_seeds
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(180)]
ONE_MORE = "def run(x):\n    return x * 2 + 1\n"
KNOWN = 0x2F1E3D4C5B6A7988
LOOKS_FOR_THE_SEED = """
import os
from pathlib import Path
seed = 0x2F1E3D4C5B6A7988 ^ int("0")
forms = [str(seed).encode(), hex(seed)[2:].encode(), seed.to_bytes(8, "little"), seed.to_bytes(8, "big")]
own = Path(__file__).resolve().parent
def candidates():
    run_directory = Path(os.environ["HOME"]).parent
    places = [run_directory, Path(os.environ["TMPDIR"]), Path.cwd(), own.parent]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            yield from (process / name for name in ("environ", "cmdline"))
    for place in places:
        try:
            yield from (path for path in place.rglob("*") if path.is_file() and own not in path.resolve().parents)
        except OSError:
            pass
def look():
    for path in candidates():
        try:
            content = path.read_bytes()
        except OSError:
            continue
        if any(form in content for form in forms):
            raise RuntimeError(f"the seed stands in {path}")
look()
calls = 0
def run(x):
    global calls
    calls += 1
    if calls < 4:
        look()
    return x * 2
"""
"""The seed stands in its own text, so it does not look there."""


def write_set(root, **solutions):
    workload = make_trace(solution=None, workload=make_workload(axes={"n": 4096}))
    return write_trace_set(
        root,
        {"workloads/test/double.jsonl": [workload]},
        definitions=[make_definition()],
        solutions=[make_solution(name, source=source) for name, source in solutions.items()],
    )


def run(root, traces=None, **settings):
    counts = {"warmup_runs": 1, "iterations": 3, "num_trials": 2, "profile_baseline": False}
    benchmark = Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(devices=["cpu"], **counts, **settings))
    if traces is not None:
        benchmark.replay(traces)
    events = benchmark.run(benchmark.plan(), save_results=False)
    return [event.trace for event in events if isinstance(event, JobFinished)]


def worst(trace):
    return trace.evaluation.correctness.extra["outputs"]["y"]["worst"]


def test_a_replayed_job_has_the_inputs_that_it_had_and_another_run_has_others(tmp_path):
    root = write_set(tmp_path, one_more=ONE_MORE)
    (first,), (other,) = run(root), run(root)
    (again,) = run(root, [first])
    assert again.evaluation.correctness == first.evaluation.correctness
    assert worst(other) != worst(first)
    assert first.evaluation.extra["run"]["seeded"] is False
    assert again.evaluation.extra["run"]["seed"] == first.evaluation.extra["run"]["seed"]


def test_a_seeded_run_is_the_same_again_by_its_seed_and_by_its_trace(tmp_path):
    root = write_set(tmp_path, one_more=ONE_MORE)
    (first,), (again,) = run(root, seed=5), run(root, seed=5)
    (replayed,) = run(root, [first])
    assert worst(first) == worst(again) == worst(replayed)
    assert first.evaluation.extra["run"]["seed"] == 5
    assert first.evaluation.extra["run"]["seeded"] is True


def test_the_command_replays_a_line_of_a_file_and_appends_nothing(tmp_path, capsys):
    root = write_set(tmp_path / "set", one_more=ONE_MORE)
    (first,) = run(root)
    file = tmp_path / "kept.jsonl"
    file.write_text(f"{make_trace(solution=None).to_json()}\n{first.to_json()}\n")
    before = sorted(path for path in root.rglob("*") if path.is_file())
    flags = ["--local", str(root), "--devices", "cpu", "--no-profile-baseline"]
    assert main(["run", *flags, "--num-trials", "2", "--replay", f"{file}:2"]) == 0
    shown = capsys.readouterr().out
    assert f"{worst(first)['expected']:.9g}"[:8] in shown
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before


@pytest.mark.slow
def test_a_seed_that_a_worker_can_read_would_be_found(tmp_path, monkeypatch):
    monkeypatch.setattr(job_seeds.secrets, "randbits", lambda bits: KNOWN)
    leak = 'Path(os.environ["HOME"], "leak").write_text(str(seed))\nlook()\n'
    (trace,) = run(write_set(tmp_path, looks=LOOKS_FOR_THE_SEED.replace("look()\ncalls", f"{leak}calls")))
    assert trace.evaluation.status.value == "COMPILE_ERROR"
    assert "the seed stands in" in trace.evaluation.log


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_nothing_that_a_worker_can_read_holds_the_seed(tmp_path, monkeypatch, isolated):
    monkeypatch.setattr(job_seeds.secrets, "randbits", lambda bits: KNOWN)
    (trace,) = run(write_set(tmp_path, looks=LOOKS_FOR_THE_SEED), use_isolated_runner=isolated)
    assert trace.evaluation.log == ""
    assert trace.evaluation.status.value == "PASSED"
    assert trace.evaluation.extra["run"]["seed"] == KNOWN
