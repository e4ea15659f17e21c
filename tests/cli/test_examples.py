"""The examples that the helps show, typed as they stand beside the bundled set."""

import pytest

from flashinfer_bench.cli.entry import parse_command_line
from flashinfer_bench.cli.machine.build import choose_solutions
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from flashinfer_bench.examine.inspect.target import resolve_target
from tests.cli.helps import example_of
from tests.conftest import CHECKOUT

SET = CHECKOUT / "flashinfer-trace"
RMSNORM = SET / "solutions" / "plain" / "rmsnorm" / "rmsnorm_h4096" / "plain_rmsnorm_h4096.json"
REPORTS = ("summary", "best", "visualize", "history", "diff", "html", "export")
OFFLINE = ("run", "list", "validate", "config show", *(f"report {name}" for name in REPORTS))
OF_THE_CACHE = ("cache show", "cache clear", "cache verify", "cache baselines")


@pytest.fixture(autouse=True)
def beside_the_set(monkeypatch, tmp_path):
    (tmp_path / "flashinfer-trace").symlink_to(SET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.mark.parametrize("command", OFFLINE)
def test_an_example_that_needs_no_device_works_as_printed(command, capsys):
    argv = example_of(command, capsys)
    assert main([*argv, *(["--dry-run"] if command == "run" else [])]) == 0
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize("command", OF_THE_CACHE)
def test_the_examples_of_the_cache_work_as_printed(command, capsys):
    assert main(example_of(command, capsys)) == 0


def test_the_example_of_build_names_solutions_of_the_bundled_set(capsys):
    items = choose_solutions(parse_command_line(example_of("build", capsys)))
    assert {item.solution.author for item in items} == {"cuda"}


@pytest.mark.parametrize("tool", ["ncu", "sanitizer"])
def test_the_examples_of_inspect_name_a_solution_and_a_workload_of_the_bundled_set(tool, capsys):
    args = parse_command_line(example_of(f"inspect {tool}", capsys))
    target = resolve_target(TraceSet.from_path(args.local[0]), args.solution, args.workload)
    assert target.solution.definition == target.definition.name


def test_the_examples_of_unpack_and_pack_work_as_printed(tmp_path, capsys):
    (tmp_path / "my_rmsnorm.json").write_text(RMSNORM.read_text())
    assert main(example_of("unpack", capsys)) == 0
    assert main(example_of("pack", capsys)) == 0


@pytest.mark.parametrize("name", ["new", "config", "report", "cache", "inspect"])
def test_the_help_of_a_command_with_commands_has_an_example_too(name, capsys):
    example = example_of(name, capsys)
    assert parse_command_line(example).parser.prog.startswith(f"flashinfer-bench {name} ")
