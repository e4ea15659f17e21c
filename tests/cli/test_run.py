"""The run command against an engine that plays prepared verdicts."""

import json
import os
import re
import signal

import pytest

from flashinfer_bench.bench.events import JobFaulted
from flashinfer_bench.cli.entry import call, parse_command_line
from flashinfer_bench.cli.parser import typed_program
from flashinfer_bench.cli.run import resume_command
from flashinfer_bench.errors import DeviceFault
from tests.cli.fake_engine import FakeEngine, finished, make_jobs, run_with, write_small_set
from tests.kit import make_trace, make_workload

FAILED = {"status": "RUNTIME_ERROR", "log": "boom"}


@pytest.fixture
def run(tmp_path, capfd, monkeypatch):
    """Run the command on the small set; returns exit code, stdout, stderr and the engine."""
    root = write_small_set(tmp_path / "set")
    monkeypatch.setattr("sys.argv", ["flashinfer-bench"])

    def start(*flags, verdict_of=lambda job: {}, local=root):
        engines = []

        def make_engine(trace_set, config, **_):
            engines.append(FakeEngine(trace_set, config, verdict_of))
            return engines[-1]

        args = parse_command_line(["run", "--local", str(local), *flags])
        code = call(lambda: run_with(make_engine, args))
        out, err = capfd.readouterr()
        return code, out, err, engines[-1] if engines else None

    return start


def test_a_run_prints_the_table_to_stdout_and_progress_to_stderr(run):
    code, out, err, engine = run()
    assert code == 0
    assert "double      other             2/2  1.00 ms†     2.00x" in out.splitlines()
    assert re.search(r"4 jobs in \d+:\d\d: 4 PASSED", out)
    assert "[4/4] double / other / w1 on cpu: PASSED" in err
    assert engine.is_ended
    assert engine.is_closed


def test_what_is_skipped_is_told_with_its_reason(run):
    _, out, err, _ = run()
    line = "skipped double / in_cuda: language cuda is not available here: there is no nvcc"
    assert line in out.splitlines()
    assert line in err.splitlines()


def test_a_failing_solution_is_no_failed_run(run):
    code, out, _, _ = run(verdict_of=lambda job: FAILED if job.solution.name == "other" else {})
    assert code == 0
    assert "    RUNTIME_ERROR on all 2 workloads: boom" in out.splitlines()


def test_require_passed_makes_it_one(run):
    assert run("--require-passed", verdict_of=lambda job: FAILED if job.index == 3 else {})[0] == 1
    assert run("--require-passed")[0] == 0


def test_require_passed_is_not_met_by_a_run_that_judged_nothing(run):
    assert run("--solutions", "in_cuda")[0] == 0
    assert run("--solutions", "in_cuda", "--require-passed")[0] == 1


def test_a_job_that_was_left_out_is_told_apart_from_one_that_could_not_be_judged(run):
    message = "left out: a call of double_python ran out of time on workload w0"
    played = {0: {"status": "TIMEOUT", "log": "late"}, 1: message}

    def verdict_of(job):
        found = played.get(job.index, {})
        return JobFaulted(job, found, is_left_out=True) if isinstance(found, str) else found

    code, out, err, _ = run(verdict_of=verdict_of)
    assert code == 1
    assert f"Left out (--resume judges them)\n  double / double_python / w1\n    {message}\n" in out
    assert re.search(r"4 jobs in \d+:\d\d: 2 PASSED, 1 TIMEOUT, 1 left out", out)
    assert f"double / double_python / w1: {message}" in err
    document = json.loads(run("--format", "json", verdict_of=verdict_of)[1])
    names = {"definition": "double", "solution": "double_python", "workload": "w1"}
    assert (document["faults"], document["left_out"]) == ([], [{**names, "message": message}])


def test_a_job_without_a_verdict_fails_the_run_and_says_how_to_go_on(run):
    code, out, err, _ = run(verdict_of=lambda job: "the blob is missing\nrun git lfs pull" if job.index == 0 else {})
    assert code == 1
    assert "  double / double_python / w0\n    the blob is missing\n    run git lfs pull\n" in out
    assert "3 PASSED, 1 without a verdict" in out
    assert "to go on: flashinfer-bench run --local " in err


def test_a_lost_engine_keeps_what_was_judged(run):
    code, out, err, _ = run(verdict_of=lambda job: DeviceFault("all devices are lost") if job.index == 2 else {})
    assert code == 1
    assert "error: all devices are lost" in err
    assert "2 PASSED, 2 without a verdict" in out


def test_an_interrupt_ends_the_engine_and_prints_the_way_to_resume(run, tmp_path):
    code, out, err, engine = run("--seed", "1", verdict_of=lambda job: KeyboardInterrupt() if job.index == 1 else {})
    assert code == 130
    assert "1 PASSED, 3 not finished" in out
    assert "interrupted: 3 of 4 jobs left" in err
    assert f"to go on: flashinfer-bench run --local {tmp_path}/set --seed 1 --resume" in err
    assert engine.is_ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_interrupt_and_a_second_one_changes_nothing(run, number):
    def send_twice(job):
        if job.index == 1:
            try:
                os.kill(os.getpid(), number)
            finally:
                os.kill(os.getpid(), number)
        return {}

    before = signal.getsignal(number)
    code, _, err, engine = run(verdict_of=send_twice)
    assert code == 130
    assert "stopping: waiting for the processes" in err
    assert engine.is_ended
    assert signal.getsignal(number) is before


def test_an_interrupt_between_two_events_closes_the_generator(run, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("flashinfer_bench.cli.progress.RunProgress.show", interrupt)
    code, _, _, engine = run()
    assert code == 130
    assert engine.is_ended


def test_without_saving_nothing_is_promised(run):
    _, _, err, engine = run("--no-save-results", verdict_of=lambda job: "lost")
    assert engine.saved is False
    assert "nothing was saved" in err
    assert "--resume" not in err


def test_quiet_prints_nothing_but_the_result(run):
    _, out, err, _ = run("--quiet")
    assert err.startswith("traces: ")
    assert "2/2" in out


def test_json_is_one_document(run):
    verdicts = [{}, FAILED, "lost", {"extra": {"measurement": {"meaningful": False}}}]
    code, out, _, _ = run("--format", "json", verdict_of=lambda job: verdicts[job.index])
    document = json.loads(out)
    assert code == 1
    assert document["counts"] == {"PASSED": 2, "RUNTIME_ERROR": 1}
    assert document["plan"] == {"jobs": 4, "skipped": 1, "resumed": 0, "redone": 0, "redone_reasons": {}}
    assert [job["status"] for job in document["jobs"]] == ["PASSED", "RUNTIME_ERROR", "PASSED"]
    assert [job["reason"] for job in document["jobs"]] == [None, "boom", None]
    assert document["jobs"][2]["timing_caveat"] == "this time says nothing about the kernel"
    assert document["faults"] == [
        {"definition": "double", "solution": "other", "workload": "w0", "message": "lost"},
    ]
    assert document["trace_files"][0].endswith("traces/alice/test/double.jsonl")


def test_speed_ups_on_times_of_an_earlier_run_are_told(run):
    records = [{"baseline": {"source": "cached"}}, {"baseline": {"method": "cupti"}}, {}, {}]
    verdict_of = lambda job: {"extra": records[job.index]}  # noqa: E731
    _, out, _, _ = run("--format", "json", verdict_of=verdict_of)
    assert [job["baseline"] for job in json.loads(out)["jobs"]] == ["cached", "measured", None, None]
    _, out, _, _ = run(verdict_of=verdict_of)
    assert "baseline: cached for 1 of 2 speed-ups, by an earlier run on this GPU; --fresh-baselines" in out
    assert "cached" not in run()[1]


def test_json_has_no_bare_nan(run):
    wrong = {"status": "INCORRECT_NUMERICAL", "max_absolute_error": float("nan"), "max_relative_error": float("inf")}
    _, out, _, _ = run("--format", "json", verdict_of=lambda job: wrong)
    errors = json.loads(out)["jobs"][0]["correctness"]
    assert (errors["max_absolute_error"], errors["max_relative_error"]) == ("NaN", "Infinity")


def test_a_dry_run_prints_the_plan_and_runs_nothing(run):
    code, out, err, engine = run("--dry-run", "--iterations", "7")
    assert (code, err) == (0, "")
    assert engine.saved is None
    assert "double      test     other          alice           2" in out.splitlines()
    assert "there is no nvcc" in out
    assert "iterations=7" in out
    assert "4 jobs (1 definition, 2 solutions) on cpu (test device); 1 skipped" in out.splitlines()


def test_a_dry_run_in_json_has_jobs_skips_and_settings(run):
    document = json.loads(run("--dry-run", "--format", "json", "--rtol", "0.5")[1])
    assert document["counts"]["jobs"] == 4
    assert document["skipped"][0]["solution"] == "in_cuda"
    assert document["settings"]["definitions"]["double"]["rtol"] == 0.5


@pytest.fixture
def recorded(tmp_path):
    """A set with the verdicts of all jobs, one of them a TIMEOUT, under the bundled configuration."""
    jobs = make_jobs(tmp_path / "first")
    traces = [finished(job, **({"status": "TIMEOUT"} if job.index == 0 else {})).trace for job in jobs]
    return write_small_set(tmp_path / "recorded", traces=traces)


def test_resume_says_what_it_leaves_out_and_shows_it_in_the_table(run, recorded):
    code, out, err, _ = run("--resume", local=recorded)
    assert code == 0
    assert "resume: 4 recorded jobs left out, unchanged since" in err
    assert re.search(r"0 jobs and 4 recorded before in \d+:\d\d: 3 PASSED, 1 TIMEOUT", out)


def test_resume_says_what_it_does_again_and_why(run, recorded):
    _, out, err, _ = run("--resume", "--rtol", "0.5", local=recorded)
    assert "resume: 4 recorded jobs done again (config changed: 4)" in err
    assert re.search(r"4 jobs in \d+:\d\d: 4 PASSED", out)


def test_resume_retries_timeouts_when_asked(run, recorded):
    _, out, err, _ = run("--resume", "--retry-timeouts", local=recorded)
    assert "resume: 1 recorded job done again (timed out: 1)" in err
    assert re.search(r"1 job and 3 recorded before in \d+:\d\d: 4 PASSED", out)


def test_recorded_failures_count_for_require_passed(run, recorded):
    assert run("--resume", "--require-passed", local=recorded)[0] == 1


def test_retrying_timeouts_needs_resume(run):
    code, _, err, _ = run("--retry-timeouts")
    assert (code, err) == (2, "error: --retry-timeouts changes what --resume leaves out: give --resume too\n")


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (("--iterations", "0"), ["error: --iterations: Input should be greater than or equal to 1"]),
        (("--timeout", "-1"), ["error: --timeout: Input should be greater than 0"]),
        (
            ("--definitions", "duoble", "--solutions", "othr"),
            [
                "error: --definitions: the trace set has no definition 'duoble'; did you mean 'double'?",
                "error: --solutions: the trace set has no solution 'othr'; did you mean 'other'?",
            ],
        ),
    ],
)
def test_wrong_values_and_names_are_told_before_anything_runs(run, flags, lines):
    code, out, err, _ = run(*flags)
    assert (code, out, err.splitlines()) == (2, "", lines)


def test_a_replayed_run_gives_the_engine_its_traces_and_saves_nothing(run, tmp_path):
    traces = [make_trace(), make_trace(solution="other", workload=make_workload("w1"))]
    (file := tmp_path / "traces.jsonl").write_text("".join(trace.to_json() + "\n" for trace in traces))
    code, _, err, engine = run("--replay", str(file))
    assert (code, len(engine.replayed), engine.saved, "[2/2]" in err) == (0, 2, False, True)
    code, _, err, engine = run("--replay", str(file), "--resume")
    assert (code, engine) == (2, None)
    assert "--replay judges what is recorded, which --resume leaves out: give one of them" in err
    file.write_text(file.read_text().replace("double_python", "gone"))
    code, _, err, _ = run("--replay", str(file))
    assert (code, "gone" in err) == (2, True)


def test_a_wrong_key_of_the_file_is_told_with_its_line(run, tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("iterations: 5\nop_type_config:\n  test:\n    rtoll: 1\n")
    code, _, err, _ = run("--config", str(file))
    assert code == 2
    assert err.startswith(f"error: {file}: op_type_config.test.rtoll (line 4): unknown key; did you mean")


def test_a_wrong_name_in_the_file_is_told_with_the_file(run, tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("definitions: [duoble]\n")
    code, _, err, _ = run("--config", str(file))
    assert (code, err) == (
        2,
        f"error: {file}: definitions: the trace set has no definition 'duoble'; did you mean 'double'?\n",
    )


def test_the_resume_command_is_what_was_typed():
    argv = ["run", "--local", "my set", "--seed", "1"]
    assert resume_command(["x"], argv) == "x run --local 'my set' --seed 1 --resume"
    assert resume_command(["x"], ["run", "--resume"]) == "x run --resume"
    assert resume_command(["x"], ["run", "set", "--quick"]) == "x run set --resume"


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("/bin/flashinfer-bench", ["flashinfer-bench"]),
        (".venv/bin/flashinfer-bench", [".venv/bin/flashinfer-bench"]),
        ("/site-packages/flashinfer_bench/__main__.py", ["py", "-m", "flashinfer_bench"]),
    ],
)
def test_the_program_is_named_as_it_was_started(script, program, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: "/bin/flashinfer-bench")
    assert typed_program(script, "py") == program
