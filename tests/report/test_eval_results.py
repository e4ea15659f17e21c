"""Verdicts on KernelBench's tasks as its file of results."""

import json

from flashinfer_bench.cli.main import cli as main
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.report.made import on

SOFTMAX, CONV, OTHER = "kernelbench_l1_023_softmax", "kernelbench_l2_001_conv", "double"
SAMPLES = {"run_level_1_problem_23_sample_2_kernel": "PASSED", "b": "COMPILE_ERROR", "c": "INCORRECT_NUMERICAL"}
KEYS = {"sample_id", "compiled", "correctness", "metadata", "runtime", "runtime_stats"}


def write_set(root):
    """Write three samples of a task, one of another level, and a verdict on another definition."""
    jobs = [
        *((SOFTMAX, name, status) for name, status in SAMPLES.items()),
        (CONV, "d", "PASSED"),
        (OTHER, "e", "PASSED"),
    ]
    return write_trace_set(
        root,
        definitions=[make_definition(name, op_type=name[:14]) for name in (SOFTMAX, CONV, OTHER)],
        solutions=[make_solution(solution, definition=name) for name, solution, _ in jobs],
        workloads=[make_trace(definition=name, solution=None, workload=make_workload("w")) for name in (SOFTMAX, CONV)],
        traces=[
            make_trace(definition=name, solution=solution, workload=make_workload("w"), status=status, log="why")
            for name, solution, status in jobs
        ],
    )


def test_a_solution_is_one_sample_of_its_newest_hardware(tmp_path, capsys):
    digits = "kernelbench_l1_024_resample"
    verdicts = {"both": [("w", "old", 1, "PASSED"), ("w", "new", 2, "PASSED"), ("v", "new", 2, "TIMEOUT")]}
    verdicts |= {"resample_3d": [("w", "new", 3, "PASSED"), ("w", "old", 4, "INCORRECT_NUMERICAL")]}
    traces = [
        on(uuid, name, status=status, hardware=hardware, timestamp=f"2026-01-0{day}T00:00:00").model_copy(
            update={"definition": digits}
        )
        for name, jobs in verdicts.items()
        for uuid, hardware, day, status in jobs
    ]
    lines = [make_trace(definition=digits, solution=None, workload=make_workload(name)) for name in ("w", "v")]
    solutions = [make_solution(name, definition=digits) for name in verdicts]
    root = write_trace_set(
        tmp_path, definitions=[make_definition(digits)], solutions=solutions, workloads=lines, traces=traces
    )
    assert main(["report", "export", "-", "--format", "kernelbench", "--local", str(root)]) == 0
    out, err = capsys.readouterr()
    [samples] = json.loads(out).values()
    found = [(one["sample_id"], one["metadata"]["solution"], one["metadata"]["hardware"]) for one in samples]
    assert found == [(0, "both", "new"), (1, "resample_3d", "old")]
    assert not any(one["correctness"] for one in samples)
    assert "3 the same solution on other hardware or another workload" in err


def test_without_a_verdict_on_a_task_no_file_is_written(tmp_path, capsys):
    root, target = write_set(tmp_path / "set"), tmp_path / "out.json"
    words = ["report", "export", str(target), "--format", "kernelbench", "--local", str(root), "--definitions", OTHER]
    assert (main(words), target.exists()) == (1, False)
    assert "not written, since no verdict is on a KernelBench task; 1 left out" in capsys.readouterr().err


def test_samples_have_the_fields_that_kernelbench_reads(tmp_path, capsys):
    root, target = write_set(tmp_path / "set"), tmp_path / "eval_results.json"
    words = ["report", "export", str(target), "--format", "kernelbench", "--local", str(root)]
    assert main(words) == 2
    assert "choose: --op-types kernelbench_l1 or kernelbench_l2" in capsys.readouterr().err
    assert main([*words, "--definitions", SOFTMAX, OTHER]) == 0
    assert "3 rows; 1 left out: 1 no task of KernelBench" in capsys.readouterr().err
    document = json.loads(target.read_text())
    assert list(document) == ["23"]
    samples = {one["sample_id"]: one for one in document["23"]}
    assert all(one.keys() == KEYS for one in samples.values())
    found = {number: (one["compiled"], one["correctness"], one["runtime"] > 0) for number, one in samples.items()}
    assert found == {2: (True, True, True), 0: (False, False, False), 1: (True, False, False)}
    assert (samples[0]["metadata"]["compilation_error"], samples[0]["runtime"]) == ("why", -1.0)
    assert samples[1]["metadata"]["correctness_issue"] == "why"
