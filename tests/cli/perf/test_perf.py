"""`perf` as a command on a CPU: a routine of each family, files that fail, kept sets, and what is compiled ahead."""

from __future__ import annotations

import json
import resource
import shlex
import time
from argparse import Namespace
from dataclasses import replace

import pytest
import yaml

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import is_passed_on
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf import ahead
from flashinfer_bench.cli.perf import session as perf_session
from flashinfer_bench.cli.perf.results import Results, make_row
from flashinfer_bench.data import SourceFile, TraceSet
from flashinfer_bench.routines.case.generated_entry import write_entry
from flashinfer_bench.routines.case.support import Platform
from tests.kit.processes import marked, wait_until_gone
from tests.routines.small import SMALL, ask, read_rows

pytestmark = pytest.mark.cpu
H200 = Platform("NVIDIA H200", "9.0", {}, frozenset({"flashinfer", "cudnn"}))
RMSNORM = "--routine rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
BMM = "--routine bmm_fp8 --batch_size 2 --m 8 --n 16 --k 64"
QUICK = ["--num_iters", "2", "--dry_run_iters", "1", "--devices", "cpu"]


def perf(*words):
    return main(["perf", *map(str, words), *QUICK])


def recorded(folder):
    return [trace for traces in TraceSet.from_path(folder).traces.values() for trace in traces]


def with_source(content, name="s"):
    """A case of rmsnorm whose backend has another source."""
    (asked,) = ask(RMSNORM)
    sources = {"sources": [SourceFile(path="main.py", content=content)], "name": name}
    solutions = {"torch": asked.entry.solutions["torch"].model_copy(update=sources)}
    asked.entry = replace(asked.entry, solutions=solutions)
    return asked


def test_a_full_disk_leaves_whole_rows_and_is_told_once_a_file(tmp_path, capsys):
    table, lines = tmp_path / "out.csv", tmp_path / "out.jsonl"
    files = Results([ask(RMSNORM)[0]], Namespace(output_path=str(table), json_path=str(lines)))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        for _ in range(40):
            files.add(make_row(ask(RMSNORM)[0], "torch", "failed", "for once"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert files.lost == {table, lines}
    assert capsys.readouterr().err.count("a row cannot be written, and none after it will be") == 2
    assert {item["reason"] for item in read_rows(table)} == {"for once"}
    assert {json.loads(line)["reason"] for line in lines.read_text().splitlines()} == {"for once"}


def test_a_wrong_backend_is_timed_and_stays_wrong(tmp_path, monkeypatch):
    zeros = "import torch\ndef run(x, weight):\n    return torch.zeros_like(x)\n"
    monkeypatch.setattr(perf_session, "read_requests", lambda *_: [with_source(zeros)])
    assert perf(*shlex.split(RMSNORM), "--json_path", tmp_path / "out.jsonl") == 0
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert (row["status"], row["median_ms"] > 0, "samples_ns" in row["measurement"]) == ("mismatch", True, True)


def test_a_case_keeps_its_tolerances_and_run_judges_by_them(tmp_path, capsys):
    (tmp_path / "tolerances.yaml").write_text("mine:\n  rtol: 0.5\n")
    assert perf(*shlex.split(BMM), "--backends", "torch", "--save_trace_set", tmp_path) == 0
    sections = yaml.safe_load((tmp_path / "tolerances.yaml").read_text())
    assert (sections.pop("mine"), len(sections)) == ({"rtol": 0.5}, 1)
    words = ["--iterations", "2", "--warmup-runs", "1", "--require-passed"]
    assert main(["run", "--local", str(tmp_path), *words]) == 0
    assert "says how" in capsys.readouterr().err
    first, again = (trace.evaluation.extra["run"]["config"] for trace in recorded(tmp_path))
    names = ("rtol", "atol", "required_matched_ratio")
    assert [again[name] for name in names] == [first[name] for name in names]
    assert first["atol"] > 0.01  # what the bundled settings say


def test_the_workloads_of_others_stay(tmp_path):
    (asked,) = ask(RMSNORM, H200)
    write_entry(tmp_path, asked.entry)
    (path,) = tmp_path.glob("workloads/**/*.jsonl")
    own = path.read_text()
    mine = own.replace(asked.entry.workload.uuid, "6b0b6f1e-0000-4000-8000-000000000000")
    for before, after in (own + "not json\n" + mine, own + "not json\n" + mine), (mine, mine + own):
        path.write_text(before)
        write_entry(tmp_path, asked.entry)
        assert path.read_text() == after
    assert not [*tmp_path.rglob(".*")]


def calls_of(*requests):
    """What `compile_ahead` would call if `torch` were a backend of the library."""
    return [
        {
            "definition": one.entry.definition.to_dict(),
            "solution": one.entry.solutions["torch"].to_dict(),
            "workload": one.entry.workload.to_dict(),
        }
        for one in requests
    ]


def test_a_module_is_compiled_ahead_once_for_all_routines_that_share_it():
    names = ("rmsnorm", "rmsnorm_quant", "softmax", "top_k", "sampling_from_probs")
    asked = [request for name in names for request in ask(f"--routine {name} {SMALL[name]} --backends cuda", H200)]
    called = [call["definition"]["name"].partition("_bs")[0] for call in ahead.list_calls(asked)]
    assert (len(asked), called) == (5, ["rmsnorm", "softmax", "top_k"])


def test_what_is_compiled_ahead_sees_the_compilers_of_workers_and_a_failure_is_told(tmp_path, monkeypatch, capsys):
    """Named otherwise, FlashInfer's build files differ, and every worker compiled again what was compiled ahead."""
    seen = tmp_path / "seen"
    seen.mkdir()
    given = {"CC": "/bin/sh", "CXX": "/opt/CXX", "NVCC_APPEND_FLAGS": "-O3", "CPLUS_INCLUDE_PATH": "/opt/include"}
    for name, value in {**given, "FLASHINFER_SEEN": str(seen), "UNKNOWN_TO_COMPILERS": "1", "SOME_TOKEN": "1"}.items():
        monkeypatch.setenv(name, value)
    where = "open(f'{os.environ[\"FLASHINFER_SEEN\"]}/{os.getpid()}', 'w')"
    honest = ask(RMSNORM)[0].entry.solutions["torch"].sources[0].content
    asked = with_source(f"{honest}\nimport json, os\njson.dump(dict(os.environ), {where})\n")
    monkeypatch.setattr(ahead, "list_calls", lambda _: calls_of(asked, with_source("raise ValueError('no')", "t")))
    ahead.compile_ahead([asked], tmp_path, [Device("cpu", 0, "a CPU", "cpu")], jobs=2, for_sandbox=False)
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
            deadline = time.monotonic() + 200
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
