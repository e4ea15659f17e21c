"""What the command line accepts, what it says about what it does not, its helps' examples, completion and sweeps."""

import os
import re
import subprocess
import sys

import pytest

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.cli.entry import parse_command_line
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.perf.cases import expand_sweeps
from flashinfer_bench.cli.settings import flag_of, given_overrides
from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import UsageError
from tests.cli.fake_engine import write_small_set
from tests.cli.helps import ALL_COMMANDS, example_of
from tests.conftest import CHECKOUT

SET = CHECKOUT / "flashinfer-trace"


def test_every_field_has_a_flag_and_a_help(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    printed = capsys.readouterr().out
    fields = set(BenchmarkConfig.model_fields) - {"extra", "op_type_config", "definition_config"}
    assert [name for name in fields if f"{flag_of(name)} " not in printed] == []
    assert [name for name in fields if not BenchmarkConfig.model_fields[name].description] == []


@pytest.mark.parametrize("argv", [("a", "b"), ("a, b",), ("a", "--definition", "b")])
def test_names_are_separated_by_spaces_or_commas_and_flags_repeat(argv):
    given = given_overrides(parse_command_line(["run", "--local", "x", "--definitions", *argv]))
    assert given == {"definitions": ["a", "b"]}


def test_the_name_of_a_file_may_have_commas(tmp_path):
    file = tmp_path / "a,b.py"
    file.touch()
    assert parse_command_line(["run", "x", "--solution", str(file), "c,d"]).solutions == [str(file), "c", "d"]


@pytest.mark.parametrize("line", ["list --local a --local b", "run a --quiet --local b", "validate a b"])
def test_sets_may_stand_without_their_flag_and_be_several(line):
    assert sorted(parse_command_line(line.split()).local) == ["a", "b"]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("run --iteratons=5", "unknown flag --iteratons; did you mean --iterations?"),
        ("run --use_isolated_runner", "unknown flag --use_isolated_runner; did you mean --use-isolated-runner?"),
        ("run a --zzz", "unknown flag --zzz; see flashinfer-bench run --help"),
        ("run --zzz 5 --rtoll 1", "unknown flag --zzz; see .*\nerror: unknown flag --rtoll; did you mean --rtol?"),
        ("run --iterations", "--iterations: expected one argument; see flashinfer-bench run --help"),
        ("run --iterations x", "--iterations: a whole number or 'auto' is needed"),
        ("run --atol 0", "--atol: a number above 0 is needed; only tolerances.yaml of a trace set may have 0"),
        ("run --repeat x", "--repeat: needs a whole number, not 'x'; see flashinfer-bench run --help"),
        ("compare a b --threshold 2", "--threshold: needs a share such as 2% or 0.02, not '2'; see .* --help"),
        ("list --format xml", "--format: invalid choice: 'xml' .*; see flashinfer-bench list --help"),
        ("cache clear --keep-gb inf", "--keep-gb: needs a finite number, not 'inf'; see .* --help"),
        ("run --definitions ,", "--definitions: expected at least one name; see flashinfer-bench run --help"),
        ("report bset", "unknown report command bset; did you mean best?"),
        ("report", "flashinfer-bench report needs a command: summary or .* or merge"),
    ],
)
def test_misuse_is_a_line_each_and_exit_code_2(argv, line, capsys):
    assert main(argv.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(f"error: {line.replace('?', '[?]')}\n", err), err


@pytest.mark.parametrize("command", [*ALL_COMMANDS, "new", "config", "report", "cache", "inspect"])
def test_the_help_of_every_command_has_an_example_that_parses(command, capsys):
    example = example_of(command, capsys)
    assert " ".join(example).startswith(command)
    assert parse_command_line(example).parser.prog.startswith(f"flashinfer-bench {command}")


def test_the_examples_of_build_and_inspect_name_what_the_bundled_set_has(capsys):
    trace_set = TraceSet.from_path(SET)
    [author] = parse_command_line(example_of("build", capsys)).authors
    assert any(item.author == author for group in trace_set.solutions.values() for item in group)
    for tool in ("ncu", "sanitizer"):
        args = parse_command_line(example_of(f"inspect {tool}", capsys))
        lines = trace_set.workloads[trace_set.get_solution(args.solution).definition]
        assert [line.workload.uuid.startswith(args.workload) for line in lines].count(True) == 1


def complete(line, tmp_path, command=(sys.executable, "-m", "flashinfer_bench")):
    """Return what a shell would offer behind a line that somebody has typed."""
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "offered"), "COMP_LINE": line}
    variables |= {"COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n", "COMP_TYPE": "9"}
    subprocess.run(command, env=os.environ | variables, check=True, cwd=tmp_path, timeout=200)
    return {word.strip() for word in (tmp_path / "offered").read_text().split("\n")}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rep", {"report", "repro"}),
        ("report best --b", {"--by"}),
        ("run set --solutions o", {"other"}),
        ("run --local set --workloads w", {"w0", "w1"}),
        ("run --sandbox s", {"strict"}),
        ("perf --routine gemm_f", {"gemm_fp8_nt_groupwise"}),
    ],
)
def test_a_shell_is_offered_commands_flags_and_names(line, offered, tmp_path):
    write_small_set(tmp_path / "set")
    assert offered <= complete(f"flashinfer-bench {line}", tmp_path)


THROWN = """
import sys
from pydantic import Field
from flashinfer_bench.cli import entry, report, run, settings
from scripts.references import render_commands

class WithOneMore(settings.BenchmarkConfig):
    thrown_setting: int = Field(3, description="A setting that is thrown away.")

def add_flag(module, word, find):
    declare = getattr(module, word)
    def declare_more(parser):
        declare(parser)
        find(parser).add_argument("--thrown-flag", help="a flag that is thrown away")
    setattr(module, word, declare_more)

settings.BenchmarkConfig = WithOneMore
add_flag(run, "declare_run", lambda parser: parser)
add_flag(report, "declare_report", lambda parser: parser.children()["summary"])
if sys.argv[1:] == ["page"]:
    print(render_commands())
else:
    sys.exit(entry.run_command_line())
"""


def test_a_flag_or_a_setting_that_is_added_in_one_file_is_in_help_completion_and_the_page(tmp_path, monkeypatch):
    (tmp_path / "thrown.py").write_text(THROWN)
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    command = [sys.executable, tmp_path / "thrown.py"]

    def say(line):
        return subprocess.run([*command, *line.split()], capture_output=True, text=True, check=True, timeout=200).stdout

    page = say("page")
    for words, kind in (("run", "flag"), ("run", "setting"), ("report summary", "flag")):
        flag, text = f"--thrown-{kind}", f"a {kind} that is thrown away"
        assert re.search(rf"{flag} \w+\s+{text}", say(f"{words} --help"))
        assert re.search(rf"`{flag}` `\w+` \| {text}", page.split(f"\n## {words}\n")[1].split("\n## ")[0])
        assert flag in complete(f"flashinfer-bench {words} --thrown", tmp_path, command)
    assert re.search(r"thrown_setting +7 +flag", say("config show --thrown-setting 7"))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_of_a_shell_asks_the_program(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "flashinfer-bench" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "cases"),
    [
        ("--m 4", ["--m 4 |"]),
        ("--m 1,16 --backends a b", ["--m 1 --backends a b | --m 1", "--m 16 --backends a b | --m 16"]),
        ("--sweep m=1:8:x2", [f"--m {m} | --m {m}" for m in (1, 2, 4, 8)]),
        ("--sweep m=2:6:2 --n=1,2", [f"--m {m} --n {n} | --m {m} --n {n}" for m in (2, 4, 6) for n in (1, 2)]),
        ("--case_tag a,b --m 1,2", [f"--case_tag a,b --m {m} | --m {m}" for m in (1, 2)]),
        *((f"--sweep {sweep}", "sweep") for sweep in ("m", "m=5:1", "m=0:8:x2", "colour=1", "m=1:9:x1", "m=1:99999")),
        ("--sweep batch_siz=1,2", "did you mean 'batch_size'"),
    ],
)
def test_a_sweep_gives_a_case_for_each_value_and_says_what_tells_them_apart(words, cases):
    if isinstance(cases, str):
        with pytest.raises(UsageError, match=cases):
            expand_sweeps(words.split())
    else:
        assert [f"{' '.join(case)} | {reported}".strip() for case, reported in expand_sweeps(words.split())] == cases
