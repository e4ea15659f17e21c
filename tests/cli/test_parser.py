"""What the command line accepts, and the one line that it says about what it does not."""

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.cli.entry import COMMANDS, parse_command_line
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.settings import flag_of, given_overrides
from flashinfer_bench.errors import Misuse
from tests.cli.helps import ALL_COMMANDS, example_of


def overrides(*argv):
    return given_overrides(parse_command_line(["run", "--local", "x", *argv]))


def test_flags_that_are_not_given_override_nothing():
    assert overrides() == {}


def test_flags_become_configuration_fields():
    given = overrides(
        "--timeout", "5", "--rtol", "1e-3", "--no-profile-baseline", "--use-isolated-runner", "--seed", "7"
    )
    config = BenchmarkConfig.default(**given)
    assert (config.timeout_seconds, config.rtol, config.seed) == (5, 1e-3, 7)
    assert (config.profile_baseline, config.use_isolated_runner) == (False, True)


def test_every_field_has_a_flag_and_a_help(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    printed = capsys.readouterr().out
    fields = set(BenchmarkConfig.model_fields) - {"extra", "op_type_config", "definition_config"}
    assert [name for name in fields if f"{flag_of(name)} " not in printed] == []
    assert [name for name in fields if not BenchmarkConfig.model_fields[name].description] == []


@pytest.mark.parametrize("argv", [("a", "b"), ("a,b",), ("a, b",), ("a", "--definitions", "b")])
def test_names_are_separated_by_spaces_or_commas_and_flags_repeat(argv):
    assert overrides("--definitions", *argv) == {"definitions": ["a", "b"]}


def test_local_may_be_given_more_than_once():
    assert parse_command_line(["list", "--local", "a", "--local", "b"]).local == ["a", "b"]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("run --iteratons 5", "unknown flag --iteratons; did you mean --iterations?"),
        ("run --iteratons=5", "unknown flag --iteratons; did you mean --iterations?"),
        ("run --use_isolated_runner", "unknown flag --use_isolated_runner; did you mean --use-isolated-runner?"),
        ("run --itera 5", "unknown flag --itera; did you mean --iterations?"),
        ("run --zzz", "unknown flag --zzz; see flashinfer-bench run --help"),
        ("run a --zzz", "unknown flag --zzz; see flashinfer-bench run --help"),
        ("run --iterations", "--iterations: expected one argument; see flashinfer-bench run --help"),
        ("run --iterations x", "--iterations: a whole number or 'auto' is needed"),
        ("run --rtol x", "--rtol: Input should be a valid number, unable to parse string as a number"),
        ("run --definitions ,", "--definitions: expected at least one name; see flashinfer-bench run --help"),
        ("rnu", "unknown command rnu; did you mean run?"),
        ("zzz", f"unknown command zzz; known: {', '.join(COMMANDS)}"),
        (
            "report",
            "report needs a command: summary or best or visualize or history or diff or html or export or merge",
        ),
        ("report bset", "unknown report command bset; did you mean best?"),
        ("--zzz", "unknown flag --zzz; see flashinfer-bench --help"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(argv, line, capsys):
    assert main(argv.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: {line}\n"


def test_all_unknown_flags_are_told_at_once():
    with pytest.raises(Misuse, match=r"--iteratons[^\n]*\n.*--rtoll"):
        parse_command_line(["run", "--iteratons", "5", "--rtoll", "1"])


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_the_help_of_every_command_has_an_example_that_parses(command, capsys):
    example = example_of(command, capsys)
    assert " ".join(example).startswith(command)
    assert parse_command_line(example).parser.prog == f"flashinfer-bench {command}"


def test_help_goes_to_stdout(capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["run", "--help"])
    assert exit_info.value.code == 0
    assert "--require-passed" in capsys.readouterr().out


def test_no_argument_shows_the_help_as_misuse(capsys):
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err
