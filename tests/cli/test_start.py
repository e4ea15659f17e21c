"""What the command line loads, and how it behaves as a process."""

import subprocess
import sys

import pytest

from flashinfer_bench.cli.entry import COMMANDS
from tests.cli.fake_engine import write_small_set
from tests.cli.helps import ALL_COMMANDS

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


def start(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    ("argv", "code", "heard"),
    [
        (("--help",), 0, ""),
        (("rnu", "--local", "x"), 2, "error: unknown command rnu; did you mean run?\n"),
        (("cache", "shwo"), 2, "error: unknown cache command shwo; did you mean show?\n"),
    ],
    ids=["help", "misspelt", "misspelt below"],
)
def test_help_and_misspelt_commands_import_nothing_slow(argv, code, heard):
    slow = "torch,rich" if argv[0] == "cache" else "torch,pydantic,rich,yaml"
    ended = start(sys.executable, "-c", PROBE, slow, *argv)
    assert (ended.returncode, ended.stderr) == (code, heard)


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


def test_no_help_imports_the_engine():
    ended = start(sys.executable, "-c", ALL_HELPS, ",".join([*COMMANDS, *ALL_COMMANDS]))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_help_of_perf_imports_no_models():
    ended = start(sys.executable, "-c", PROBE, "torch,numpy,pydantic,rich,yaml", "perf", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "argv",
    [
        ("list",),
        ("list", "--evaluators"),
        ("validate",),
        ("report", "summary"),
        ("report", "best"),
        ("config", "show", "--definition", "double"),
        ("run", "--dry-run", "--devices", "cpu"),
    ],
    ids=" ".join,
)
def test_no_command_that_runs_nothing_imports_torch(argv, tmp_path):
    ended = start(sys.executable, "-c", PROBE, "torch", *argv, "--local", str(write_small_set(tmp_path)))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("argv", [("list",), ("report", "best")], ids=" ".join)
def test_what_runs_and_judges_nothing_loads_no_configuration(argv, tmp_path):
    root = str(write_small_set(tmp_path))
    ended = start(sys.executable, "-c", PROBE, "flashinfer_bench.bench.config,yaml", *argv, "--local", root)
    assert ended.returncode == 0, ended.stderr


def test_the_module_is_the_command():
    ended = start(sys.executable, "-m", "flashinfer_bench", "--version")
    assert ended.returncode == 0
    assert ended.stdout.startswith("flashinfer-bench ")


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    root = write_small_set(tmp_path)
    script = f"{sys.executable} -m flashinfer_bench list --local {root} | true; echo ${{PIPESTATUS[0]}}"
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
    root = write_small_set(tmp_path)
    (root / "definitions" / "broken.json").write_text("{")
    script = f"{sys.executable} -m flashinfer_bench list --local {root} {redirection}; echo code $?"
    ended = start("bash", "-c", script)
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
    ("argv", "told"),
    [
        (("run", "--local", "none", "--devices", "cpu"), "True []\n"),
        (("perf", "--devices", "cpu", "--routine", "none"), "True []\n"),
        (("run", "--local", "none", "--dry-run"), ""),
        (("report", "summary", "--local", "none"), ""),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_import_of_torch_is_started_before_anything_slow_is_imported(argv, told):
    ended = start(sys.executable, "-c", AHEAD, *argv)
    assert (ended.stdout, ended.returncode) == (told, 2), ended.stderr
