"""What the command line loads, and how it behaves as a process: streams that fail, readers that go, Ctrl-C."""

import signal
import subprocess
import sys

import pytest

from flashinfer_bench.cli.output import one_interrupt
from tests.cli.fake_engine import write_small_set

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
from flashinfer_bench.cli.entry import make_parser
from flashinfer_bench.cli.main import cli as main
for word in make_parser([]).children():
    for child in (None, *make_parser([word]).children()[word].children()):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main([word, *([child] if child else []), "--help"])
engine = {"flashinfer_bench.bench.benchmark", "flashinfer_bench.bench.runner", "flashinfer_bench.worker"}
heavy = engine | {"torch", "numpy", "rich", "httpx", "fastapi", "jinja2"}
sys.exit(", ".join(sorted(heavy & set(sys.modules))) or 0)
"""
CONFIGURATION = "torch,yaml,flashinfer_bench.bench.config"
SLOW = "torch,numpy,pydantic,rich,yaml"
AHEAD = """
import sys
from flashinfer_bench.bench.runner import launcher
from flashinfer_bench.cli import entry

def note(environment):
    print("OMP_WAIT_POLICY" in environment, sorted({"torch", "pydantic", "rich", "yaml"} & set(sys.modules)))

launcher.launcher_for = note
sys.exit(entry.run_command_line())
"""
INTERRUPTED = """
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


def start(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    ("line", "slow", "code", "heard"),
    [
        ("--help", SLOW, 0, ""),
        ("perf --help", SLOW, 0, ""),
        ("rnu --local x", SLOW, 2, "error: unknown command rnu; did you mean run?\n"),
        ("list --local SET", CONFIGURATION, 0, ""),
        ("report best --local SET", CONFIGURATION, 0, None),
        ("validate --local SET", "torch", 0, ""),
        ("config show --definition double --local SET", "torch", 0, ""),
        ("run --dry-run --devices cpu --local SET", "torch", 0, ""),
    ],
)
def test_what_runs_nothing_imports_nothing_slow(line, slow, code, heard, tmp_path):
    words = line.replace("SET", str(write_small_set(tmp_path))).split()
    ended = start(sys.executable, "-c", PROBE, slow, *words)
    assert ended.returncode == code, ended.stderr
    assert heard in (None, ended.stderr)


def test_no_help_imports_the_engine():
    ended = start(sys.executable, "-c", ALL_HELPS)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("run --local none --devices cpu", "True []\n"),
        ("perf --devices cpu --routine none", "True []\n"),
        ("run --local none --dry-run", ""),
    ],
)
def test_the_import_of_torch_is_started_before_anything_slow_is_imported(line, reported):
    ended = start(sys.executable, "-c", AHEAD, *line.split())
    assert (ended.stdout, ended.returncode) == (reported, 2), ended.stderr


def test_an_interrupt_before_the_command_line_is_loaded_is_one_line():
    ended = start(sys.executable, "-c", INTERRUPTED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("redirection", "code", "heard"),
    [
        ("| true; echo code ${PIPESTATUS[0]}", 0, ""),
        (">/dev/full; echo code $?", 1, "error: stdout cannot be written: No space left on device"),
        ("2>/dev/full; echo code $?", 0, ""),
        (">&-; echo code $?", 0, ""),
        ("2>&-; echo code $?", 0, ""),
    ],
)
def test_a_stream_that_fails_costs_a_line_at_most_and_a_reader_that_goes_nothing(tmp_path, redirection, code, heard):
    root = write_small_set(tmp_path, files={"definitions/broken.json": "{"})
    ended = start("bash", "-c", f"{' '.join(PROGRAM)} list --local {root} {redirection}")
    assert ended.stdout.splitlines()[-1] == f"code {code}"
    assert ("double" in ended.stdout) == redirection.startswith("2")
    lines = [line for line in ended.stderr.splitlines() if "broken.json" not in line]
    assert lines == ([heard] if heard else [])


def test_a_second_interrupt_does_not_cut_the_clean_up_short(capfd):
    with one_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == "stopping: waiting for the processes of this run to end\n"
