"""Habits of the command line: completion, sweeps, files that stay, lists of solutions, reports of workloads."""

import csv
import json
import os
import subprocess
import sys

import pytest

from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.cli.parser import PROGRAM
from flashinfer_bench.cli.perf.files import ResultFiles
from flashinfer_bench.cli.perf.sweeps import describe_swept, expand_sweeps
from flashinfer_bench.errors import Misuse
from tests.cli.fake_engine import write_small_set
from tests.kit import make_trace, make_workload


def complete(line, tmp_path):
    """Return what a shell would offer behind a line that somebody has typed."""
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "offered"), "COMP_LINE": line}
    variables |= {"COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n", "COMP_TYPE": "9"}
    command = [sys.executable, "-m", "flashinfer_bench"]
    subprocess.run(command, env=os.environ | variables, check=True, cwd=tmp_path, timeout=60)
    return {word.strip() for word in (tmp_path / "offered").read_text().split("\n")}


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rep", {"report", "repro"}),
        ("report best --b", {"--by"}),
        ("run set --definitions ", {"double"}),
        ("run set --solutions o", {"other"}),
        ("run --local set --workloads w", {"w0", "w1"}),
        ("list set --op-type t", {"test"}),
        ("list set --author a", {"alice"}),
        ("run --sandbox s", {"strict"}),
        ("perf --routine gemm_f", {"gemm_fp8_nt_groupwise"}),
    ],
)
def test_a_shell_is_offered_commands_flags_and_names(line, offered, tmp_path):
    write_small_set(tmp_path / "set")
    assert offered <= complete(f"{PROGRAM} {line}", tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_the_program(shell, capsys):
    assert main(["completion", shell]) == 0
    assert PROGRAM in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "cases"),
    [
        ("-R mm_bf16 --m 1", ["-R mm_bf16 --m 1"]),
        ("--m 1,16 --backends a b", ["--backends a b --m 1", "--backends a b --m 16"]),
        ("--sweep m=1:8:x2", ["--m 1", "--m 2", "--m 4", "--m 8"]),
        ("--sweep m=2:6:2 --n=1,2", [f"--m {m} --n {n}" for m in (2, 4, 6) for n in (1, 2)]),
        ("--case_tag a,b", ["--case_tag a,b"]),
    ],
)
def test_sweeps(words, cases):
    assert [" ".join(case) for case in expand_sweeps(words.split())] == cases


def test_each_case_of_a_sweep_is_told_from_the_others():
    cases = expand_sweeps(["--batch_size", "1,8", "--enable_pdl", "--hidden_size", "64", "--sweep", "num_heads=2:4:2"])
    assert describe_swept(cases[:2]) == ["--num_heads 2", "--num_heads 4"]
    assert describe_swept(cases)[3] == "--batch_size 8 --num_heads 4"
    assert describe_swept(cases[:1]) == [""]


def test_a_misspelt_flag_of_a_sweep_is_told_with_the_nearest():
    with pytest.raises(Misuse, match=r"^--sweep batch_siz=1,2; did you mean 'batch_size'\?$"):
        expand_sweeps(["--sweep", "batch_siz=1,2"])


@pytest.mark.parametrize("sweep", ["m", "m=5:1", "m=0:8:x2", "colour=1,2", "m=1:9:x1", "m=1:99999"])
def test_sweeps_that_cannot_be(sweep):
    with pytest.raises(Misuse, match="sweep"):
        expand_sweeps(["--sweep", sweep])


def test_results_are_never_overwritten_in_silence(tmp_path, capsys):
    file = tmp_path / "out.csv"
    ResultFiles(str(file), None)
    file.write_text("mine\n")
    files = ResultFiles(str(file), None)
    assert (tmp_path / "out.1.csv").read_text() == "mine\n"
    assert "out.csv was there; it is" in capsys.readouterr().err
    file.write_text("a,b,c\n1,,2\n3,,\n")
    files.drop_empty_columns()
    assert list(csv.reader(file.read_text().splitlines())) == [["a", "c"], ["1", "2"], ["3", ""]]


def test_reports_of_workloads(tmp_path, capsys):
    traces = [make_trace(solution="other", workload=make_workload(uuid)) for uuid in ("aaaa1", "bbbb2")]
    root = write_small_set(tmp_path, traces=traces)
    assert main(["report", "best", str(root), "--workloads", "aaaa", "--format", "json"]) == 0
    assert [row["workload"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["aaaa1"]
    assert main(["report", "summary", str(root), "--workloads", "zzzz"]) == 2
