"""A session of `perf` from flags to lines and files: with the engine on a CPU, and with verdicts made up."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import is_passed_on
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf import session as perf_session
from flashinfer_bench.cli.perf.ahead import (
    LOWER_PRIORITY,
    AheadCall,
    AheadSite,
    compile_ahead,
    compilers_each,
    list_calls,
    lower_wide,
    usual_parallel,
)
from flashinfer_bench.cli.perf.board import Board, counts_as_failed
from flashinfer_bench.cli.perf.cases import read_requests
from flashinfer_bench.cli.perf.files import COLUMNS, ResultFiles
from flashinfer_bench.cli.perf.rows import make_row, read_timing
from flashinfer_bench.cli.perf.session import PRECISION, make_config, make_trace_set
from flashinfer_bench.cli.perf.text import introduce, perf_line, report, test_name
from flashinfer_bench.data import SourceFile
from flashinfer_bench.routines.ahead.call_once import call_once
from flashinfer_bench.routines.case.materials import write_material
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.routines.table import ROUTINES
from flashinfer_bench.sandbox.process_tree import kill_session, session_members
from tests.kit.make import make_evaluation
from tests.kit.processes import marked, wait_until_gone
from tests.routines.small import SMALL
from tests.routines.tables import read_rows

test_name.__test__ = False
pytestmark = pytest.mark.cpu
CPU = Platform("a CPU", None, {}, frozenset())
H200 = Platform("NVIDIA H200", "9.0", {}, frozenset({"flashinfer"}))
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
QUICK = ["--num_iters", "2", "--dry_run_iters", "1"]
RECORD = {"method": "cuda_events", "cache_state": "cold", "median_ms": 0.002, "std_ms": 0.0005, "samples": 30}


def request(flags=""):
    return read_requests(shlex.split(f"{RMSNORM} {flags}"), None, CPU)[0]


def row(flags="", status="PASSED", record=RECORD, hardware="NVIDIA H200", log=""):
    extra = {"measurement": record} if record is not None else {}
    evaluation = make_evaluation(
        status, log=log, latency_ms=0.002, extra=extra, environment={"hardware": hardware, "libs": {}}
    )
    return make_row(request(flags), "torch", evaluation, device=hardware)


@pytest.fixture(scope="module")
def whole_table(tmp_path_factory):
    """Every routine at a small size, run once with the engine."""
    folder = tmp_path_factory.mktemp("perf")
    testlist, table, lines = (folder / name for name in ("list.txt", "out.csv", "out.jsonl"))
    testlist.write_text("\n".join(f"--routine {name} {flags} --backends torch" for name, flags in SMALL.items()))
    paths = ["--testlist", testlist, "--output_path", table, "--json_path", lines]
    code = main(["perf", *map(str, paths), "--refcheck", "--devices", "cpu", *QUICK])
    return code, table, lines


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_routine_runs_and_is_checked_without_a_gpu(whole_table):
    code, table, _ = whole_table
    rows = read_rows(table)
    assert code == 0
    assert [item["routine"] for item in rows] == list(SMALL)
    assert {item["status"] for item in rows} == {"passed"}
    assert all(float(item["median_time"]) > 0 and item["method"] == "wall" for item in rows)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_json_lines_hold_the_measurement(whole_table):
    documents = [json.loads(line) for line in whole_table[2].read_text(encoding="utf-8").splitlines()]
    assert [item["routine"] for item in documents] == list(SMALL)
    assert all(item["measurement"]["method"] == "wall" and item["facts"]["bytes"] > 0 for item in documents)


@pytest.mark.timeout(240)
def test_a_testlist_reports_bad_lines_runs_the_rest_and_can_be_resumed(tmp_path, capsys):
    testlist, table, folder = tmp_path / "list.txt", tmp_path / "out.csv", tmp_path / "set"
    testlist.write_text(f"{RMSNORM} --case_tag 'a, b'\n--routine nothing\n{RMSNORM} --num_heads 2\n")
    command = ["perf", "--testlist", str(testlist), "--save_trace_set", str(folder), "--devices", "cpu", *QUICK]
    assert main([*command, "--output_path", str(table)]) == 1
    first = capsys.readouterr().out
    assert first.count("[PERF] torch          :: median time") == 2
    assert "[ERROR] Error running test: --routine nothing" in first
    rows = read_rows(table)
    assert [item["status"] for item in rows] == ["failed", "passed", "passed"]
    assert rows[1]["case_tag"] == "a, b"
    traces = sorted(folder.glob("traces/**/*.jsonl"))
    before = [path.read_text(encoding="utf-8") for path in traces]
    assert main([*command, "--resume"]) == 1
    assert capsys.readouterr().out.count("[PERF]") == 2
    assert [path.read_text(encoding="utf-8") for path in traces] == before
    assert main(["run", "--local", str(folder), "--no-save-results", "--quiet", "--iterations", "2"]) == 0
    assert "2 PASSED" in capsys.readouterr().out


def test_the_perf_line_has_the_documented_form():
    found = row()
    assert perf_line(found).startswith("[PERF] torch          :: median time 0.002 ms; std 0.001 ms; achieved tflops ")
    assert perf_line(found).endswith(" TB/sec")
    assert found.facts["tb_per_sec"] == pytest.approx(2 * (4 * 64 * 2 + 64) / 1e12 / 2e-6)


@pytest.mark.parametrize(
    ("routine", "name"),
    [("rmsnorm_quant", "testRmsnormQuant"), ("bmm_fp8", "testBmmFp8"), ("softmax", "testSoftmax")],
)
def test_runs_bear_the_names_of_the_documents(routine, name):
    assert test_name(routine) == name


def test_verbosity_adds_lines():
    quiet, verbose, very = (list(introduce(request(flags), CPU)) for flags in ("", "-v", "-vv"))
    assert quiet == []
    assert verbose[0].startswith("[INFO] args = Namespace(routine='rmsnorm'")
    assert "[INFO] Running testRmsnorm" in verbose
    assert "[VVERBOSE] x.shape = torch.Size([4, 64])" in very
    assert "[VVERBOSE] gpu_name = 'a_CPU'" in very


def test_deprecated_and_skipped_things_are_warned_of():
    lines = list(introduce(request("--use_cupti --backends cuda"), CPU))
    assert lines[0].startswith("[WARNING] --use_cupti is deprecated and will be removed in a future release.")
    assert lines[1].startswith("[WARNING] cuda for routine rmsnorm needs an NVIDIA GPU")
    assert lines[2] == "[ERROR] No backends to test. Exiting."
    assert lines[3] == "[INFO] The backend torch needs neither a GPU nor FlashInfer: --backends torch runs here."


@pytest.mark.parametrize(
    ("flags", "label", "shows_time", "fails"),
    [
        ("", "[WARNING]", True, False),
        ("--refcheck", "[ERROR]", False, True),
        ("--refcheck --allow_output_mismatch", "[ERROR]", True, False),
    ],
)
def test_a_mismatch_is_told_and_timed_as_the_flags_say(flags, label, shows_time, fails):
    found = row(flags, "INCORRECT_NUMERICAL", log="output 'out': 3 of 256 elements differ")
    lines = list(report(found))
    assert lines[0].startswith(f"{label} Output tensor mismatch between backends torch and torch: output 'out': 3 of")
    assert any(line.startswith("[PERF]") for line in lines) == shows_time
    assert counts_as_failed(found) == fails


def test_a_failure_is_a_row_with_its_reason():
    found = row(status="RUNTIME_ERROR", record=None, log="ValueError: no such kernel")
    assert (found.outcome, counts_as_failed(found)) == ("failed", True)
    assert list(report(found))[1] == "[ERROR] Error: RUNTIME_ERROR: ValueError: no such kernel"


def test_a_time_that_cannot_be_is_flagged():
    lines = list(report(row("--batch_size 100000 --hidden_size 4096", record={**RECORD, "median_ms": 0.001})))
    assert any("faster than the device allows" in line for line in lines)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"median_ms": 0.5, "std_ms": 0.1}, (0.5, 0.1)),
        ({"samples_ns": [1e6, 2e6, 3e6]}, (2.0, 0.816496580927726)),
        ({"trials_ms": [1.0, 3.0]}, (2.0, None)),
        ({}, (0.002, None)),
    ],
)
def test_every_form_of_a_record_is_read(record, expected):
    found = row(record=record).timing
    assert found.median_ms == pytest.approx(expected[0])
    assert (found.std_ms == pytest.approx(expected[1])) if expected[1] is not None else found.std_ms != found.std_ms


@pytest.mark.parametrize(
    ("more", "caveat"),
    [
        ({}, None),
        ({"flags": ["host_bound"]}, None),
        ({"flags": ["host_bound"], "late": 7}, None),
        ({"flags": ["host_bound"], "late": 8}, "host_bound"),
        ({"flags": ["host_bound", "waits_inside", "noisy"]}, "waits_inside, noisy"),
        ({"meaningful": False, "reason": "interpreted", "flags": ["noisy"]}, "interpreted"),
    ],
)
def test_a_slow_host_is_told_only_where_the_spin_did_not_cover_it(more, caveat):
    assert row(record={**RECORD, **more}).timing.caveat == caveat


def test_what_was_not_timed_has_no_timing():
    assert read_timing(make_evaluation("TIMEOUT")) is None


def test_a_skipped_backend_is_a_row_and_columns_are_unique(tmp_path):
    path = tmp_path / "out.csv"
    requests = [request("--backends cuda")]
    board = Board(requests, ResultFiles(str(path), None, CPU), CPU)
    board.begin()
    rows = read_rows(path)
    assert [item["status"] for item in rows] == ["skipped"]
    assert board.exit_code == 1
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_every_flag_of_every_routine_has_a_column():
    known = set(COLUMNS) | {"backends", "verbose", "is_sf_swizzled_layout", "no_sf_swizzled_layout", "nvtx"}
    flags = {flag.name for routine in ROUTINES.values() for flag in routine.flags}
    assert flags - known == set()


@pytest.mark.parametrize(("flags", "rejected"), [("", True), ("--refcheck", None)])
def test_the_engine_is_told_counts_tolerance_and_what_to_time(flags, rejected):
    asked = request(f"--num_iters 11 --dry_run_iters 3 --random_seed 5 {flags}")
    config = make_config(
        [asked], argparse.Namespace(timeout=9, sandbox="auto", devices=None, json_path=None, output_path=None)
    )
    resolved = config.resolve_eval_config(asked.material.definition)
    assert (resolved.iterations, resolved.warmup_runs, resolved.num_trials, config.seed) == (11, 3, 1, 5)
    assert (config.timeout_seconds, resolved.rtol, resolved.precision) == (9, asked.case.check.rtol, PRECISION)
    assert resolved.extra.get("measure_rejected") is rejected


def test_the_script_is_the_command():
    text = (Path(__file__).parents[3] / "benchmarks" / "flashinfer_benchmark.py").read_text(encoding="utf-8")
    assert 'cli(["perf", *sys.argv[1:]])' in text


def test_library_solutions_are_compiled_ahead_once_and_on_every_device(tmp_path):
    asked = read_requests(shlex.split(f"{RMSNORM} cuda"), None, H200)
    calls = list_calls([*asked, *asked])
    assert [call.solution.name.rsplit("__", 1)[1].split("_")[0] for call in calls] == ["cuda"]
    samplers = [
        f"--routine {name} --batch_size 2 --vocab_size 64" for name in ("softmax", "sampling_from_probs", "top_k")
    ]
    asked = [*asked, *(one for line in samplers for one in read_requests(shlex.split(line), None, H200))]
    assert len(list_calls(asked)) == 3  # the library compiles norms, samplers and top_k each as one module
    assert (usual_parallel(2), usual_parallel(16), usual_parallel(128)) == (4, 16, 32)
    assert compilers_each(16, cores=16, memory=128 << 30) == 4
    assert compilers_each(1, cores=16, memory=128 << 30) == 16
    assert compilers_each(32, cores=8, memory=16 << 30) == 2
    calls = []
    devices = [Device("cuda", index, "NVIDIA H200", f"GPU-{index}") for index in range(2)]

    def start(command, environment, text):
        calls.append((command[3:], environment["CUDA_VISIBLE_DEVICES"], json.loads(text)["solution"]["name"]))
        return "out of memory" if len(calls) % 2 else ""

    assert compile_ahead([named("a"), named("b")], AheadSite(tmp_path, devices), parallel=1, start=start) == 1
    assert calls == [([str(tmp_path)], "GPU-0", "a"), ([str(tmp_path)], "GPU-1", "b")]


def named(name, content=None):
    """A call of rmsnorm whose solution has another name, and another source where one is given."""
    material = request().material
    solution = material.solutions["torch"]
    sources = solution.sources if content is None else [SourceFile(path="main.py", content=content)]
    return AheadCall(
        material.definition, solution.model_copy(update={"name": name, "sources": sources}), material.workload
    )


def test_a_solution_is_called_once_with_inputs_of_its_case(tmp_path):
    calls = tmp_path / "calls"
    source = f"""def run(*inputs):
    with open({str(calls)!r}, "a") as file:
        print(*[tuple(x.shape) for x in inputs], file=file)
"""
    call = named("s", source)
    call_once(tmp_path, call.definition, call.solution, call.workload)
    assert calls.read_text().splitlines() == ["(4, 64) (64,)"]


def test_what_lies_in_the_folder_is_not_executed_ahead(tmp_path):
    """A trace set's solutions are executed by workers alone, also one that has a backend's name."""
    seen = tmp_path / "seen"
    asked = request()
    write_material(tmp_path, asked.material)
    (path,) = tmp_path.glob("solutions/**/*.json")
    kept = json.loads(path.read_text())
    kept["sources"][0]["content"] = f"open({str(seen)!r}, 'w').close()\n{kept['sources'][0]['content']}"
    path.write_text(json.dumps(kept))
    call = AheadCall(asked.material.definition, asked.material.solutions["torch"], asked.material.workload)
    assert compile_ahead([call], AheadSite(tmp_path, [Device("cpu", 0, "a CPU", "cpu")]), parallel=1) == 1
    assert not seen.exists()


def test_a_wrong_backend_is_timed_and_stays_wrong(tmp_path):
    asked = request("--num_iters 2 --dry_run_iters 1")
    material = asked.material
    honest = material.solutions["torch"]
    zeros = "import torch\ndef run(x, weight):\n    return torch.zeros_like(x)\n"
    wrong = honest.model_copy(update={"sources": [SourceFile(path="main.py", content=zeros)]})
    asked.material = replace(material, solutions={"torch": wrong})
    session = argparse.Namespace(timeout=60, sandbox="auto", devices=["cpu"], json_path=None, output_path=None)
    trace_set = make_trace_set([asked], tmp_path, is_resumed=False)
    result = Benchmark(trace_set, make_config([asked], session)).run_all(save_results=False)
    evaluation = result.traces[material.definition.name][0].evaluation
    found = make_row(asked, "torch", evaluation, device="a CPU")
    assert (evaluation.status.value, evaluation.performance) == ("INCORRECT_NUMERICAL", None)
    assert found.outcome == "mismatch"
    assert found.timing.median_ms > 0


IN_ITS_GROUP = 'sleep 1000 & : > "$0.$$"; wait'
GROUP_OF_ITS_OWN = """
import subprocess, sys
from pathlib import Path
compiler = subprocess.Popen(["sleep", "1000"], process_group=0)
Path(sys.argv[1]).touch()
compiler.wait()
"""
IN_ANOTHER = f"""exec {sys.executable} -c '{GROUP_OF_ITS_OWN}' "$0.$$" """


@pytest.mark.parametrize("compiler", [IN_ITS_GROUP, IN_ANOTHER], ids=["one group", "a group each, as under ninja"])
def test_compiling_ahead_tells_how_far_it_is_and_an_interrupt_ends_its_children(tmp_path, monkeypatch, compiler):
    child, told, at_work = tmp_path / "child", [], []
    child.write_text(f"#!/bin/sh\ngrep -q '\"s0\"' && exit 1\n{compiler}\n", encoding="utf-8")
    child.chmod(0o755)

    def tell(done, call, _problem):
        told.append((done, call.solution.name))
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            at_work[:] = alive()  # two children, each with a compiler
            if len(list(tmp_path.glob("child.*"))) == 2 and len(at_work) >= 4:
                break
            time.sleep(0.02)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "executable", str(child))
    calls = [named(f"s{index}") for index in range(20)]
    with marked() as alive:
        with pytest.raises(KeyboardInterrupt):
            compile_ahead(calls, AheadSite(tmp_path, [Device("cpu", 0, "a CPU", "cpu")]), parallel=2, tell=tell)
        assert told == [(1, "s0")]
        assert len(at_work) >= 4
        assert wait_until_gone(alive) == []


def test_a_child_names_compilers_to_the_library_as_a_worker_does(tmp_path, monkeypatch):
    """Named otherwise, FlashInfer's build files differ, and every worker compiled again what was compiled ahead."""
    seen = tmp_path / "seen"
    seen.mkdir()
    monkeypatch.setenv("FLASHINFER_SEEN", str(seen))
    monkeypatch.setenv("CC", "/bin/sh")
    for name in ("CXX", "NVCC_APPEND_FLAGS", "CPLUS_INCLUDE_PATH", "UNKNOWN_TO_COMPILERS", "SOME_TOKEN"):
        monkeypatch.setenv(name, f"/opt/{name}")
    asked = request("--num_iters 2 --dry_run_iters 1")
    note = (
        "import json, os\njson.dump(dict(os.environ), open(f'{os.environ[\"FLASHINFER_SEEN\"]}/{os.getpid()}', 'w'))\n"
    )
    honest = asked.material.solutions["torch"]
    sources = [SourceFile(path="main.py", content=f"{honest.sources[0].content}\n{note}")]
    asked.material = replace(asked.material, solutions={"torch": honest.model_copy(update={"sources": sources})})
    write_material(tmp_path, asked.material)
    session = argparse.Namespace(timeout=60, sandbox="off", devices=["cpu"], json_path=None, output_path=None)
    trace_set = make_trace_set([asked], tmp_path, is_resumed=False)
    calls = [AheadCall(asked.material.definition, asked.material.solutions["torch"], asked.material.workload)]
    told = []
    compile_ahead(
        calls, AheadSite(tmp_path, [Device("cpu", 0, "a CPU", "cpu")]), parallel=1, tell=lambda *said: told.append(said)
    )
    assert told == [(1, calls[0], "")]
    Benchmark(trace_set, make_config([asked], session)).run_all(save_results=False)
    ahead, *later = [
        json.loads(path.read_text()) for path in sorted(seen.iterdir(), key=lambda one: one.stat().st_mtime)
    ]
    assert later
    for worker in later:
        passed_on = [name for name in {*ahead, *worker} - {"MAX_JOBS"} if is_passed_on(name)]  # it names no compiler
        assert [name for name in passed_on if ahead.get(name) != worker.get(name)] == []
        assert (worker["CC"], worker["CXX"], ahead["NVCC_APPEND_FLAGS"]) == (
            "/bin/sh",
            "/opt/CXX",
            "/opt/NVCC_APPEND_FLAGS",
        )
        assert not {"UNKNOWN_TO_COMPILERS", "SOME_TOKEN"} & {*worker}


def test_a_child_that_fails_says_why(tmp_path):
    told = []
    compile_ahead(
        [named("s", "raise ValueError('no library')")],
        AheadSite(tmp_path, [Device("cpu", 0, "a CPU", "cpu")]),
        parallel=1,
        tell=lambda _done, _job, problem: told.append(problem),
    )
    assert told == ["ValueError: no library"]


@contextmanager
def busy_session(count):
    """Start a session with so many processes that want a core; yields its id."""
    loops = f"for i in $(seq {count}); do while :; do :; done & done; wait"
    process = subprocess.Popen(["sh", "-c", loops], start_new_session=True)
    try:
        deadline = time.monotonic() + 10
        while (
            list(session_members([process.pid])[process.pid].values()).count("R") < count
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        yield process.pid
    finally:
        kill_session(process.pid)
        process.wait()


def priorities(pids):
    """Return the priority of each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            yield os.getpriority(os.PRIO_PROCESS, pid)


def test_a_child_with_few_compilers_goes_first_where_there_are_more_than_cores():
    with busy_session(4) as wide, busy_session(1) as narrow:
        assert lower_wide([wide, narrow], cores=64) == []
        assert lower_wide([wide, narrow], cores=2) == [wide]
        members = session_members([wide, narrow])
        found = [{*priorities(members[session])} for session in (wide, narrow)]
        assert found == [{LOWER_PRIORITY}, {os.getpriority(os.PRIO_PROCESS, 0)}]
    left = [state for found in session_members([wide, narrow]).values() for state in found.values()]
    assert {*left} <= {"Z"}  # not reaped yet


@pytest.mark.parametrize("group", ["", ", process_group=0"], ids=["one group", "a group of its own"])
def test_a_child_and_what_it_started_end_when_the_command_is_killed(group):
    child = (
        "import subprocess; from flashinfer_bench.routines.ahead.call_once import end_with_parent; end_with_parent();"
        f"print(flush=True); subprocess.run(['sleep', '1000']{group})"
    )
    command = (
        "import os, subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE, start_new_session=True);"
        "child.stdout.readline(); os.kill(os.getpid(), 9)"
    )
    with marked() as alive:
        assert subprocess.run([sys.executable, "-c", command], check=False).returncode == -9
        assert wait_until_gone(alive) == []


def test_an_interrupt_while_compiling_ahead_leaves_a_row_for_every_case(tmp_path, monkeypatch):
    handlers, path = [], tmp_path / "out.csv"

    def interrupted(*_arguments, **_options):
        handlers.append(signal.getsignal(signal.SIGTERM))
        raise KeyboardInterrupt

    monkeypatch.setattr(perf_session, "list_calls", lambda _requests: [named("s")])
    monkeypatch.setattr(perf_session, "compile_ahead", interrupted)
    words = [*shlex.split(RMSNORM), "--devices", "cpu", "--jit_jobs", "1", "--output_path", str(path)]
    assert main(["perf", *words]) == 130
    assert [(item["backend"], item["reason"]) for item in read_rows(path)] == [("torch", "interrupted")]
    assert handlers != [signal.SIG_DFL]  # SIGTERM, too, is an interrupt
