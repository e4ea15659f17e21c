"""The examples that the helps show, typed as they stand beside the bundled set."""

import pytest

from flashinfer_bench.cli import main
from flashinfer_bench.cli.build import choose_solutions
from flashinfer_bench.cli.flags import COMMANDS, make_parser, parse_command_line
from tests.conftest import CHECKOUT

SET = CHECKOUT / "flashinfer-trace"
RMSNORM = SET / "solutions" / "plain" / "rmsnorm" / "rmsnorm_h4096" / "plain_rmsnorm_h4096.json"
OFFLINE = ("run", "list", "validate", "config_show", "report_summary", "report_best")
OF_THE_CACHE = ("cache_show", "cache_clear", "cache_verify")


def example_of(parser):
    """Return the words of a help's example, without the program's name."""
    return parser.format_help().split("example:")[1].split()[1:]


@pytest.fixture(autouse=True)
def beside_the_set(monkeypatch, tmp_path):
    (tmp_path / "flashinfer-trace").symlink_to(SET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "cache"))


@pytest.mark.parametrize("module", OFFLINE)
def test_an_example_that_needs_no_device_works_as_printed(module, capsys):
    argv = example_of(make_parser()[1][module])
    assert main([*argv, *(["--dry-run"] if module == "run" else [])]) == 0
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize("module", OF_THE_CACHE)
def test_the_examples_of_the_cache_work_as_printed(module):
    assert main(example_of(make_parser()[1][module])) == 0


def test_the_example_of_build_names_solutions_of_the_bundled_set():
    items = choose_solutions(parse_command_line(example_of(make_parser()[1]["build"])))
    assert {item.solution.author for item in items} == {"cuda"}


def test_the_examples_of_unpack_and_pack_work_as_printed(tmp_path):
    (tmp_path / "my_rmsnorm.json").write_text(RMSNORM.read_text())
    parsers = make_parser()[1]
    assert main(example_of(parsers["unpack"])) == 0
    assert main(example_of(parsers["pack"])) == 0


@pytest.mark.parametrize("name", [name for name, children in COMMANDS.items() if children])
def test_the_help_of_a_command_with_commands_has_an_example_too(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    example = capsys.readouterr().out.split("example:")[1].split()
    assert parse_command_line(example[1:]).command_module.startswith(f"{name}_")
