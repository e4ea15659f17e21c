"""The run command against an engine that plays prepared verdicts: output, exit codes, resume, replay."""

import json
import re

import pytest

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.cli.run_jobs import resume_command
from flashinfer_bench.errors import DeviceFault
from tests.cli.fake_engine import finished, make_jobs, play_run, write_small_set
from tests.kit import make_trace, make_workload

FAILED = {"status": "RUNTIME_ERROR", "log": "boom"}
LONG = FAILED | {"log": f"{'x' * 200}, at a.py:3, in helper"}
LATE = {"status": "TIMEOUT", "log": "late"}
NAN = {"status": "INCORRECT_NUMERICAL", "max_absolute_error": float("nan"), "max_relative_error": float("inf")}
CACHED, MEASURED = ({"extra": {"baseline": baseline}} for baseline in ({"source": "cached"}, {"method": "cupti"}))
LEFT = "double_python ran out of time on workload w0"
LOST = "the blob is missing\nrun git lfs pull"
NO_NVCC = "skipped double / in_cuda: language cuda is not available here: there is no nvcc\n"


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Run the command on the small set; returns exit code, stdout, stderr and the engine.

    `verdicts`: by the index of a job, as FakeEngine takes them; LEFT is a job that is not judged.
    """
    root = write_small_set(tmp_path / "set")
    monkeypatch.setattr("sys.argv", ["flashinfer-bench"])

    def start(flags="", verdicts=None, local=root):
        def play(job):
            found = (verdicts or {}).get(job.index, {})
            return JobFaulted(job, found, is_left_out=True) if found == LEFT else found

        code, engine = play_run(["--local", str(local), *flags.split()], play)
        out, err = capfd.readouterr()
        return code, re.sub(r" in \d+:\d\d", " in TIME", out), err, engine

    return start


PASSED = "double      other             2/2  1.00 ms†     2.00x\n"
BOTH = {0: LATE, 1: LEFT}


@pytest.mark.parametrize(
    ("flags", "verdicts", "code", "printed", "said"),
    [
        ("", {}, 0, PASSED, "[4/4] double / other / w1 on cpu: PASSED"),
        ("", {}, 0, "4 jobs in TIME: 4 PASSED", "4 jobs (1 definition, 2 solutions) on cpu (test device); 1 skipped\n"),
        ("", {}, 0, NO_NVCC, ""),
        ("", {2: FAILED, 3: FAILED}, 0, "    RUNTIME_ERROR on all 2 workloads: boom\n", ""),
        ("--require-passed", {3: FAILED}, 1, "", ""),
        ("--solutions in_cuda --require-passed", {}, 1, "", ""),
        ("", BOTH, 1, f"Not judged\n  double / double_python / w1\n    {LEFT}\n", "after a fix, resume with: "),
        ("", BOTH, 1, "double      double_python     0/2           1 ", "[2/4, 1 not passed, 1 not judged] double / "),
        ("", {0: LOST}, 1, "  double / double_python / w0\n    the blob is missing\n    run git lfs pull\n", ""),
        ("", {2: DeviceFault("all are lost")}, 1, "2 PASSED, 2 without a verdict", "error: all are lost"),
        ("--seed 1", {1: KeyboardInterrupt()}, 130, "1 PASSED, 3 not finished", "/set --seed 1 --resume\n"),
        (
            "-x",
            {1: FAILED},
            1,
            "4 jobs in TIME: 1 PASSED, 1 RUNTIME_ERROR, 2 not judged\n",
            "double.jsonl:2 --local ",
        ),
        (
            "--no-save-results --rtol 0.1 --no-norm-rule --evaluator-modules a,b.c --devices cpu --workloads w0",
            {0: FAILED},
            0,
            "",
            "/set --rtol 0.1 --no-norm-rule --evaluator-modules a b.c --dump why\n",
        ),
        ("-x", {3: FAILED}, 1, "3 PASSED, 1 RUNTIME_ERROR\n", ""),
        ("", {1: LONG}, 0, "", f": {LONG['log']}\n"),
        ("--no-save-results", {0: "lost"}, 1, "", "nothing was saved (--no-save-results)\n"),
        ("", {0: "lost"}, 1, "", "after a fix, resume with: "),
        (
            "--retry-timeouts",
            {},
            2,
            "",
            "error: --retry-timeouts changes what --resume leaves out: give --resume too\n",
        ),
        ("--replay x --resume", {}, 2, "", "give one of them"),
        ("", {0: CACHED, 1: MEASURED}, 0, "baseline: cached for 1 of 2 speed-ups, by an earlier run on this GPU", ""),
        ("--quiet", {}, 0, PASSED, "traces: "),
        ("--dry-run --iterations 7", {}, 0, "double      test     other          alice           2\n", ""),
    ],
)
def test_what_a_run_prints_and_how_it_ends(run, flags, verdicts, code, printed, said):
    found, out, err, engine = run(flags, verdicts)
    assert (found, printed in out, said in err) == (code, True, True), out + err
    if code == 2:
        assert out == ""
    elif "--dry-run" in flags:
        assert (engine.saved, err) == (None, "")
    else:
        assert (engine.is_ended, engine.is_closed, engine.saved) == (True, True, "--no-save" not in flags)
    assert flags != "--quiet" or err.count("\n") == 1


def test_an_interrupt_between_two_events_closes_the_generator(run, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("flashinfer_bench.cli.run_jobs.RunProgress.show", interrupt)
    code, _, _, engine = run()
    assert (code, engine.is_ended) == (130, True)


def test_json_is_one_document(run):
    code, out, _, _ = run("--format json", {0: CACHED, 1: NAN, 2: "lost", 3: MEASURED})
    document = json.loads(out)
    assert (code, document["counts"]) == (1, {"PASSED": 2, "INCORRECT_NUMERICAL": 1})
    assert [job["baseline"] for job in document["jobs"]] == ["cached", None, "measured"]
    assert document["jobs"][1]["correctness"]["max_absolute_error"] == "NaN"
    assert [fault["message"] for fault in document["faults"]] == ["lost"]


AGAIN = "resume: 4 recorded jobs done again (config changed: 4)"
ONCE_MORE = "resume: 1 recorded job done again (timed out: 1)"


@pytest.mark.parametrize(
    ("flags", "code", "said", "printed"),
    [
        ("", 0, "resume: 4 recorded jobs skipped, unchanged", "0 jobs in TIME, 4 recorded before: 3 PASSED, 1 T"),
        ("--rtol 0.5", 0, AGAIN, "4 jobs in TIME: 4 PASSED"),
        ("--retry-timeouts", 0, ONCE_MORE, "1 job in TIME, 3 recorded before: 4 P"),
        ("--require-passed", 1, "", ""),
    ],
)
def test_resume_says_what_it_leaves_out_and_what_it_does_again(run, tmp_path, flags, code, said, printed):
    """One of the recorded verdicts is a TIMEOUT."""
    jobs = make_jobs(tmp_path / "first")
    traces = [finished(job, **(LATE if job.index == 0 else {})).trace for job in jobs]
    found, out, err, _ = run(f"--resume {flags}", local=write_small_set(tmp_path / "recorded", traces=traces))
    assert (found, said in err, printed in out) == (code, True, True), out + err


@pytest.mark.parametrize(
    ("flags", "is_passed", "code", "said"),
    [
        ("--require-passed", True, 0, "no job to run: no chosen solution failed last (--last-failed)\n"),
        ("", False, 0, "[1/1] double / other / w1 on cpu: PASSED"),
        ("--solution double_python", False, 0, "no job to run"),
        ("--resume", False, 2, "--last-failed judges what is recorded"),
    ],
)
def test_only_jobs_whose_latest_verdict_is_no_pass_run_again(run, tmp_path, flags, is_passed, code, said):
    last = {} if is_passed else FAILED
    days = [({}, "2026-01-01"), (FAILED, "2026-01-02"), (last, "2026-01-03")]
    jobs = [job for job in make_jobs(tmp_path / "first") if (job.solution.name, job.workload.uuid) == ("other", "w1")]
    traces = [finished(job, timestamp=day, **verdict).trace for job in jobs for verdict, day in days]
    found, _, err, _ = run(f"--last-failed {flags}", local=write_small_set(tmp_path / "recorded", traces=traces))
    assert (found, said in err) == (code, True), err


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ("--replay traces:3", 0, "[2/2]"),
        ("--replay traces:3:3", 0, "[1/1] double / other / w1"),
        ("--replay traces:3:4", 2, "has 3 lines; there is no line 4"),
        ("--replay traces:3:0", 2, "there is no line 0"),
        ("--replay traces:3:2", 2, "holds no verdict that could be judged again"),
        ("--replay own", 2, "other on w1 was judged by Mine of my.sort: give --evaluator-modules my.sort\n"),
    ],
)
def test_recorded_jobs_are_replayed_and_no_others_and_nothing_is_saved(run, tmp_path, monkeypatch, flags, code, said):
    """A file may have a colon in its name, and a workload's line between its verdicts."""
    traces = [make_trace(), make_trace(solution=None), make_trace(solution="other", workload=make_workload("w1"))]
    (tmp_path / "traces:3").write_text("".join(trace.to_json() + "\n" for trace in traces))
    extra = {"run": {"fingerprint": {"evaluator": "my.sort:Mine 6 ab12"}}}
    own = make_trace(solution="other", workload=make_workload("w1"), extra=extra)
    (tmp_path / "own").write_text(own.to_json() + "\n")
    monkeypatch.chdir(tmp_path)
    found, _, err, engine = run(flags)
    assert (found, said in err, "--no-save-results" in err) == (code, True, False), err
    assert code == 2 or (len(engine.replayed), engine.saved) == (int(said[1]), False)


def test_the_resume_command_is_what_was_typed_without_quick(monkeypatch):
    monkeypatch.setattr("flashinfer_bench.cli.run_jobs.typed_program", lambda: ["x"])
    assert resume_command(["run", "my set", "--quick", "--seed", "1"]) == "x run 'my set' --seed 1 --resume"
