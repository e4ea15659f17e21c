"""From an edited file to its verdict: `run --solution FILE`, `--watch`, `new`; wildcards; sets as arguments."""

import json
import re
from pathlib import Path

import pytest

from flashinfer_bench.cli.edit.watch import take_stamp, wait_for_change
from flashinfer_bench.cli.entry import call, parse_command_line
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.cli.fake_engine import FakeEngine, run_with, write_small_set
from tests.kit import DOUBLE


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["flashinfer-bench"])
    return write_small_set(tmp_path / "set")


def run(*argv, verdict_of=lambda job: {}):
    engines = []

    def make_engine(trace_set, config, **_):
        engines.append(FakeEngine(trace_set, config, verdict_of))
        return engines[-1]

    args = parse_command_line(["run", *argv])
    return call(lambda: run_with(make_engine, args)), engines


def test_one_command_judges_a_file_and_keeps_its_source(root, tmp_path, capsys):
    (tmp_path / "fast.py").write_text(DOUBLE)
    code, _ = run("set", "--solution", "fast.py")
    captured = capsys.readouterr()
    assert code == 0
    assert re.search(r"2 jobs in \d+:\d\d: 2 PASSED", captured.out)
    assert "fast.py: python, fast.py::run, of double (by its parameters)" in captured.err
    kept = TraceSet.from_path(root).get_solution("fast")
    assert kept.sources[0].content == DOUBLE
    assert kept.author == "me"
    (tmp_path / "fast.py").write_text(DOUBLE + "# again\n")
    assert run("set", "--solution", "fast.py")[0] == 0
    assert TraceSet.from_path(root).get_solution("fast").sources[0].content.endswith("# again\n")


def test_a_draft_is_judged_only_where_it_is_named(root, tmp_path, capsys):
    (tmp_path / "fast.py").write_text(DOUBLE)
    assert run("set", "--solution", "fast.py")[0] == 0
    assert re.search(r"^draft: set/solutions/me/\S+/fast\.json$", capsys.readouterr().err, re.M)
    assert run("set")[0] == 0
    captured = capsys.readouterr()
    assert re.search(r"^4 jobs in", captured.out, re.M)
    assert "skipped double / fast: " in captured.out
    for flags in (["--solution", "fast"], ["--author", "me"]):
        assert run("set", *flags)[0] == 0
        assert re.search(r"^2 jobs in", capsys.readouterr().out, re.M)


def test_nothing_is_written_where_that_is_asked_for(root, tmp_path):
    (tmp_path / "fast.py").write_text(DOUBLE)
    assert run("set", "--solution", "fast.py", "--no-save-results")[0] == 0
    assert run("set", "--solution", "fast.py", "--dry-run")[0] == 0
    assert TraceSet.from_path(root).get_solution("fast") is None


def test_a_name_that_looks_like_a_path_is_the_sets_where_no_file_has_it(root, tmp_path, capsys):
    named = TraceSet.from_path(root).get_solution("other").model_copy(update={"name": "team/fast.py"})
    (root / "solutions/named.json").write_text(named.model_dump_json())
    assert run("set", "--solution", "team/fast.py")[0] == 0
    assert "2 jobs" in capsys.readouterr().out
    assert run("set", "--solution", "team/slow.py")[0] == 2


def test_a_draft_takes_nobody_elses_place(root, tmp_path, capsys):
    (tmp_path / "other.py").write_text(DOUBLE)
    assert run("set", "--solution", "other.py")[0] == 2
    assert "the set has another solution 'other' (author alice, of double); rename the file" in capsys.readouterr().err
    assert run("set", "--solution", "other.py", "--author", "alice")[0] == 2
    assert "was not made of such a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--entry", "run"], "--entry: say it of one source file"),
        (["--watch"], "--watch judges a file again"),
        (["--solution", "none.py"], "none.py: there is no such file"),
        (["--solution", "my_doubl.cpp"], "there is no such file; did you mean 'my_double_cpp.cpp'?"),
        (["--solution", "notes.txt"], "notes.txt: no source file"),
    ],
)
def test_misuse_of_the_flags_is_told(root, tmp_path, flags, reason, capsys):
    for name in ("my_double.py", "my_double_cpp.cpp", "notes.txt"):
        (tmp_path / name).touch()
    assert run("set", *flags)[0] == 2
    assert reason in capsys.readouterr().err


def test_what_cannot_be_called_is_told_before_the_verdict(root, tmp_path, capsys):
    (tmp_path / "double.py").write_text("def run(x, y, z): pass\n")
    assert run("set", "--solution", "double.py")[0] == 0
    assert "warning: double.py: run(x, y, z) cannot be called as double calls it" in capsys.readouterr().err


def test_watching_judges_again_when_the_file_is_saved(root, tmp_path, capsys):
    file = tmp_path / "fast.py"
    file.write_text(DOUBLE)
    sources = []

    def verdict_of(job):
        sources.append(job.solution.sources[0].content)
        if len(sources) == 2:
            file.write_text("def run(x:\n")
        if len(sources) == 4:
            return KeyboardInterrupt()
        return {}

    def save_again(message):
        if message.startswith("error"):
            file.write_text(DOUBLE + "# 3\n")

    from flashinfer_bench.cli.edit import watch as command

    told = command.write_problems
    command.write_problems = lambda text: (told(text), save_again("error"))
    try:
        code, _ = run("set", "--solution", "fast.py", "--watch", "--no-save-results", verdict_of=verdict_of)
    finally:
        command.write_problems = told
    assert code == 130
    assert sources == [DOUBLE, DOUBLE, DOUBLE + "# 3\n", DOUBLE + "# 3\n"]
    assert "not Python" in capsys.readouterr().err


def test_a_change_counts_once_it_has_settled(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("1")
    before, looks = take_stamp([tmp_path]), []

    def sleep(_):
        looks.append(1)
        if len(looks) in (2, 3):
            file.write_text("1" * (len(looks) + 1))

    after = wait_for_change([tmp_path], before, sleep)
    assert len(looks) == 4
    assert after[str(file)][1] == 4


def test_what_beside_the_draft_decides_is_watched_too(tmp_path):
    file, other = tmp_path / "a.py", tmp_path / "tolerances.yaml"
    file.write_text("1")
    before, looks = take_stamp([file, other]), []

    def sleep(_):
        looks.append(1)
        if len(looks) == 1:
            file.unlink()  # some editors do, before they write
            other.write_text("{}")
        if len(looks) == 4:
            file.write_text("1")

    wait_for_change([file], before, sleep, beside=[other])
    assert len(looks) == 5


@pytest.mark.parametrize(
    ("flags", "jobs"),
    [
        (["--definitions", "dou*"], 4),
        (["--definition", "double"], 4),
        (["--solutions", "o*"], 2),
        (["--workload", "w[1]"], 2),
        (["--author", "al?ce"], 4),
    ],
)
def test_names_may_have_wildcards_and_flags_no_s(root, flags, jobs, capsys):
    assert run("set", *flags)[0] == 0
    assert re.search(rf"{jobs} jobs in \d+:\d\d", capsys.readouterr().out)


def test_a_wildcard_without_a_name_is_misuse(root, capsys):
    assert run("set", "--definitions", "tri*", "--authors", "z*")[0] == 2
    err = capsys.readouterr().err
    assert "--definitions: the trace set has nothing like 'tri*'" in err
    assert "--authors: the trace set has nothing like 'z*'" in err


def test_sets_may_stand_without_their_flag():
    assert parse_command_line(["list", "a", "b"]).local == ["a", "b"]
    assert parse_command_line(["run", "a", "--quiet", "--local", "b"]).local == ["b", "a"]
    assert parse_command_line(["validate", "a"]).local == ["a"]


@pytest.mark.cpu
def test_new_writes_a_definition_and_a_solution_that_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "definition", "my_scale", "--local", "fresh"]) == 0
    assert main(["new", "solution", "fresh", "--definition", "my_scale", "--format", "json"]) == 0
    written = json.loads(capsys.readouterr().out.split("\n", 3)[3])
    assert Path(written["files"][0]).exists()
    assert main(["validate", "fresh"]) == 0
    code, engines = run("fresh", "--solution", *written["files"], "--no-save-results")
    assert code == 0
    assert len(engines[0].plan().jobs) == 2
    assert main(["new", "definition", "my_scale", "--local", "fresh"]) == 2
    assert "nothing was written" in capsys.readouterr().err
    assert main(["new", "definition", "my_scale", "--local", "fresh", "--op-type", "other"]) == 2
    assert "has a definition 'my_scale' already" in capsys.readouterr().err
    assert main(["new", "definition", "my other", "--local", "fresh"]) == 0
    assert "next: flashinfer-bench new solution fresh --definition 'my other'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["solution", "set", "--definition", "dubble"], "did you mean 'double'"),
        (["solution", "set", "--definition", "double", "-o", "x.cu"], "a python source ends with .py"),
    ],
)
def test_new_refuses_what_cannot_be(root, argv, reason, capsys):
    assert main(["new", *argv]) == 2
    assert reason in capsys.readouterr().err


def test_a_skeleton_in_each_language_has_a_name_of_its_own(root, tmp_path):
    for language in ("python", "cpp", "triton"):
        assert main(["new", "solution", "set", "--definition", "double", "--language", language]) == 0
    written = sorted(file.name for file in tmp_path.glob("my_*"))
    assert written == ["my_double.py", "my_double_cpp.cpp", "my_double_triton.py"]
