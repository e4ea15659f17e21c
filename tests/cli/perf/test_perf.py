"""`perf` as a command on a CPU: every routine, testlists, files, kept sets, and what is compiled ahead."""

from __future__ import annotations

import json
import os
import shlex
import time
from dataclasses import replace

import pytest
import yaml

from flashinfer_bench.base.isolated import Isolated
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import is_passed_on
from flashinfer_bench.bench.tolerances import TOLERANCES_FILE
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf import ahead
from flashinfer_bench.cli.perf import session as perf_session
from flashinfer_bench.data import SourceFile, TraceSet
from flashinfer_bench.routines.case.materials import write_material
from flashinfer_bench.routines.case.support import Platform
from tests.kit.processes import marked, wait_until_gone
from tests.routines.small import SMALL, ask, read_rows

pytestmark = pytest.mark.cpu
H200 = Platform("NVIDIA H200", "9.0", {}, frozenset({"flashinfer", "cudnn"}))
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
SOFTMAX = "--routine softmax --batch_size 2 --vocab_size 16 --backends torch"
BMM = "--routine bmm_fp8 --batch_size 2 --m 8 --n 16 --k 64"
PAGES = "--routine BatchDecodeWithPagedKVCacheWrapper --num_qo_heads 4 --num_kv_heads 4 --head_dim_qk 16 --page_size 1"
QUICK = ["--num_iters", "2", "--dry_run_iters", "1", "--devices", "cpu"]
CPU = [Device("cpu", 0, "a CPU", "cpu")]


def perf(*words):
    return main(["perf", *map(str, words), *QUICK])


def perf_list(folder, *lines, words=()):
    """Run a testlist; return the exit code and the rows of its table."""
    (folder / "list.txt").write_text("\n".join(lines))
    code = perf("--testlist", folder / "list.txt", "--output_path", folder / "out.csv", *words)
    return code, read_rows(folder / "out.csv")


def recorded(folder):
    return [trace for traces in TraceSet.from_path(folder).traces.values() for trace in traces]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_routine_runs_and_is_checked_without_a_gpu(tmp_path):
    lines = [f"--routine {name} {flags} --backends torch" for name, flags in SMALL.items()]
    code, rows = perf_list(tmp_path, *lines, words=["--refcheck"])
    assert code == 0
    found = [(item["routine"], item["status"], item["method"]) for item in rows]
    assert found == [(name, "passed", "wall") for name in SMALL]
    assert all(float(item["median_time"]) > 0 < float(item["bytes"]) for item in rows)


def test_a_testlist_reports_bad_lines_and_runs_the_rest(tmp_path, capsys):
    unwanted = tmp_path / "unwanted.jsonl"
    lines = [
        f"{RMSNORM} --case_tag 'a, b' --timeout 5 --json_path={unwanted}",
        "--routine nothing",
        f"{RMSNORM} --num_heads 2",
        f"{RMSNORM} --random_seed 99999999999999999999",
        f"{PAGES} --backends torch --batch_size 4000000 --s_kv 100000",
    ]
    code, rows = perf_list(tmp_path, *lines)
    out = capsys.readouterr().out
    assert (code, out.count("[PERF] torch          :: median time"), unwanted.exists()) == (1, 2, False)
    assert "[ERROR] Error running test: --routine nothing" in out
    assert "[WARNING] Line 1: without effect: --json_path, --timeout; what holds for the whole session" in out
    found = {int(item["testlist_line"]): item for item in rows}
    assert [found[at]["status"] for at in range(1, 6)] == ["passed", "failed", "passed", "failed", "failed"]
    assert (found[1]["case_tag"], found[2]["median_time"]) == ("a, b", "")
    assert "seed" in found[4]["reason"]
    assert "more memory than this machine has" in found[5]["reason"]


def test_a_slip_beside_a_testlist_ends_it_before_anything_is_opened(tmp_path, capsys):
    (tmp_path / "out.csv").write_text("kept")
    (tmp_path / "list.txt").write_text(RMSNORM)
    words = ["--testlist", tmp_path / "list.txt", "--output_path", tmp_path / "out.csv"]
    assert perf(*words, "--refchek", "--vocab_sise", 4) == 2
    assert "unknown flag --vocab_sise" in capsys.readouterr().err
    (tmp_path / TOLERANCES_FILE).write_text("- no mapping\n")
    assert perf(*shlex.split(RMSNORM), *words[2:], "--save_trace_set", tmp_path) == 2
    assert ("a mapping" in capsys.readouterr().err, (tmp_path / "out.csv").read_text()) == (True, "kept")


def test_a_file_that_loses_rows_is_told_once_and_costs_no_other_verdict(tmp_path, capsys):
    tag = b"a\xffb".decode("utf-8", "surrogateescape")  # as the shell gives it
    words = ["--json_path", "/dev/full", "--case_tag", tag]
    code, rows = perf_list(tmp_path, RMSNORM, f"{RMSNORM} --eps 1e-5", words=words)
    assert (code, [(row["status"], row["case_tag"]) for row in rows]) == (1, [("passed", "a\\udcffb")] * 2)
    ended = capsys.readouterr()
    assert ended.out.count("[PERF]") == 2
    assert ended.err.count("error: /dev/full: a row cannot be written, and none after it will be: No space left") == 1


def test_a_wrong_backend_is_timed_and_stays_wrong(tmp_path, monkeypatch):
    zeros = "import torch\ndef run(x, weight):\n    return torch.zeros_like(x)\n"
    monkeypatch.setattr(perf_session, "read_requests", lambda *_: [with_source(zeros)])
    assert perf(*shlex.split(RMSNORM), "--json_path", tmp_path / "out.jsonl") == 0
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert (row["status"], row["median_ms"] > 0, "samples_ns" in row["measurement"]) == ("mismatch", True, True)


def test_a_case_keeps_its_tolerances_and_run_judges_by_them(tmp_path, capsys):
    (tmp_path / TOLERANCES_FILE).write_text("mine:\n  rtol: 0.5\n")
    assert perf(*shlex.split(BMM), "--backends", "torch", "--save_trace_set", tmp_path) == 0
    sections = yaml.safe_load((tmp_path / TOLERANCES_FILE).read_text())
    assert sections.pop("mine") == {"rtol": 0.5}
    assert len(sections) == 1
    settings = recorded(tmp_path)[0].evaluation.extra["run"]["config"]
    assert settings["atol"] > 0.01  # what the bundled settings say
    words = ["--iterations", "2", "--warmup-runs", "1", "--require-passed"]
    assert main(["run", "--local", str(tmp_path), *words]) == 0
    assert "says how" in capsys.readouterr().err
    again = recorded(tmp_path)[-1].evaluation.extra["run"]["config"]
    names = ("rtol", "atol", "required_matched_ratio")
    assert [again[name] for name in names] == [settings[name] for name in names]


def test_the_workloads_of_others_stay(tmp_path):
    (asked,) = ask(RMSNORM, H200)
    write_material(tmp_path, asked.material)
    (path,) = tmp_path.glob("workloads/**/*.jsonl")
    own = path.read_text()
    mine = own.replace(asked.material.workload.uuid, "6b0b6f1e-0000-4000-8000-000000000000")
    for before, after in (own + "not json\n" + mine, own + "not json\n" + mine), (mine, mine + own):
        path.write_text(before)
        write_material(tmp_path, asked.material)
        assert path.read_text() == after
    assert not [*tmp_path.rglob(".*")]


def test_variants_of_a_backend_lie_side_by_side(tmp_path):
    for flags in ("", "--autotune"):
        (request,) = ask(f"{BMM} --backends cublas {flags}", H200)
        write_material(tmp_path, request.material)
    (solutions,) = TraceSet.from_path(tmp_path).solutions.values()
    assert sorted("AUTOTUNE = True" in item.sources[0].content for item in solutions) == [False, True]


def test_resume_tells_of_each_line_what_was_recorded_for_its_settings(tmp_path):
    lines = [f"{RMSNORM} {flags}" for flags in ("--num_iters 3", "--num_iters 4", "--random_seed 7")]
    words = ["--save_trace_set", tmp_path / "set", "--resume"]
    for _ in range(2):
        rows = perf_list(tmp_path, *lines, words=words)[1]
        assert [item["samples"] for item in rows] == ["3", "4", "2"]
        assert len(recorded(tmp_path / "set")) == 3


def test_a_timeout_is_run_again_when_asked_or_under_a_longer_limit(tmp_path, capsys):
    command = [*shlex.split(RMSNORM), "--save_trace_set", tmp_path]
    for words, code, count in (
        (["--timeout", "0.0005"], 1, 1),
        (["--timeout", "0.0005", "--resume"], 1, 1),
        (["--timeout", "0.0005", "--resume", "--retry_timeouts"], 1, 2),
        (["--timeout", "100", "--resume"], 0, 3),
    ):
        assert perf(*command, *words) == code
        assert ("TIMEOUT" in capsys.readouterr().out, len(recorded(tmp_path))) == (code == 1, count)


def with_source(content, name="s"):
    """A case of rmsnorm whose backend has another source."""
    (asked,) = ask(RMSNORM)
    sources = {"sources": [SourceFile(path="main.py", content=content)], "name": name}
    solutions = {"torch": asked.material.solutions["torch"].model_copy(update=sources)}
    asked.material = replace(asked.material, solutions=solutions)
    return asked


def calls_of(*requests):
    """What `compile_ahead` would call if `torch` were a backend of the library."""
    return [
        {
            "definition": one.material.definition.to_dict(),
            "solution": one.material.solutions["torch"].to_dict(),
            "workload": one.material.workload.to_dict(),
        }
        for one in requests
    ]


def test_a_module_is_compiled_ahead_once_for_all_routines_that_share_it():
    names = ("rmsnorm", "rmsnorm_quant", "softmax", "top_k", "sampling_from_probs")
    asked = [request for name in names for request in ask(f"--routine {name} {SMALL[name]} --backends cuda", H200)]
    assert len(asked) == 5
    assert [call["definition"]["name"].partition("_bs")[0] for call in ahead.list_calls(asked)] == [
        "rmsnorm",
        "softmax",
        "top_k",
    ]


def test_what_is_compiled_ahead_sees_the_compilers_of_workers_and_a_failure_is_told(tmp_path, monkeypatch, capsys):
    """Named otherwise, FlashInfer's build files differ, and every worker compiled again what was compiled ahead."""
    seen = tmp_path / "seen"
    seen.mkdir()
    given = {"CC": "/bin/sh", "CXX": "/opt/CXX", "NVCC_APPEND_FLAGS": "-O3", "CPLUS_INCLUDE_PATH": "/opt/include"}
    for name, value in {**given, "FLASHINFER_SEEN": str(seen), "UNKNOWN_TO_COMPILERS": "1", "SOME_TOKEN": "1"}.items():
        monkeypatch.setenv(name, value)
    where = "open(f'{os.environ[\"FLASHINFER_SEEN\"]}/{os.getpid()}', 'w')"
    honest = ask(RMSNORM)[0].material.solutions["torch"].sources[0].content
    asked = with_source(f"{honest}\nimport json, os\njson.dump(dict(os.environ), {where})\n")
    monkeypatch.setattr(ahead, "list_calls", lambda _: calls_of(asked, with_source("raise ValueError('no')", "t")))
    ahead.compile_ahead([asked], tmp_path, CPU, jobs=1, for_walls=False)
    err = capsys.readouterr().err
    assert "the latest t, which failed: ValueError: no" in err
    assert "compiling ahead: 2 of 2, the latest" in err
    monkeypatch.setattr(perf_session, "read_requests", lambda *_: [asked])
    assert perf(*shlex.split(RMSNORM), "--sandbox", "off") == 0
    noted = sorted(seen.iterdir(), key=lambda one: one.stat().st_mtime)
    first, *later = [json.loads(path.read_text()) for path in noted]
    assert later
    for worker in later:
        names = [name for name in {*first, *worker} - {"MAX_JOBS"} if is_passed_on(name)]
        assert [name for name in names if first.get(name) != worker.get(name)] == []
        assert given.items() <= worker.items()
        assert not {"UNKNOWN_TO_COMPILERS", "SOME_TOKEN"} & {*worker}


def test_an_interrupt_while_compiling_ahead_ends_what_was_started_and_leaves_a_row_for_every_case(
    tmp_path, monkeypatch
):
    source = "import subprocess\nsubprocess.run(['sleep', '1000'], process_group=0)"  # as under ninja
    requests = [with_source("", "quick"), *(with_source(source, f"s{index}") for index in range(20))]
    monkeypatch.setattr(ahead, "list_calls", lambda _: calls_of(*requests))
    at_work = []

    def interrupt(line):
        if "1 of 21" in line:
            deadline = time.monotonic() + 60
            while len(alive()) < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
            at_work.extend(alive())
            raise KeyboardInterrupt

    monkeypatch.setattr(ahead, "write_err", interrupt)
    with marked() as alive:
        words = ["--jit_jobs", "2", "--output_path", tmp_path / "out.csv"]
        assert perf(*shlex.split(RMSNORM), *words) == 130
        assert len(at_work) >= 4
        assert wait_until_gone(alive) == []
    assert [(item["backend"], item["reason"]) for item in read_rows(tmp_path / "out.csv")] == [("torch", "interrupted")]


def test_what_lies_in_the_folder_is_not_executed_ahead(tmp_path):
    """A trace set's solutions are executed by workers alone, also one that has a backend's name."""
    (asked,) = ask(RMSNORM)
    write_material(tmp_path, asked.material)
    (path,) = tmp_path.glob("solutions/**/*.json")
    kept = json.loads(path.read_text())
    kept["sources"][0]["content"] = f"open({str(tmp_path / 'seen')!r}, 'w').close()"
    path.write_text(json.dumps(kept))
    (order,) = calls_of(asked)
    with Isolated(ahead.MODULE, {"root": str(tmp_path), **order}, environment=dict(os.environ)) as process:
        process.wait(120)
    assert not (tmp_path / "seen").exists()
