"""From an edited file to its verdict: `run --solution FILE`, `--watch`, `new`."""

import re
from pathlib import Path

import pytest

from flashinfer_bench.cli import run_jobs
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.data import TraceSet
from tests.cli.fake_engine import play_run, write_small_set
from tests.kit import DOUBLE


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Work in a folder with a set and a draft, `fast.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["flashinfer-bench"])
    (tmp_path / "fast.py").write_text(DOUBLE)
    return write_small_set(tmp_path / "set")


@pytest.fixture
def run(root, capsys):
    """Run the command; returns its exit code, how many jobs it had, and what it said."""

    def start(line, verdict_of=lambda job: {}):
        code, _ = play_run(["set", *line.split()], verdict_of)
        out, err = capsys.readouterr()
        jobs = re.search(r"^(\d+) jobs in \d+:\d\d: ", out, re.M)
        return code, jobs and int(jobs[1]), out + err

    return start


def test_a_draft_is_kept_as_it_is_now_and_judged_only_where_it_is_named(run, root, tmp_path):
    code, jobs, said = run("--solution fast.py")
    assert (code, jobs) == (0, 2)
    assert "fast.py: python, fast.py::run, of double (by its parameters)" in said
    kept = r"^draft: set/solutions/me/\S+/fast\.json \(solution fast of author me; `.*forget fast --local set` removes"
    assert re.search(kept, said, re.M)
    (tmp_path / "fast.py").write_text(DOUBLE + "# again\n")
    for line in ("--solution fast.py", "--solution fast", "--author me"):
        assert run(line)[:2] == (0, 2)
    kept = TraceSet.from_path(root).get_solution("fast")
    assert (kept.author, kept.sources[0].content) == ("me", DOUBLE + "# again\n")
    code, jobs, said = run("")
    assert (code, jobs, "skipped double / fast: " in said) == (0, 4, True)
    assert run("--drafts")[:2] == (0, 6)


def test_nothing_is_written_where_that_is_asked_for(run, root):
    for flag in ("--no-save-results", "--dry-run"):
        assert run(f"--solution fast.py {flag}")[0] == 0
    assert TraceSet.from_path(root).get_solution("fast") is None


def test_a_name_that_looks_like_a_path_is_the_sets_where_no_file_has_it(run, root):
    named = TraceSet.from_path(root).get_solution("other").model_copy(update={"name": "team/fast.py"})
    (root / "solutions/named.json").write_text(named.model_dump_json())
    assert run("--solution team/fast.py")[:2] == (0, 2)
    assert run("--solution team/slow.py")[0] == 2


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [
        ("--entry run", 2, "--entry: say it of one source file"),
        ("--watch", 2, "after each save"),
        ("--solution my_doubl.cpp", 2, "there is no such file; did you mean 'my_double_cpp.cpp'?"),
        ("--solution notes.txt", 2, "notes.txt: no source file"),
        ("--solution other.py", 2, "the set has another solution 'other' (author alice, of double, in main.py)"),
        ("--solution other.py --author alice", 2, "rename the file, or `forget` that solution"),
        ("--solution fast.py fast.cpp", 2, "fast.cpp: another of the named sources is 'fast', too"),
        (
            "--solution wide.py --definition double",
            0,
            "warning: wide.py: run(x, y, z) cannot be called as double calls it",
        ),
    ],
)
def test_what_is_wrong_with_a_draft_or_its_flags_is_told(run, tmp_path, line, code, reason):
    (tmp_path / "other.py").write_text(DOUBLE)
    (tmp_path / "wide.py").write_text("def run(x, y, z): pass\n")
    for name in ("my_double_cpp.cpp", "fast.cpp", "notes.txt"):
        (tmp_path / name).touch()
    found, _, said = run(line)
    assert (found, reason in said) == (code, True), said


def test_a_source_replaces_only_its_own_draft_and_the_files_of_a_folder_may_be_renamed(run, tmp_path):
    (tmp_path / "fast.cpp").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.py").write_text(DOUBLE)
    assert [run(f"--solution {name}")[0] for name in ("fast.py", "folder", "folder fast.py")] == [0, 0, 0]
    assert "the set has another solution 'fast' (author me, of double, in fast.py)" in run("--solution fast.cpp")[2]
    (tmp_path / "folder/a.py").rename(tmp_path / "folder/b.py")
    assert run("--solution folder")[0] == 0


def test_watching_judges_again_when_the_file_is_saved(run, tmp_path, monkeypatch):
    file, sources, reported = tmp_path / "fast.py", [], []

    def verdict_of(job):
        sources.append(job.solution.sources[0].content)
        if len(sources) == 2:
            file.write_text("def run(x:\n")
        return KeyboardInterrupt() if len(sources) == 4 else {}

    def tell(text):
        reported.append(text)
        file.write_text(DOUBLE + "# 3\n")

    monkeypatch.setattr(run_jobs, "write_problems", tell)
    code, _, said = run("--solution fast.py --watch", verdict_of)
    assert (code, "resume with" in said) == (130, False)
    assert sources == [DOUBLE, DOUBLE, DOUBLE + "# 3\n", DOUBLE + "# 3\n"]
    assert "not Python" in reported[0]


@pytest.mark.parametrize(
    ("is_quick", "method", "edit", "said"),
    [
        (False, "", "# {}\n", ("", "0.50x", "faster")),
        (True, "", "# {}\n", ("", "0.50x", "faster")),
        (False, "wall", "# {}\n", ("CPU: indicative: ", "0.50x", "faster")),
        (False, "", "", ("", "0.50x", "unchanged sources")),
    ],
)
def test_watching_tells_the_change_since_the_latest_save_that_passed(run, tmp_path, is_quick, method, edit, said):
    jobs = []
    saves = [{"latency_ms": 1.0}, {"status": "RUNTIME_ERROR"}, {"latency_ms": 0.5}]  # each of two jobs

    def verdict_of(job):
        jobs.append(job)
        (tmp_path / "fast.py").write_text(DOUBLE + edit.format(len(jobs)) * (len(jobs) % 2 == 0))
        measurement = {"interval95_ms": [0.49, 0.51], "interval": "workers"} if len(jobs) > 4 else {}
        measurement |= {"method": method} if method else {}
        extra = {"measurement": measurement, "run": {"quick": is_quick}}
        return KeyboardInterrupt() if len(jobs) > 6 else saves[(len(jobs) - 1) // 2] | {"extra": extra}

    code, _, text = run("--solution fast.py --watch --no-save-results", verdict_of)
    assert code == 130
    assert re.findall(r"^(CPU.*: |)(\S+) the time of \d\d:\d\d:\d\d \(\S+ to \S+\): (.+)$", text, re.M) == [said]


def test_a_change_of_what_decides_counts_once_the_file_is_there_and_has_settled(tmp_path):
    file, other = tmp_path / "a.py", tmp_path / "tolerances.yaml"
    file.write_text("1")
    before, polls = (run_jobs.take_stamp([file]), run_jobs.take_stamp([other])), []

    def sleep(_):
        polls.append(1)
        if len(polls) == 1:
            file.unlink()  # some editors do, before they write
            other.write_text("{}")
        if len(polls) == 4:
            file.write_text("1")

    run_jobs.wait_for_change([file], [other], before, sleep)
    assert len(polls) == 5


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("definition double --local set --op-type other", 2, "has a definition 'double' already"),
        ("definition other --local fresh", 0, "next: flashinfer-bench new solution fresh --definition other"),
        ("definition other --local fresh --reference scaled.py", 0, "other --local fresh --axis n=64 --input by=1\n"),
        ("solution set --definition dubble", 2, "did you mean 'double'"),
        ("solution set --definition double -o x.cu", 2, "a python source ends with .py"),
        ("solution set --definition double -o fast.py", 2, "is there already; nothing was written"),
        ("solution set --definition double", 0, "my_double.py\n"),
        ("solution set --definition double --language cpp", 0, "my_double_cpp.cpp\n"),
        ("solution set --definition double --language triton", 0, "my_double_triton.py\n"),
    ],
)
def test_new_names_what_it_writes_and_what_comes_next_and_refuses_what_cannot_be(root, line, code, said, capsys):
    Path("scaled.py").write_text("def run(x: 'float32[n]', by: float) -> 'y: float32[n]':\n    return x * by\n")
    assert main(["new", *line.split()]) == code
    assert said in "".join(capsys.readouterr())
