"""The tutorial and other pages, walked: files are written, commands typed and programs run, in the order of the page.

All in this process, so that its sessions are forked from one starter. Counts are lowered: what is timed says nothing.
"""

import runpy
import shutil
from pathlib import Path

import pytest

from flashinfer_bench.cli.main import cli
from flashinfer_bench.data import TraceSet
from tests.kit.documents import CHECKOUT, DOCS, PROGRAM, README, SHELLS, read_blocks, read_commands

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(240)]
QUICKLY = ["--devices", "cpu", "--iterations", "4", "--warmup-runs", "0", "--num-trials", "1"]
LOWERED = {"run": QUICKLY, "repro": QUICKLY, "compare": ["--recorded"]}
"""Command → what is added to it. A comparison that measures takes longer than a test may (`tests/compare`)."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to be in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", [PROGRAM])
    return tmp_path


@pytest.fixture
def bundled(folder):
    """The same with the bundled set, of which one workload and what needs no compiler is left."""
    some = shutil.ignore_patterns("cpp", "cuda", "triton", "flashinfer", "wrong", "traces")
    shutil.copytree(CHECKOUT / "flashinfer-trace", folder / "flashinfer-trace", ignore=some)
    workloads = folder / "flashinfer-trace" / "workloads" / "rmsnorm" / "rmsnorm_h4096.jsonl"
    workloads.write_text(workloads.read_text().splitlines(keepends=True)[0])
    return folder


def type_command(words, expected):
    """Run one command of a page in this process, and hold its exit code against the page's."""
    program, *rest = words
    if program == "python":
        with pytest.raises(SystemExit) as ended, pytest.MonkeyPatch.context() as patched:
            patched.syspath_prepend(Path(rest[0]).absolute().parent)  # as the interpreter does
            runpy.run_path(rest[0], run_name="__main__")
        code = ended.value.code or 0
    else:
        assert program == PROGRAM
        code = cli([*rest, *LOWERED.get(rest[0], ())])
    assert code == expected, words


def walk(blocks):
    """Do what a reader of the blocks does; return the namespaces of the Python programs."""
    namespaces = []
    for block in blocks:
        if block.mark == "not run":
            continue
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text)
        elif block.language in SHELLS:
            for words in read_commands(block.text):
                type_command(words, int(block.reason) if block.mark == "exits with" else 0)
        elif block.language == "python":
            namespaces.append({"__name__": "__main__"})
            exec(compile(block.text, str(block), "exec"), namespaces[-1])
    return namespaces


def statuses(trace_set):
    """Return solution → the statuses of its traces."""
    traces = [trace for group in trace_set.traces.values() for trace in group]
    found = {trace.solution: set() for trace in traces}
    for trace in traces:
        found[trace.solution].add(trace.evaluation.status.value)
    return found


def test_the_tutorial_leads_to_pages_of_a_right_a_fast_and_a_wrong_kernel(folder, capsys):
    (program,) = walk(read_blocks(DOCS / "tutorial.md"))
    right, wrong = {"PASSED"}, {"INCORRECT_NUMERICAL"}
    verdicts = {"plain_gated_relu2": right, "fast_gated_relu2": right, "wrong_gated_relu2": wrong}
    assert statuses(program["trace_set"]) == verdicts
    assert (folder / "pages" / "index.html").is_file()
    assert len((folder / "traces.csv").read_text().splitlines()) == 7
    said = capsys.readouterr()
    assert "(only the last column)" in said.out
    assert "the failure shows" in said.out
    printed = next(block.text for block in read_blocks(DOCS / "tutorial.md") if "coverage:" in block.text)
    assert printed in said.out


def test_a_set_of_ones_own_has_stored_inputs_and_a_tolerance(folder, capsys):
    walk(read_blocks(DOCS / "how-to" / "own-set.md"))
    assert statuses(TraceSet.from_path("my-set")) == {"my_gather_rows": {"PASSED"}}
    assert "1e-06" in capsys.readouterr().out


def test_the_loop_of_an_edited_file_ends_with_a_verdict(bundled):
    loop = next(block for block in read_blocks(DOCS / "editing.md") if block.language in SHELLS)
    for words in read_commands(loop.text):
        if "--watch" not in words:
            type_command(words, 0)
    found = statuses(TraceSet.from_path(bundled / "flashinfer-trace"))
    assert set().union(*found.values()) == {"PASSED"}


def test_the_first_program_prints_a_performance(bundled, capsys):
    (program,) = walk([block for block in read_blocks(README) if block.language == "python"])
    assert capsys.readouterr().out.startswith("latency_ms=")
    assert program["benchmark"].faults == []
    assert {path.stem for path in (bundled / "flashinfer-trace" / "traces").rglob("*.jsonl")} == {"rmsnorm_h4096"}


def test_the_script_of_the_public_package_prints_a_trace(bundled, capsys):
    walk([block for block in read_blocks(DOCS / "migration.md") if block.language == "python"][:1])
    assert "rmsnorm_h4096" in capsys.readouterr().out


def test_the_program_of_an_agent_prints_a_verdict(bundled, capsys):
    walk([block for block in read_blocks(DOCS / "how-to" / "agents.md") if block.language == "python"])
    assert capsys.readouterr().out.startswith("PASSED")


@pytest.mark.filterwarnings("ignore:There is no GPU")
def test_one_call_is_timed(capsys):
    walk([block for block in read_blocks(DOCS / "numbers.md") if block.language == "python"])
    assert capsys.readouterr().out.split()[0] in ("wall", "cupti", "cuda_events")
