"""What the command line loads, and how it behaves as a process: streams that fail, readers that go, Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest

from flashinfer_bench.cli.entry import COMMANDS
from flashinfer_bench.sandbox.process_tree import descendants, is_alive
from tests.cli.fake_engine import write_small_set
from tests.cli.helps import ALL_COMMANDS
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import wait_until_gone

PROGRAM = (sys.executable, "-m", "flashinfer_bench")
PROBE = """
import sys
from flashinfer_bench.cli.main import cli as main
try:
    code = main(sys.argv[2:])
except SystemExit as end:
    code = end.code
loaded = set(sys.argv[1].split(",")) & set(sys.modules)
sys.exit(f"loaded {loaded}" if loaded else code)
"""
ALL_HELPS = """
import contextlib, io, sys
from flashinfer_bench.cli.main import cli as main
for command in sys.argv[1].split(","):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
engine = {"flashinfer_bench.bench.benchmark", "flashinfer_bench.bench.runner", "flashinfer_bench.worker"}
heavy = engine | {"torch", "numpy", "rich", "httpx", "fastapi", "jinja2"}
sys.exit(", ".join(sorted(heavy & set(sys.modules))) or 0)
"""
"""What the helps of all commands import of the engine, and of packages that take long."""


def start(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    ("line", "code", "heard"),
    [
        ("--help", 0, ""),
        ("perf --help", 0, ""),
        ("rnu --local x", 2, "error: unknown command rnu; did you mean run?\n"),
    ],
)
def test_help_and_misspelt_commands_import_nothing_slow(line, code, heard):
    ended = start(sys.executable, "-c", PROBE, "torch,numpy,pydantic,rich,yaml", *line.split())
    assert (ended.returncode, ended.stderr) == (code, heard)


def test_no_help_imports_the_engine():
    ended = start(sys.executable, "-c", ALL_HELPS, ",".join([*COMMANDS, *ALL_COMMANDS]))
    assert (ended.returncode, ended.stderr) == (0, "")


CONFIGURATION = "torch,yaml,flashinfer_bench.bench.config"


@pytest.mark.parametrize(
    ("line", "slow"),
    [
        ("list", CONFIGURATION),
        ("list --evaluators", "torch"),
        ("validate", "torch"),
        ("report summary", "torch"),
        ("report best", CONFIGURATION),
        ("config show --definition double", "torch"),
        ("run --dry-run --devices cpu", "torch"),
    ],
)
def test_what_runs_nothing_imports_no_torch_and_what_judges_nothing_no_configuration(line, slow, tmp_path):
    root = str(write_small_set(tmp_path))
    ended = start(sys.executable, "-c", PROBE, slow, *line.split(), "--local", root)
    assert ended.returncode == 0, ended.stderr


AHEAD = """
import sys
from flashinfer_bench.bench.runner import launcher
from flashinfer_bench.cli import entry

def note(environment):
    print("OMP_WAIT_POLICY" in environment, sorted({"torch", "pydantic", "rich", "yaml"} & set(sys.modules)))

launcher.launcher_for = note
sys.exit(entry.run_command_line())
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run --local none --devices cpu", "True []\n"),
        ("perf --devices cpu --routine none", "True []\n"),
        ("run --local none --dry-run", ""),
    ],
)
def test_the_import_of_torch_is_started_before_anything_slow_is_imported(line, told):
    ended = start(sys.executable, "-c", AHEAD, *line.split())
    assert (ended.stdout, ended.returncode) == (told, 2), ended.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    script = f"{' '.join(PROGRAM)} list --local {write_small_set(tmp_path)} | true; echo ${{PIPESTATUS[0]}}"
    ended = start("bash", "-c", script)
    assert (ended.stdout.strip(), ended.stderr) == ("0", "")


@pytest.mark.parametrize(
    ("redirection", "code", "heard"),
    [
        (">/dev/full", "1", "error: stdout cannot be written: No space left on device"),
        ("2>/dev/full", "0", ""),
        (">&-", "0", ""),
        ("2>&-", "0", ""),
    ],
)
def test_a_stream_that_fails_costs_a_line_at_most(tmp_path, redirection, code, heard):
    root = write_small_set(tmp_path, files={"definitions/broken.json": "{"})
    ended = start("bash", "-c", f"{' '.join(PROGRAM)} list --local {root} {redirection}; echo code $?")
    assert ended.stdout.splitlines()[-1] == f"code {code}"
    assert ("double" in ended.stdout) == (redirection.startswith("2"))
    lines = [line for line in ended.stderr.splitlines() if "broken.json" not in line]
    assert lines == ([heard] if heard else [])


def test_an_interrupt_before_the_command_line_is_loaded_is_one_line():
    script = """
import sys
class Interrupter:
    def find_spec(self, name, *_):
        if name == "flashinfer_bench.cli.entry":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupter())
import runpy
sys.argv = ["flashinfer-bench", "list"]
runpy.run_module("flashinfer_bench", run_name="__main__")
"""
    ended = start(sys.executable, "-c", script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


@pytest.mark.cpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_twice_a_run_leaves_no_process_and_says_how_to_resume(tmp_path, number):
    endless = make_solution("b_endless", source="def run(x):\n    while True:\n        pass\n")
    root = write_trace_set(
        tmp_path / "set",
        definitions=[make_definition()],
        solutions=[make_solution("a_right"), endless],
        workloads=[make_trace(solution=None, workload=make_workload())],
    )
    environment = {**os.environ, "FIB_CACHE_PATH": str(tmp_path / "cache")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*PROGRAM, "run", root, "--devices", "cpu"], text=True, env=environment, **pipes)
    for line in process.stderr:
        if line.startswith("[1/2]"):
            break
    below = descendants(process.pid)
    assert below
    process.send_signal(number)
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert "1 PASSED, 1 not finished" in out
    assert "--resume" in err
    assert len((root / "traces/alice/test/double.jsonl").read_text().splitlines()) == 1
    assert wait_until_gone(lambda: [pid for pid in below if is_alive(pid)]) == []
